//! Computes how long the processes of a run worked on it, from its events.

use super::EventLine;
use jiff::Timestamp;

/// The time that a run's processes worked on it, up to an event.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkTime {
    /// Total of the processes before the newest, in seconds.
    seconds: f64,
    /// First and last event time of the newest process; `None` once it has reported its duration.
    newest: Option<(Timestamp, Timestamp)>,
}

impl WorkTime {
    /// Processes the next event.
    pub fn observe(&mut self, event: &EventLine) {
        if event.begins() {
            self.seconds += length(self.newest.take());
            self.newest = event.time.map(|time| (time, time));
        } else if let Some(spent) = event.number("seconds").filter(|_| event.ends()) {
            self.seconds += spent;
            self.newest = None;
        } else if let (Some((_, to)), Some(time)) = (&mut self.newest, event.time) {
            *to = time;
        }
    }

    /// Returns the working time in seconds. `now` is the end of the newest process if it is running, `logged` the seconds that it last
    /// logged.
    #[must_use]
    pub fn seconds(&self, now: Option<Timestamp>, logged: Option<f64>) -> f64 {
        // Events have a resolution of a second, and a process that crashed may have none after its first.
        let newest = self.newest.map(|(from, to)| length(Some((from, now.unwrap_or(to)))).max(logged.unwrap_or(0.0)));
        self.seconds + newest.unwrap_or(0.0)
    }
}

fn length(part: Option<(Timestamp, Timestamp)>) -> f64 {
    part.map_or(0.0, |(from, to)| to.duration_since(from).as_secs_f64())
}
