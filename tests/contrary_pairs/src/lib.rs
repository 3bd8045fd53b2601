//! An algorithm that violates the contract of pairing, for the tests of the host.

#![allow(missing_docs)]
// These items are used only by the exports of the wasm build.
#![cfg_attr(not(target_arch = "wasm32"), allow(dead_code))]

use rlhost_plugin_sdk::algorithm::{Batch, Choice, Data, Gradient, Pair, Source, Unit, WeightedReward};
use rlhost_plugin_sdk::bindings::contract::{algorithm, pairing, plugin};
use rlhost_plugin_sdk::slot::ExportSlot;
use rlhost_plugin_sdk::{Error, Needs, config};
use schemars::JsonSchema;
use serde::de::IntoDeserializer;
use serde::de::value::Error as Unknown;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// The violation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContraryPairsMisdeed {
    #[default]
    None,
    EndlessChoice,
    TrapInChoice,
    /// Chooses a pair twice.
    Twice,
    /// Chooses a completion that does not exist.
    OutOfRange,
    /// Pairs a completion with itself.
    WithItself,
    /// Pairs completions of two prompts.
    OfTwoPrompts,
    /// Chooses a million pairs.
    ManyPairs,
    EndlessLoss,
    NanLoss,
    /// Adds to its loss the number of earlier calls, although it declares itself stateless.
    CountLosses,
    /// Returns a finite loss whose sums overflow.
    HugeLoss,
    /// Returns one derivative too few.
    FewGradients,
    NanGradient,
}

/// Settings.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContraryPairsSettings {
    /// What it does wrong.
    misdeed: ContraryPairsMisdeed,
    /// The step from which on it does so.
    from_step: u64,
}

static SETTINGS: ExportSlot<ContraryPairsSettings> = ExportSlot::new();
/// Number of calls of each function.
static CHOICES: AtomicU64 = AtomicU64::new(0);
static LOSSES: AtomicU64 = AtomicU64::new(0);

/// The violation without any setting, which tests overwrite in the compiled file. With a trailing `+`, it happens from a function's second
/// call on, so not in a trial.
static OWN: [u8; 40] = *b"contrary=none...........................";

/// Returns the violation in this step and call of a function.
fn misdeed(step: u64, calls: &AtomicU64) -> ContraryPairsMisdeed {
    let first = calls.fetch_add(1, Ordering::Relaxed) == 0;
    // `black_box` prevents the compiler from inlining the constant.
    let text = std::str::from_utf8(&std::hint::black_box(&OWN)[9..]).unwrap_or_default().trim_end_matches('.');
    let (name, waits) = text.strip_suffix('+').map_or((text, false), |name| (name, true));
    let own = ContraryPairsMisdeed::deserialize(IntoDeserializer::<Unknown>::into_deserializer(name));
    let settings = SETTINGS.with(|s| Ok(s.clone())).unwrap_or_default();
    match own.unwrap_or(ContraryPairsMisdeed::TrapInChoice) {
        ContraryPairsMisdeed::None if step >= settings.from_step => settings.misdeed,
        own if !(waits && first) => own,
        _ => ContraryPairsMisdeed::None,
    }
}

fn for_ever() -> ! {
    loop {
        std::hint::black_box(0);
    }
}

struct ContraryPairs;

impl plugin::Guest for ContraryPairs {
    fn describe() -> plugin::Info {
        plugin::Info {
            name: env!("CARGO_PKG_NAME").into(),
            version: env!("CARGO_PKG_VERSION").into(),
            description: env!("CARGO_PKG_DESCRIPTION").into(),
            config_schema: config::schema::<ContraryPairsSettings>(),
            needs: Needs::LOGP.names(),
            stateless: true,
        }
    }

    fn configure(json: String) -> Result<(), Error> {
        config::parse(&json).map(|c| SETTINGS.set(c))
    }
}

impl pairing::Guest for ContraryPairs {
    fn choose(generation: Batch, _: Vec<WeightedReward>) -> Result<Choice, Error> {
        let rows = generation.entries(Unit::Sequence) as u32;
        let pair = |chosen, rejected| Pair { chosen, rejected };
        let of = |row: u32| generation.groups.partition_point(|&first| first <= row);
        let next = (0..rows.saturating_sub(1)).step_by(2);
        let mut pairs: Vec<_> = next.filter(|row| of(*row) == of(row + 1)).map(|row| pair(row, row + 1)).collect();
        match misdeed(generation.step, &CHOICES) {
            ContraryPairsMisdeed::EndlessChoice => for_ever(),
            ContraryPairsMisdeed::TrapInChoice => panic!("no choice of mine"),
            ContraryPairsMisdeed::Twice => pairs.push(pairs[0]),
            ContraryPairsMisdeed::OutOfRange => pairs.push(pair(0, u32::MAX)),
            ContraryPairsMisdeed::WithItself => pairs.push(pair(0, 0)),
            ContraryPairsMisdeed::OfTwoPrompts => pairs.push(pair(0, rows - 1)),
            ContraryPairsMisdeed::ManyPairs => pairs = (0..1_000_000).map(|i| pair(i % rows, i / rows)).collect(),
            _ => {}
        }
        Ok(Choice { pairs, metrics: Vec::new() })
    }
}

impl algorithm::Guest for ContraryPairs {
    fn describe_data() -> Result<Data, Error> {
        Ok(Data::pairs(Source::Policy))
    }

    fn loss(batch: Batch) -> Result<Gradient, Error> {
        let all = batch.scale.items as f32;
        let mut loss = 0.5;
        let mut d_logp = Vec::new();
        for (row, tokens) in batch.sequences().enumerate() {
            d_logp.extend(tokens.map(|_| if row % 2 == 0 { -1.0 / all } else { 1.0 / all }));
        }
        match misdeed(batch.step, &LOSSES) {
            ContraryPairsMisdeed::EndlessLoss => for_ever(),
            ContraryPairsMisdeed::CountLosses => loss += LOSSES.load(Ordering::Relaxed) as f64,
            ContraryPairsMisdeed::NanLoss => loss = f64::NAN,
            ContraryPairsMisdeed::HugeLoss => loss = 1.7e308,
            ContraryPairsMisdeed::FewGradients => drop(d_logp.pop()),
            ContraryPairsMisdeed::NanGradient => d_logp[0] = f32::NAN,
            _ => {}
        }
        Ok(Gradient::new(loss).with_derivatives("logp", Unit::Token, d_logp))
    }
}

rlhost_plugin_sdk::export_interfaces!(ContraryPairs, plugin, algorithm, pairing);
