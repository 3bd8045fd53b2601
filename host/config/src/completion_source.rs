//! Where a run's completions come from: the policy, the dataset, or both.

use super::{CompletionSource, RunConfig, shortest};

impl RunConfig {
    /// Returns where completions come from, if the algorithm learns from either. A mixture counts as generation.
    pub fn completion_source(&self) -> CompletionSource {
        if self.lmbda == 0.0 { CompletionSource::Dataset } else { self.learn_from }
    }

    /// Returns whether the policy writes some completions, and the others are the dataset's.
    pub fn mixes_completions(&self) -> bool {
        self.lmbda > 0.0 && self.lmbda < 1.0
    }

    /// Checks the share of the policy's completions. The error is the invalid key, and the valid values.
    pub(super) fn check_mixture(&self) -> Result<(), (&'static str, String)> {
        if !(0.0..=1.0).contains(&self.lmbda) {
            return Err(("lmbda", format!("is {}; it is a share, from 0 to 1", shortest(self.lmbda))));
        }
        if !self.mixes_completions() {
            return Ok(());
        }
        let reason = if self.learn_from == CompletionSource::Dataset {
            "mixes completions of the policy with the dataset's, and learn_from is dataset; leave one of them out"
        } else if self.has_episodes() {
            "mixes completions with the dataset's, which are not episodes; leave environments and agents out"
        } else if self.num_generations.is_some_and(|count| count > 1) {
            "mixes completions with the dataset's, which has one for each prompt; set num_generations = 1"
        } else {
            return Ok(());
        };
        Err(("lmbda", reason.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_the_policys_completions_selects_their_source() {
        let of = |lmbda, learn_from| RunConfig { lmbda, learn_from, ..RunConfig::default() };
        let (own, given) = (CompletionSource::Generation, CompletionSource::Dataset);
        for (config, source, mixes) in
            [(of(1.0, own), own, false), (of(0.0, own), given, false), (of(0.25, own), own, true), (of(1.0, given), given, false)]
        {
            assert_eq!((config.completion_source(), config.mixes_completions()), (source, mixes));
            assert_eq!(config.check_mixture(), Ok(()));
        }
        let groups = RunConfig { num_generations: Some(4), ..of(0.5, own) };
        for (config, part) in [
            (of(f64::NAN, own), "from 0 to 1"),
            (of(1.5, own), "is 1.5"),
            (of(-0.1, own), "is -0.1"),
            (of(0.5, given), "learn_from is dataset"),
            (groups, "num_generations = 1"),
        ] {
            let (key, detail) = config.check_mixture().unwrap_err();
            assert!(key == "lmbda" && detail.contains(part), "{part}: {detail}");
        }
    }
}
