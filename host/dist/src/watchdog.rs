//! Watches a rank while it waits for others, so that a dead or hung rank does not block the rest forever.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// State of the watched thread.
struct RankWaitState {
    patience: Duration,
    step: u64,
    waiting: Option<RankWait>,
}

struct RankWait {
    what: &'static str,
    since: Instant,
    /// Ranks that have not arrived. Known only to the rank that collects headers.
    missing: Vec<usize>,
}

/// Ends this process when it has waited too long for others; the launcher then ends the rest.
#[derive(Clone)]
pub(super) struct RankWatchdog(Arc<Mutex<RankWaitState>>);

impl RankWatchdog {
    pub(super) fn new(rank: usize) -> std::io::Result<Self> {
        let this = Self(Arc::new(Mutex::new(RankWaitState { patience: Duration::MAX, step: 0, waiting: None })));
        let watching = this.clone();
        let watch = move || {
            loop {
                std::thread::sleep(Duration::from_millis(200));
                if let Some(complaint) = watching.watched().complaint(rank) {
                    eprintln!("error: {complaint}");
                    // Exits without MPI_Finalize, which would also wait for the others.
                    signal_hook::low_level::exit(1);
                }
            }
        };
        std::thread::Builder::new().name("watchdog".into()).spawn(watch)?;
        Ok(this)
    }

    fn watched(&self) -> MutexGuard<'_, RankWaitState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how long to wait for others. The first rank knows who is missing, so the rest wait longer to let it report first.
    pub(super) fn set_patience(&self, seconds: f64, rank: usize) {
        let patience = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let later = Duration::from_secs(if rank == 0 { 0 } else { 2 });
        self.watched().patience = patience.saturating_add(later);
    }

    /// Sets the step that the message names.
    pub(super) fn set_step(&self, step: u64) {
        self.watched().step = step;
    }

    /// Records that a rank has arrived.
    pub(super) fn record_arrival(&self, rank: usize) {
        if let Some(waiting) = &mut self.watched().waiting {
            waiting.missing.retain(|missing| *missing != rank);
        }
    }

    /// Runs `wait`, which blocks in the collective `what` on the `missing` ranks, or on any rank if that is empty.
    pub(super) fn watch<R>(&self, what: &'static str, missing: Vec<usize>, wait: impl FnOnce() -> R) -> R {
        self.watched().waiting = Some(RankWait { what, since: Instant::now(), missing });
        let done = wait();
        self.watched().waiting = None;
        done
    }
}

impl RankWaitState {
    fn complaint(&self, rank: usize) -> Option<String> {
        let RankWait { what, since, missing } = self.waiting.as_ref()?;
        if since.elapsed() <= self.patience {
            return None;
        }
        let names: Vec<String> = missing.iter().map(ToString::to_string).collect();
        let whom = match &names[..] {
            [] => "the other ranks".to_owned(),
            [one] => format!("rank {one}"),
            several => format!("ranks {}", several.join(", ")),
        };
        let (seconds, step) = (since.elapsed().as_secs_f64(), self.step);
        Some(format!(
            "rank {rank} has waited {seconds:.0} s for {whom} ({what}, after step {step}), longer than dist_timeout_s; \
             the run ends; its last checkpoint remains valid"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_names_who_is_missing_and_where() {
        let mut watched = RankWaitState { patience: Duration::from_secs(5), step: 7, waiting: None };
        assert_eq!(watched.complaint(0), None);
        let Some(since) = Instant::now().checked_sub(Duration::from_secs(6)) else { return };
        watched.waiting = Some(RankWait { what: "gradients", since, missing: vec![2, 3] });
        let said = watched.complaint(0).unwrap();
        assert!(said.starts_with("rank 0 has waited 6 s for ranks 2, 3 (gradients, after step 7)"), "{said}");
        watched.patience = Duration::from_secs(60);
        assert_eq!(watched.complaint(0), None);
    }
}
