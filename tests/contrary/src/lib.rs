//! An algorithm that violates its contract, for the tests of the host.

#![allow(missing_docs)]
// These items are used only by the exports of the wasm build.
#![cfg_attr(not(target_arch = "wasm32"), allow(dead_code))]

use rlhost_plugin_sdk::algorithm::{Batch, Column, Data, Estimates, Gradient, Source, Unit, WeightedReward};
use rlhost_plugin_sdk::bindings::contract::{algorithm, estimator, plugin};
use rlhost_plugin_sdk::config;
use rlhost_plugin_sdk::slot::ExportSlot;
use rlhost_plugin_sdk::{Error, Metric, Needs};
use schemars::JsonSchema;
use serde::de::IntoDeserializer;
use serde::de::value::Error as Unknown;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// The violation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContraryMisdeed {
    #[default]
    None,
    EndlessEstimate,
    EndlessLoss,
    TrapInEstimate,
    TrapInLoss,
    /// Returns no advantages at all.
    NoAdvantages,
    /// Returns an advantage too few.
    FewAdvantages,
    NanAdvantages,
    /// Returns a mask with an entry too many.
    LongMask,
    /// Returns a mask with an entry that is neither 0 nor 1.
    OddMask,
    NanLoss,
    /// Adds to each advantage the number of earlier calls, although it declares itself stateless.
    CountEstimates,
    /// Adds to its loss the number of earlier calls, although it declares itself stateless.
    CountLosses,
    /// Returns a finite loss whose sums overflow.
    HugeLoss,
    /// Returns one derivative too many.
    ManyGradients,
    InfiniteGradient,
    /// Returns derivatives whose sums are infinite.
    HugeGradient,
    /// Reports a metric under the name of the run's own loss.
    TakeLoss,
    /// Reports a metric under the name of a reward's score.
    TakeScore,
    /// Reports a metric twice, with an infinite sum.
    HugeFigure,
    /// Violates nothing, but returns advantages in a column with its own name.
    OwnColumn,
    /// Returns a column with its own name and one advantage per sequence.
    OwnSequences,
}

/// Settings.
#[derive(Clone, Debug, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContrarySettings {
    /// What it does wrong.
    misdeed: ContraryMisdeed,
    /// The step from which on it does so.
    from_step: u64,
}

static SETTINGS: ExportSlot<ContrarySettings> = ExportSlot::new();
/// Number of calls of each function.
static ESTIMATES: AtomicU64 = AtomicU64::new(0);
static LOSSES: AtomicU64 = AtomicU64::new(0);

/// The violation without any setting, which tests overwrite in the compiled file. With a trailing `+`, it happens from a function's second
/// call on, so not in a trial.
static OWN: [u8; 40] = *b"contrary=none...........................";

/// Returns the text that tests overwrite.
fn own() -> &'static str {
    // `black_box` prevents the compiler from inlining the constant.
    std::str::from_utf8(&std::hint::black_box(&OWN)[9..]).unwrap_or_default().trim_end_matches('.')
}

/// Returns the name and the unit of the advantages' column.
fn column() -> (&'static str, Unit) {
    match own() {
        "own_column" => ("own_advantage", Unit::Token),
        "own_sequences" => ("own_sequence_advantage", Unit::Sequence),
        _ => ("advantage", Unit::Token),
    }
}

/// Returns the advantage of each token.
fn advantages(batch: &Batch) -> Result<Vec<f32>, Error> {
    let (name, unit) = column();
    let given = batch.values(name, unit)?;
    if unit == Unit::Token {
        return Ok(given.to_vec());
    }
    let lengths = batch.tokens.windows(2).map(|ends| (ends[1] - ends[0]) as usize);
    Ok(given.iter().zip(lengths).flat_map(|(advantage, length)| std::iter::repeat_n(*advantage, length)).collect())
}

/// Returns the violation in this step and call of a function.
fn misdeed(step: u64, calls: &AtomicU64) -> ContraryMisdeed {
    let first = calls.fetch_add(1, Ordering::Relaxed) == 0;
    let text = own();
    let (name, waits) = text.strip_suffix('+').map_or((text, false), |name| (name, true));
    let own = ContraryMisdeed::deserialize(IntoDeserializer::<Unknown>::into_deserializer(name));
    let settings = SETTINGS.with(|s| Ok(s.clone())).unwrap_or_default();
    match own.unwrap_or(ContraryMisdeed::TrapInEstimate) {
        ContraryMisdeed::None if step >= settings.from_step => settings.misdeed,
        own if !(waits && first) => own,
        _ => ContraryMisdeed::None,
    }
}

fn for_ever() -> ! {
    loop {
        std::hint::black_box(0);
    }
}

struct Contrary;

impl plugin::Guest for Contrary {
    fn describe() -> plugin::Info {
        plugin::Info {
            name: env!("CARGO_PKG_NAME").into(),
            version: env!("CARGO_PKG_VERSION").into(),
            description: env!("CARGO_PKG_DESCRIPTION").into(),
            config_schema: config::schema::<ContrarySettings>(),
            needs: (Needs::LOGP | Needs::column(column().0)).names(),
            stateless: true,
        }
    }

    fn configure(json: String) -> Result<(), Error> {
        config::parse(&json).map(|c| SETTINGS.set(c))
    }
}

impl estimator::Guest for Contrary {
    fn estimate(generation: Batch, _: Vec<WeightedReward>) -> Result<Estimates, Error> {
        let misdeed = misdeed(generation.step, &ESTIMATES);
        let tokens = generation.mask.len();
        let (name, unit) = column();
        let entries = if unit == Unit::Token { tokens } else { generation.tokens.len() - 1 };
        let mut advantages: Vec<f32> = (0..entries).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
        let (mut mask, mut metrics) = (None, Vec::new());
        match misdeed {
            ContraryMisdeed::EndlessEstimate => for_ever(),
            ContraryMisdeed::TrapInEstimate => panic!("no estimate of mine"),
            ContraryMisdeed::FewAdvantages => drop(advantages.pop()),
            ContraryMisdeed::NanAdvantages => advantages[0] = f32::NAN,
            ContraryMisdeed::LongMask => mask = Some(vec![1.0; tokens + 1]),
            ContraryMisdeed::OddMask => mask = Some(vec![2.0; tokens]),
            ContraryMisdeed::CountEstimates => advantages.iter_mut().for_each(|a| *a += ESTIMATES.load(Ordering::Relaxed) as f32),
            ContraryMisdeed::TakeScore => metrics.push(Metric::mean("rewards/tldr_length_reward/mean", 1e6, 1e6)),
            _ => {}
        }
        let advantages = (misdeed != ContraryMisdeed::NoAdvantages).then(|| Column::new(name, unit, advantages));
        let mask = mask.map(|mask| Column::new("mask", Unit::Token, mask));
        Ok(Estimates { columns: [advantages, mask].into_iter().flatten().collect(), metrics })
    }
}

impl algorithm::Guest for Contrary {
    fn describe_data() -> Result<Data, Error> {
        Ok(Data::completions(Source::Either).estimating([column().0, "mask"]))
    }

    fn loss(batch: Batch) -> Result<Gradient, Error> {
        let misdeed = misdeed(batch.step, &LOSSES);
        let all = batch.scale.tokens as f32;
        let (logp, advantages) = (batch.values("logp", Unit::Token)?, advantages(&batch)?);
        let mut loss = logp.iter().zip(&advantages).map(|(logp, a)| f64::from(-a * logp / all)).sum();
        let mut d_logp: Vec<f32> = advantages.iter().map(|a| -a / all).collect();
        let mut metrics = Vec::new();
        match misdeed {
            ContraryMisdeed::EndlessLoss => for_ever(),
            ContraryMisdeed::TrapInLoss => panic!("no loss of mine"),
            ContraryMisdeed::CountLosses => loss += LOSSES.load(Ordering::Relaxed) as f64,
            ContraryMisdeed::NanLoss => loss = f64::NAN,
            ContraryMisdeed::HugeLoss => loss = 1.7e308,
            ContraryMisdeed::ManyGradients => d_logp.push(0.0),
            ContraryMisdeed::InfiniteGradient => d_logp[0] = f32::INFINITY,
            ContraryMisdeed::HugeGradient => d_logp.fill(f32::MAX),
            ContraryMisdeed::TakeLoss => metrics.push(Metric::mean("loss", 0.0, 1e6)),
            ContraryMisdeed::HugeFigure => {
                metrics.extend([Metric::mean("huge", 1.7e308, 1.0), Metric::mean("huge", 1.7e308, 1.0)]);
            }
            _ => {}
        }
        Ok(Gradient::new(loss).with_derivatives("logp", Unit::Token, d_logp).with_metrics(metrics))
    }
}

rlhost_plugin_sdk::export_interfaces!(Contrary, plugin, algorithm, estimator);
