//! Episodes that drivers elsewhere play: they are offered over HTTP, and the run waits until all have ended.

use super::super::episode_store::FinishedEpisode;
use super::played::Played;
use super::program::Outcome;
use super::{Episode, Table};
use crate::activity::{Activity, Task, Unit};
use rlhost_serve::tasks::{Audience, Progress, Task as Offer, TaskEnd, TaskRules, Tasks};
use serde_json::Map;
use std::time::{Duration, Instant};

/// Time between two lines that say what is waited for, and the time until the first.
const REMINDED: Duration = Duration::from_secs(60);

/// Episodes that drivers play.
struct Offered<'a> {
    table: &'a Table<'a>,
    /// Number of each in the generation, and its seed.
    numbers: &'a [usize],
    seeds: &'a [u64],
    ended: &'a mut [Option<FinishedEpisode>],
    task: Task,
    interval: Duration,
    reminded: Instant,
}

impl Audience for Offered<'_> {
    fn progressed(&mut self, progress: Progress) {
        self.task.set(progress.ended as u64);
        if progress.quiet >= self.interval && self.reminded.elapsed() >= self.interval {
            self.reminded = Instant::now();
            self.table.remind(progress, self.numbers.len());
        }
    }

    fn ended(&mut self, at: usize, end: TaskEnd) {
        let TaskEnd { record, report, failed } = end;
        let played = Played::new(record, Outcome { output: report, errors: String::new(), failed }, self.seeds[at]);
        let number = self.numbers[at];
        self.ended[number] = Some(self.table.end(number, played));
    }
}

impl Table<'_> {
    /// Offers all episodes that have not ended before, and returns all in the order of prompts and samples when they have been played.
    pub(super) fn offer_all(&self, tasks: &Tasks) -> Vec<FinishedEpisode> {
        let mut ended: Vec<Option<FinishedEpisode>> = (0..self.episodes()).map(|number| self.ended_before(number)).collect();
        let missing = ended.iter().enumerate().filter(|(_, one)| one.is_none()).map(|(number, _)| number);
        let numbers: Vec<usize> = missing.collect();
        let Some(episodes) = numbers.iter().map(|&number| self.episode(number)).collect::<Option<Vec<Episode>>>() else {
            return self.in_order(ended);
        };
        let seeds: Vec<u64> = episodes.iter().map(|episode| episode.seed).collect();
        let offer = |(&number, episode): (&usize, Episode)| {
            let row = self.request.prompts[self.place_of(number).0].row;
            let Episode { key, name, seed, seed_of_calls, row: columns } = episode;
            let told =
                Map::from_iter([("row".to_owned(), columns), ("index".to_owned(), row.into()), ("seed".to_owned(), seed.into())]);
            Offer { name, row, key, seed: seed_of_calls, told }
        };
        let offers = numbers.iter().zip(episodes).map(offer).collect();
        let (timeout, max_open) = (self.entry.timeout(), self.entry.max_concurrent);
        let interval = REMINDED.min(timeout / 4).max(Duration::from_millis(10));
        let task = Task::new(Activity::Generating).out_of(numbers.len() as u64, Unit::Things);
        let reminded = Instant::now();
        let mut offered = Offered { table: self, numbers: &numbers, seeds: &seeds, ended: &mut ended, task, interval, reminded };
        tasks.play(offers, TaskRules { session: self.rules, timeout, max_open }, interval, &mut offered);
        self.in_order(ended)
    }

    /// Says what is waited for.
    fn remind(&self, Progress { offered, open, quiet, .. }: Progress, all: usize) {
        let (seconds, limit) = (quiet.as_secs_f64(), self.entry.timeout_s);
        let heard = format!("nothing was heard of a driver for {seconds:.0} s; {limit} s (timeout_s) is the limit");
        tracing::warn!(
            "waiting for drivers at http://{}/rl/next_task: of {all} episodes, {offered} have not begun and {open} are under way; {heard}",
            self.address
        );
    }
}
