//! Reads an adapter's parameters.

use super::json::ConfigObject;
use super::lora::LoraSettings;
use super::names::TensorNames;
use super::patterns::Patterns;
use super::shards::SafetensorsReader;
use super::trained_rows::TrainedRows;
use super::weights::{LinearAdapter, MAGNITUDE};
use super::{Error, Result};
use candle_core::Tensor;
use std::path::{Path, PathBuf};

pub(super) const CONFIG: &str = "adapter_config.json";

pub(super) const TENSORS: &str = "adapter_model.safetensors";

/// Prefix that `peft` adds to the parameter names of a causal language model.
pub(super) const PREFIX: &str = "base_model.model.";

/// Name of an adapted module inside its `peft` wrapper.
pub(super) const BASE: &str = "base_layer";

/// Maximum rank, as for `lora_r`.
pub(super) const MOST_RANK: usize = 1 << 20;

/// An adapter's folder while its parameters are read.
pub(super) struct AdapterReader {
    pub lora: LoraSettings,
    patterns: Patterns,
    pub rows: TrainedRows,
    names: &'static TensorNames,
    pub(super) shards: SafetensorsReader,
    config: PathBuf,
    tensors: PathBuf,
    /// Source of the parameters' shapes, for error messages.
    by: String,
}

impl AdapterReader {
    pub(super) fn new(folder: &Path, lora: LoraSettings, names: &'static TensorNames) -> Result<Self> {
        let (config, tensors) = (folder.join(CONFIG), folder.join(TENSORS));
        let object = ConfigObject::read(&config)?.ok_or_else(|| Error::Missing { path: config.clone() })?;
        let refused = |detail| Error::Config { path: config.clone(), detail };
        let patterns = Patterns::parse(&object, MOST_RANK).map_err(refused)?;
        let rows = TrainedRows::parse(&object).map_err(refused)?;
        let (shards, by) = (SafetensorsReader::open_file(&tensors)?, format!("{CONFIG} and the model"));
        Ok(Self { lora, patterns, rows, names, shards, config, tensors, by })
    }

    pub(super) fn fail(&self, detail: String) -> Error {
        Error::Weights { path: self.tensors.clone(), detail }
    }

    pub(super) fn misconfigured(&self, detail: String) -> Error {
        Error::Config { path: self.config.clone(), detail }
    }

    pub(super) fn take(&mut self, name: &str, shape: &[usize]) -> Result<Option<Tensor>> {
        self.shards.take(&format!("{PREFIX}{name}"), shape, &self.by)
    }

    pub(super) fn needed(&mut self, name: &str, shape: &[usize], key: &str) -> Result<Tensor> {
        let found = self.take(name, shape)?;
        found.ok_or_else(|| self.fail(format!("there is no {PREFIX}{name}, which {key} in {CONFIG} requires")))
    }

    /// Returns the settings of one module's adapter.
    pub(super) fn settings_of(&self, module: &str) -> Result<LoraSettings> {
        let parameter =
            if self.lora.stacks.is_router(module, self.names) { format!("{module}.weight") } else { module.to_owned() };
        let own = self.patterns.module_settings(self.lora, &parameter);
        own.map_err(|detail| self.misconfigured(detail))
    }

    /// Reads the adapter of a stack of experts' matrices.
    pub(super) fn stack(&mut self, name: &str, [experts, d_out, d_in]: [usize; 3]) -> Result<LinearAdapter> {
        let own = self.settings_of(name)?;
        let mut take = |part: &str, shape: [usize; 2]| {
            let parameter = format!("{name}.{part}");
            let file = own.stacks.renamed(&parameter, self.names).unwrap_or(parameter);
            self.needed(&file, &shape, "target_parameters")
        };
        let a = take("lora_A.weight", [experts * own.r, d_in])?.reshape((experts, own.r, d_in))?;
        let b = super::expert_adapters::stacked(&take("lora_B.weight", [d_out, own.r * experts])?, experts)?;
        Ok(LinearAdapter { a, b, bias: None, magnitude: None, alpha: own.alpha, scale: own.scale() })
    }

    /// Reads the adapter of a linear layer, if it has one.
    pub(super) fn linear(&mut self, name: &str, (d_out, d_in): (usize, usize)) -> Result<Option<LinearAdapter>> {
        let own = self.settings_of(name)?;
        let parts = (
            self.take(&format!("{name}.lora_A.weight"), &[own.r, d_in])?,
            self.take(&format!("{name}.lora_B.weight"), &[d_out, own.r])?,
        );
        let (a, b) = match parts {
            (Some(a), Some(b)) => (a, b),
            (None, None) => return Ok(None),
            _ => return Err(self.fail(format!("{name} has only one of lora_A and lora_B"))),
        };
        let has_bias = own.b_bias && !own.stacks.is_router(name, self.names);
        let mut more = |on: bool, part: &str, key: &str| {
            let found = if on { self.take(&format!("{name}.{part}"), &[d_out])? } else { return Ok(None) };
            found.map(Some).ok_or_else(|| self.fail(format!("{name} has no {part}, which {key} in {CONFIG} requires")))
        };
        let magnitude = more(own.use_dora, MAGNITUDE, "use_dora")?;
        let bias = more(has_bias, "lora_B.bias", "lora_bias")?;
        Ok(Some(LinearAdapter { a, b, bias, magnitude, alpha: own.alpha, scale: own.scale() }))
    }
}
