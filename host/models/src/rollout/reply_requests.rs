//! Requests replies while other sequences are decoded.
//!
//! Replies come from instances of the provider. Each instance has its own thread for the duration of the generation, so its calls come in
//! the order in which turns ended, and different instances run concurrently. Replies are read after a fixed amount of decoding, not when
//! they arrive: the batches don't depend on how long replies take, so runs are reproducible.

use super::generator::Rollout;
use super::reply_provider::{EndedTurn, ReplyProvider, TurnReply};
use crate::config::STACK;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope};

/// Amount of decoding after which replies are read, in parameters times tokens: about 15 ms on one processor.
const WORK_AHEAD: u128 = 400_000_000;

/// Number of steps after which replies are read if no others have been requested since. Such steps of large models exceed `WORK_AHEAD`.
const STEPS_AHEAD: usize = 4;

/// Maximum number of requests in flight, unless nothing else can be done.
const MOST_REQUESTS: usize = 3;

/// Replies are requested when at least one in this many sequences of the batch waits for one.
const ASKING_SHARE: usize = 16;

/// Amount of decoding so far.
#[derive(Clone, Copy, Default)]
pub(super) struct DecodeProgress {
    /// Parameters times tokens.
    work: u128,
    steps: usize,
}

impl DecodeProgress {
    /// Adds a step of a model with this many parameters.
    pub(super) fn add(&mut self, parameters: u128, tokens: usize) {
        self.work += parameters * tokens as u128;
        self.steps += 1;
    }
}

/// A sequence that may have ended a turn.
pub(super) trait TurnSequence: Send {
    fn rollout(&self) -> &Rollout;

    /// Returns the index at which the newest turn begins.
    fn turn(&self) -> usize;

    /// Returns whether the turn ended on its own.
    fn ended(&self) -> bool;
}

/// Sequences with their replies, in the order of the requests.
pub(super) type SequenceReplies<S> = Vec<(S, TurnReply)>;

/// Replies of an instance, with its index among the instances of a request.
type InstanceReplies<S> = (usize, thread::Result<SequenceReplies<S>>);

/// Sequences for one instance, and the channel for their replies.
struct ReplyJob<S> {
    place: usize,
    sequences: Vec<S>,
    replies: Sender<InstanceReplies<S>>,
}

struct ReplyRequest<S> {
    replies: Receiver<InstanceReplies<S>>,
    /// Number of waiting sequences.
    waiting: usize,
    before: DecodeProgress,
}

/// The requests of one decoding thread.
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

    /// Requests replies for sequences that have ended a turn, if enough of them wait or nothing else can be done. `before` is the amount of
    /// decoding so far. The decision does not depend on time.
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
            // The instance's thread ends only when `self` is dropped.
            let _ = jobs.send(ReplyJob { place, sequences, replies: replies.0.clone() });
        }
        self.under_way.push_back(ReplyRequest { replies: replies.1, waiting, before });
    }

    /// Returns whether to read the oldest replies now, with this amount of decoding and this many sequences in the batch or ready for it.
    pub(super) fn is_due(&self, now: DecodeProgress, active: usize) -> bool {
        let Some(oldest) = self.under_way.front() else { return false };
        let waiting: usize = self.under_way.iter().map(|request| request.waiting).sum();
        let count = self.under_way.len();
        let since = DecodeProgress { work: now.work - oldest.before.work, steps: now.steps - oldest.before.steps };
        let is_time = since.work >= WORK_AHEAD && (count > 1 || since.steps >= STEPS_AHEAD);
        active == 0 || is_time || count > MOST_REQUESTS || (count > 1 && waiting > active)
    }

    /// Returns whether replies are outstanding.
    #[cfg(feature = "cuda")]
    pub(super) fn are_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Waits for the oldest replies and returns them.
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
            // The receiver is gone if another operation has failed.
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
    // A sequence for which the provider returned nothing ends.
    sequences.into_iter().zip(next.into_iter().chain(std::iter::repeat(TurnReply::Over(false)))).collect()
}
