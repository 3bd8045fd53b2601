//! Chooses the precision of frozen weights.

use crate::Result;
use crate::config::{self, ModelDtype, RunConfig};
use crate::model::{ComputeBackend, ModelFolder, WeightDtype, WeightStorage};
use crate::ops::Capability;
use crate::ops::quantized::QuantizationScheme;

/// Returns the model with the precision in which the run reads it, and that precision, which the configuration records for an adapter's
/// base model.
///
/// # Errors
/// If the model is to be quantized without an adapter, or on a backend that does not support it.
pub(super) fn resolve_precision(
    config: &RunConfig,
    source: ModelFolder,
    backend: &ComputeBackend,
) -> Result<(ModelFolder, ModelDtype)> {
    let asked = [
        ("load_in_8bit", config.load_in_8bit, QuantizationScheme::Int8),
        ("load_in_4bit", config.load_in_4bit, QuantizationScheme::Nf4),
    ];
    let asked = asked.into_iter().find(|(_, on, _)| *on);
    if let Some((key, ..)) = asked {
        let trained =
            (!config.use_peft).then(|| "needs an adapter, since quantized weights can't be trained; set use_peft".to_owned());
        if let Some(detail) = backend.refusal(Capability::QuantizedWeights).or(trained) {
            return Err(config::Error::Invalid { place: key.to_owned(), detail }.into());
        }
    }
    let as_stored = backend.supports(Capability::StoredWeights);
    // Also recorded on a device, so that the run may resume on another machine.
    let mut recorded = config.dtype;
    if config.use_peft && recorded == ModelDtype::Auto {
        recorded = source.stored_in()?.map_or(ModelDtype::Auto, |stored| match stored {
            WeightDtype::F32 => ModelDtype::Float32,
            WeightDtype::Bf16 => ModelDtype::Bfloat16,
            WeightDtype::F16 => ModelDtype::Float16,
        });
    } else if !as_stored && recorded != ModelDtype::Auto {
        tracing::info!("dtype has no effect on a device; use bf16");
    }
    if !as_stored {
        return Ok((source, recorded));
    }
    let dtype = match recorded {
        ModelDtype::Auto => None,
        ModelDtype::Float32 => Some(WeightDtype::F32),
        ModelDtype::Bfloat16 => Some(WeightDtype::Bf16),
        ModelDtype::Float16 => Some(WeightDtype::F16),
    };
    Ok((source.with_weight_storage(WeightStorage { dtype, scheme: asked.map(|(_, _, scheme)| scheme) }), recorded))
}
