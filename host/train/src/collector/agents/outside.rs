//! Episodes that drivers elsewhere play: they are offered over HTTP, and the run waits until all have ended.

use super::played::Played;
use super::program::Outcome;
use super::{Episode, Table};
use crate::activity::{Activity, Task, Unit};
use rlhost_serve::tasks::{Progress, Task as Offer, TaskEnd, TaskRules, Tasks};
use serde_json::Map;
use std::time::{Duration, Instant};

/// Time between two lines that say what is waited for, and the time until the first.
const REMINDED: Duration = Duration::from_secs(60);

impl Table<'_> {
    /// Offers all episodes, and returns them in the order of prompts and samples when they have been played.
    pub(super) fn offer_all(&self, tasks: &Tasks) -> Vec<Played> {
        let all = self.request.prompts.len() * self.request.samples;
        let Some(episodes) = (0..all).map(|number| self.episode(number)).collect::<Option<Vec<Episode>>>() else {
            return (0..all).map(|_| Played::without_key()).collect();
        };
        let seeds: Vec<u64> = episodes.iter().map(|episode| episode.seed).collect();
        let offer = |(number, episode): (usize, Episode)| {
            let row = self.request.prompts[number / self.request.samples].row;
            let Episode { key, name, seed, seed_of_calls, row: columns } = episode;
            let told =
                Map::from_iter([("row".to_owned(), columns), ("index".to_owned(), row.into()), ("seed".to_owned(), seed.into())]);
            Offer { name, row, key, seed: seed_of_calls, told }
        };
        let offers = episodes.into_iter().enumerate().map(offer).collect();
        let (timeout, max_open) = (self.entry.timeout(), self.entry.max_concurrent);
        let interval = REMINDED.min(timeout / 4).max(Duration::from_millis(10));
        let task = Task::new(Activity::Generating).out_of(all as u64, Unit::Things);
        let mut reminded = Instant::now();
        let mut watch = |progress: Progress| {
            task.set(progress.ended as u64);
            if progress.quiet >= interval && reminded.elapsed() >= interval {
                reminded = Instant::now();
                self.remind(progress, all);
            }
        };
        let rules = TaskRules { session: self.rules, timeout, max_open };
        let ends = tasks.play(offers, rules, interval, &mut watch);
        let played = |(end, seed): (TaskEnd, u64)| {
            let TaskEnd { record, report, failed } = end;
            Played::new(record, Outcome { output: report, errors: String::new(), failed }, seed)
        };
        ends.into_iter().zip(seeds).map(played).collect()
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
