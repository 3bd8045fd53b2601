//! File format of a generation's completions: tensors with tokens and log-probabilities, which other programs can read, and everything else
//! as JSON in the tensor `manifest`.

use crate::config::{is_shown, printable};
use crate::episode::EpisodeOutcome;
use crate::plugin::{self, Metric};
use crate::rollout::Rollout;
use crate::stored_rollouts::{self, RolloutTensors, of_u8, take};
use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};

/// Maximum length of a metric's name, in bytes.
const LONGEST_NAME: usize = 256;

const MANIFEST: &str = "manifest";
const LOGP: &str = "logp";

/// Completions of a generation, of all ranks together.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct LoggedGeneration {
    /// Completions in the order of their prompts; `prompt` is an index among all prompts of the generation.
    pub rollouts: Vec<Rollout>,
    /// Outcome of each completion's episode; empty without episodes.
    pub episodes: Vec<EpisodeOutcome>,
    /// Metrics of the generation.
    pub metrics: Vec<LoggedMetric>,
}

/// A metric of the rollout source.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct LoggedMetric {
    name: String,
    value: f64,
    weight: f64,
    reduction: LoggedReduction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum LoggedReduction {
    Mean,
    Sum,
    Min,
    Max,
}

impl LoggedMetric {
    /// Copies a metric; none if its value is not finite, which JSON can't represent.
    pub(crate) fn new(metric: &Metric) -> Option<Self> {
        let Metric { name, value, weight, reduction } = metric;
        let reduction = match reduction {
            plugin::Reduction::Mean => LoggedReduction::Mean,
            plugin::Reduction::Sum => LoggedReduction::Sum,
            plugin::Reduction::Min => LoggedReduction::Min,
            plugin::Reduction::Max => LoggedReduction::Max,
        };
        (value.is_finite() && weight.is_finite()).then(|| Self { name: name.clone(), value: *value, weight: *weight, reduction })
    }

    /// Returns the metric.
    pub(crate) fn into_metric(self) -> Metric {
        let reduction = match self.reduction {
            LoggedReduction::Mean => plugin::Reduction::Mean,
            LoggedReduction::Sum => plugin::Reduction::Sum,
            LoggedReduction::Min => plugin::Reduction::Min,
            LoggedReduction::Max => plugin::Reduction::Max,
        };
        Metric { name: self.name, value: self.value, weight: self.weight, reduction }
    }
}

impl LoggedGeneration {
    /// Returns the bytes of the file, which are the same for equal completions.
    ///
    /// # Errors
    /// If they can't be encoded.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let manifest = Self {
            rollouts: self.rollouts.iter().map(stored_rollouts::without_numbers).collect(),
            episodes: self.episodes.clone(),
            metrics: self.metrics.clone(),
        };
        let manifest = serde_json::to_vec(&manifest).map_err(|e| e.to_string())?;
        let encode = || {
            let mut tensors = RolloutTensors::new();
            stored_rollouts::add(&self.rollouts, "", &mut tensors)?;
            let logp: Vec<f32> = self.rollouts.iter().flat_map(|rollout| rollout.logp.iter().copied()).collect();
            tensors.insert(LOGP.to_owned(), Tensor::new(logp, &Device::Cpu)?);
            tensors.insert(MANIFEST.to_owned(), Tensor::new(manifest, &Device::Cpu)?);
            Ok::<RolloutTensors, candle_core::Error>(tensors)
        };
        let tensors = encode().map_err(|e| e.to_string())?;
        safetensors::serialize(&tensors, None).map_err(|e| e.to_string())
    }

    /// Parses the bytes of a file.
    ///
    /// # Errors
    /// If they are not a valid generation.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut tensors = candle_core::safetensors::load_buffer(bytes, &Device::Cpu).map_err(|e| e.to_string())?;
        let manifest = of_u8(take(&mut tensors, MANIFEST)?)?;
        let mut generation: Self = serde_json::from_slice(&manifest).map_err(|e| format!("its manifest: {e}"))?;
        stored_rollouts::fill(&mut generation.rollouts, "", &mut tensors)?;
        let logp = take(&mut tensors, LOGP)?.to_vec1::<f32>().map_err(|e| e.to_string())?;
        if let Some(value) = logp.iter().find(|value| !value.is_finite()) {
            return Err(format!("a log-probability is {value}"));
        }
        stored_rollouts::divide(&mut generation.rollouts, &logp)?;
        match generation.metrics.iter().find(|metric| !is_shown(&metric.name, LONGEST_NAME)) {
            Some(metric) => Err(format!("a metric is named {}", printable(&metric.name, LONGEST_NAME))),
            None => Ok(generation),
        }
    }
}
