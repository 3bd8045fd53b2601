//! Episodes for drivers elsewhere: which ones a generation needs, who plays them, and what came of them.
//!
//! The training loop offers the episodes of a generation at once ([`TaskQueue::play`]) and waits until each has ended. A driver takes one,
//! which opens its session; it ends when the driver says so, or after its time.

use crate::config::printable;
use crate::session::{AgentSession, SessionRecord, SessionRules};
use crate::sessions::Sessions;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Longest text of a driver in the reason of a failure, in bytes.
const SHOWN: usize = 300;

/// Number of rows that an error names.
const NAMED: usize = 10;

/// The two ways in which a report has rewards: of the episode, or of each call. One takes the other's place.
pub(crate) const REWARDS: [&str; 2] = ["reward", "turn_rewards"];

/// Checks what a driver reports; says what is wrong.
pub type ReportCheck = fn(&Map<String, Value>) -> Result<(), String>;

/// An episode that a driver may play.
#[derive(Clone, Debug)]
pub struct EpisodeTask {
    /// Its name.
    pub name: String,
    /// Index of its row.
    pub row: usize,
    /// The key of its session.
    pub key: String,
    /// What the random numbers of its calls depend on.
    pub seed: u64,
    /// What its driver gets to know of it.
    pub driver_fields: Map<String, Value>,
}

/// What all episodes of a generation have in common.
#[derive(Clone, Copy, Debug)]
pub struct TaskRules {
    /// Rules of the sessions.
    pub session: SessionRules,
    /// Maximum duration of an episode, and of waiting for a driver.
    pub timeout: Duration,
    /// Maximum number of episodes at a time.
    pub max_open: usize,
}

/// An episode that has ended.
#[derive(Clone, Debug, Default)]
pub struct TaskEnd {
    /// What happened in its session.
    pub record: SessionRecord,
    /// What its driver reported, as JSON; empty if nothing.
    pub report: String,
    /// Why it failed, if it did.
    pub failed: Option<String>,
}

/// Hears how a generation's episodes go.
pub trait EpisodeObserver {
    /// Hears how far it is.
    fn progressed(&mut self, progress: EpisodeProgress);

    /// Hears what came of the episode of this index.
    fn ended(&mut self, at: usize, end: TaskEnd);
}

/// How far a generation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpisodeProgress {
    /// Episodes that nobody has taken.
    pub offered: usize,
    /// Episodes under way.
    pub open: usize,
    /// Episodes that have ended.
    pub ended: usize,
    /// Time since a driver began or ended an episode.
    pub idle_time: Duration,
}

/// Episodes for drivers elsewhere.
pub struct TaskQueue {
    sessions: Arc<Sessions>,
    check: ReportCheck,
    /// Longest time that a request waits for an episode.
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
    /// Of each task, what became of it.
    stages: Vec<TaskStage>,
    /// Tasks that nobody has taken.
    offered: BTreeSet<usize>,
    open: usize,
    /// When a driver last began or ended an episode.
    last_activity: Option<Instant>,
    /// Whether there will be no more.
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
    /// What is wrong with the newest report.
    wrong: Option<String>,
}

/// An episode that a driver has taken.
#[derive(Clone, Debug)]
pub(crate) struct StartedTask {
    pub key: String,
    pub name: String,
    pub driver_fields: Map<String, Value>,
    pub timeout: Duration,
}

/// Which episode a driver wants.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TaskSelector {
    /// The first that nobody has taken.
    Next,
    /// One of this row.
    Row(usize),
}

/// Why a driver gets no episode.
#[derive(Debug, PartialEq)]
pub(crate) enum NoTaskReason {
    /// None is needed at the moment.
    Idle,
    /// As many are under way as may be.
    Full(usize),
    /// None of the row is needed; names some that are.
    NotNeeded(String),
    /// The run has ended.
    Over,
}

/// How an episode ended that a driver has ended.
#[derive(Debug)]
pub(crate) struct FinishedTask {
    pub name: String,
    /// Number of calls that were recorded.
    pub calls: usize,
    /// What is wrong with its report.
    pub wrong: Option<String>,
}

impl TaskQueue {
    /// Creates it for these sessions. A request waits at most so long for an episode.
    pub fn new(sessions: Arc<Sessions>, check: ReportCheck, longest_wait: Duration) -> Self {
        let (state, ended, offers) = (Mutex::default(), Condvar::new(), watch::Sender::new(()));
        Self { sessions, check, longest_wait, state, ended, offers }
    }

    /// Offers episodes, and tells the audience what came of each as it ends, until all have. The audience hears at least every `interval`.
    pub fn play(&self, tasks: Vec<EpisodeTask>, rules: TaskRules, interval: Duration, audience: &mut dyn EpisodeObserver) {
        let mut state = self.lock();
        let begun = Instant::now();
        state.stages = tasks.iter().map(|_| TaskStage::Offered).collect();
        state.offered = (0..tasks.len()).collect();
        (state.tasks, state.rules, state.open, state.last_activity) = (tasks, Some(rules), 0, Some(begun));
        self.offers.send_replace(());
        loop {
            self.expire(&mut state, rules.timeout);
            let (progress, now) = (state.progress(), Instant::now());
            let ends = state.take_ends();
            if !ends.is_empty() {
                // Drivers need not wait for what the audience does with them.
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

    /// Says that no more episodes come, to whoever waits for one.
    pub fn finish(&self) {
        self.lock().is_finished = true;
        self.offers.send_replace(());
    }

    /// Ends what has taken too long, and what no driver has begun in time.
    fn expire(&self, state: &mut TaskQueueState, timeout: Duration) {
        let late = |stage: &TaskStage| matches!(stage, TaskStage::Open(open) if open.since.elapsed() >= timeout);
        let seconds = timeout.as_secs_f64();
        for at in (0..state.stages.len()).filter(|at| late(&state.stages[*at])).collect::<Vec<_>>() {
            self.end(state, at, Some(format!("took longer than {seconds} s (timeout_s)")));
        }
        let is_quiet = state.open == 0 && state.last_activity.is_some_and(|heard| heard.elapsed() >= timeout);
        if is_quiet {
            for at in std::mem::take(&mut state.offered) {
                let failed = Some(format!("has no driver: none began the episode within {seconds} s (timeout_s)"));
                state.stages[at] = TaskStage::Ended(Some(TaskEnd { failed, ..TaskEnd::default() }));
            }
        }
    }

    /// Ends an open episode, which fails for this reason or for what is wrong with its report. Returns the number of its calls.
    fn end(&self, state: &mut TaskQueueState, at: usize, failed: Option<String>) -> usize {
        let TaskStage::Open(open) = std::mem::take(&mut state.stages[at]) else { return 0 };
        let record = self.sessions.close(&state.tasks[at].key);
        let calls = record.calls.len();
        let report = if open.report.is_empty() { String::new() } else { Value::Object(open.report).to_string() };
        let wrong = open.wrong.map(|wrong| format!("sent a report that {wrong}"));
        state.stages[at] = TaskStage::Ended(Some(TaskEnd { record, report, failed: failed.or(wrong) }));
        state.open -= 1;
        state.last_activity = Some(Instant::now());
        self.ended.notify_all();
        self.offers.send_replace(());
        calls
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
        let fits = |at: &&usize| match wanted {
            TaskSelector::Next => true,
            TaskSelector::Row(row) => state.tasks[**at].row == row,
        };
        let Some(at) = state.offered.iter().find(fits).copied() else { return Err(NoTaskReason::NotNeeded(state.needed())) };
        state.offered.remove(&at);
        let EpisodeTask { name, key, seed, driver_fields: told, .. } = state.tasks[at].clone();
        let session = self.sessions.open(key.clone(), seed, rules.session);
        state.stages[at] = TaskStage::Open(OpenTask { session, since: Instant::now(), report: Map::new(), wrong: None });
        state.open += 1;
        state.last_activity = Some(Instant::now());
        self.ended.notify_all();
        Ok(StartedTask { key, name, driver_fields: told, timeout: rules.timeout })
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

    /// Notes what a driver reports of an episode under way; other fields of earlier reports stay.
    ///
    /// # Errors
    /// Says what is wrong with it; the episode fails unless another follows. None if the session has ended.
    pub(crate) fn report(&self, session: &AgentSession, report: Map<String, Value>) -> Result<(), Option<String>> {
        let mut state = self.lock();
        let at = state.find(session).ok_or(None)?;
        let TaskStage::Open(open) = &mut state.stages[at] else { return Err(None) };
        open.wrong = (self.check)(&report).err();
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

    /// Ends an episode with a last report, or with the reason why it failed; none if it has ended already.
    pub(crate) fn finish_session(
        &self,
        session: &AgentSession,
        outcome: Result<Map<String, Value>, String>,
    ) -> Option<FinishedTask> {
        let (report, failed) = match outcome {
            Ok(report) => (report, None),
            Err(reason) => (Map::new(), Some(reason)),
        };
        // Without a report, the one before counts, right or wrong.
        let wrong = if report.is_empty() { None } else { self.report(session, report).err().flatten() };
        let mut state = self.lock();
        let at = state.find(session)?;
        let name = state.tasks[at].name.clone();
        let failed = failed.map(|reason| format!("failed: {}", printable(&reason, SHOWN)));
        let calls = self.end(&mut state, at, failed);
        Some(FinishedTask { name, calls, wrong })
    }

    fn lock(&self) -> MutexGuard<'_, TaskQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TaskQueueState {
    /// Returns the place of an open session.
    fn find(&self, session: &AgentSession) -> Option<usize> {
        let is = |stage: &TaskStage| matches!(stage, TaskStage::Open(open) if std::ptr::eq(&*open.session, session));
        self.stages.iter().position(is)
    }

    /// Takes what came of the episodes that have ended since the last time.
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

    /// Returns when something expires next, unless something happens before.
    fn next_expiry(&self, timeout: Duration) -> Instant {
        let open = self.stages.iter().filter_map(|stage| if let TaskStage::Open(open) = stage { Some(open.since) } else { None });
        let first = open.min().or(self.last_activity).unwrap_or_else(Instant::now);
        // One far away is looked for again when it is nearer.
        first.checked_add(timeout).unwrap_or_else(|| Instant::now() + Duration::from_secs(3600))
    }

    /// Names the rows of which an episode is needed, the first few.
    fn needed(&self) -> String {
        let rows: BTreeSet<usize> = self.offered.iter().map(|at| self.tasks[*at].row).collect();
        let mut text = rows.iter().take(NAMED).map(usize::to_string).collect::<Vec<_>>().join(", ");
        if rows.len() > NAMED {
            text += &format!(" and {} more", rows.len() - NAMED);
        }
        text
    }
}

#[cfg(test)]
mod tests;
