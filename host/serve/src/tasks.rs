//! Episodes for external drivers: which ones a generation needs, which are in progress, and their results.
//!
//! The training loop offers the episodes of a generation at once ([`TaskQueue::play`]) and waits until all have ended. A driver takes an
//! episode, which opens its session; the episode ends when the driver says so, or when its time is up.

use crate::config::printable;
use crate::session::{AgentSession, SessionRecord, SessionRules};
use crate::sessions::Sessions;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Maximum length of a driver's text in an error, in bytes.
const SHOWN: usize = 300;

/// Maximum number of rows or groups that an error names.
const NAMED: usize = 10;

/// Report fields with rewards: for the episode, or for each call. Setting one clears the other.
pub(crate) const REWARDS: [&str; 2] = ["reward", "turn_rewards"];

/// Checks a driver's report, of an episode with this number of calls once it has ended; the error says what is wrong.
pub type ReportCheck = fn(&Map<String, Value>, Option<usize>) -> Result<(), String>;

/// Reason why an episode without calls fails.
const NO_CALL: &str = "the episode ended without a call";

/// Episode that a driver may play.
#[derive(Clone, Debug)]
pub struct EpisodeTask {
    /// Name of the episode.
    pub name: String,
    /// Row of the dataset.
    pub row: usize,
    /// Identifier of the group: the episodes of one row in one generation.
    pub group: String,
    /// Key of the session.
    pub key: String,
    /// Seed of the random numbers of the episode's calls.
    pub seed: u64,
    /// Fields that are passed to the driver.
    pub driver_fields: Map<String, Value>,
}

/// Rules that all episodes of a generation share.
#[derive(Clone, Copy, Debug)]
pub struct TaskRules {
    /// Rules of the sessions.
    pub session: SessionRules,
    /// Maximum duration of an episode, and maximum time to wait for a driver.
    pub timeout: Duration,
    /// Maximum number of episodes in progress.
    pub max_open: usize,
}

/// Result of an episode that has ended.
#[derive(Clone, Debug, Default)]
pub struct TaskEnd {
    /// Record of the episode's session.
    pub record: SessionRecord,
    /// Report of the driver as JSON; empty if there was none.
    pub report: String,
    /// Reason why the episode failed, if it did.
    pub failed: Option<String>,
}

/// Observer of a generation's episodes.
pub trait EpisodeObserver {
    /// Called with the progress so far.
    fn progressed(&mut self, progress: EpisodeProgress);

    /// Returns whether the generation is no longer needed: its episodes then end at once, and fail.
    fn is_discarded(&self) -> bool {
        false
    }

    /// Called with the result of the episode at index `at`.
    fn ended(&mut self, at: usize, end: TaskEnd);
}

/// Progress of a generation's episodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpisodeProgress {
    /// Number of episodes that are not taken.
    pub offered: usize,
    /// Number of episodes in progress.
    pub open: usize,
    /// Number of episodes that have ended.
    pub ended: usize,
    /// Time since a driver last began or ended an episode.
    pub idle_time: Duration,
}

/// Queue of episodes for external drivers.
pub struct TaskQueue {
    sessions: Arc<Sessions>,
    check: ReportCheck,
    /// Maximum time that a request waits for an episode.
    longest_wait: Duration,
    state: Mutex<TaskQueueState>,
    /// Wakes the training loop.
    ended: Condvar,
    /// Wakes requests that wait for an episode.
    offers: watch::Sender<()>,
}

#[derive(Default)]
struct TaskQueueState {
    rules: Option<TaskRules>,
    tasks: Vec<EpisodeTask>,
    /// Stage of each task.
    stages: Vec<TaskStage>,
    /// Tasks that are not taken.
    offered: BTreeSet<usize>,
    open: usize,
    /// When a driver last began or ended an episode.
    last_activity: Option<Instant>,
    /// Whether the run has ended, so that no more episodes follow.
    is_finished: bool,
}

#[derive(Default)]
enum TaskStage {
    #[default]
    Offered,
    Open(OpenTask),
    Ended(Option<TaskEnd>),
}

struct OpenTask {
    session: Arc<AgentSession>,
    since: Instant,
    report: Map<String, Value>,
    /// Error in the newest report.
    wrong: Option<String>,
}

/// Episode that a driver has taken.
#[derive(Clone, Debug)]
pub(crate) struct StartedTask {
    pub key: String,
    pub name: String,
    pub group: String,
    pub driver_fields: Map<String, Value>,
    pub timeout: Duration,
}

/// Selects an episode for a driver.
#[derive(Clone, Debug)]
pub(crate) enum TaskSelector {
    /// The first episode that is not taken.
    Next,
    /// An episode of this row.
    Row(usize),
    /// An episode of the group with this identifier.
    Group(String),
}

/// Reason why a driver gets no episode.
#[derive(Debug, PartialEq)]
pub(crate) enum NoTaskReason {
    /// No episode is needed at the moment.
    Idle,
    /// The maximum number of episodes is in progress.
    Full(usize),
    /// No episode of the row or group is needed; names some that are.
    NotNeeded { kind: &'static str, needed: String },
    /// The run has ended.
    Over,
}

/// Outcome of an episode that a driver has ended.
#[derive(Debug)]
pub(crate) struct FinishedTask {
    pub name: String,
    /// Number of recorded calls.
    pub calls: usize,
    /// Error in the report.
    pub wrong: Option<String>,
    /// Reason why the episode failed, if it did for another reason.
    pub failed: Option<String>,
}

impl TaskQueue {
    /// Creates a queue of episodes for these sessions. A request waits at most `longest_wait` for an episode.
    pub fn new(sessions: Arc<Sessions>, check: ReportCheck, longest_wait: Duration) -> Self {
        let (state, ended, offers) = (Mutex::default(), Condvar::new(), watch::Sender::new(()));
        Self { sessions, check, longest_wait, state, ended, offers }
    }

    /// Offers episodes and reports each result to the audience, until all have ended. Reports progress at least every `interval`.
    pub fn play(&self, tasks: Vec<EpisodeTask>, rules: TaskRules, interval: Duration, audience: &mut dyn EpisodeObserver) {
        let mut state = self.lock();
        let begun = Instant::now();
        state.stages = tasks.iter().map(|_| TaskStage::Offered).collect();
        state.offered = (0..tasks.len()).collect();
        (state.tasks, state.rules, state.open, state.last_activity) = (tasks, Some(rules), 0, Some(begun));
        self.offers.send_replace(());
        loop {
            self.expire(&mut state, rules.timeout);
            if audience.is_discarded() {
                self.discard(&mut state);
            }
            let (progress, now) = (state.progress(), Instant::now());
            let ends = state.take_ends();
            if !ends.is_empty() {
                // Release the lock: drivers need not wait for the audience.
                drop(state);
                ends.into_iter().for_each(|(at, end)| audience.ended(at, end));
                state = self.lock();
                continue;
            }
            if progress.ended == state.tasks.len() {
                break;
            }
            audience.progressed(progress);
            let pause = state.next_expiry(rules.timeout).saturating_duration_since(now).min(interval);
            state = self.ended.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.tasks.clear();
        state.stages.clear();
    }

    /// Makes [`TaskQueue::play`] check whether its generation is still needed.
    pub fn wake(&self) {
        drop(self.lock());
        self.ended.notify_all();
    }

    /// Reports to waiting requests that no more episodes follow.
    pub fn finish(&self) {
        self.lock().is_finished = true;
        self.offers.send_replace(());
    }

    /// Ends episodes whose time is up; if no driver is active, also those that none has begun.
    fn expire(&self, state: &mut TaskQueueState, timeout: Duration) {
        let late = |stage: &TaskStage| matches!(stage, TaskStage::Open(open) if open.since.elapsed() >= timeout);
        let seconds = timeout.as_secs_f64();
        for at in (0..state.stages.len()).filter(|at| late(&state.stages[*at])).collect::<Vec<_>>() {
            self.end(state, at, Some(format!("took longer than {seconds} s (timeout_s)")));
        }
        let is_quiet = state.open == 0 && state.last_activity.is_some_and(|heard| heard.elapsed() >= timeout);
        if is_quiet {
            state.end_offered(&format!("has no driver: none began the episode within {seconds} s (timeout_s)"));
        }
    }

    /// Ends all episodes.
    fn discard(&self, state: &mut TaskQueueState) {
        const REASON: &str = "is no longer needed";
        for at in 0..state.stages.len() {
            if matches!(state.stages[at], TaskStage::Open(_)) {
                self.end(state, at, Some(REASON.to_owned()));
            }
        }
        state.end_offered(REASON);
    }

    /// Ends an episode in progress. It fails for this reason, or if its report is wrong.
    fn end(&self, state: &mut TaskQueueState, at: usize, failed: Option<String>) -> FinishedTask {
        let name = state.tasks[at].name.clone();
        let TaskStage::Open(open) = std::mem::take(&mut state.stages[at]) else {
            return FinishedTask { name, calls: 0, wrong: None, failed };
        };
        let record = self.sessions.close(&state.tasks[at].key);
        let calls = record.calls.len();
        let wrong = match &failed {
            // Its report does not count.
            Some(_) => None,
            None => open.wrong.or_else(|| (self.check)(&open.report, Some(calls)).err()),
        };
        let unanswered = || match &record.refused {
            Some(refused) => format!("no call of the episode was answered: {refused}"),
            None => NO_CALL.to_owned(),
        };
        let report = if open.report.is_empty() { String::new() } else { Value::Object(open.report).to_string() };
        let finished =
            FinishedTask { name, calls, failed: failed.clone().or_else(|| (calls == 0).then(unanswered)), wrong: wrong.clone() };
        let failed = failed.or(wrong.map(|wrong| format!("sent a report that {wrong}")));
        state.stages[at] = TaskStage::Ended(Some(TaskEnd { record, report, failed }));
        state.open -= 1;
        state.last_activity = Some(Instant::now());
        self.ended.notify_all();
        self.offers.send_replace(());
        finished
    }

    /// Starts an episode.
    pub(crate) fn start(&self, wanted: TaskSelector) -> Result<StartedTask, NoTaskReason> {
        let mut state = self.lock();
        let rules = match state.rules {
            _ if state.is_finished => return Err(NoTaskReason::Over),
            Some(rules) if !state.offered.is_empty() => rules,
            _ => return Err(NoTaskReason::Idle),
        };
        if state.open >= rules.max_open {
            return Err(NoTaskReason::Full(state.open));
        }
        let fits = |at: &&usize| match &wanted {
            TaskSelector::Next => true,
            TaskSelector::Row(row) => state.tasks[**at].row == *row,
            TaskSelector::Group(group) => state.tasks[**at].group == *group,
        };
        let Some(at) = state.offered.iter().find(fits).copied() else { return Err(state.not_needed(&wanted)) };
        state.offered.remove(&at);
        let EpisodeTask { name, group, key, seed, driver_fields, .. } = state.tasks[at].clone();
        let session = self.sessions.open(key.clone(), seed, rules.session);
        state.stages[at] = TaskStage::Open(OpenTask { session, since: Instant::now(), report: Map::new(), wrong: None });
        state.open += 1;
        state.last_activity = Some(Instant::now());
        self.ended.notify_all();
        Ok(StartedTask { key, name, group, driver_fields, timeout: rules.timeout })
    }

    /// Waits up to `limit` until an episode can be started, and starts it.
    pub(crate) async fn next(&self, limit: Duration) -> Result<StartedTask, NoTaskReason> {
        let mut offers = self.offers.subscribe();
        let until = tokio::time::Instant::now() + limit.min(self.longest_wait);
        loop {
            offers.mark_unchanged();
            match self.start(TaskSelector::Next) {
                Err(NoTaskReason::Idle | NoTaskReason::Full(_)) => {}
                other => return other,
            }
            match tokio::time::timeout_at(until, offers.changed()).await {
                Ok(Ok(())) => {}
                _ => return Err(NoTaskReason::Idle),
            }
        }
    }

    /// Records a driver's report on an episode in progress; fields of earlier reports that it does not set are kept.
    ///
    /// # Errors
    /// Says what is wrong with the report; the episode fails unless a correct one follows. `None` if the session has ended.
    pub(crate) fn report(&self, session: &AgentSession, report: Map<String, Value>) -> Result<(), Option<String>> {
        let mut state = self.lock();
        let at = state.find(session).ok_or(None)?;
        let TaskStage::Open(open) = &mut state.stages[at] else { return Err(None) };
        open.wrong = (self.check)(&report, None).err();
        match &open.wrong {
            Some(wrong) => Err(Some(wrong.clone())),
            None => {
                if REWARDS.iter().any(|name| report.contains_key(*name)) {
                    REWARDS.iter().for_each(|name| drop(open.report.shift_remove(*name)));
                }
                open.report.extend(report);
                Ok(())
            }
        }
    }

    /// Ends an episode with a last report, or with the reason why it failed; `None` if it has ended already.
    pub(crate) fn finish_session(
        &self,
        session: &AgentSession,
        outcome: Result<Map<String, Value>, String>,
    ) -> Option<FinishedTask> {
        let (report, failed) = match outcome {
            Ok(report) => (report, None),
            Err(reason) => (Map::new(), Some(reason)),
        };
        // Without a last report, the check of the previous one counts.
        if !report.is_empty() {
            let _ = self.report(session, report);
        }
        let mut state = self.lock();
        let at = state.find(session)?;
        let failed = failed.map(|reason| format!("failed: {}", printable(&reason, SHOWN)));
        Some(self.end(&mut state, at, failed))
    }

    fn lock(&self) -> MutexGuard<'_, TaskQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TaskQueueState {
    /// Returns the index of an open session's task.
    fn find(&self, session: &AgentSession) -> Option<usize> {
        let is = |stage: &TaskStage| matches!(stage, TaskStage::Open(open) if std::ptr::eq(&*open.session, session));
        self.stages.iter().position(is)
    }

    /// Ends the episodes that are not taken, for this reason.
    fn end_offered(&mut self, reason: &str) {
        for at in std::mem::take(&mut self.offered) {
            let failed = Some(reason.to_owned());
            self.stages[at] = TaskStage::Ended(Some(TaskEnd { failed, ..TaskEnd::default() }));
        }
    }

    /// Returns the results of episodes that ended since the last call.
    fn take_ends(&mut self) -> Vec<(usize, TaskEnd)> {
        let take = |(at, stage): (usize, &mut TaskStage)| {
            if let TaskStage::Ended(end) = stage { end.take().map(|end| (at, end)) } else { None }
        };
        self.stages.iter_mut().enumerate().filter_map(take).collect()
    }

    fn progress(&self) -> EpisodeProgress {
        let (offered, open) = (self.offered.len(), self.open);
        let quiet = self.last_activity.map_or(Duration::ZERO, |heard| heard.elapsed());
        EpisodeProgress { offered, open, ended: self.tasks.len() - offered - open, idle_time: quiet }
    }

    /// Returns when the next episode expires, unless a driver begins or ends one before.
    fn next_expiry(&self, timeout: Duration) -> Instant {
        let open = self.stages.iter().filter_map(|stage| if let TaskStage::Open(open) = stage { Some(open.since) } else { None });
        let first = open.min().or(self.last_activity).unwrap_or_else(Instant::now);
        // If that is too far away to represent, check again in an hour.
        first.checked_add(timeout).unwrap_or_else(|| Instant::now() + Duration::from_secs(3600))
    }

    /// Returns the reason why there is no such episode, with the first few rows or groups whose episodes are not taken.
    fn not_needed(&self, wanted: &TaskSelector) -> NoTaskReason {
        let offered = || self.offered.iter().map(|at| &self.tasks[*at]);
        let (kind, all): (_, Vec<String>) = match wanted {
            TaskSelector::Group(_) => {
                ("group", offered().map(|task| task.group.clone()).collect::<BTreeSet<_>>().into_iter().collect())
            }
            _ => ("row", offered().map(|task| task.row).collect::<BTreeSet<_>>().iter().map(usize::to_string).collect()),
        };
        let mut needed = all.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
        if all.len() > NAMED {
            needed += &format!(" and {} more", all.len() - NAMED);
        }
        NoTaskReason::NotNeeded { kind, needed }
    }
}

#[cfg(test)]
mod tests;
