//! Operations that a device may lack kernels for. Checked when a run is set up and when an operation is called.

use super::{Error, Result};
use candle_core::{Device, Tensor};

/// Maximum head size that a device's kernels are compiled for. The CPU has no limit.
pub const LARGEST_HEAD: usize = 256;

/// A capability that a device may lack. The CPU has all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Products with weights in 8 or 4 bits.
    QuantizedWeights,
    /// Products with weights in another precision than the pass's.
    StoredWeights,
    /// Generation with weights in a precision other than the model's.
    RolloutPrecision,
    /// Biases of an adapter and adapters of routers.
    AdapterBiases,
    /// Modules that are fully trained with an adapter.
    WholeModules,
    /// Magnitudes of adapted weights (DoRA).
    Magnitudes,
    /// Dropout of an adapter's inputs.
    Dropout,
    /// Noise on embeddings (NEFTune).
    Noise,
    /// Sums of squared probabilities.
    SquaredProbabilities,
    /// Smoothed targets.
    SmoothedTargets,
    /// Divergences from another model's distributions.
    Divergences,
    /// Optimizers other than AdamW in f32.
    OtherOptimizers,
    /// Rotary embeddings that rotate neighbouring dimensions.
    NeighbouringRotation,
    /// Norms of query and key heads after their rotation, and layers whose attention and MLP share a norm.
    OtherNorms,
    /// Factors of single rows: scores scaled by the query's position, and shared MLPs with a gate.
    RowFactors,
    /// Attention within chunks.
    ChunkedAttention,
    /// Attention with sinks.
    AttentionSinks,
    /// Experts with biases, and clamped activations.
    ExpertBiases,
    /// Layers that carry a state instead of attending.
    RecurrentLayers,
    /// Attention whose keys and values are compressed.
    LatentAttention,
    /// Layers with other heads than others, without keys of their own, or with embeddings of their own.
    VariedLayers,
    /// MLPs whose activation function is a squared ReLU.
    SquaredRelu,
    /// Layers of one part: attention, an MLP or experts.
    SinglePartLayers,
    /// Weights, gradients and moments sharded over processes.
    DividedModels,
}

impl Capability {
    /// All capabilities.
    pub const ALL: [Self; 24] = [
        Self::QuantizedWeights,
        Self::StoredWeights,
        Self::RolloutPrecision,
        Self::AdapterBiases,
        Self::WholeModules,
        Self::Magnitudes,
        Self::Dropout,
        Self::Noise,
        Self::SquaredProbabilities,
        Self::SmoothedTargets,
        Self::Divergences,
        Self::OtherOptimizers,
        Self::NeighbouringRotation,
        Self::OtherNorms,
        Self::RowFactors,
        Self::ChunkedAttention,
        Self::AttentionSinks,
        Self::ExpertBiases,
        Self::RecurrentLayers,
        Self::LatentAttention,
        Self::VariedLayers,
        Self::SquaredRelu,
        Self::SinglePartLayers,
        Self::DividedModels,
    ];

    /// Returns whether there are kernels for the capability on an NVIDIA device.
    const fn has_kernels(self) -> bool {
        match self {
            Self::QuantizedWeights
            | Self::StoredWeights
            | Self::RolloutPrecision
            | Self::AdapterBiases
            | Self::WholeModules
            | Self::Magnitudes
            | Self::Dropout
            | Self::Noise
            | Self::SquaredProbabilities
            | Self::SmoothedTargets
            | Self::Divergences
            | Self::OtherOptimizers
            | Self::NeighbouringRotation
            | Self::OtherNorms
            | Self::RowFactors
            | Self::ChunkedAttention
            | Self::AttentionSinks
            | Self::ExpertBiases
            | Self::RecurrentLayers
            | Self::LatentAttention
            | Self::VariedLayers
            | Self::SquaredRelu
            | Self::SinglePartLayers
            | Self::DividedModels => false,
        }
    }

    /// Returns the capability's name, as it follows "kernels for".
    pub const fn name(self) -> &'static str {
        match self {
            Self::QuantizedWeights => "quantized weights",
            Self::StoredWeights => "weights in another precision",
            Self::RolloutPrecision => "generation in a precision of its own",
            Self::AdapterBiases => "biases and routers of adapters",
            Self::WholeModules => "modules trained whole beside an adapter",
            Self::Magnitudes => "magnitudes (DoRA)",
            Self::Dropout => "dropout",
            Self::Noise => "noise on embeddings",
            Self::SquaredProbabilities => "sums of squared probabilities",
            Self::SmoothedTargets => "smoothed targets",
            Self::Divergences => "divergences from a teacher's distributions",
            Self::OtherOptimizers => "optimizers other than adamw_torch",
            Self::NeighbouringRotation => "RoPE that rotates neighbouring dimensions",
            Self::OtherNorms => "norms of rotated heads and norms that attention and MLP share",
            Self::AttentionSinks => "attention sinks",
            Self::ExpertBiases => "biases of experts and clamped activations",
            Self::ChunkedAttention => "attention within chunks",
            Self::RowFactors => "scores scaled by position and shared MLPs with a gate",
            Self::RecurrentLayers => "recurrent layers",
            Self::LatentAttention => "attention with compressed keys and values",
            Self::VariedLayers => "layers whose heads differ, that share keys or that have embeddings of their own",
            Self::SquaredRelu => "squared ReLU",
            Self::SinglePartLayers => "layers of one part",
            Self::DividedModels => "models divided among processes",
        }
    }

    /// Returns whether a device has the capability.
    pub fn is_on(self, device: &Device) -> bool {
        device.is_cpu() || self.has_kernels()
    }

    /// Returns why a device lacks the capability; `None` if it has it.
    pub fn refusal(self, device: &Device) -> Option<String> {
        (!self.is_on(device)).then(|| format!("a device has no kernels for {} yet", self.name()))
    }

    /// Returns an error if a tensor's device lacks the capability.
    pub(super) fn require(self, t: &Tensor) -> Result<()> {
        if self.is_on(t.device()) {
            return Ok(());
        }
        Err(Error::Unsupported { op: self.name(), dtype: t.dtype(), device: format!("{:?}", t.device().location()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_cpu_refuses_nothing_and_each_has_a_name_of_its_own() {
        let t = Tensor::zeros(1, candle_core::DType::F32, &Device::Cpu).unwrap();
        for capability in Capability::ALL {
            assert_eq!(capability.refusal(t.device()), None);
            assert!(capability.require(&t).is_ok());
        }
        let names: BTreeSet<_> = Capability::ALL.map(Capability::name).into();
        assert_eq!(names.len(), Capability::ALL.len());
    }
}
