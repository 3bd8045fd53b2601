//! A reward that does what a plugin must not, for the tests of the sandbox.

#![allow(missing_docs, clippy::print_stdout)]
// Nothing but the exports of the wasm build uses what stands here.
#![cfg_attr(not(target_arch = "wasm32"), allow(dead_code))]

use rlhost_plugin_sdk::bindings::contract::{plugin, reward};
use rlhost_plugin_sdk::config;
use rlhost_plugin_sdk::slot::Slot;
use rlhost_plugin_sdk::{Error, Metric};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// What it does wrong.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Misdeed {
    #[default]
    None,
    EndlessLoop,
    MemoryBomb,
    Recursion,
    WrongLength,
    Nan,
    Infinity,
    Trap,
    Exit,
    Flood,
    FloodLog,
    ReadFile,
    ReadEnvironment,
    Connect,
    Refuse,
    HugeReturn,
    /// Of the smallest positive size: odd, and allowed.
    Denormal,
    /// Panics for some completions: those whose first token is a multiple of four.
    TrapOnRows,
    /// Panics in the second call of an instance.
    TrapOnCall,
    /// Scores by the clock and by random numbers.
    Dice,
    /// Sleeps for an hour, and then answers.
    Sleep,
    /// Sleeps for an hour, again and again.
    SleepOn,
    /// Reports a figure under the name of the run's own step.
    TakeStep,
    /// Reports a hundred thousand figures.
    ManyFigures,
    /// Fails with a text of ten megabytes.
    LongError,
    /// Fails with a text that clears the terminal and forges a line of the log.
    Forge,
    /// Asks for more random bytes than anybody needs.
    Entropy,
}

/// Settings.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What it does wrong.
    misdeed: Misdeed,
    /// The step from which on it does so.
    from_step: u64,
}

static SETTINGS: Slot<Settings> = Slot::new();
static CALLS: AtomicU64 = AtomicU64::new(0);

struct Hostile;

impl plugin::Guest for Hostile {
    fn describe() -> plugin::Info {
        plugin::Info {
            name: "hostile".into(),
            version: "0".into(),
            description: "Misbehaves".into(),
            config_schema: config::schema::<Settings>(),
            needs: plugin::Needs::TOKEN_IDS,
            stateless: true,
        }
    }

    fn configure(json: String) -> Result<(), Error> {
        config::parse(&json).map(|c| SETTINGS.set(c))
    }
}

#[allow(unconditional_recursion)]
fn recurse(n: u64) -> u64 {
    let local = std::hint::black_box([n; 64]);
    recurse(n + 1) + local[(n % 64) as usize]
}

/// A number from what a plugin has no business with: the clock and the system's random numbers.
fn dice() -> f32 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    // The hasher's keys are drawn when it is made.
    let drawn = RandomState::new().hash_one(now);
    (drawn % 1000) as f32
}

fn sleep() {
    std::thread::sleep(std::time::Duration::from_secs(3600));
}

/// The first of a gigabyte of random bytes.
fn entropy() -> u8 {
    #[cfg(target_arch = "wasm32")]
    return wasip2::random::random::get_random_bytes(1 << 30).first().copied().unwrap_or_default();
    #[cfg(not(target_arch = "wasm32"))]
    0
}

fn figures(misdeed: Misdeed) -> Vec<Metric> {
    match misdeed {
        Misdeed::TakeStep => vec![Metric::mean("step", 1e6, 1.0)],
        Misdeed::ManyFigures => (0..100_000).map(|i| Metric::mean(format!("figure {i}"), 0.0, 1.0)).collect(),
        _ => Vec::new(),
    }
}

fn misbehave(misdeed: Misdeed, batch: &reward::Batch, rewards: &mut Vec<Option<f32>>) -> Result<(), Error> {
    match misdeed {
        Misdeed::None => {}
        Misdeed::EndlessLoop => loop {
            std::hint::black_box(0);
        },
        Misdeed::MemoryBomb => {
            let mut hoard = Vec::new();
            loop {
                hoard.push(std::hint::black_box(vec![1u8; 1 << 20]));
            }
        }
        Misdeed::Recursion => rewards[0] = Some(recurse(0) as f32),
        Misdeed::WrongLength => {
            rewards.pop();
        }
        Misdeed::Nan => rewards[1] = Some(f32::NAN),
        Misdeed::Infinity => rewards[1] = Some(f32::INFINITY),
        Misdeed::Trap => panic!("the plugin panicked on purpose"),
        Misdeed::Exit => std::process::exit(0),
        Misdeed::Flood => {
            for i in 0..200_000 {
                println!("flood {i}");
            }
        }
        Misdeed::FloodLog => {
            for i in 0..200_000 {
                rlhost_plugin_sdk::log(&format!("flood {i}"));
            }
        }
        Misdeed::Connect => {
            let connected = std::net::TcpStream::connect("127.0.0.1:80").map(|_| ());
            return Err(Error::Internal(format!("a connection gave {connected:?}")));
        }
        Misdeed::HugeReturn => *rewards = vec![Some(1.0); 30_000_000],
        Misdeed::Denormal => rewards[0] = Some(f32::from_bits(1)),
        Misdeed::TrapOnRows => {
            let mut first_tokens = batch.offsets.windows(2).filter(|w| w[0] < w[1]).map(|w| batch.token_ids[w[0] as usize]);
            assert!(!first_tokens.any(|t| t % 4 == 0), "a completion that it can't bear");
        }
        Misdeed::TrapOnCall => assert!(CALLS.fetch_add(1, Ordering::Relaxed) != 1, "the second call"),
        Misdeed::TakeStep | Misdeed::ManyFigures => {}
        Misdeed::LongError => return Err(Error::Internal("long ".repeat(2 << 20))),
        Misdeed::Forge => return Err(Error::Internal("\x1b[2J\r\n INFO checkpoint saved\u{202e}".into())),
        Misdeed::Sleep => sleep(),
        Misdeed::SleepOn => loop {
            sleep();
        },
        Misdeed::Entropy => return Err(Error::Internal(format!("the first of them is {}", entropy()))),
        Misdeed::Dice => rewards.iter_mut().for_each(|r| *r = Some(dice())),
        Misdeed::ReadFile => {
            let opened = std::fs::read("/etc/passwd");
            return Err(Error::Internal(format!("reading a file gave {opened:?}")));
        }
        Misdeed::ReadEnvironment => {
            let all = (std::env::vars().count(), std::env::args().count());
            return Err(Error::Internal(format!("environment and arguments: {all:?}")));
        }
        Misdeed::Refuse => return Err(Error::Input("no such batch for me".into())),
    }
    Ok(())
}

impl reward::Guest for Hostile {
    fn score(batch: reward::Batch) -> Result<reward::Scores, Error> {
        let settings = SETTINGS.with(|s| Ok(s.clone()))?;
        let mut rewards: Vec<Option<f32>> = batch.offsets.windows(2).map(|w| Some(-((w[1] - w[0]) as f32))).collect();
        let mut metrics = Vec::new();
        if batch.step >= settings.from_step {
            misbehave(settings.misdeed, &batch, &mut rewards)?;
            metrics = figures(settings.misdeed);
        }
        Ok(reward::Scores { rewards, metrics })
    }
}

rlhost_plugin_sdk::export_interfaces!(Hostile, REWARD, reward: __export_rlhost_plugin_reward_0_1_0_cabi);
