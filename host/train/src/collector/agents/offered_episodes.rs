//! Episodes that external drivers play: the run offers them over HTTP and waits until all have ended.

use super::super::episode_store::FinishedEpisode;
use super::context::{AgentContext, AgentEpisode};
use super::played_episode::PlayedEpisode;
use super::program::ProgramOutcome;
use crate::activity::{Activity, ProgressTask, ProgressUnit};
use crate::config::AgentEntry;
use rlhost_serve::tasks::{EpisodeObserver, EpisodeProgress, EpisodeTask as Offer, TaskEnd, TaskQueue, TaskRules};
use serde_json::Map;
use std::time::{Duration, Instant};

/// Time before the first reminder of what the run waits for, and between reminders.
const REMINDER_INTERVAL: Duration = Duration::from_secs(60);

/// Episodes that drivers play.
struct OfferedEpisodes<'a> {
    table: &'a AgentContext<'a>,
    /// Numbers of the episodes in the generation.
    numbers: &'a [usize],
    seeds: &'a [u64],
    ended: &'a mut [Option<FinishedEpisode>],
    task: ProgressTask,
    interval: Duration,
    reminded: Instant,
}

impl EpisodeObserver for OfferedEpisodes<'_> {
    fn progressed(&mut self, progress: EpisodeProgress) {
        self.task.set(progress.ended as u64);
        if progress.idle_time >= self.interval && self.reminded.elapsed() >= self.interval {
            self.reminded = Instant::now();
            self.table.remind(progress, self.numbers.len());
        }
    }

    fn is_discarded(&self) -> bool {
        self.table.generation.is_discarded()
    }

    fn ended(&mut self, at: usize, end: TaskEnd) {
        let TaskEnd { record, report, failed } = end;
        let played = PlayedEpisode::new(
            record,
            ProgramOutcome { output: report, errors: String::new(), failed, ended: false },
            self.seeds[at],
        );
        let number = self.numbers[at];
        self.ended[number] = Some(self.table.end(number, played));
    }
}

impl AgentContext<'_> {
    /// Offers all episodes that have not ended yet, waits for them, and returns all in the order of prompts and samples.
    pub(super) fn offer_all(&self, tasks: &TaskQueue) -> Vec<FinishedEpisode> {
        let mut ended: Vec<Option<FinishedEpisode>> = (0..self.episodes()).map(|number| self.ended_before(number)).collect();
        let missing = ended.iter().enumerate().filter(|(_, one)| one.is_none()).map(|(number, _)| number);
        let numbers: Vec<usize> = missing.collect();
        let Some(episodes) = numbers.iter().map(|&number| self.episode(number)).collect::<Option<Vec<AgentEpisode>>>() else {
            return self.in_order(ended);
        };
        let seeds: Vec<u64> = episodes.iter().map(|episode| episode.seed).collect();
        let offer = |(&number, episode): (&usize, AgentEpisode)| {
            let row = self.generation.prompts[self.place_of(number).0].row;
            let AgentEpisode { key, name, group, seed, seed_of_calls, row: columns } = episode;
            let fields = [("row", columns), ("index", row.into()), ("seed", seed.into())];
            let driver_fields = Map::from_iter(fields.map(|(name, value)| (name.to_owned(), value)));
            Offer { name, row, group, key, seed: seed_of_calls, driver_fields }
        };
        let offers = numbers.iter().zip(episodes).map(offer).collect();
        let (timeout, max_open) = (self.listening().timeout(), self.listening().max_concurrent);
        let interval = REMINDER_INTERVAL.min(timeout / 4).max(Duration::from_millis(10));
        let task = ProgressTask::new(Activity::Generating).with_total(numbers.len() as u64, ProgressUnit::Things);
        let reminded = Instant::now();
        let mut offered =
            OfferedEpisodes { table: self, numbers: &numbers, seeds: &seeds, ended: &mut ended, task, interval, reminded };
        tasks.play(offers, TaskRules { session: self.generation.rules, timeout, max_open }, interval, &mut offered);
        self.in_order(ended)
    }

    /// Returns the entry of the agent that drivers play, the only one of its run.
    fn listening(&self) -> &AgentEntry {
        &self.stage.agents[0].entry
    }

    /// Logs what the run waits for.
    fn remind(&self, EpisodeProgress { offered, open, idle_time: quiet, .. }: EpisodeProgress, all: usize) {
        let (seconds, limit) = (quiet.as_secs_f64(), self.listening().timeout_s);
        let heard = format!("nothing was heard of a driver for {seconds:.0} s; {limit} s (timeout_s) is the limit");
        tracing::warn!(
            "waiting for drivers at http://{}/rl/next_task: of {all} episodes, {offered} have not begun and {open} are under way; {heard}",
            self.stage.server.address()
        );
    }
}
