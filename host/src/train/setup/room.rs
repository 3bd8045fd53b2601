//! Compares what a run will need at least with the memory that is available: the system ends a process that takes too much without a
//! word.

use crate::config::{Config, RolloutDtype, Rule};
use crate::model::{Dtype, Held, ModelFolder};
use crate::ops::quantized::Scheme;

/// Bytes that a run holds at least, whatever its batches.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Least {
    weights: f64,
    gradients: f64,
    moments: f64,
    /// Copies of the weights that generations read.
    copies: f64,
}

/// What a run does with its model.
#[derive(Clone, Copy)]
pub(super) struct Use {
    /// Whether it trains an adapter.
    pub adapter: bool,
    /// Whether it generates completions.
    pub generates: bool,
    /// Whether it computes in bf16.
    pub bf16: bool,
}

impl Least {
    /// Counts them for the matrices of a model.
    fn of(config: &Config, source: &ModelFolder, Use { adapter, generates, bf16 }: Use) -> Self {
        let a = source.architecture();
        let values = a.values_of_matrices() as f64;
        // Generations read rows of the embedding as they are, and copy it only as the output matrix.
        let read = if a.tied { values } else { values - a.hidden_size as f64 * a.vocab_size as f64 };
        if adapter {
            // The adapter's own values are few.
            return Self { weights: values * bytes_held(source.held()), ..Self::default() };
        }
        let copied = match config.rollout_dtype {
            _ if !generates => 0.0,
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
        Self { weights: 4.0 * values, gradients: 4.0 * values, moments: moments * values, copies: copied * read }
    }

    /// Counts what forward passes of `tokens` keep at least until the gradients are known: what each layer's maps, norms and heads read.
    fn activations(config: &Config, source: &ModelFolder, bf16: bool, tokens: usize) -> f64 {
        let a = source.architecture();
        let kept = match config.gradient_checkpointing {
            true => a.hidden_size,
            false => 2 * (a.hidden_size + a.query_width() + a.kv_width() + a.intermediate_size),
        };
        let bytes = if bf16 { 2.0 } else { 4.0 };
        tokens as f64 * (a.layers * kept) as f64 * bytes
    }

    fn total(self) -> f64 {
        self.weights + self.gradients + self.moments + self.copies
    }
}

/// Returns the bytes of a value of matrices that are not trained.
fn bytes_held(held: Held) -> f64 {
    match held {
        Held { scheme: Some(Scheme::Int8), .. } => 1.0,
        Held { scheme: Some(Scheme::Nf4), .. } => 0.5,
        Held { dtype: Some(Dtype::F32), .. } => 4.0,
        _ => 2.0,
    }
}

/// Returns the bytes of an optimizer's state for a value of a matrix.
fn bytes_of_moments(rule: Rule) -> f64 {
    match rule {
        Rule::AdamW => 8.0,
        Rule::AdamW8Bit => 2.0,
        Rule::Sgd(args) => {
            if args.momentum > 0.0 {
                4.0
            } else {
                0.0
            }
        }
        Rule::RmsProp(args) => {
            if args.momentum > 0.0 {
                8.0
            } else {
                4.0
            }
        }
        Rule::Lion | Rule::Muon(_) => 4.0,
        Rule::Adafactor(args) => {
            if args.beta1.is_some() {
                4.0
            } else {
                0.0
            }
        }
    }
}

/// Returns the bytes that a run on the CPU needs at least, whatever its batches.
pub(super) fn least(config: &Config, source: &ModelFolder, how: Use) -> f64 {
    Least::of(config, source, how).total()
}

/// Returns a warning if a run on the CPU needs more than the `available` bytes for what is counted here alone.
pub(super) fn shortage(config: &Config, source: &ModelFolder, how: Use, available: Option<u64>) -> Option<String> {
    let least = Least::of(config, source, how);
    let available = available.map(|bytes| bytes as f64)?;
    if least.total() <= available {
        return crowded(config, source, how, (least.total(), available));
    }
    let parts =
        [("weights", least.weights), ("gradients", least.gradients), ("moments", least.moments), ("copies", least.copies)];
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

/// Returns a warning if the completions of a micro-batch, if none ends early, need more than the `available` bytes beside a model that
/// takes so many.
fn crowded(config: &Config, source: &ModelFolder, how: Use, (model, available): (f64, f64)) -> Option<String> {
    let (rows, length) = (config.per_device_train_batch_size, config.max_completion_length);
    let tokens = rows.saturating_mul(length).min(config.max_tokens_per_microbatch.unwrap_or(usize::MAX));
    let activations = Least::activations(config, source, how.bf16, tokens);
    let is_crowded = how.generates && model + activations > available;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Optim;

    /// The folder of a small model, without weights.
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
        let plain = Config::default();
        let whole = |config: &Config, generates, bf16| {
            Least::of(config, &source, Use { adapter: false, generates, bf16 }).total() / values
        };
        assert_eq!((whole(&plain, false, false), whole(&plain, true, false)), (16.0, 20.0));
        let half = Config { optim: Optim::Sgd, ..plain.clone() };
        assert_eq!((whole(&half, false, true), whole(&half, true, true)), (8.0, 10.0));
        let tuned = Use { adapter: true, generates: true, bf16: false };
        let adapter = |held| Least::of(&plain, &source.clone().holding(held), tuned).total() / values;
        assert_eq!(adapter(Held { dtype: None, scheme: None }), 2.0);
        assert_eq!(adapter(Held { dtype: Some(Dtype::F32), scheme: None }), 4.0);
        assert_eq!(adapter(Held { dtype: None, scheme: Some(Scheme::Nf4) }), 0.5);

        let needed = (20.0 * values) as u64;
        let trained = Use { adapter: false, ..tuned };
        let offline = Use { generates: false, ..trained };
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
        let how = Use { adapter: false, generates: true, bf16: false };
        let of = |rows: usize, more: Config| {
            let config = Config { per_device_train_batch_size: rows, max_completion_length: 100, ..more };
            shortage(&config, &source, how, Some(20 * values + 10_000_000))
        };
        // A token keeps two layers of 2 * (64 + 64 + 64 + 128) values.
        let tokens = 10_000_000 / (2 * 2 * 320 * 4);
        assert_eq!(of(tokens / 100, Config::default()), None);
        let said = of(tokens / 100 + 1, Config::default()).unwrap();
        assert!(said.contains(&format!("{} completions of up to 100 tokens", tokens / 100 + 1)), "{said}");
        assert!(said.contains("max_tokens_per_microbatch"), "{said}");
        let bounded = Config { max_tokens_per_microbatch: Some(tokens), ..Config::default() };
        assert_eq!(of(1 << 40, bounded), None);
        assert_eq!(of(5 * tokens / 100, Config { gradient_checkpointing: true, ..Config::default() }), None);
    }
}
