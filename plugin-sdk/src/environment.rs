//! Environments: episodes with several turns. Implement [`Environment`] and end with
//! [`environment_plugin!`](crate::environment_plugin).

pub use crate::bindings::contract::environment::{Call, Message, Opening, Reply, Start, Tool, Turn};
use crate::config::Config;
use crate::{Error, Metric};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// Maximum length of a value in an error message, in characters.
const SHOWN: usize = 80;

/// An environment. Its only state is that of its episodes, which each turn receives.
pub trait Environment: Sized + Send + 'static {
    /// The settings of the environment.
    type Config: Config;
    /// The state of one episode.
    type Episode: Send + 'static;

    /// Creates the environment from its settings, and checks what their types can't express.
    ///
    /// # Errors
    /// If the settings contradict each other.
    fn new(config: Self::Config) -> Result<Self, Error>;

    /// Opens an episode. Its randomness comes from `start.seed` alone.
    ///
    /// # Errors
    /// If the environment can't work with this row.
    fn begin(&self, start: &Start) -> Result<(Self::Episode, Opening), Error>;

    /// Replies to the model's turn.
    ///
    /// # Errors
    /// If the episode can't continue. The model's own text is never a reason: report its mistakes to the model in the reply.
    fn step(&self, episode: &mut Self::Episode, turn: &Turn) -> Result<Reply, Error>;

    /// Ends an episode, which may have run out of turns or tokens, and returns metrics about it.
    fn finish(&self, _episode: Self::Episode) -> Vec<Metric> {
        Vec::new()
    }
}

/// An environment that receives all waiting episodes at once, so that one that [sends requests to servers](crate::http) can send a batch of
/// them in parallel. Export it with `environment_plugin!(MyType, asking);`. Every [`Environment`] is one.
pub trait BatchEnvironment: Sized + Send + 'static {
    /// The settings of the environment.
    type Config: Config;
    /// The state of one episode.
    type Episode: Send + 'static;

    /// Creates the environment from its settings.
    ///
    /// # Errors
    /// If the settings contradict each other.
    fn new(config: Self::Config) -> Result<Self, Error>;

    /// Opens episodes.
    ///
    /// # Errors
    /// If the environment can't work with one of these rows. The host then opens each episode alone.
    fn begin(&self, starts: &[Start]) -> Result<Vec<(Self::Episode, Opening)>, Error>;

    /// Replies to turns, each with its episode.
    ///
    /// # Errors
    /// If an episode can't continue. The host then reopens the episodes and repeats their turns, each alone.
    fn step(&self, turns: &mut [(&mut Self::Episode, &Turn)]) -> Result<Vec<Reply>, Error>;

    /// Ends episodes and returns metrics about them.
    fn finish(&self, episodes: Vec<Self::Episode>) -> Vec<Metric>;
}

impl<E: Environment> BatchEnvironment for E {
    type Config = E::Config;
    type Episode = E::Episode;

    fn new(config: E::Config) -> Result<Self, Error> {
        Environment::new(config)
    }

    fn begin(&self, starts: &[Start]) -> Result<Vec<(E::Episode, Opening)>, Error> {
        starts.iter().map(|start| Environment::begin(self, start)).collect()
    }

    fn step(&self, turns: &mut [(&mut E::Episode, &Turn)]) -> Result<Vec<Reply>, Error> {
        turns.iter_mut().map(|(episode, turn)| Environment::step(self, episode, turn)).collect()
    }

    fn finish(&self, episodes: Vec<E::Episode>) -> Vec<Metric> {
        episodes.into_iter().flat_map(|episode| Environment::finish(self, episode)).collect()
    }
}

/// A configured environment with its open episodes.
#[doc(hidden)]
pub struct ConfiguredEnvironment<E: BatchEnvironment> {
    environment: E,
    episodes: BTreeMap<u64, E::Episode>,
}

impl<E: BatchEnvironment> ConfiguredEnvironment<E> {
    pub fn new(config: E::Config) -> Result<Self, Error> {
        Ok(Self { environment: E::new(config)?, episodes: BTreeMap::new() })
    }

    pub fn begin(&mut self, starts: &[Start]) -> Result<Vec<Opening>, Error> {
        let mut openings = Vec::with_capacity(starts.len());
        for ((episode, opening), start) in self.environment.begin(starts)?.into_iter().zip(starts) {
            if self.episodes.insert(start.episode, episode).is_some() {
                return Err(Error::Input(format!("episode {} was begun twice", start.episode)));
            }
            openings.push(opening);
        }
        Ok(openings)
    }

    pub fn step(&mut self, turns: &[Turn]) -> Result<Vec<Reply>, Error> {
        let wanted: BTreeMap<u64, usize> = turns.iter().enumerate().map(|(place, turn)| (turn.episode, place)).collect();
        let open = self.episodes.iter_mut().filter_map(|(number, episode)| Some((*wanted.get(number)?, episode)));
        let mut asked: Vec<(usize, &mut E::Episode)> = open.collect();
        if asked.len() < turns.len() {
            let known = |turn: &&Turn| asked.iter().any(|(place, _)| turns[*place].episode == turn.episode);
            return match turns.iter().find(|turn| !known(turn)) {
                Some(turn) => Err(Error::Input(format!("episode {} was never begun, or is over", turn.episode))),
                None => Err(Error::Input("an episode has two turns at once".into())),
            };
        }
        asked.sort_by_key(|(place, _)| *place);
        let mut asked: Vec<(&mut E::Episode, &Turn)> =
            asked.into_iter().map(|(place, episode)| (episode, &turns[place])).collect();
        self.environment.step(&mut asked)
    }

    pub fn finish(&mut self, episodes: &[u64]) -> Vec<Metric> {
        let ended: Vec<E::Episode> = episodes.iter().filter_map(|episode| self.episodes.remove(episode)).collect();
        self.environment.finish(ended)
    }
}

impl Start {
    /// Returns the row's value in a dataset column as a `T`, or `None` if it has none.
    ///
    /// # Errors
    /// If the value is not a `T`.
    ///
    /// ```
    /// use rlhost_plugin_sdk::environment::testing;
    ///
    /// let start = testing::start(7, &[("secret", "12"), ("topic", "null")]);
    /// assert_eq!(start.column_as::<u32>("secret").unwrap(), Some(12));
    /// assert_eq!(start.column_as::<String>("topic").unwrap(), None);
    /// assert_eq!(start.column_as::<u32>("other").unwrap(), None);
    /// assert!(start.column_as::<String>("secret").is_err());
    /// ```
    pub fn column_as<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Error> {
        let Some((_, json)) = self.columns.iter().find(|(column, _)| column == name) else { return Ok(None) };
        serde_json::from_str(json).map_err(|e| {
            let shown: String = json.chars().take(SHOWN).collect();
            Error::Input(format!("the dataset's column {name:?} contains {shown}, which does not fit: {e}"))
        })
    }

    /// Returns the episode's random number generator.
    #[must_use]
    pub fn random(&self) -> Random {
        Random(self.seed)
    }
}

/// The random number generator of an episode: SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns the next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number in `0..end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }
}

impl Message {
    /// Creates a message with this role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), name: None, tool_call_id: None }
    }

    /// Creates a message with the role `user`.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }

    /// Creates a tool's answer to a call.
    pub fn tool(call: &Call, content: impl Into<String>) -> Self {
        let (name, id) = (call.name.clone(), call.id.clone());
        Self { role: "tool".into(), content: content.into(), name: Some(name), tool_call_id: Some(id) }
    }
}

impl Opening {
    /// Opens an episode with the dataset's prompt and no tools.
    #[must_use]
    pub fn plain() -> Self {
        Self { prompt: None, tools: Vec::new() }
    }

    /// Opens an episode with a prompt of its own.
    #[must_use]
    pub fn with_prompt(prompt: Vec<Message>) -> Self {
        Self { prompt: Some(prompt), tools: Vec::new() }
    }

    /// Adds tools.
    #[must_use]
    pub fn with_tools(self, tools: Vec<Tool>) -> Self {
        Self { tools, ..self }
    }
}

impl Reply {
    /// Replies with messages, without a reward.
    #[must_use]
    pub fn say(messages: Vec<Message>) -> Self {
        Self { messages, done: false, reward: None }
    }

    /// Ends the episode with this reward.
    #[must_use]
    pub fn end(reward: f32) -> Self {
        Self { messages: Vec::new(), done: true, reward: Some(reward) }
    }

    /// Gives the turn this reward.
    #[must_use]
    pub fn with_reward(self, reward: f32) -> Self {
        Self { reward: Some(reward), ..self }
    }
}

impl Tool {
    /// Describes a tool whose arguments have the type `A`.
    pub fn new<A: JsonSchema>(name: impl Into<String>, description: impl Into<String>) -> Self {
        let mut schema = schemars::schema_for!(A);
        for noise in ["$schema", "title"] {
            schema.remove(noise);
        }
        Self { name: name.into(), description: description.into(), parameters: schema.as_value().to_string() }
    }
}

impl Call {
    /// Returns the arguments as an `A`. The error is a sentence that can be shown to the model.
    ///
    /// # Errors
    /// If they are not JSON, or not an `A`.
    ///
    /// ```
    /// use rlhost_plugin_sdk::{environment::Call, prelude::*};
    ///
    /// #[derive(Deserialize)]
    /// struct Sum {
    ///     a: i64,
    ///     b: i64,
    /// }
    ///
    /// let call = |arguments: &str| Call { id: "0".into(), name: "add".into(), arguments: arguments.into() };
    /// assert_eq!(call(r#"{"a": 2, "b": 3}"#).arguments_as::<Sum>().map(|s| s.a + s.b), Ok(5));
    /// let told = call(r#"{"a": 2"#).arguments_as::<Sum>().map(|s| s.a).unwrap_err();
    /// assert!(told.starts_with("the arguments of add are not JSON"), "{told}");
    /// let told = call(r#"{"a": 2}"#).arguments_as::<Sum>().map(|s| s.a).unwrap_err();
    /// assert!(told.contains("missing field `b`"), "{told}");
    /// ```
    pub fn arguments_as<A: DeserializeOwned>(&self) -> Result<A, String> {
        let json: serde_json::Value =
            serde_json::from_str(&self.arguments).map_err(|e| format!("the arguments of {} are not JSON: {e}", self.name))?;
        serde_json::from_value(json).map_err(|e| format!("the arguments of {} don't fit: {e}", self.name))
    }
}

/// Exports a type that implements [`Environment`](crate::environment::Environment) or, with `asking`,
/// [`BatchEnvironment`](crate::environment::BatchEnvironment). Name, version and description are the crate's.
///
/// ```
/// use rlhost_plugin_sdk::environment::{Environment, Message, Opening, Reply, Start, Turn, testing::Play};
/// use rlhost_plugin_sdk::{config::NoConfig, prelude::*};
///
/// /// Wants to hear the word that it says.
/// struct Echo;
///
/// impl Environment for Echo {
///     type Config = NoConfig;
///     type Episode = &'static str;
///
///     fn new(_: NoConfig) -> Result<Self, Error> {
///         Ok(Self)
///     }
///
///     fn begin(&self, start: &Start) -> Result<(&'static str, Opening), Error> {
///         let word = ["yes", "no"][start.random().below(2) as usize];
///         Ok((word, Opening::with_prompt(vec![Message::user(format!("Say {word}."))])))
///     }
///
///     fn step(&self, word: &mut &'static str, turn: &Turn) -> Result<Reply, Error> {
///         Ok(if turn.text.contains(*word) { Reply::end(1.0) } else { Reply::say(vec![Message::user("Again.")]) })
///     }
/// }
///
/// environment_plugin!(Echo);
///
/// # fn main() {
/// let mut play = Play::<Echo>::begin(NoConfig {}, 1, &[]).unwrap();
/// let word = play.prompt()[0].content.replace("Say ", "").replace('.', "");
/// assert_eq!(play.says("what?").unwrap().messages[0].content, "Again.");
/// assert!(play.says(&word).unwrap().done);
/// assert_eq!(play.reward(), Some(1.0));
/// # }
/// ```
#[macro_export]
macro_rules! environment_plugin {
    ($environment:ty, asking) => {
        $crate::environment_plugin!($environment);
    };
    ($environment:ty) => {
        #[doc(hidden)]
        pub struct __Plugin;
        static __TABLE: $crate::slot::ExportSlot<$crate::environment::ConfiguredEnvironment<$environment>> =
            $crate::slot::ExportSlot::new();

        impl $crate::bindings::contract::plugin::Guest for __Plugin {
            fn describe() -> $crate::bindings::contract::plugin::Info {
                $crate::bindings::contract::plugin::Info {
                    name: env!("CARGO_PKG_NAME").into(),
                    version: env!("CARGO_PKG_VERSION").into(),
                    description: env!("CARGO_PKG_DESCRIPTION").into(),
                    config_schema: $crate::config::schema::<<$environment as $crate::environment::BatchEnvironment>::Config>(),
                    needs: $crate::Needs::DATASET_COLUMNS.names(),
                    stateless: true,
                }
            }

            fn configure(config: ::std::string::String) -> ::core::result::Result<(), $crate::Error> {
                __TABLE.set($crate::environment::ConfiguredEnvironment::new($crate::config::parse(&config)?)?);
                Ok(())
            }
        }

        impl $crate::bindings::contract::environment::Guest for __Plugin {
            fn begin(
                starts: ::std::vec::Vec<$crate::environment::Start>,
            ) -> ::core::result::Result<::std::vec::Vec<$crate::environment::Opening>, $crate::Error> {
                __TABLE.with(|table| table.begin(&starts))
            }

            fn step(
                turns: ::std::vec::Vec<$crate::environment::Turn>,
            ) -> ::core::result::Result<::std::vec::Vec<$crate::environment::Reply>, $crate::Error> {
                __TABLE.with(|table| table.step(&turns))
            }

            fn finish(episodes: ::std::vec::Vec<u64>) -> ::core::result::Result<::std::vec::Vec<$crate::Metric>, $crate::Error> {
                __TABLE.with(|table| ::core::result::Result::Ok(table.finish(&episodes)))
            }
        }

        $crate::export_interfaces!(__Plugin, plugin, environment);
    };
}

/// Runs an environment natively, for a plugin's own tests.
pub mod testing {
    use super::{Call, Environment, Message, Opening, Reply, Start, Turn};
    use crate::{Error, Metric};

    /// Returns the start of an episode with this seed and these dataset columns, each a name and a JSON value.
    #[must_use]
    pub fn start(seed: u64, columns: &[(&str, &str)]) -> Start {
        let columns = columns.iter().map(|(name, json)| ((*name).to_owned(), (*json).to_owned())).collect();
        Start { episode: 0, seed, prompt: vec![Message::user("Go.")], columns }
    }

    /// An episode in progress.
    pub struct Play<E: Environment> {
        environment: E,
        episode: E::Episode,
        start: Start,
        opening: Opening,
        reward: Option<f32>,
    }

    impl<E: Environment> Play<E> {
        /// Opens an episode.
        ///
        /// # Errors
        /// If the environment fails.
        pub fn begin(config: E::Config, seed: u64, columns: &[(&str, &str)]) -> Result<Self, Error> {
            let (environment, start) = (E::new(config)?, start(seed, columns));
            let (episode, opening) = environment.begin(&start)?;
            Ok(Self { environment, episode, start, opening, reward: None })
        }

        /// Returns the prompt that the model reads.
        pub fn prompt(&self) -> &[Message] {
            self.opening.prompt.as_deref().unwrap_or(&self.start.prompt)
        }

        /// Returns the episode's opening.
        pub fn opening(&self) -> &Opening {
            &self.opening
        }

        /// Takes a turn in which the model writes this text.
        ///
        /// # Errors
        /// If the environment fails.
        pub fn says(&mut self, text: &str) -> Result<Reply, Error> {
            self.turn(text, Vec::new())
        }

        /// Takes a turn in which the model calls a tool.
        ///
        /// # Errors
        /// If the environment fails.
        pub fn calls(&mut self, name: &str, arguments: &str) -> Result<Reply, Error> {
            self.turn("", vec![Call { id: "call_0".into(), name: name.into(), arguments: arguments.into() }])
        }

        fn turn(&mut self, text: &str, calls: Vec<Call>) -> Result<Reply, Error> {
            let turn = Turn { episode: self.start.episode, text: text.into(), calls, finished: true };
            let reply = self.environment.step(&mut self.episode, &turn)?;
            if let Some(reward) = reply.reward {
                *self.reward.get_or_insert(0.0) += reward;
            }
            Ok(reply)
        }

        /// Returns the episode's reward so far.
        pub fn reward(&self) -> Option<f32> {
            self.reward
        }

        /// Ends the episode.
        pub fn finish(self) -> Vec<Metric> {
            self.environment.finish(self.episode)
        }
    }
}
