//! What llama.cpp supports of each family: what its graphs load and compute, as of the release in llama-cpp-python 0.3.36. A model that
//! needs more is refused, because llama.cpp would read its file wrongly or not at all.

use crate::model::{Architecture, FAMILIES, Family, Mixture, Rope, RopeScaling};
use crate::ops::activation::Activation;
use std::f32::consts::TAU;

/// Whether a graph has a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorPresence {
    Never,
    IfGiven,
    Always,
}

/// The RoPE scalings that a graph supports besides the linear one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SupportedRopeScaling {
    /// `YaRN`.
    Yarn,
    /// `YaRN`, and a divisor for each frequency, from a tensor.
    Divisors,
    /// `YaRN`, and divisors for short and for long texts.
    Long,
    /// No other scaling.
    Linear,
}

/// A graph of llama.cpp, described by its differences from that of Qwen 2.
#[derive(Clone, Copy, Debug)]
pub(super) struct LlamaCppGraph {
    /// Name of the graph, which is the prefix of its keys.
    pub name: &'static str,
    /// Whether the two dimensions of a rotated pair are adjacent. Otherwise, they are half a head apart.
    pub neighbours: bool,
    /// Supported RoPE scalings.
    pub scalings: SupportedRopeScaling,
    /// Whether the graph loads an output matrix. With `IfGiven`, it uses the embedding if there is none.
    pub output: TensorPresence,
    /// Bias on query, key and value projections.
    pub qkv_bias: TensorPresence,
    /// Bias on the attention output.
    pub output_bias: TensorPresence,
    /// Biases of the MLP.
    pub unit_bias: TensorPresence,
    /// Whether the heads' total width must be the hidden size.
    pub square: bool,
    /// Whether the graph has sliding windows.
    pub windows: bool,
    /// Activation of the MLP.
    pub activation: Activation,
    /// Whether the weights of a token's experts add up to one.
    pub normalised: Option<bool>,
    /// Interval of layers without RoPE.
    pub unrotated: Option<usize>,
}

const QWEN2: LlamaCppGraph = LlamaCppGraph {
    name: "qwen2",
    neighbours: false,
    scalings: SupportedRopeScaling::Yarn,
    output: TensorPresence::IfGiven,
    qkv_bias: TensorPresence::IfGiven,
    output_bias: TensorPresence::Never,
    unit_bias: TensorPresence::Never,
    square: true,
    windows: false,
    activation: Activation::Silu,
    normalised: None,
    unrotated: None,
};

const LLAMA: LlamaCppGraph = LlamaCppGraph {
    name: "llama",
    neighbours: true,
    scalings: SupportedRopeScaling::Divisors,
    output_bias: TensorPresence::IfGiven,
    unit_bias: TensorPresence::IfGiven,
    square: false,
    normalised: Some(true),
    ..QWEN2
};

const GEMMA: LlamaCppGraph =
    LlamaCppGraph { name: "gemma2", square: false, windows: true, activation: Activation::GeluTanh, ..QWEN2 };

const GPT: LlamaCppGraph = LlamaCppGraph {
    name: "gpt2",
    qkv_bias: TensorPresence::Always,
    output_bias: TensorPresence::Always,
    unit_bias: TensorPresence::Always,
    activation: Activation::GeluTanh,
    ..QWEN2
};

/// Returns the graph of a family.
fn for_family(family: Family) -> Option<LlamaCppGraph> {
    Some(match family {
        Family::Gemma2 => LlamaCppGraph { output: TensorPresence::Never, ..GEMMA },
        Family::Gemma3 => LlamaCppGraph { name: "gemma3", scalings: SupportedRopeScaling::Linear, ..GEMMA },
        Family::Gpt2 => GPT,
        Family::GptNeoX => LlamaCppGraph { name: "gptneox", output: TensorPresence::Always, ..GPT },
        Family::Granite => LlamaCppGraph { name: "granite", ..LLAMA },
        Family::GraniteMoe | Family::GraniteMoeShared => LlamaCppGraph { name: "granitemoe", ..LLAMA },
        // Mistral's graphs are Llama's, with experts or without.
        Family::Llama | Family::Mistral | Family::Mixtral => LLAMA,
        Family::Olmo2 => LlamaCppGraph { name: "olmo2", output: TensorPresence::Always, ..QWEN2 },
        Family::Olmoe => LlamaCppGraph { name: "olmoe", output: TensorPresence::Always, normalised: Some(false), ..QWEN2 },
        Family::Phi3 => LlamaCppGraph { name: "phi3", scalings: SupportedRopeScaling::Long, ..QWEN2 },
        Family::Qwen2 => QWEN2,
        Family::Qwen3 => LlamaCppGraph { name: "qwen3", square: false, ..QWEN2 },
        Family::Qwen3Moe => LlamaCppGraph { name: "qwen3moe", square: false, normalised: Some(true), ..QWEN2 },
        Family::SmolLm3 => LlamaCppGraph { name: "smollm3", neighbours: true, square: false, unrotated: Some(4), ..QWEN2 },
        Family::StableLm => LlamaCppGraph { name: "stablelm", output: TensorPresence::Always, ..QWEN2 },
        Family::Starcoder2 => LlamaCppGraph { name: "starcoder2", qkv_bias: TensorPresence::IfGiven, ..GPT },
        Family::Cohere2
        | Family::DeepseekV2
        | Family::DeepseekV3
        | Family::Ernie45
        | Family::Exaone4
        | Family::FalconH1
        | Family::Gemma4
        | Family::Gemma4Unified
        | Family::Glm4
        | Family::Glm4Moe
        | Family::GptOss
        | Family::GraniteMoeHybrid
        | Family::HunyuanV1Dense
        | Family::Lfm2
        | Family::Lfm2Moe
        | Family::Llama4
        | Family::Ministral
        | Family::Ministral3
        | Family::NemotronH
        | Family::Olmo3
        | Family::Qwen2Moe
        | Family::Qwen3_5
        | Family::Qwen3_5Moe
        | Family::Qwen3Next => return None,
    })
}

/// Returns the graph that computes a model.
///
/// # Errors
/// If llama.cpp does not support the model; the message says why.
pub(super) fn for_architecture(a: &Architecture) -> Result<LlamaCppGraph, String> {
    let model_type = a.family.description().model_type;
    let target = for_family(a.family).ok_or_else(|| {
        let known: Vec<&str> = FAMILIES
            .iter()
            .filter(|described| for_family(described.family).is_some())
            .map(|described| described.model_type)
            .collect();
        format!("model_type {model_type:?} can't be exported as GGUF; {} can", known.join(", "))
    })?;
    let lacking = target.lacks(a).into_iter().find_map(|(lacks, what)| lacks.then_some(what));
    lacking.map_or(Ok(target), |what| {
        Err(format!("llama.cpp does not support a {model_type} with {what}, so it can't be exported as GGUF"))
    })
}

/// Returns the scale of attention scores in Gemma's graphs: by the head size, or in the largest models by the hidden size.
fn gemma_scores(a: &Architecture) -> f32 {
    let largest = match a.family {
        Family::Gemma2 => 46,
        _ => 62,
    };
    let of = if a.layers == largest { a.hidden_size / a.heads.heads } else { a.heads.head_dim };
    (of as f32).sqrt().recip()
}

impl LlamaCppGraph {
    /// Returns features that the graph may lack, and for each whether this model needs it.
    fn lacks(&self, a: &Architecture) -> Vec<(bool, &'static str)> {
        let gemma = matches!(a.family, Family::Gemma2 | Family::Gemma3);
        let misses = |has: TensorPresence, given: bool| has == TensorPresence::Never && given;
        let needs = |has: TensorPresence, given: bool| has == TensorPresence::Always && !given;
        let f = a.factors;
        let of_heads = (a.heads.head_dim as f32).sqrt().recip();
        let scores = if gemma { gemma_scores(a) } else { of_heads };
        let differs = |x: f32, y: f32| (x - y).abs() > 1e-6 * y.abs();
        let mut all = vec![
            (misses(self.qkv_bias, a.qkv_bias), "biases on query, key and value projections"),
            (needs(self.qkv_bias, a.qkv_bias), "query, key and value projections without biases"),
            (misses(self.output_bias, a.output_bias), "a bias on the attention output"),
            (needs(self.output_bias, a.output_bias), "an attention output without a bias"),
            (misses(self.unit_bias, a.mlp_bias), "biases in the MLP"),
            (needs(self.unit_bias, a.mlp_bias), "an MLP without biases"),
            (self.output == TensorPresence::Never && !a.tied, "an output matrix that is not the embedding"),
            (self.square && a.query_width() != a.hidden_size, "heads whose total width is not the hidden size"),
            (a.scores_by_layer, "attention scores scaled by layer (scale_attn_by_inverse_layer_idx)"),
            (
                !a.family.is_granite() && differs(f.scores, scores),
                "a scale of attention scores that does not follow from its heads",
            ),
            (a.family == Family::Gemma2 && f.scores_cap.is_none(), "attention scores without soft-capping"),
            (a.family == Family::Gemma2 && f.logits_cap.is_none(), "logits without soft-capping"),
            (self.activation_lacks(a.activation), "this activation function"),
            (self.rotary_lacks(a), "RoPE in these layers"),
            (a.ropes.iter().any(|rope| !self.scales(rope)), "this RoPE scaling"),
            (a.ropes.iter().skip(1).any(|rope| rope.scaling != RopeScaling::None), "RoPE scaling in layers with windows"),
        ];
        all.extend(self.experts_lack(a));
        all
    }

    /// Returns features of experts that the graph may lack, and for each whether this model needs it.
    fn experts_lack(&self, a: &Architecture) -> Vec<(bool, &'static str)> {
        let of = |mixture: &Mixture| {
            vec![
                (mixture.routing.normalised && self.normalised != Some(true), "experts whose weights add up to one"),
                (!mixture.routing.normalised && self.normalised != Some(false), "experts weighted by probability"),
                (mixture.sparse.contains(&false), "layers without experts"),
                (a.family == Family::Olmoe && a.kv_width() != a.hidden_size, "fewer key heads than query heads"),
            ]
        };
        let needs = matches!(a.family, Family::Qwen3Moe | Family::Olmoe | Family::GraniteMoe | Family::GraniteMoeShared);
        a.mixture.as_ref().map_or_else(|| vec![(needs, "no experts")], of)
    }

    fn activation_lacks(&self, activation: Activation) -> bool {
        // The approximation is close, and `notes` mentions it.
        activation != self.activation && !(self.approximates(activation))
    }

    fn approximates(&self, activation: Activation) -> bool {
        self.activation == Activation::GeluTanh && activation == Activation::Gelu
    }

    fn rotary_lacks(&self, a: &Architecture) -> bool {
        let rotates = |layer: usize| self.unrotated.is_none_or(|every| !(layer + 1).is_multiple_of(every));
        a.family != Family::Gpt2 && (0..a.layers).any(|layer| a.rotary[layer].is_some() != rotates(layer))
    }

    fn scales(&self, rope: &Rope) -> bool {
        match &rope.scaling {
            RopeScaling::None | RopeScaling::Linear { .. } => true,
            RopeScaling::Llama3 { .. } => self.scalings == SupportedRopeScaling::Divisors,
            RopeScaling::Yarn { original, ramp, .. } => {
                self.scalings != SupportedRopeScaling::Linear && *ramp == self::ramp(rope, *original)
            }
            RopeScaling::Proportional { .. } => false,
            RopeScaling::Long { .. } => matches!(self.scalings, SupportedRopeScaling::Divisors | SupportedRopeScaling::Long),
        }
    }

    /// Returns notes for the user about differences between the graph's computation and the model's.
    pub(super) fn notes(&self, a: &Architecture) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(window) = a.windows.iter().flatten().min().filter(|_| !self.windows) {
            notes.push(format!(
                "llama.cpp computes a {} without sliding windows: its output differs for texts of more than {window} tokens",
                self.name
            ));
        }
        if self.approximates(a.activation) {
            notes.push(format!(
                "llama.cpp computes the GELU of a {} with a hyperbolic tangent: its logits differ slightly",
                self.name
            ));
        }
        notes
    }
}

/// Returns the first and last dimension of llama.cpp's transition between frequency scales (`ggml_rope_yarn_corr_dims`). llama.cpp always
/// uses the paper's numbers of rotations, 32 and 1: the graphs of these families ignore a file's own.
pub(super) fn ramp(rope: &Rope, original: f64) -> (f64, f64) {
    let (dims, theta) = (rope.dims as f32, rope.theta as f32);
    let dimension = |rotations: f32| dims * (original as f32 / (rotations * TAU)).ln() / (2.0 * theta.ln());
    (dimension(32.0).floor().max(0.0).into(), dimension(1.0).ceil().min(dims - 1.0).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_cpp_scales_the_dimensions_that_the_paper_does() {
        // 128 ln(32768 / (32 TAU)) / (2 ln 1e6) is 23.60, and 39.65 without the 32.
        let scaling = RopeScaling::Yarn { factor: 4.0, original: 32768.0, ramp: (23.0, 40.0), attention_factor: 1.0 };
        let rope = Rope { theta: 1e6, scaling, dims: 128 };
        assert_eq!(ramp(&rope, 32768.0), (23.0, 40.0));
        // With a short original text, all dimensions after the first are divided: 16 ln(32 / TAU) / (2 ln 1e4) is 1.41.
        assert_eq!(ramp(&Rope { theta: 1e4, dims: 16, ..rope }, 32.0), (0.0, 2.0));
    }
}
