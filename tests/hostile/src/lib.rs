//! A reward that violates its contract, for the tests of the sandbox.

#![allow(missing_docs, clippy::print_stdout)]
// These items are used only by the exports of the wasm build.
#![cfg_attr(not(target_arch = "wasm32"), allow(dead_code))]

use rlhost_plugin_sdk::bindings::contract::{plugin, reward, state};
use rlhost_plugin_sdk::config;
use rlhost_plugin_sdk::slot::ExportSlot;
use rlhost_plugin_sdk::{Error, Metric, Needs};
use schemars::JsonSchema;
use serde::de::IntoDeserializer;
use serde::de::value::Error as Unknown;
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

/// The violation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostileMisdeed {
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
    /// Scores with the smallest positive number, which is unusual but allowed.
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
    /// Reports a metric under the name of the run's own step.
    TakeStep,
    /// Reports ten thousand metrics.
    ManyFigures,
    /// Fails with a message of ten megabytes.
    LongError,
    /// Fails with a message that clears the terminal and forges a log line.
    Forge,
    /// Requests more random bytes than any plugin needs.
    Entropy,
    /// Requests the time in an endless loop.
    ClockLoop,
    /// Waits forever for an event that never comes.
    Poll,
    /// Acquires the host's handles and releases none.
    Handles,
    /// Reports a metric under the name of the run's own loss.
    TakeLoss,
    /// Reports a metric under the name of another plugin's score.
    TakeScore,
    /// Reports a metric that is NaN.
    NanFigure,
    /// Reports a metric that its weight makes infinite.
    HeavyFigure,
    /// Reports a metric twice, with an infinite sum.
    HugeFigure,
    /// Reports a metric twice, with an infinite sum of weights.
    HugeWeight,
    /// Reports the fraction of solved prompts, with more weight than the run's own.
    TakePass,
    /// Reports a metric of the algorithm that in other runs is the host's.
    TakeEntropy,
    /// Reports a metric that the algorithm also reports.
    TakeFigure,
    /// Scores with the largest number.
    HugeScore,
    /// Reports a metric with a name of ten megabytes.
    LongFigure,
    /// Reports a metric whose name clears the terminal.
    ForgeFigure,
    /// Logs a text that clears the terminal and forges a log line.
    ForgeLog,
    /// Logs a text of ten megabytes.
    LongLog,
    /// Never returns from a snapshot.
    SnapshotLoop,
    /// Never returns from restoring a state.
    RestoreLoop,
    /// Has a state of a hundred megabytes.
    HugeState,
    /// Never returns its description.
    DescribeLoop,
    /// Describes itself in ten megabytes that clear the terminal and forge a log line.
    LongDescription,
    /// Never returns from its configuration.
    ConfigureLoop,
}

/// Settings.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HostileSettings {
    /// What it does wrong.
    misdeed: HostileMisdeed,
    /// The step from which on it does so.
    from_step: u64,
    /// Whether it says that its scores depend on earlier calls.
    stateful: bool,
}

static SETTINGS: ExportSlot<HostileSettings> = ExportSlot::new();
static CALLS: AtomicU64 = AtomicU64::new(0);
/// The step of the last batch.
static STEP: AtomicU64 = AtomicU64::new(0);
/// Whether it was restored from another version's state, as happens after a swap.
static IN_PLACE: AtomicBool = AtomicBool::new(false);

/// The violation without any setting, which tests overwrite in the compiled file. With a trailing `+`, it begins once this version has
/// replaced another.
static OWN: [u8; 40] = *b"misdeed=none............................";

fn own() -> (HostileMisdeed, bool) {
    // `black_box` prevents the compiler from inlining the constant.
    let text = std::str::from_utf8(&std::hint::black_box(&OWN)[8..]).unwrap_or_default().trim_end_matches('.');
    let (name, waits) = text.strip_suffix('+').map_or((text, false), |name| (name, true));
    let misdeed = HostileMisdeed::deserialize(IntoDeserializer::<Unknown>::into_deserializer(name));
    (misdeed.unwrap_or(HostileMisdeed::Trap), waits)
}

/// Returns the current violation, from the settings or from [`OWN`].
fn misdeed() -> HostileMisdeed {
    let settings = SETTINGS.with(|s| Ok(s.clone())).unwrap_or_default();
    match (own(), settings.misdeed) {
        ((_, true), _) if !IN_PLACE.load(Ordering::Relaxed) => HostileMisdeed::None,
        ((own, _), HostileMisdeed::None) => own,
        (_, asked) if STEP.load(Ordering::Relaxed) >= settings.from_step => asked,
        _ => HostileMisdeed::None,
    }
}

/// Loops forever.
fn for_ever() -> ! {
    loop {
        std::hint::black_box(0);
    }
}

struct Hostile;

impl plugin::Guest for Hostile {
    fn describe() -> plugin::Info {
        let text = match own().0 {
            HostileMisdeed::DescribeLoop => for_ever(),
            HostileMisdeed::LongDescription => format!("{FORGED}{}", "long ".repeat(2 << 20)),
            _ => "Misbehaves".into(),
        };
        plugin::Info {
            name: "hostile".into(),
            version: text.clone(),
            description: text,
            config_schema: config::schema::<HostileSettings>(),
            needs: Needs::TOKEN_IDS.names(),
            stateless: !SETTINGS.with(|s| Ok(s.clone())).unwrap_or_default().stateful,
        }
    }

    fn configure(json: String) -> Result<(), Error> {
        if matches!(own().0, HostileMisdeed::ConfigureLoop) {
            for_ever();
        }
        config::parse(&json).map(|c| SETTINGS.set(c))
    }
}

/// Clears the terminal, begins a line and changes the writing direction.
const FORGED: &str = "\x1b[2J\r\n INFO checkpoint saved\u{202e}";

#[allow(unconditional_recursion)]
fn recurse(n: u64) -> u64 {
    let local = std::hint::black_box([n; 64]);
    recurse(n + 1) + local[(n % 64) as usize]
}

/// Returns a number from sources that plugins must not use: the clock and the system's random numbers.
fn dice() -> f32 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    // The hasher's keys are drawn when it is created.
    let drawn = RandomState::new().hash_one(now);
    (drawn % 1000) as f32
}

fn sleep() {
    std::thread::sleep(std::time::Duration::from_secs(3600));
}

/// Returns the first of a gigabyte of random bytes.
fn entropy() -> u8 {
    #[cfg(target_arch = "wasm32")]
    return wasip2::random::random::get_random_bytes(1 << 30).first().copied().unwrap_or_default();
    #[cfg(not(target_arch = "wasm32"))]
    0
}

/// Waits in an endless loop; keeps the handles if `hoard`.
fn poll(hoard: bool) -> ! {
    #[cfg(target_arch = "wasm32")]
    loop {
        let pollable = wasip2::clocks::monotonic_clock::subscribe_duration(u64::MAX);
        if hoard {
            std::mem::forget(pollable);
        } else {
            pollable.block();
        }
    }
    #[cfg(not(target_arch = "wasm32"))]
    unreachable!("{hoard}")
}

fn figures(misdeed: HostileMisdeed) -> Vec<Metric> {
    match misdeed {
        HostileMisdeed::TakeStep => vec![Metric::mean("step", 1e6, 1.0)],
        HostileMisdeed::TakeLoss => vec![Metric::mean("loss", 0.0, 1e6)],
        HostileMisdeed::TakeScore => vec![Metric::mean("rewards/tldr_length_reward/mean", 1e6, 1.0)],
        HostileMisdeed::NanFigure => vec![Metric::mean("figure", f64::NAN, 1.0)],
        HostileMisdeed::HeavyFigure => vec![Metric::mean("figure", 1e300, 1e300)],
        HostileMisdeed::HugeFigure => vec![Metric::mean("figure", 1.7e308, 1.0), Metric::mean("figure", 1.7e308, 1.0)],
        HostileMisdeed::HugeWeight => vec![Metric::mean("figure", 1e-9, 1.7e308), Metric::mean("figure", 1e-9, 1.7e308)],
        HostileMisdeed::TakePass => vec![Metric::mean("pass@1", 1.0, 1e9)],
        HostileMisdeed::TakeEntropy => vec![Metric::mean("entropy", 1e6, 1e9)],
        HostileMisdeed::TakeFigure => vec![Metric::mean("frac_reward_zero_std", 1.0, 1e9)],
        HostileMisdeed::LongFigure => vec![Metric::mean("long ".repeat(2 << 20), 0.0, 1.0)],
        HostileMisdeed::ForgeFigure => vec![Metric::mean(FORGED, 0.0, 1.0)],
        HostileMisdeed::ManyFigures => (0..10_000).map(|i| Metric::mean(format!("figure {i}"), 0.0, 1.0)).collect(),
        _ => Vec::new(),
    }
}

#[expect(clippy::too_many_lines, reason = "an arm for each misdeed")]
fn misbehave(misdeed: HostileMisdeed, batch: &reward::Batch, rewards: &mut Vec<Option<f32>>) -> Result<(), Error> {
    match misdeed {
        HostileMisdeed::EndlessLoop => for_ever(),
        HostileMisdeed::ClockLoop => loop {
            std::hint::black_box(SystemTime::now());
        },
        HostileMisdeed::Poll => poll(false),
        HostileMisdeed::Handles => poll(true),
        HostileMisdeed::MemoryBomb => {
            let mut hoard = Vec::new();
            loop {
                hoard.push(std::hint::black_box(vec![1u8; 1 << 20]));
            }
        }
        HostileMisdeed::Recursion => rewards[0] = Some(recurse(0) as f32),
        HostileMisdeed::WrongLength => {
            rewards.pop();
        }
        HostileMisdeed::Nan => rewards[1] = Some(f32::NAN),
        HostileMisdeed::Infinity => rewards[1] = Some(f32::INFINITY),
        HostileMisdeed::HugeScore => rewards[1] = Some(f32::MAX),
        HostileMisdeed::Trap => panic!("the plugin panicked on purpose"),
        HostileMisdeed::Exit => std::process::exit(0),
        HostileMisdeed::Flood => {
            for i in 0..20_000 {
                println!("flood {i}");
            }
        }
        HostileMisdeed::FloodLog => {
            for i in 0..20_000 {
                rlhost_plugin_sdk::log(&format!("flood {i}"));
            }
        }
        HostileMisdeed::Connect => {
            let connected = std::net::TcpStream::connect("127.0.0.1:80").map(|_| ());
            return Err(Error::Internal(format!("a connection gave {connected:?}")));
        }
        HostileMisdeed::HugeReturn => *rewards = vec![Some(1.0); 30_000_000],
        HostileMisdeed::Denormal => rewards[0] = Some(f32::from_bits(1)),
        HostileMisdeed::TrapOnRows => {
            let mut first_tokens = batch.offsets.windows(2).filter(|w| w[0] < w[1]).map(|w| batch.token_ids[w[0] as usize]);
            assert!(!first_tokens.any(|t| t % 4 == 0), "a completion that it can't bear");
        }
        HostileMisdeed::TrapOnCall => assert!(CALLS.fetch_add(1, Ordering::Relaxed) != 1, "the second call"),
        HostileMisdeed::LongError => return Err(Error::Internal("long ".repeat(2 << 20))),
        HostileMisdeed::Forge => return Err(Error::Internal(FORGED.into())),
        HostileMisdeed::LongLog => rlhost_plugin_sdk::log(&"long ".repeat(2 << 20)),
        HostileMisdeed::ForgeLog => rlhost_plugin_sdk::log(FORGED),
        HostileMisdeed::Sleep => sleep(),
        HostileMisdeed::SleepOn => loop {
            sleep();
        },
        HostileMisdeed::Entropy => return Err(Error::Internal(format!("the first of them is {}", entropy()))),
        HostileMisdeed::Dice => rewards.iter_mut().for_each(|r| *r = Some(dice())),
        HostileMisdeed::ReadFile => {
            let opened = std::fs::read("/etc/passwd");
            return Err(Error::Internal(format!("reading a file gave {opened:?}")));
        }
        HostileMisdeed::ReadEnvironment => {
            let all = (std::env::vars().count(), std::env::args().count());
            return Err(Error::Internal(format!("environment and arguments: {all:?}")));
        }
        HostileMisdeed::Refuse => return Err(Error::Input("no such batch for me".into())),
        _ => {}
    }
    Ok(())
}

impl reward::Guest for Hostile {
    fn score(batch: reward::Batch) -> Result<reward::Scores, Error> {
        STEP.store(batch.step, Ordering::Relaxed);
        let mut rewards: Vec<Option<f32>> = batch.offsets.windows(2).map(|w| Some(-((w[1] - w[0]) as f32))).collect();
        let misdeed = misdeed();
        misbehave(misdeed, &batch, &mut rewards)?;
        Ok(reward::Scores { rewards, metrics: figures(misdeed) })
    }
}

impl state::Guest for Hostile {
    fn snapshot() -> Result<Vec<u8>, Error> {
        match misdeed() {
            HostileMisdeed::SnapshotLoop => for_ever(),
            HostileMisdeed::HugeState => Ok(vec![1; 100_000_000]),
            _ => Ok(Vec::new()),
        }
    }

    fn restore(_snapshot: Vec<u8>, _written_by: String) -> Result<(), Error> {
        IN_PLACE.store(true, Ordering::Relaxed);
        if misdeed() == HostileMisdeed::RestoreLoop {
            for_ever();
        }
        Ok(())
    }
}

rlhost_plugin_sdk::export_interfaces!(Hostile, plugin, reward, state);
