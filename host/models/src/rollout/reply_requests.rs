//! Requests of replies while other sequences are decoded.
//!
//! What answers is divided into instances. Each has a thread, which stays, so an instance's calls come in the order in which turns
//! ended, and different instances answer side by side. Replies are read after a certain amount of decoding, not when they arrive:
//! however long they take, the same sequences are decoded together, so a run can be repeated.

use super::generator::Rollout;
use super::reply_provider::{EndedTurn, ReplyProvider, TurnReply};
use crate::config::STACK;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope};

/// Decoding after which replies are read, in parameters times tokens: some 15 ms of one processor's time.
const WORK_AHEAD: u128 = 400_000_000;

/// Steps after which they are read if no others have been requested since. Those of large models take longer than `WORK_AHEAD`.
const STEPS_AHEAD: usize = 4;

/// Most requests under way, unless nothing else can be done.
const MOST_REQUESTS: usize = 3;

/// The share of a batch that must wait for replies before they are requested.
const ASKING_SHARE: usize = 16;

/// All that has been decoded so far.
#[derive(Clone, Copy, Default)]
pub(super) struct DecodeProgress {
    /// Parameters times tokens.
    work: u128,
    steps: usize,
}

impl DecodeProgress {
    /// Adds a step of a model with so many parameters.
    pub(super) fn add(&mut self, parameters: u128, tokens: usize) {
        self.work += parameters * tokens as u128;
        self.steps += 1;
    }
}

/// A sequence that may have ended a turn.
pub(super) trait TurnSequence: Send {
    fn rollout(&self) -> &Rollout;

    /// Returns where its newest turn begins.
    fn turn(&self) -> usize;

    /// Returns whether the turn ended on its own.
    fn ended(&self) -> bool;
}

/// Sequences with their replies, in the order in which they were requested.
pub(super) type SequenceReplies<S> = Vec<(S, TurnReply)>;

/// Replies of an instance, with its place among those that answer a request.
type InstanceReplies<S> = (usize, thread::Result<SequenceReplies<S>>);

/// Sequences that one instance answers, and where their replies go.
struct ReplyJob<S> {
    place: usize,
    sequences: Vec<S>,
    replies: Sender<InstanceReplies<S>>,
}

struct ReplyRequest<S> {
    replies: Receiver<InstanceReplies<S>>,
    /// Sequences that wait.
    waiting: usize,
    before: DecodeProgress,
}

/// The requests of a thread that decodes.
pub(super) struct ReplyRequests<'scope, 'env, S> {
    scope: &'scope Scope<'scope, 'env>,
    follow: &'scope dyn ReplyProvider,
    instances: BTreeMap<usize, Sender<ReplyJob<S>>>,
    under_way: VecDeque<ReplyRequest<S>>,
}

impl<'scope, 'env, S: TurnSequence + 'scope> ReplyRequests<'scope, 'env, S> {
    pub(super) fn new(scope: &'scope Scope<'scope, 'env>, follow: &'scope dyn ReplyProvider) -> Self {
        Self { scope, follow, instances: BTreeMap::new(), under_way: VecDeque::new() }
    }

    /// Requests the replies of sequences that have ended a turn, if enough of them wait or nothing else can be done, after so much
    /// decoding. Time plays no part in it.
    pub(super) fn request(&mut self, asking: &mut Vec<S>, before: DecodeProgress, active: usize) {
        if asking.is_empty() || active > 0 && asking.len() < active / ASKING_SHARE {
            return;
        }
        let (replies, waiting) = (channel(), asking.len());
        let mut by_instance: BTreeMap<usize, Vec<S>> = BTreeMap::new();
        for sequence in asking.drain(..) {
            let instance = self.follow.instance(sequence.rollout().prompt, sequence.rollout().sample);
            by_instance.entry(instance).or_default().push(sequence);
        }
        for (place, (instance, sequences)) in by_instance.into_iter().enumerate() {
            let (scope, follow) = (self.scope, self.follow);
            let jobs = self.instances.entry(instance).or_insert_with(|| answering(scope, follow));
            // Its thread ends only when this is dropped.
            let _ = jobs.send(ReplyJob { place, sequences, replies: replies.0.clone() });
        }
        self.under_way.push_back(ReplyRequest { replies: replies.1, waiting, before });
    }

    /// Returns whether the oldest replies are to be read, after so much decoding, with as many sequences in the batch or ready for
    /// it.
    pub(super) fn is_due(&self, now: DecodeProgress, active: usize) -> bool {
        let Some(oldest) = self.under_way.front() else { return false };
        let waiting: usize = self.under_way.iter().map(|request| request.waiting).sum();
        let count = self.under_way.len();
        let since = DecodeProgress { work: now.work - oldest.before.work, steps: now.steps - oldest.before.steps };
        let is_time = since.work >= WORK_AHEAD && (count > 1 || since.steps >= STEPS_AHEAD);
        active == 0 || is_time || count > MOST_REQUESTS || (count > 1 && waiting > active)
    }

    /// Returns whether replies are still to be read.
    #[cfg(feature = "cuda")]
    pub(super) fn are_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Waits for the oldest replies.
    pub(super) fn read(&mut self) -> SequenceReplies<S> {
        let Some(oldest) = self.under_way.pop_front() else { return Vec::new() };
        let mut all: Vec<InstanceReplies<S>> = oldest.replies.iter().collect();
        all.sort_by_key(|(place, _)| *place);
        all.into_iter().flat_map(|(_, replies)| replies.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    }
}

/// Starts the thread of an instance.
fn answering<'scope, S: TurnSequence + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    follow: &'scope dyn ReplyProvider,
) -> Sender<ReplyJob<S>> {
    let (jobs, own) = channel::<ReplyJob<S>>();
    let answer = move || {
        for ReplyJob { place, sequences, replies } in own {
            let answered = catch_unwind(AssertUnwindSafe(|| replies_to(follow, sequences)));
            // Nobody reads them where another operation has failed.
            let _ = replies.send((place, answered));
        }
    };
    thread::Builder::new().stack_size(STACK).spawn_scoped(scope, answer).expect("a thread for an instance can be started");
    jobs
}

fn replies_to<S: TurnSequence>(follow: &dyn ReplyProvider, sequences: Vec<S>) -> SequenceReplies<S> {
    let ended = sequences.iter().map(|sequence| {
        let Rollout { prompt, sample, tokens, .. } = sequence.rollout();
        let turn = sequence.turn()..tokens.len();
        EndedTurn { request: *prompt, sample: *sample, tokens, turn, finished: sequence.ended() }
    });
    let next = follow.next_turns(&ended.collect::<Vec<_>>());
    // One for each, or a sequence without an answer is over.
    sequences.into_iter().zip(next.into_iter().chain(std::iter::repeat(TurnReply::Over(false)))).collect()
}
