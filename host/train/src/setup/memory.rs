//! Compares the minimum memory that a run needs with what is available: the system kills a process that exceeds it without a message.

use super::opened_model::OpenedModel;
use super::plugins::LoadedPlugins;
use super::value_source;
use crate::collector::PromptLoader;
use crate::config::{OptimizerRule, RolloutDtype, RunConfig, TeacherModelKind};
use crate::model::{Architecture, ComputeBackend, ModelFolder, WeightDtype, WeightStorage};
use crate::ops::quantized::QuantizationScheme;
use crate::plan::{Batching, GroupSizes};
use crate::plugin::columns::VALUE;

/// Minimum memory of a run in bytes, regardless of its batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct MinimumMemory {
    weights: f64,
    gradients: f64,
    moments: f64,
    /// Copies of the weights that generation reads.
    copies: f64,
    /// Weights, gradients and moments of a separate critic.
    critic: f64,
    /// Weights of a teacher.
    teacher: f64,
}

/// How a run uses its model.
#[derive(Clone, Copy)]
pub(super) struct ModelUse {
    /// Whether the run trains an adapter.
    pub adapter: bool,
    /// Completions that the run generates per prompt, if it does.
    pub groups: Option<GroupSizes>,
    /// Whether the run computes in bf16.
    pub bf16: bool,
    /// Whether the run trains a separate critic.
    pub critic: bool,
    /// Length of the longest prompt, in tokens.
    pub prompt: usize,
    /// Size of the teacher's weights, in bytes.
    pub teacher: f64,
}

/// Estimated memory of a run, as far as its settings determine it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct MemoryEstimate {
    /// Bytes of the policy and the critic, with gradients, moments and copies.
    pub model: f64,
    pub critic: f64,
    /// Bytes of the teacher.
    pub teacher: f64,
    /// Maximum number of tokens of a pass, with the bytes that it keeps for its backward pass. None if rows of any length are learned.
    pub batch: Option<(usize, f64)>,
}

impl MinimumMemory {
    /// Counts the bytes of a model's matrices.
    fn new(config: &RunConfig, source: &ModelFolder, ModelUse { adapter, groups, bf16, critic, teacher, .. }: ModelUse) -> Self {
        let a = source.architecture();
        let values = a.values_of_matrices() as f64;
        // Generation reads rows of the embedding in place, and copies it only if it is also the output matrix.
        let read = if a.tied { values } else { values - a.hidden_size as f64 * a.vocab_size as f64 };
        if adapter {
            // The adapter itself has few values.
            let weights = bytes_of_frozen(source);
            return Self { weights, critic: if critic { weights } else { 0.0 }, teacher, ..Self::default() };
        }
        let copied = match config.rollout_dtype {
            _ if groups.is_none() => 0.0,
            RolloutDtype::Int8 => 1.0,
            RolloutDtype::Bfloat16 => 2.0,
            RolloutDtype::Auto => {
                if bf16 {
                    2.0
                } else {
                    4.0
                }
            }
        };
        let moments = config.rule().map_or(0.0, bytes_of_moments);
        let of_critic = if critic { (8.0 + moments) * values } else { 0.0 };
        Self {
            weights: 4.0 * values,
            gradients: 4.0 * values,
            moments: moments * values,
            copies: copied * read,
            critic: of_critic,
            teacher,
        }
    }

    fn total(self) -> f64 {
        self.weights + self.gradients + self.moments + self.copies + self.critic + self.teacher
    }
}

/// Returns the minimum bytes that forward passes of `tokens` keep until the gradients are known: the inputs of each layer's maps, norms and
/// heads.
pub(super) fn activations(config: &RunConfig, a: &Architecture, bf16: bool, tokens: usize) -> f64 {
    let kept = |layer: usize| match config.gradient_checkpointing {
        true => a.hidden_size,
        false => a.kept_of_layer(layer),
    };
    let bytes = if bf16 { 2.0 } else { 4.0 };
    tokens as f64 * (0..a.layers).map(kept).sum::<usize>() as f64 * bytes
}

/// Returns the bytes of the matrices of a frozen model. Those of experts are always f32.
pub(super) fn bytes_of_frozen(source: &ModelFolder) -> f64 {
    let a = source.architecture();
    let of_experts = a.values_of_experts() as f64;
    of_experts * size_of::<f32>() as f64 + (a.values_of_matrices() as f64 - of_experts) * bytes_held(source.weight_storage())
}

/// Returns the bytes per value of frozen matrices.
pub(super) fn bytes_held(held: WeightStorage) -> f64 {
    match held {
        WeightStorage { scheme: Some(QuantizationScheme::Int8), .. } => 1.0,
        WeightStorage { scheme: Some(QuantizationScheme::Nf4), .. } => 0.5,
        WeightStorage { dtype: Some(WeightDtype::F32), .. } => 4.0,
        _ => 2.0,
    }
}

/// Returns the bytes of an optimizer's state per value of a matrix.
pub(super) fn bytes_of_moments(rule: OptimizerRule) -> f64 {
    match rule {
        OptimizerRule::AdamW => 8.0,
        OptimizerRule::AdamW8Bit => 2.0,
        OptimizerRule::Sgd(args) => {
            if args.momentum > 0.0 {
                4.0
            } else {
                0.0
            }
        }
        OptimizerRule::RmsProp(args) => {
            if args.momentum > 0.0 {
                8.0
            } else {
                4.0
            }
        }
        OptimizerRule::Lion | OptimizerRule::Muon(_) => 4.0,
        OptimizerRule::Adafactor(args) => {
            if args.beta1.is_some() {
                4.0
            } else {
                0.0
            }
        }
    }
}

/// Returns the memory that a run on the CPU needs. A micro-batch is counted as if no completion ended early and all prompts were as long as
/// the longest. Plugins, the dataset and the program are not counted.
pub(super) fn estimate(config: &RunConfig, source: &ModelFolder, how: ModelUse) -> MemoryEstimate {
    let least = MinimumMemory::new(config, source, how);
    let tokens = tokens_at_once(config, how);
    let batch = tokens.map(|tokens| (tokens, activations(config, source.architecture(), how.bf16, tokens)));
    let MinimumMemory { critic, teacher, .. } = least;
    MemoryEstimate { model: least.total() - critic - teacher, critic, teacher, batch }
}

/// Returns the maximum number of tokens of a micro-batch, counting a prompt once for all of its completions.
fn tokens_at_once(config: &RunConfig, how: ModelUse) -> Option<usize> {
    let rows = config.per_device_train_batch_size;
    let tokens = match how.groups {
        Some(groups) => {
            let prompts = rows.div_ceil(groups.train.max(1)).saturating_mul(how.prompt);
            rows.saturating_mul(groups.length).saturating_add(prompts)
        }
        // Packs are counted as full.
        None => rows.saturating_mul(config.max_length.filter(|_| config.packing)?),
    };
    Some(tokens.min(config.max_tokens_per_microbatch.unwrap_or(usize::MAX)))
}

/// Returns a warning if the memory counted in this module alone exceeds the `available` bytes of a run on the CPU.
pub(super) fn shortage(config: &RunConfig, source: &ModelFolder, how: ModelUse, available: Option<u64>) -> Option<String> {
    let least = MinimumMemory::new(config, source, how);
    let available = available.map(|bytes| bytes as f64)?;
    if least.total() <= available {
        return crowded(config, source, how, (least.total(), available));
    }
    let parts = [
        ("weights", least.weights),
        ("gradients", least.gradients),
        ("moments", least.moments),
        ("copies", least.copies),
        ("the critic", least.critic),
        ("the teacher", least.teacher),
    ];
    let parts: Vec<String> =
        parts.into_iter().filter(|(_, bytes)| *bytes > 0.0).map(|(part, bytes)| format!("{part} {}", gigabytes(bytes))).collect();
    let advice = match how.adapter {
        true => "hold the base in fewer bits (--load-in-8bit true, --load-in-4bit true), or choose a smaller model",
        false => "train an adapter (--lora-r 16), whose base needs only its weights, or choose a smaller model",
    };
    Some(format!(
        "the model needs at least {} GB of memory ({}), and {} GB are available: {WORDLESS}; {advice}",
        gigabytes(least.total()),
        parts.join(", "),
        gigabytes(available)
    ))
}

const WORDLESS: &str = "the system may end this process without a word";

/// Returns a warning if the completions of a micro-batch, none of which ends early, need more than the `available` bytes in addition to the
/// `model`.
fn crowded(config: &RunConfig, source: &ModelFolder, how: ModelUse, (model, available): (f64, f64)) -> Option<String> {
    let (rows, length) = (config.per_device_train_batch_size, how.groups?.length);
    let tokens = tokens_at_once(config, how)?;
    let activations = activations(config, source.architecture(), how.bf16, tokens);
    let is_crowded = model + activations > available;
    is_crowded.then(|| {
        format!(
            "training on {rows} completions of up to {length} tokens at once may take {} GB and more, and {} GB are available: {WORDLESS}; \
             set max_tokens_per_microbatch, or a smaller per_device_train_batch_size",
            gigabytes(model + activations),
            gigabytes(available)
        )
    })
}

fn gigabytes(bytes: f64) -> String {
    format!("{:.1}", bytes / 1e9)
}

/// Returns the properties of a run that determine its memory use.
pub(super) fn in_use(
    config: &RunConfig,
    plugins: &LoadedPlugins,
    opened: &OpenedModel,
    (data, batching): (&PromptLoader, &Batching),
    backend: &ComputeBackend,
) -> ModelUse {
    ModelUse {
        adapter: opened.lora.is_some(),
        groups: batching.groups,
        bf16: backend.is_bf16(),
        critic: plugins.info().needs.has(VALUE) && config.value_model.as_deref() != Some(value_source::SHARED),
        prompt: data.prompts().longest(),
        teacher: opened.teacher.as_ref().map_or_else(|| bytes_of_average(config, opened), bytes_of_frozen),
    }
}

/// Returns the size of an average of the policy, which an update has twice for a moment; an adapter's is next to nothing.
fn bytes_of_average(config: &RunConfig, opened: &OpenedModel) -> f64 {
    let has_one = config.teacher_model_kind == TeacherModelKind::Ema && opened.lora.is_none();
    if has_one { 2.0 * 4.0 * opened.source.architecture().values_of_matrices() as f64 } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OptimizerName;

    const GROUPS: Option<GroupSizes> = Some(GroupSizes { train: 8, eval: 8, length: 100 });
    const USE: ModelUse = ModelUse { adapter: false, groups: GROUPS, bf16: false, critic: false, prompt: 0, teacher: 0.0 };

    /// Returns the folder of a small model, without weights.
    fn folder(place: &std::path::Path) -> ModelFolder {
        let config = serde_json::json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
            "vocab_size": 512, "tie_word_embeddings": true,
        });
        std::fs::write(place.join("config.json"), config.to_string()).unwrap();
        ModelFolder::open(place).unwrap()
    }

    #[test]
    fn the_least_that_a_run_needs_follows_from_its_settings() {
        let place = tempfile::tempdir().unwrap();
        let source = folder(place.path());
        let values = source.architecture().values_of_matrices() as f64;
        let plain = RunConfig::default();
        let whole = |config: &RunConfig, generates: bool, bf16| {
            MinimumMemory::new(config, &source, ModelUse { groups: GROUPS.filter(|_| generates), bf16, ..USE }).total() / values
        };
        assert_eq!((whole(&plain, false, false), whole(&plain, true, false)), (16.0, 20.0));
        let half = RunConfig { optim: OptimizerName::Sgd, ..plain.clone() };
        assert_eq!((whole(&half, false, true), whole(&half, true, true)), (8.0, 10.0));
        let tuned = ModelUse { adapter: true, ..USE };
        let adapter = |held| MinimumMemory::new(&plain, &source.clone().with_weight_storage(held), tuned).total() / values;
        assert_eq!(adapter(WeightStorage { dtype: None, scheme: None }), 2.0);
        assert_eq!(adapter(WeightStorage { dtype: Some(WeightDtype::F32), scheme: None }), 4.0);
        assert_eq!(adapter(WeightStorage { dtype: None, scheme: Some(QuantizationScheme::Nf4) }), 0.5);

        let mixture = serde_json::json!({
            "model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
            "vocab_size": 512, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [0],
        });
        let sparse = tempfile::tempdir().unwrap();
        std::fs::write(sparse.path().join("config.json"), mixture.to_string()).unwrap();
        let sparse = ModelFolder::open(sparse.path()).unwrap();
        let (all, experts) = (sparse.architecture().values_of_matrices() as f64, f64::from(8 * 3 * 32 * 64));
        let nf4 = sparse.with_weight_storage(WeightStorage { dtype: None, scheme: Some(QuantizationScheme::Nf4) });
        assert_eq!(bytes_of_frozen(&nf4), 4.0 * experts + 0.5 * (all - experts));

        let needed = (20.0 * values) as u64;
        let trained = ModelUse { adapter: false, ..tuned };
        let offline = ModelUse { groups: None, ..trained };
        let said = |available| shortage(&plain, &source, trained, available);
        assert_eq!((said(None), shortage(&plain, &source, offline, Some(needed))), (None, None));
        let said = said(Some(needed - 1)).unwrap();
        assert!(said.contains("moments ") && said.contains("copies ") && said.contains("--lora-r"), "{said}");
        assert!(shortage(&plain, &source, tuned, Some(1)).unwrap().contains("--load-in-4bit"));
    }

    #[test]
    fn completions_that_may_not_fit_are_noticed_before_they_are_generated() {
        let place = tempfile::tempdir().unwrap();
        let source = folder(place.path());
        let values = source.architecture().values_of_matrices() as u64;
        let how = USE;
        let of = |rows: usize, more: RunConfig| {
            let config = RunConfig { per_device_train_batch_size: rows, ..more };
            shortage(&config, &source, how, Some(20 * values + 10_000_000))
        };
        // A token keeps two layers of 2 * (64 + 64 + 64 + 128) values.
        let tokens = 10_000_000 / (2 * 2 * 320 * 4);
        assert_eq!(of(tokens / 100, RunConfig::default()), None);
        let said = of(tokens / 100 + 1, RunConfig::default()).unwrap();
        assert!(said.contains(&format!("{} completions of up to 100 tokens", tokens / 100 + 1)), "{said}");
        assert!(said.contains("max_tokens_per_microbatch"), "{said}");
        let bounded = RunConfig { max_tokens_per_microbatch: Some(tokens), ..RunConfig::default() };
        assert_eq!(of(1 << 40, bounded), None);
        assert_eq!(of(5 * tokens / 100, RunConfig { gradient_checkpointing: true, ..RunConfig::default() }), None);
    }

    #[test]
    fn an_estimate_has_the_critic_and_the_tokens_of_a_micro_batch() {
        let place = tempfile::tempdir().unwrap();
        let source = folder(place.path());
        let values = source.architecture().values_of_matrices() as f64;
        let config = RunConfig { per_device_train_batch_size: 16, ..RunConfig::default() };
        let of = |config: &RunConfig, how: ModelUse| estimate(config, &source, how);
        // Two groups of eight, with each prompt counted once.
        let plain = of(&config, ModelUse { prompt: 30, ..USE });
        let tokens = 16 * 100 + 2 * 30;
        assert_eq!(
            plain,
            MemoryEstimate {
                model: 20.0 * values,
                critic: 0.0,
                teacher: 0.0,
                batch: Some((tokens, (tokens * 2 * 2 * 320 * 4) as f64))
            }
        );
        let taught = of(&config, ModelUse { critic: true, ..USE });
        assert_eq!((taught.model, taught.critic), (20.0 * values, 16.0 * values));
        let with_teacher = of(&config, ModelUse { teacher: 7.0, ..USE });
        assert_eq!((with_teacher.model, with_teacher.teacher), (20.0 * values, 7.0));
        let bounded = RunConfig { max_tokens_per_microbatch: Some(64), ..config.clone() };
        assert_eq!(of(&bounded, USE).batch.map(|(tokens, _)| tokens), Some(64));
        // Given rows may have any length, unless they are packed.
        let given = ModelUse { groups: None, ..USE };
        assert_eq!(of(&config, given).batch, None);
        let packed = RunConfig { packing: true, max_length: Some(512), ..config };
        assert_eq!(of(&packed, given).batch.map(|(tokens, _)| tokens), Some(16 * 512));
        let said = shortage(&packed, &source, ModelUse { critic: true, ..given }, Some(1)).unwrap();
        assert!(said.contains("the critic "), "{said}");
    }
}
