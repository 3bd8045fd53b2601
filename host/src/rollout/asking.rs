//! Requests of replies while other sequences are decoded.
//!
//! What answers is divided into instances. Each has a thread, which stays, so an instance's calls come in the order in which turns
//! ended, and different instances answer side by side. Replies are read after a certain amount of decoding, not when they arrive:
//! however long they take, the same sequences are decoded together, so a run can be repeated.

use super::following::{Ended, Follow, Next};
use super::scheduler::Active;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope};

/// Decoding after which replies are read, in parameters times tokens: some 15 ms of one processor's time. An environment that
/// takes less costs nothing.
const WORK_AHEAD: u128 = 400_000_000;

/// Most requests under way, unless nothing else can be done.
const MOST_REQUESTS: usize = 3;

/// Sequences with their replies, in the order in which they were requested.
pub(super) type Replies = Vec<(Active, Next)>;

/// Sequences that one instance answers, and where their replies go.
struct Job {
    place: usize,
    sequences: Vec<Active>,
    replies: Sender<(usize, thread::Result<Replies>)>,
}

struct Request {
    replies: Receiver<(usize, thread::Result<Replies>)>,
    /// Sequences that wait.
    waiting: usize,
    /// All decoding before it.
    work: u128,
}

/// The requests of a thread that decodes.
pub(super) struct Requests<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    follow: &'scope dyn Follow,
    instances: BTreeMap<usize, Sender<Job>>,
    under_way: VecDeque<Request>,
}

impl<'scope, 'env> Requests<'scope, 'env> {
    pub(super) fn new(scope: &'scope Scope<'scope, 'env>, follow: &'scope dyn Follow) -> Self {
        Self { scope, follow, instances: BTreeMap::new(), under_way: VecDeque::new() }
    }

    /// Requests the replies of sequences that have ended a turn, after so much decoding.
    pub(super) fn request(&mut self, sequences: Vec<Active>, work: u128) {
        if sequences.is_empty() {
            return;
        }
        let (replies, waiting) = (channel(), sequences.len());
        let mut by_instance: BTreeMap<usize, Vec<Active>> = BTreeMap::new();
        for sequence in sequences {
            let instance = self.follow.instance(sequence.rollout.prompt, sequence.rollout.sample);
            by_instance.entry(instance).or_default().push(sequence);
        }
        for (place, (instance, sequences)) in by_instance.into_iter().enumerate() {
            let (scope, follow) = (self.scope, self.follow);
            let jobs = self.instances.entry(instance).or_insert_with(|| answering(scope, follow));
            // Its thread ends only when this is dropped.
            let _ = jobs.send(Job { place, sequences, replies: replies.0.clone() });
        }
        self.under_way.push_back(Request { replies: replies.1, waiting, work });
    }

    /// Returns whether the oldest replies are to be read, after so much decoding, with as many sequences in the batch.
    pub(super) fn is_due(&self, work: u128, active: usize) -> bool {
        let Some(oldest) = self.under_way.front() else { return false };
        let waiting: usize = self.under_way.iter().map(|request| request.waiting).sum();
        let count = self.under_way.len();
        active == 0 || work - oldest.work >= WORK_AHEAD || count > MOST_REQUESTS || (count > 1 && waiting > active)
    }

    /// Waits for the oldest replies.
    pub(super) fn read(&mut self) -> Replies {
        let Some(oldest) = self.under_way.pop_front() else { return Vec::new() };
        let mut all: Vec<(usize, thread::Result<Replies>)> = oldest.replies.iter().collect();
        all.sort_by_key(|(place, _)| *place);
        all.into_iter().flat_map(|(_, replies)| replies.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    }
}

/// Starts the thread of an instance.
fn answering<'scope>(scope: &'scope Scope<'scope, '_>, follow: &'scope dyn Follow) -> Sender<Job> {
    let (jobs, own) = channel::<Job>();
    scope.spawn(move || {
        for Job { place, sequences, replies } in own {
            let answered = catch_unwind(AssertUnwindSafe(|| replies_to(follow, sequences)));
            // Nobody reads them where another operation has failed.
            let _ = replies.send((place, answered));
        }
    });
    jobs
}

fn replies_to(follow: &dyn Follow, sequences: Vec<Active>) -> Replies {
    let ended = sequences.iter().map(|sequence| Ended {
        request: sequence.rollout.prompt,
        sample: sequence.rollout.sample,
        tokens: &sequence.rollout.tokens,
        turn: sequence.turn..sequence.rollout.tokens.len(),
        finished: sequence.ended,
    });
    let next = follow.follow(&ended.collect::<Vec<_>>());
    // One for each, or a sequence without an answer is over.
    sequences.into_iter().zip(next.into_iter().chain(std::iter::repeat(Next::Over(false)))).collect()
}
