//! Estimates the memory and communication of each process of a run from its settings and the model's sizes, without loading anything.

use super::memory::{bytes_held, bytes_of_moments};
use crate::Result;
use crate::config::{ModelDtype, RunConfig, ZeroStage, files};
use crate::flow::Flow;
use crate::model::{Architecture, ModelFolder, WeightDtype, WeightStorage};
use crate::ops::quantized::QuantizationScheme;
use crate::plugin::columns::{REF_LOGP, VALUE};
use crate::plugin::{AlgorithmPlugin, PluginEngine, PluginSource};
use crate::setup::value_source::SHARED;
use crate::sharding::shares;
use serde::Serialize;
use serde_json::Value;

/// Bytes of the program, compiled plugins and MPI's buffers, measured with a tiny model.
const PROGRAM: f64 = 130e6;

/// Maximum size of a model's configuration, in bytes.
const LARGEST_CONFIG: u64 = 1 << 20;

/// Bytes per f32 value.
const F32: f64 = 4.0;

/// Memory of the process that needs most, in bytes by purpose.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Requirements {
    /// Number of the model's parameters, without an adapter's.
    pub parameters: f64,
    /// Number of trained parameters.
    pub trained: f64,
    /// Weights of the policy in training: the process's share, and what is gathered from others.
    pub weights: f64,
    /// Gradients: the process's share, and those that wait to be summed.
    pub gradients: f64,
    /// Moments of the optimizer.
    pub moments: f64,
    /// Weights, gradients and moments of a separate critic.
    pub critic: f64,
    /// Weights of a reference model.
    pub reference: f64,
    /// What the layers keep of a micro-batch for its backward pass.
    pub activations: f64,
    /// Additional memory of generation: gathered weights, their copies, and keys and values.
    pub generation: f64,
    /// Copies of weights and moments while a checkpoint is written.
    pub checkpoint: f64,
    /// The program itself.
    pub program: f64,
    /// Largest sum of these at any time.
    pub peak: f64,
    /// Bytes that the process receives from others in a step.
    pub received: f64,
}

/// Sizes that determine the sharded state, in values.
struct ModelSizes {
    all: f64,
    /// The largest share of a process.
    own: f64,
    /// Values outside of layers.
    root: f64,
    /// The largest layer.
    layer: f64,
    /// The largest tensor.
    tensor: f64,
}

impl ModelSizes {
    fn new(a: &Architecture, ranks: usize) -> Self {
        let all = a.parameters();
        let count = |shape: &Vec<usize>| shape.iter().product::<usize>();
        let sizes: Vec<usize> = all.iter().map(|(_, shape)| count(shape)).collect();
        let own = shares(&sizes, ranks).into_iter().max().unwrap_or_default();
        let mut layers = vec![0; a.layers];
        let mut root = 0;
        for (name, shape) in &all {
            match name.split('.').find_map(|part| part.parse::<usize>().ok()).and_then(|layer| layers.get_mut(layer)) {
                Some(layer) => *layer += count(shape),
                None => root += count(shape),
            }
        }
        let layer = layers.into_iter().max().unwrap_or_default();
        let (values, tensor) = (sizes.iter().sum::<usize>(), sizes.iter().copied().max().unwrap_or_default());
        let [all, own, root, layer, tensor] = [values, own, root, layer, tensor].map(|count| count as f64);
        Self { all, own, root, layer, tensor }
    }

    /// Returns the parameter values that a process holds during a pass: two layers, since the next one is gathered ahead.
    fn weights(&self, are_divided: bool) -> f64 {
        if are_divided { self.own + self.root + 2.0 * self.layer } else { self.all }
    }

    /// Returns the gradient values: two layers, since the last one may wait to be summed.
    fn gradients(&self, stage: ZeroStage) -> f64 {
        if stage.shards_gradients() { self.own + self.root + 2.0 * self.layer } else { self.all }
    }

    fn moments(&self, stage: ZeroStage) -> f64 {
        if stage.shards_moments() { self.own } else { self.all }
    }
}

/// Returns the number of values of a new adapter. Every process holds all of them, since they are few.
fn adapter(config: &RunConfig, a: &Architecture) -> f64 {
    let rank = config.lora_r.unwrap_or(16) as f64;
    let targets = config.lora_targets(&a.modules()).unwrap_or_default();
    let is_target = |name: &str| {
        let module = name.strip_suffix(".weight").and_then(|name| name.rsplit('.').next());
        module.is_some_and(|module| targets.iter().any(|target| target.rsplit('.').next() == Some(module)))
    };
    let of_matrix = |shape: &[usize]| match *shape {
        [out, d_in] => rank * (out + d_in) as f64,
        _ => 0.0,
    };
    a.parameters().iter().filter(|(name, _)| is_target(name)).map(|(_, shape)| of_matrix(shape)).sum()
}

/// Returns the precision of the stored weights, according to the model's configuration.
fn stored(folder: &ModelFolder) -> Option<WeightDtype> {
    let text = files::read(&folder.base().join("config.json"), LARGEST_CONFIG).ok()?;
    let config: Value = serde_json::from_slice(&text).ok()?;
    let named = ["dtype", "torch_dtype"].into_iter().find_map(|key| config.get(key)?.as_str());
    (named? == "float32").then_some(WeightDtype::F32)
}

/// Returns the storage of the weights under an adapter; by default as stored, usually in 16 bits.
fn held(config: &RunConfig, stored: Option<WeightDtype>) -> WeightStorage {
    let scheme = match (config.load_in_4bit, config.load_in_8bit) {
        (true, _) => Some(QuantizationScheme::Nf4),
        (_, true) => Some(QuantizationScheme::Int8),
        _ => None,
    };
    let dtype = match config.dtype {
        ModelDtype::Float32 => Some(WeightDtype::F32),
        ModelDtype::Auto => stored,
        ModelDtype::Bfloat16 | ModelDtype::Float16 => None,
    };
    WeightStorage { dtype, scheme }
}

/// Computes the requirements of a model in a run with this many processes and this configuration. Texts have `tokens` tokens each,
/// including prompts.
///
/// # Errors
/// If the algorithm can't be loaded.
pub fn requirements(config: &RunConfig, model: &ModelFolder, ranks: usize, bf16: bool, tokens: usize) -> Result<Requirements> {
    let algorithm = PluginSource::open(&config.algorithm)?;
    let algorithm = AlgorithmPlugin::load(&PluginEngine::new()?, &algorithm, &config.loss, &config.loss_limits, config.seed)?;
    let flow = Flow::new(&algorithm, config);
    let needs = &algorithm.info().needs;
    let (a, stage) = (model.architecture(), ZeroStage::new(if ranks > 1 { config.zero_stage } else { 0 }));
    let sizes = ModelSizes::new(a, ranks);
    let of_moment = config.rule().map_or(0.0, bytes_of_moments);
    let is_adapter = config.use_peft || config.lora_r.is_some() || model.lora().is_some();
    let stored = stored(model);
    let trained = if is_adapter { adapter(config, a) } else { sizes.all };
    let held = if is_adapter { bytes_held(held(config, stored)) } else { F32 };
    let frozen = ranks > 1 && config.shards_frozen();
    let gathers = if is_adapter { frozen } else { stage.shards_parameters() };

    let mut r = Requirements { parameters: sizes.all, trained, program: PROGRAM, ..Requirements::default() };
    r.weights = held * sizes.weights(gathers) + if is_adapter { F32 * trained } else { 0.0 };
    let share = |values: f64, is_divided: bool| if is_divided { values / ranks as f64 } else { values };
    (r.gradients, r.moments) = match is_adapter {
        true => (F32 * trained, of_moment * share(trained, stage.shards_moments())),
        false => (F32 * sizes.gradients(stage), of_moment * sizes.moments(stage)),
    };
    if needs.has(VALUE) && config.value_model.as_deref() != Some(SHARED) {
        // The critic's adapter is over the policy's model.
        r.critic = r.gradients + r.moments + if is_adapter { F32 * trained } else { r.weights };
    }
    if needs.has(REF_LOGP) && (!is_adapter || config.ref_model.is_some()) {
        r.reference = bytes_held(WeightStorage { dtype: stored, scheme: None }) * sizes.weights(frozen);
    }
    let rows = config.per_device_train_batch_size * if flow.rows_are_pairs() { 2 } else { 1 };
    // A prompt counts once for all of its completions.
    let in_batch = match flow.generates() {
        true => {
            rows * config.max_completion_length
                + rows.div_ceil(config.group_size()) * tokens.saturating_sub(config.max_completion_length)
        }
        false => rows * tokens,
    };
    let in_batch = in_batch.min(config.max_tokens_per_microbatch.unwrap_or(usize::MAX));
    r.activations = super::memory::activations(config, a, bf16, in_batch);
    if flow.generates() {
        let cached = 2.0 * a.cached_width() as f64 * F32;
        let sequences = config.batches(ranks).completions_per_generation().div_ceil(ranks).min(config.max_num_seqs);
        let gathered = held * (sizes.all - sizes.weights(gathers));
        r.generation =
            gathered + F32 * (sizes.all - if a.tied { 0.0 } else { sizes.root / 2.0 }) + cached * (sequences * tokens) as f64;
    }
    // A tensor is copied twice before it is written to a file.
    let on_the_way = if is_adapter { 0.0 } else { 2.0 * F32 * sizes.tensor };
    r.checkpoint = (F32 + of_moment) * share(trained, stage.shards_moments()) + on_the_way;
    let state = r.weights + r.gradients + r.moments + r.critic + r.reference + r.program;
    // Between steps, nothing is gathered and no gradient waits to be summed.
    let passing = sizes.root + 2.0 * sizes.layer;
    let of_weights = if gathers { held * passing } else { 0.0 };
    let of_gradients = if stage.shards_gradients() && !is_adapter { F32 * passing } else { 0.0 };
    let saving = state - of_weights - of_gradients + r.checkpoint;
    r.peak = (state + r.activations).max(state - of_gradients + r.generation).max(saving);
    r.received = received(&sizes, trained, (stage, gathers), ranks, config.gradient_accumulation_steps, held);
    Ok(r)
}

/// Returns the bytes that a process receives in a step: sums or shards of gradients, updated weights, and gathered parameters.
fn received(
    sizes: &ModelSizes,
    trained: f64,
    (stage, gathers): (ZeroStage, bool),
    ranks: usize,
    passes: usize,
    held: f64,
) -> f64 {
    let others = (ranks - 1) as f64 / ranks as f64;
    let gradients = F32 * trained * others;
    let passes = passes as f64;
    let of_passes = if gathers { passes * 2.0 * held * sizes.all * others } else { 0.0 };
    of_passes
        + match stage.number() {
            // Each value is sent to where it is summed, and back.
            0 => 2.0 * gradients,
            1 => gradients + F32 * trained * others,
            2 => passes * gradients + F32 * trained * others,
            _ => passes * gradients,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(place: &std::path::Path) -> ModelFolder {
        let config = serde_json::json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4,
            "vocab_size": 512, "tie_word_embeddings": true,
        });
        std::fs::write(place.join("config.json"), config.to_string()).unwrap();
        ModelFolder::open(place).unwrap()
    }

    #[test]
    fn each_stage_divides_more_and_nothing_but_rounding_is_lost() {
        let place = tempfile::tempdir().unwrap();
        let model = folder(place.path());
        let of = |stage: u8, ranks: usize| {
            let config = RunConfig { algorithm: "sft".into(), zero_stage: stage, ..RunConfig::default() };
            requirements(&config, &model, ranks, false, 10).unwrap()
        };
        let whole = of(0, 4);
        let values = whole.parameters;
        assert_eq!((whole.weights, whole.gradients, whole.moments), (4.0 * values, 4.0 * values, 8.0 * values));
        // A single process shards nothing.
        assert_eq!(Requirements { received: 0.0, ..of(3, 1) }, Requirements { received: 0.0, ..of(0, 1) });
        assert_eq!(of(0, 1).received, 0.0);
        let [one, two, three] = [1, 2, 3].map(|stage| of(stage, 4));
        let near = |got: f64, want: f64| (got - want).abs() < 0.05 * want;
        assert!(near(one.moments, 2.0 * values) && one.gradients == whole.gradients && one.weights == whole.weights);
        let (root, layer) = (512.0 * 64.0 + 64.0, 4.0 * 64.0 * 64.0 + 3.0 * 64.0 * 128.0 + 128.0);
        assert!(near(two.gradients, values + 4.0 * (root + 2.0 * layer)) && two.weights == whole.weights);
        assert!(near(three.weights, values + 4.0 * (root + 2.0 * layer)), "{three:?}");
        assert!(whole.peak > one.peak && one.peak > two.peak && two.peak > three.peak);
        assert!(three.received > two.received && two.received >= one.received);
    }

    #[test]
    fn an_algorithm_takes_what_it_needs() {
        let place = tempfile::tempdir().unwrap();
        let model = folder(place.path());
        let of = |algorithm: &str, more: RunConfig| {
            let config = RunConfig { algorithm: algorithm.into(), ..more };
            requirements(&config, &model, 1, false, 10).unwrap()
        };
        let ppo = of("ppo", RunConfig::default());
        assert_eq!(ppo.critic, ppo.weights + ppo.gradients + ppo.moments);
        assert!(ppo.reference > 0.0 && ppo.generation > 0.0);
        let dpo = of("dpo", RunConfig::default());
        assert!(dpo.critic == 0.0 && dpo.reference == 2.0 * dpo.parameters && dpo.generation == 0.0);
        let adapted = of("dpo", RunConfig { use_peft: true, lora_r: Some(4), ..RunConfig::default() });
        // Each layer's seven maps have 4 x (inputs + outputs) values.
        assert_eq!(adapted.trained, 8.0 * 4.0 * (4.0 * 128.0 + 3.0 * 192.0));
        assert!(adapted.reference == 0.0 && adapted.weights < dpo.weights);
    }
}
