//! A model's sizes and constants as metadata, under llama.cpp's keys.

use super::file::{GgufMetadata, GgufValue};
use super::targets::LlamaCppGraph;
use crate::config::{files, json};
use crate::model::{Architecture, Family, ModelFolder, NormKind, Rope, RopeScaling};

/// Maximum size of a `config.json`, in bytes.
const LARGEST: u64 = 4 << 20;

/// Divisors of rotary frequencies that are stored as tensors rather than keys.
pub(super) struct RopeDivisors {
    /// A divisor for each frequency, for texts of any length.
    pub divisors: Option<Vec<f32>>,
    /// Divisors for texts up to the original training length, and for longer ones.
    pub by_length: Option<[Vec<f32>; 2]>,
    /// Maximum length of a text.
    pub context: usize,
}

impl RopeDivisors {
    /// Reads the divisors from a model and, for values that this program doesn't use, from its `config.json`.
    ///
    /// # Errors
    /// If `config.json` can't be read.
    pub(super) fn read(source: &ModelFolder) -> Result<Self, String> {
        let a = source.architecture();
        let plain = Self { divisors: None, by_length: None, context: a.max_positions };
        let Some(rope) = a.ropes.first() else { return Ok(plain) };
        match &rope.scaling {
            RopeScaling::Llama3 { .. } => Ok(Self { divisors: Some(divisors(rope)), ..plain }),
            RopeScaling::Long { factors, .. } => {
                let text = files::read_text(&source.base().join("config.json"), LARGEST).map_err(|e| e.to_string())?;
                let config = json::value(&text).map_err(|e| e.to_string())?;
                let long = ["rope_parameters", "rope_scaling"].iter().find_map(|key| config[key]["long_factor"].as_array());
                let numbers = |all: &Vec<serde_json::Value>| all.iter().map(|x| x.as_f64().map(|x| x as f32)).collect();
                let long: Vec<f32> = long.and_then(numbers).ok_or("longrope needs a long_factor, a list of numbers")?;
                let short = factors.iter().map(|factor| *factor as f32).collect();
                let longest = config["max_position_embeddings"].as_u64().and_then(|n| usize::try_from(n).ok());
                Ok(Self { by_length: Some([short, long]), context: longest.unwrap_or(a.max_positions), ..plain })
            }
            _ => Ok(plain),
        }
    }
}

/// Returns the divisor of each frequency.
fn divisors(rope: &Rope) -> Vec<f32> {
    let plain = |i: usize| rope.theta.powf(-2.0 * i as f64 / rope.dims as f64);
    rope.frequencies().iter().enumerate().map(|(i, scaled)| (plain(i) / f64::from(*scaled)) as f32).collect()
}

/// Collects keys with the name of a graph as prefix.
struct GgufKeys {
    name: &'static str,
    all: GgufMetadata,
}

impl GgufKeys {
    fn add(&mut self, key: &str, value: GgufValue) {
        self.all.push((format!("{}.{key}", self.name), value));
    }

    fn count(&mut self, key: &str, count: usize) {
        // The sizes of an architecture are bounded far below `u32::MAX`.
        self.add(key, GgufValue::Count(count as u32));
    }

    fn number(&mut self, key: &str, number: f64) {
        self.add(key, GgufValue::Number(number as f32));
    }
}

/// Returns the metadata of a model.
pub(super) fn metadata(a: &Architecture, target: &LlamaCppGraph, ropes: &RopeDivisors) -> GgufMetadata {
    let mut keys = GgufKeys { name: target.name, all: Vec::new() };
    keys.count("vocab_size", a.vocab_size);
    keys.count("context_length", ropes.context);
    keys.count("embedding_length", a.hidden_size);
    keys.count("block_count", a.layers);
    let wide = a.mixture.as_ref().filter(|_| a.family != Family::Qwen3Moe).map_or(a.intermediate_size, |mixture| mixture.width);
    keys.count("feed_forward_length", wide);
    keys.count("attention.head_count", a.heads.heads);
    keys.count("attention.head_count_kv", a.heads.kv_heads);
    keys.count("attention.key_length", a.heads.head_dim);
    keys.count("attention.value_length", a.heads.head_dim);
    let eps = if a.norm == NormKind::Layer { "attention.layer_norm_epsilon" } else { "attention.layer_norm_rms_epsilon" };
    keys.number(eps, a.norm_eps);
    if a.family == Family::GptNeoX {
        keys.add("use_parallel_residual", GgufValue::Flag(a.parallel));
    }
    if let Some(rope) = a.ropes.first() {
        add_rope(&mut keys, rope, a);
    }
    if let Some(mixture) = &a.mixture {
        keys.count("expert_count", mixture.experts);
        keys.count("expert_used_count", mixture.routing.chosen);
        if a.family == Family::Qwen3Moe {
            keys.count("expert_feed_forward_length", mixture.width);
        }
        if let Some(shared) = mixture.shared {
            keys.count("expert_shared_feed_forward_length", shared);
        }
    }
    add_windows(&mut keys, a, ropes);
    add_factors(&mut keys, a);
    keys.all
}

fn add_rope(keys: &mut GgufKeys, rope: &Rope, a: &Architecture) {
    keys.count("rope.dimension_count", rope.dims);
    keys.number("rope.freq_base", rope.theta);
    if let Some(of_windows) = a.ropes.get(1) {
        keys.number("rope.freq_base_swa", of_windows.theta);
    }
    let mut scaling = |kind: &str| keys.add("rope.scaling.type", GgufValue::Text(kind.into()));
    match &rope.scaling {
        // Divisors per frequency are stored in a tensor; no graph rotates only the first pairs of dimensions.
        RopeScaling::None | RopeScaling::Llama3 { .. } | RopeScaling::Proportional { .. } => {}
        RopeScaling::Linear { factor } => {
            scaling("linear");
            keys.number("rope.scaling.factor", *factor);
        }
        RopeScaling::Yarn { factor, original, attention_factor, .. } => {
            scaling("yarn");
            keys.number("rope.scaling.factor", *factor);
            // The sizes of a configuration are integers.
            keys.count("rope.scaling.original_context_length", *original as usize);
            // llama.cpp multiplies this value by the paper's factor.
            let own = if *factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
            keys.number("rope.scaling.attn_factor", attention_factor / own);
        }
        RopeScaling::Long { attention_factor, .. } => {
            scaling("longrope");
            keys.count("rope.scaling.original_context_length", a.max_positions);
            keys.number("rope.scaling.attn_factor", *attention_factor);
        }
    }
}

/// Adds the layers of a Gemma that have windows, and the windows' size.
fn add_windows(keys: &mut GgufKeys, a: &Architecture, ropes: &RopeDivisors) {
    let slides = |layer: usize| match a.family {
        // Such layers also have a rotary embedding of their own, even if the window is longer than any text.
        Family::Gemma3 => a.rotary[layer] == Some(1),
        _ => a.windows[layer].is_some(),
    };
    let flags: Vec<bool> = (0..a.layers).map(slides).collect();
    let given = a.windows.iter().flatten().min().copied();
    match a.family {
        // Without the key, llama.cpp's graph has windows of 4096 tokens.
        Family::Gemma2 => {}
        Family::Gemma3 if flags.contains(&true) => {}
        _ => return,
    }
    keys.count("attention.sliding_window", given.unwrap_or(ropes.context));
    keys.add("attention.sliding_window_pattern", GgufValue::Flags(flags));
}

/// Adds a family's multipliers and soft caps.
fn add_factors(keys: &mut GgufKeys, a: &Architecture) {
    let f = a.factors;
    match a.family {
        family if family.is_granite() => {
            for (key, factor) in [
                ("attention.scale", f.scores),
                ("embedding_scale", f.embedding),
                ("residual_scale", f.residual),
                ("logit_scale", f.logits),
            ] {
                keys.number(key, f64::from(factor));
            }
        }
        Family::Gemma2 | Family::Gemma3 => {
            for (key, bound) in [("attn_logit_softcapping", f.scores_cap), ("final_logit_softcapping", f.logits_cap)] {
                if let Some(bound) = bound {
                    keys.number(key, f64::from(bound));
                }
            }
        }
        _ => {}
    }
}
