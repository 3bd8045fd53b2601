//! A game with several turns: the model guesses a number and learns whether the secret is higher or lower. Binary search finds it in the
//! fewest guesses.

use rlhost_plugin_sdk::environment::{Environment, Message, Opening, Reply, Start, Turn};
use rlhost_plugin_sdk::prelude::*;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GuessNumberSettings {
    /// Smallest number.
    pub low: i64,
    /// Largest number.
    pub high: i64,
    /// Maximum number of guesses; binary search needs the binary logarithm of the range's size, rounded up.
    pub max_guesses: u32,
    /// Reward of finding the number with the last guess; earlier guesses earn up to 1.
    pub late_reward: f32,
    /// Reward of a turn without a number, which also counts as a guess.
    pub no_number: f32,
    /// Whether the game asks its own question instead of the dataset's prompt.
    pub own_prompt: bool,
}

impl Default for GuessNumberSettings {
    fn default() -> Self {
        Self { low: 1, high: 100, max_guesses: 10, late_reward: 0.5, no_number: -0.1, own_prompt: true }
    }
}

/// The game.
pub struct GuessNumber(GuessNumberSettings);

/// A game in progress.
pub struct GuessNumberEpisode {
    secret: i64,
    guesses: u32,
    found: bool,
}

/// Returns the last whole number in a text.
fn number_in(text: &str) -> Option<i64> {
    let end = text.rfind(|c: char| c.is_ascii_digit())? + 1;
    let digits =
        text[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));
    let negative = text[..digits].ends_with('-');
    text[digits..end].parse::<i64>().ok().map(|n| if negative { -n } else { n })
}

impl Environment for GuessNumber {
    type Config = GuessNumberSettings;
    type Episode = GuessNumberEpisode;

    fn new(settings: GuessNumberSettings) -> Result<Self, Error> {
        if settings.low > settings.high || settings.high.checked_sub(settings.low).is_none() {
            return Err(Error::Config(format!("low is {} and high {}; low must not exceed high", settings.low, settings.high)));
        }
        if settings.max_guesses == 0 {
            return Err(Error::Config("max_guesses is 0; it must be at least 1".into()));
        }
        Ok(Self(settings))
    }

    fn begin(&self, start: &Start) -> Result<(GuessNumberEpisode, Opening), Error> {
        let GuessNumberSettings { low, high, own_prompt, .. } = self.0;
        // A dataset may specify the secrets, so that all samples of a row play the same game.
        let secret = match start.column_as::<i64>("secret")? {
            Some(secret) if (low..=high).contains(&secret) => secret,
            Some(secret) => return Err(Error::Input(format!("the secret {secret} is not between {low} and {high}"))),
            None => low + start.random().below(high.abs_diff(low).saturating_add(1)) as i64,
        };
        let opening = if own_prompt {
            Opening::with_prompt(vec![Message::user(format!("Guess my number between {low} and {high}."))])
        } else {
            Opening::plain()
        };
        Ok((GuessNumberEpisode { secret, guesses: 0, found: false }, opening))
    }

    fn step(&self, playing: &mut GuessNumberEpisode, turn: &Turn) -> Result<Reply, Error> {
        let GuessNumberSettings { max_guesses, late_reward, no_number, .. } = self.0;
        playing.guesses += 1;
        let guess = number_in(&turn.text);
        if guess == Some(playing.secret) {
            playing.found = true;
            let left = (max_guesses - playing.guesses.min(max_guesses)) as f32 / (max_guesses - 1).max(1) as f32;
            return Ok(Reply::end(late_reward + (1.0 - late_reward) * left));
        }
        let reward = if guess.is_some() { 0.0 } else { no_number };
        if playing.guesses >= max_guesses {
            return Ok(Reply::end(reward));
        }
        let said = match guess {
            Some(guess) if guess < playing.secret => "higher",
            Some(_) => "lower",
            None => "Say a number.",
        };
        Ok(Reply::say(vec![Message::user(said)]).with_reward(reward))
    }

    fn finish(&self, playing: GuessNumberEpisode) -> Vec<Metric> {
        let mut metrics = vec![Metric::mean("guess_number/found", f64::from(u8::from(playing.found)), 1.0)];
        if playing.found {
            metrics.push(Metric::mean("guess_number/guesses", f64::from(playing.guesses), 1.0));
        }
        metrics
    }
}

environment_plugin!(GuessNumber);

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::environment::testing::Play;

    fn play(settings: GuessNumberSettings, secret: &str) -> Play<GuessNumber> {
        Play::begin(settings, 1, &[("secret", secret)]).unwrap()
    }

    #[test]
    fn halving_finds_every_number_in_time() {
        for secret in 1..=100_i64 {
            let mut game = play(GuessNumberSettings { max_guesses: 7, ..GuessNumberSettings::default() }, &secret.to_string());
            let (mut low, mut high) = (1, 100);
            loop {
                let guess = (low + high) / 2;
                let reply = game.says(&format!("I guess {guess}.")).unwrap();
                if reply.done {
                    assert_eq!(guess, secret);
                    break;
                }
                match reply.messages[0].content.as_str() {
                    "higher" => low = guess + 1,
                    _ => high = guess - 1,
                }
            }
            assert!(game.reward().unwrap() >= 0.5, "{secret}");
        }
    }

    #[test]
    fn rewards_fall_from_one_to_late_reward_and_to_nothing() {
        let mut first = play(GuessNumberSettings::default(), "50");
        assert_eq!(first.says("50").unwrap(), Reply::end(1.0));
        let mut third = play(GuessNumberSettings { max_guesses: 3, ..GuessNumberSettings::default() }, "50");
        assert_eq!(third.says("1").unwrap().messages[0].content, "higher");
        assert_eq!(third.says("99").unwrap().messages[0].content, "lower");
        assert_eq!(third.says("50").unwrap(), Reply::end(0.5));
        let mut lost = play(GuessNumberSettings { max_guesses: 1, ..GuessNumberSettings::default() }, "50");
        assert_eq!(lost.says("no idea").unwrap(), Reply::end(-0.1));
        assert_eq!(lost.finish().len(), 1);
    }

    #[test]
    fn numbers_are_found_in_any_text() {
        assert_eq!(number_in("é12é"), Some(12));
        assert_eq!(number_in("from 3 to -40."), Some(-40));
        assert_eq!(number_in("7"), Some(7));
        assert_eq!(number_in("none"), None);
        assert_eq!(number_in("99999999999999999999999"), None);
    }

    #[test]
    fn secrets_follow_from_the_seed_and_lie_in_the_range() {
        let game = GuessNumber::new(GuessNumberSettings { low: -3, high: 3, ..GuessNumberSettings::default() }).unwrap();
        let secret = |seed| game.begin(&rlhost_plugin_sdk::environment::testing::start(seed, &[])).unwrap().0.secret;
        let all: std::collections::BTreeSet<i64> = (0..200).map(secret).collect();
        assert_eq!(all.into_iter().collect::<Vec<_>>(), (-3..=3).collect::<Vec<_>>());
        assert_eq!(secret(5), secret(5));
        assert!(GuessNumber::new(GuessNumberSettings { low: 2, high: 1, ..GuessNumberSettings::default() }).is_err());
        assert!(Play::<GuessNumber>::begin(GuessNumberSettings::default(), 0, &[("secret", "101")]).is_err());
    }
}
