//! Number of prompt tokens that a round reads.

use std::time::Duration;

/// Target time for reading prompts in a round while other sequences generate.
const SHARED: Duration = Duration::from_millis(60);

/// Target time for reading prompts in a round if nothing else happens. A request that arrives meanwhile waits for the end of the round.
const ALONE: Duration = Duration::from_millis(400);

/// Minimum and maximum number of tokens in a part.
const PARTS: (usize, usize) = (16, 2048);

/// Number of prompt tokens per round, from the time that earlier rounds took. It does not affect the sampled tokens: see [`super`].
pub(super) struct PrefillBudget {
    /// Prompt tokens per second.
    speed: f64,
}

impl Default for PrefillBudget {
    fn default() -> Self {
        // A conservative guess until the first part has been timed.
        Self { speed: 640.0 }
    }
}

impl PrefillBudget {
    /// Returns the number of prompt tokens that a round reads.
    pub(super) fn budget(&self, generating: bool) -> usize {
        let time = if generating { SHARED } else { ALONE };
        ((self.speed * time.as_secs_f64()) as usize).clamp(PARTS.0, PARTS.1)
    }

    /// Records the time of a round that read this many prompt tokens.
    pub(super) fn timed(&mut self, tokens: usize, time: Duration) {
        // With fewer tokens, the time depends more on the rest of the round.
        if tokens >= PARTS.0 {
            let speed = tokens as f64 / time.as_secs_f64().max(1e-6);
            self.speed = 0.5 * self.speed + 0.5 * speed;
        }
    }
}
