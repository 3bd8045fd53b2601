//! Says a word and waits until the model repeats it: an episode of a few turns, with a reward that falls with each.

use rlhost_plugin_sdk::environment::{Environment, Message, Opening, Reply, Start, Turn};
use rlhost_plugin_sdk::prelude::*;

/// EchoSettings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EchoSettings {
    /// Number of turns in which the word may be repeated.
    pub tries: u32,
}

impl Default for EchoSettings {
    fn default() -> Self {
        Self { tries: 3 }
    }
}

/// The environment: its settings, and nothing of any episode.
pub struct Echo(EchoSettings);

/// An episode.
pub struct EchoEpisode {
    word: &'static str,
    turns: u32,
}

const WORDS: [&str; 4] = ["yes", "no", "north", "south"];

impl Environment for Echo {
    type Config = EchoSettings;
    type Episode = EchoEpisode;

    fn new(settings: EchoSettings) -> Result<Self, Error> {
        match settings.tries {
            0 => Err(Error::Config("tries must be at least 1".into())),
            _ => Ok(Self(settings)),
        }
    }

    fn begin(&self, start: &Start) -> Result<(EchoEpisode, Opening), Error> {
        // The start's seed is the only randomness: all samples of a row play the same game.
        let word = WORDS[start.random().below(WORDS.len() as u64) as usize];
        Ok((EchoEpisode { word, turns: 0 }, Opening::with_prompt(vec![Message::user(format!("Say {word}."))])))
    }

    fn step(&self, playing: &mut EchoEpisode, turn: &Turn) -> Result<Reply, Error> {
        playing.turns += 1;
        if turn.text.contains(playing.word) {
            return Ok(Reply::end(1.0 / playing.turns as f32));
        }
        if playing.turns >= self.0.tries {
            return Ok(Reply::end(0.0));
        }
        Ok(Reply::say(vec![Message::user(format!("Not that. Say {}.", playing.word))]))
    }

    fn finish(&self, playing: EchoEpisode) -> Vec<Metric> {
        vec![Metric::mean("echo/turns", f64::from(playing.turns), 1.0)]
    }
}

environment_plugin!(Echo);

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::environment::testing::Play;

    #[test]
    fn a_word_that_is_repeated_later_is_worth_less() {
        let mut play = Play::<Echo>::begin(EchoSettings::default(), 7, &[]).unwrap();
        let word = play.prompt()[0].content.replace("Say ", "").replace('.', "");
        assert!(play.says("what?").unwrap().messages[0].content.contains(&word));
        assert_eq!(play.says(&word).unwrap(), Reply::end(0.5));
    }

    #[test]
    fn an_episode_ends_when_its_tries_are_over() {
        let mut play = Play::<Echo>::begin(EchoSettings { tries: 1 }, 7, &[]).unwrap();
        assert_eq!(play.says("what?").unwrap(), Reply::end(0.0));
        assert!(Echo::new(EchoSettings { tries: 0 }).is_err());
    }
}
