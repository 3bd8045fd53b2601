//! How much of the waiting prompts a round reads.

use std::time::Duration;

/// Time that a round should take for reading prompts while other sequences generate.
const SHARED: Duration = Duration::from_millis(60);

/// Time that a round should take for reading prompts if nothing else happens. A request that comes meanwhile waits for its end.
const ALONE: Duration = Duration::from_millis(400);

/// Fewest and most tokens of a part.
const PARTS: (usize, usize) = (16, 2048);

/// The number of prompt tokens of a round, from the time that earlier rounds took. It changes no token: see [`super`].
pub(super) struct PrefillBudget {
    /// Tokens a second.
    speed: f64,
}

impl Default for PrefillBudget {
    fn default() -> Self {
        // A cautious guess, until the first part has been timed.
        Self { speed: 640.0 }
    }
}

impl PrefillBudget {
    /// Returns the number of prompt tokens that a round reads.
    pub(super) fn budget(&self, generating: bool) -> usize {
        let time = if generating { SHARED } else { ALONE };
        ((self.speed * time.as_secs_f64()) as usize).clamp(PARTS.0, PARTS.1)
    }

    /// Takes note of a round that read so many prompt tokens.
    pub(super) fn timed(&mut self, tokens: usize, time: Duration) {
        // Fewer say more about the rest of the round.
        if tokens >= PARTS.0 {
            let speed = tokens as f64 / time.as_secs_f64().max(1e-6);
            self.speed = 0.5 * self.speed + 0.5 * speed;
        }
    }
}
