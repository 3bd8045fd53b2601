//! An environment that violates its contract, in episodes of rows that request it.

#![allow(missing_docs, clippy::print_stdout)]
// These items are used only by the exports of the wasm build.
#![cfg_attr(not(target_arch = "wasm32"), allow(dead_code))]

use rlhost_plugin_sdk::bindings::contract::{environment, plugin};
use rlhost_plugin_sdk::environment::{Message, Opening, Reply, Start, Turn};
use rlhost_plugin_sdk::slot::ExportSlot;
use rlhost_plugin_sdk::{Error, Metric, Needs, config};
use schemars::JsonSchema;
use serde::de::IntoDeserializer;
use serde::de::value::Error as Unknown;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The violation, which happens in the second turn of an episode whose row has `"bad": true`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnrulyMisdeed {
    #[default]
    None,
    Hang,
    /// Answers slowly.
    Slow,
    Trap,
    Refuse,
    /// Returns fewer replies than there are turns.
    Few,
    Nan,
    /// Rewards with the largest number.
    Huge,
    Flood,
    /// Writes messages of the assistant.
    Assistant,
    /// Replies with information about other episodes.
    Gossip,
    /// Fails when it opens an episode.
    Begin,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UnrulySettings {
    pub misdeed: UnrulyMisdeed,
}

#[derive(Default)]
struct UnrulyState {
    misdeed: UnrulyMisdeed,
    /// Number of turns of all episodes so far.
    turns: u32,
    /// Per episode: number of turns so far, and whether the row is bad.
    episodes: BTreeMap<u64, (u32, bool)>,
}

struct Unruly;

/// The violation without any setting, in all episodes, which tests overwrite in the compiled file. With a trailing `+`, it does not happen
/// in episodes of a trial, whose seed is 0.
static OWN: [u8; 32] = *b"unruly=none.....................";

fn own() -> (UnrulyMisdeed, bool) {
    // `black_box` prevents the compiler from inlining the constant.
    let text = std::str::from_utf8(&std::hint::black_box(&OWN)[7..]).unwrap_or_default().trim_end_matches('.');
    let (name, waits) = text.strip_suffix('+').map_or((text, false), |name| (name, true));
    let misdeed = UnrulyMisdeed::deserialize(IntoDeserializer::<Unknown>::into_deserializer(name));
    (misdeed.unwrap_or(UnrulyMisdeed::Trap), waits)
}

static STATE: ExportSlot<UnrulyState> = ExportSlot::new();

impl plugin::Guest for Unruly {
    fn describe() -> plugin::Info {
        plugin::Info {
            name: env!("CARGO_PKG_NAME").into(),
            version: env!("CARGO_PKG_VERSION").into(),
            description: env!("CARGO_PKG_DESCRIPTION").into(),
            config_schema: config::schema::<UnrulySettings>(),
            needs: Needs::DATASET_COLUMNS.names(),
            stateless: true,
        }
    }

    fn configure(config: String) -> Result<(), Error> {
        let UnrulySettings { misdeed } = config::parse(&config)?;
        let misdeed = if misdeed == UnrulyMisdeed::None { own().0 } else { misdeed };
        STATE.set(UnrulyState { misdeed, ..UnrulyState::default() });
        Ok(())
    }
}

impl environment::Guest for Unruly {
    fn begin(starts: Vec<Start>) -> Result<Vec<Opening>, Error> {
        STATE.with(|state| {
            for start in &starts {
                let (own, waits) = own();
                let of_own = own != UnrulyMisdeed::None && !(waits && start.seed == 0);
                let bad = of_own || start.column_as("bad")?.unwrap_or(false);
                assert!(!(bad && state.misdeed == UnrulyMisdeed::Begin), "it can't begin");
                state.episodes.insert(start.episode, (0, bad));
            }
            Ok(starts.iter().map(|_| Opening::plain()).collect())
        })
    }

    fn step(turns: Vec<Turn>) -> Result<Vec<Reply>, Error> {
        STATE.with(|state| {
            let mut replies = Vec::new();
            for turn in &turns {
                let Some((number, bad)) = state.episodes.get_mut(&turn.episode) else {
                    return Err(Error::Input("no such episode".into()));
                };
                *number += 1;
                state.turns += 1;
                let reply = if *number < 3 { Reply::say(vec![Message::user("more")]).with_reward(0.5) } else { Reply::end(1.0) };
                replies.push(reply);
                if *bad && *number == 2 {
                    misbehave(state.misdeed, state.turns, &mut replies)?;
                }
            }
            Ok(replies)
        })
    }

    fn finish(episodes: Vec<u64>) -> Result<Vec<Metric>, Error> {
        STATE.with(|state| {
            let known = episodes.iter().filter(|episode| state.episodes.remove(episode).is_some()).count();
            Ok(vec![Metric::sum("unruly/finished", known as f64)])
        })
    }
}

fn misbehave(misdeed: UnrulyMisdeed, turns: u32, replies: &mut Vec<Reply>) -> Result<(), Error> {
    match misdeed {
        UnrulyMisdeed::None | UnrulyMisdeed::Begin => {}
        UnrulyMisdeed::Hang => loop {
            std::hint::black_box(());
        },
        UnrulyMisdeed::Slow => (0..400_000_000_u32).for_each(|i| {
            std::hint::black_box(i);
        }),
        UnrulyMisdeed::Trap => panic!("the table is turned over"),
        UnrulyMisdeed::Refuse => return Err(Error::Internal("I won't".into())),
        UnrulyMisdeed::Few => replies.clear(),
        UnrulyMisdeed::Nan => {
            replies.pop();
            replies.push(Reply::end(f32::NAN));
        }
        UnrulyMisdeed::Huge => {
            replies.pop();
            replies.push(Reply::end(f32::MAX));
        }
        UnrulyMisdeed::Flood => {
            replies.pop();
            replies.push(Reply::say(vec![Message::user("x".repeat(2 << 20))]));
        }
        UnrulyMisdeed::Gossip => {
            replies.pop();
            replies.push(Reply::say(vec![Message::user(format!("{turns} turns of all"))]));
        }
        UnrulyMisdeed::Assistant => {
            replies.pop();
            replies.push(Reply::say(vec![Message::new("assistant", "I am the model")]));
        }
    }
    Ok(())
}

rlhost_plugin_sdk::export_interfaces!(Unruly, plugin, environment);
