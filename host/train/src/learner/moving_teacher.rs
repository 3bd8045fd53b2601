//! A teacher that moves with the policy: the policy itself, or an average of it.

use crate::Result;
use crate::model::{self, FrozenModel, PolicyModel};
use candle_core::{DType, Tensor};
use std::path::Path;

/// A teacher that moves with the policy.
pub(crate) enum MovingTeacher {
    /// The policy itself.
    Live,
    /// An average of the policy.
    Average(Box<PolicyAverage>),
}

/// An exponential moving average of the policy's weights (TRL's `SyncTeacherModelCallback` and `PEFTAdapterEMACallback`).
pub(crate) struct PolicyAverage {
    model: FrozenModel,
    /// Weight of the policy in an update.
    rate: f64,
    /// Number of steps between updates.
    steps: u64,
}

impl PolicyAverage {
    /// Starts an average as the model that the run starts with; with an adapter, as the model under it.
    ///
    /// # Errors
    /// If the weights can't be copied.
    pub(crate) fn new(policy: &PolicyModel, rate: f64, steps: u64) -> Result<Self> {
        let copy = policy.frozen_copy()?;
        let model = copy.map(|name, t| Ok(if is_of_adapter(&name) { t.zeros_like()? } else { t.clone() }))?;
        Ok(Self { model, rate, steps })
    }

    /// Checks that such an average starts as the model under an adapter, and moves.
    ///
    /// # Errors
    /// The end of a sentence about the kind of teacher.
    pub(crate) fn check(&self) -> std::result::Result<(), String> {
        let has_adapter = self.model.weights().lora.is_some();
        if let Some((name, _)) = self.trained().find(|(name, _)| has_adapter && !is_of_adapter(name)) {
            let detail = "is ema, an average that starts as the model without the adapter, and this adapter trains more than that, such \
                          as";
            return Err(format!("{detail} {name}; set base or live, or leave use_dora and lora_modules_to_save out"));
        }
        if self.trained().any(|(_, t)| !t.device().is_cpu() && t.dtype() != DType::F32) {
            return Err("is ema, whose small updates bf16 would round off on a device; set base or live".into());
        }
        Ok(())
    }

    /// Returns the average that a checkpoint's file holds.
    ///
    /// # Errors
    /// If the file can't be read, or holds other parameters than the policy trains.
    pub(crate) fn restored(self, file: &Path) -> Result<Self> {
        let trained: Vec<String> = self.trained().map(|(name, _)| name).collect();
        let mut read = model::read_tensors(&[file.to_path_buf()], |_| true)?;
        let fault = |detail: String| model::Error::Weights { path: file.to_path_buf(), detail };
        let device = self.model.weights().output().device();
        let model = self.model.map(|name, own| {
            if !trained.contains(&name) {
                return Ok(own.clone());
            }
            let saved = read.remove(&name).ok_or_else(|| fault(format!("{name} is missing")))?;
            if saved.dims() != own.dims() {
                return Err(fault(format!("{name} has shape {:?}, not {:?}", saved.dims(), own.dims())));
            }
            Ok(saved.to_device(device)?)
        })?;
        Ok(Self { model, ..self })
    }

    /// Returns the average as a model.
    pub(super) fn model(&self) -> &FrozenModel {
        &self.model
    }

    /// Moves the average towards the policy after this step, if it is due. Returns whether it was.
    ///
    /// # Errors
    /// If an operation fails.
    pub(super) fn follow(&mut self, policy: &PolicyModel, step: u64) -> Result<bool> {
        let is_due = step.is_multiple_of(self.steps);
        if is_due {
            self.model = self.model.mixed(policy.weights(), self.rate)?;
        }
        Ok(is_due)
    }

    /// Returns what differs from the model that the run starts with: the parameters that are trained, by name.
    fn trained(&self) -> impl Iterator<Item = (String, &Tensor)> {
        self.model.weights().trained().into_iter()
    }
}

/// Returns whether a parameter of this name is one of an adapter's matrices, without which a model is the one under the adapter.
fn is_of_adapter(name: &str) -> bool {
    [".lora_A.weight", ".lora_B.weight", ".lora_B.bias"].iter().any(|end| name.ends_with(end))
}
