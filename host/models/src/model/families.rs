//! The table of families of decoders: their names, their features, and defaults of their configurations.

use super::family::Family;
use super::names::{
    COHERE, DEEPSEEK_V2, DEEPSEEK_V3, FALCON_H1, GEMMA, GEMMA4, GLM, GLM_MOE, GPT_OSS, GPT2, GRANITE_HYBRID, GRANITE_MOE,
    HUNYUAN, LFM2, LFM2_MOE, LLAMA, LLAMA4, MIXTRAL, NEMOTRON_H, NEOX, OLMO, PHI, QWEN_MOE, QWEN2_MOE, QWEN3_5, QWEN3_5_MOE,
    QWEN3_NEXT, STARCODER, TensorNames,
};

/// Properties of a family that don't depend on its `config.json`.
#[derive(Debug)]
pub struct FamilyDescription {
    /// The family.
    pub family: Family,
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// Common name of the family.
    pub name: &'static str,
    /// Differences from a Llama.
    pub features: &'static str,
    /// Default of `max_position_embeddings`.
    pub(super) positions: usize,
    /// Default of `rope_theta`.
    pub(super) theta: f64,
    /// Default epsilon of the norms.
    pub(super) norm_eps: f64,
    /// Default of `tie_word_embeddings`.
    pub(super) tied: bool,
    /// Names of the family's tensors.
    pub(super) names: &'static TensorNames,
}

const COMMON: FamilyDescription = FamilyDescription {
    family: Family::Llama,
    model_type: "llama",
    name: "Llama",
    features: "biases if configured",
    positions: 2048,
    theta: 1e4,
    norm_eps: 1e-6,
    tied: false,
    names: &LLAMA,
};

/// Every supported family, in alphabetical order.
pub const FAMILIES: &[FamilyDescription] = &[
    FamilyDescription {
        family: Family::Cohere2,
        model_type: "cohere2",
        name: "Cohere 2",
        features: "layer norms without biases, one for attention and MLP, which are in parallel; sliding windows in three of four \
                   layers, the others without RoPE; RoPE of neighbouring dimensions; a multiplier for logits",
        positions: 8192,
        norm_eps: 1e-5,
        tied: true,
        names: &COHERE,
        ..COMMON
    },
    FamilyDescription {
        family: Family::DeepseekV2,
        model_type: "deepseek_v2",
        name: "DeepSeek V2",
        features: "compressed keys and values, and queries if configured; partial RoPE of neighbouring dimensions, with one \
                   rotated key for all heads; a mixture of experts after the first layers, chosen within groups if configured \
                   and weighted by probability, and an MLP that all tokens share",
        names: &DEEPSEEK_V2,
        ..COMMON
    },
    FamilyDescription {
        family: Family::DeepseekV3,
        model_type: "deepseek_v3",
        name: "DeepSeek V3",
        features: "as DeepSeek V2, with experts chosen by corrected scores within groups and weighted by scores; RoPE of \
                   neighbouring dimensions unless configured otherwise",
        positions: 4096,
        names: &DEEPSEEK_V3,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Ernie45,
        model_type: "ernie4_5",
        name: "ERNIE 4.5",
        features: "RoPE of neighbouring dimensions; biases everywhere if configured",
        positions: 131_072,
        theta: 5e5,
        norm_eps: 1e-5,
        tied: true,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Exaone4,
        model_type: "exaone4",
        name: "EXAONE 4",
        features: "norms only after attention and MLP, and on query and key heads; sliding windows in three of four layers, the \
                   others without RoPE, if configured",
        norm_eps: 1e-5,
        names: &OLMO,
        ..COMMON
    },
    FamilyDescription {
        family: Family::FalconH1,
        model_type: "falcon_h1",
        name: "Falcon-H1",
        features: "attention and a state space (Mamba 2) side by side in each layer; multipliers of nearly all projections",
        positions: 8192,
        norm_eps: 1e-5,
        names: &FALCON_H1,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Gemma2,
        model_type: "gemma2",
        name: "Gemma 2",
        features: "norms before and after attention and MLP, with weights stored as offsets from one; scaled embedding; \
                   soft-capped scores and logits; GELU; sliding windows in every other layer",
        positions: 8192,
        tied: true,
        names: &GEMMA,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Gemma3,
        model_type: "gemma3_text",
        name: "Gemma 3",
        features: "as Gemma 2, with norms on query and key heads instead of soft-capped scores, and a separate RoPE base for \
                   layers with sliding windows",
        positions: 131_072,
        theta: 1e6,
        tied: true,
        names: &GEMMA,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Gemma4,
        model_type: "gemma4_text",
        name: "Gemma 4",
        features: "as Gemma 3, with plain weights of norms, a norm of values, unscaled scores and a factor of each layer's output; other \
                   heads and partial RoPE in layers that see everything, where keys may serve as values; if configured, last layers that \
                   read keys and values of earlier ones, an embedding for each layer, and experts beside MLPs",
        positions: 131_072,
        theta: 1e6,
        tied: true,
        names: &GEMMA4,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Gemma4Unified,
        model_type: "gemma4_unified_text",
        name: "Gemma 4 Unified",
        features: "as Gemma 4, without embeddings for each layer and experts",
        positions: 262_144,
        theta: 1e6,
        tied: true,
        names: &GEMMA,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Glm4,
        model_type: "glm4",
        name: "GLM 4",
        features: "norms before and after attention and MLP; biases on query, key and value projections unless configured \
                   otherwise; joint gate and up projection; partial RoPE of neighbouring dimensions",
        positions: 131_072,
        norm_eps: 1.5625e-7,
        names: &GLM,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Glm4Moe,
        model_type: "glm4_moe",
        name: "GLM 4.5",
        features: "a mixture of experts after the first layers, chosen by corrected scores within groups and weighted by scores, and an \
                   MLP that all tokens share; partial RoPE; norms on query and key heads and biases on their projections if configured",
        positions: 131_072,
        norm_eps: 1e-5,
        names: &GLM_MOE,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Gpt2,
        model_type: "gpt2",
        name: "GPT-2",
        features: "learned positions instead of RoPE; layer norms with biases; biases everywhere; joint query, key and value \
                   projection; GELU without a gate",
        positions: 1024,
        norm_eps: 1e-5,
        tied: true,
        names: &GPT2,
        ..COMMON
    },
    FamilyDescription {
        family: Family::GptNeoX,
        model_type: "gpt_neox",
        name: "GPT-NeoX",
        features: "layer norms with biases; attention and MLP in parallel; joint query, key and value projection; partial RoPE; \
                   GELU without a gate",
        norm_eps: 1e-5,
        names: &NEOX,
        ..COMMON
    },
    FamilyDescription {
        family: Family::GptOss,
        model_type: "gpt_oss",
        name: "gpt-oss",
        features: "attention sinks; sliding windows in every other layer; a mixture of experts with biases and a clamped activation; \
                   routing weights add up to one; weights in MXFP4 are unpacked",
        positions: 131_072,
        theta: 150_000.0,
        norm_eps: 1e-5,
        names: &GPT_OSS,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Granite,
        model_type: "granite",
        name: "Granite",
        features: "multipliers for embedding, residuals, scores and logits",
        ..COMMON
    },
    FamilyDescription {
        family: Family::GraniteMoe,
        model_type: "granitemoe",
        name: "Granite MoE",
        features: "as Granite, with a mixture of experts; routing weights add up to one",
        names: &GRANITE_MOE,
        ..COMMON
    },
    FamilyDescription {
        family: Family::GraniteMoeHybrid,
        model_type: "granitemoehybrid",
        name: "Granite 4",
        features: "as Granite MoE Shared, with state spaces (Mamba 2) in the place of attention in most layers, and without RoPE unless \
                   configured; experts if there are any",
        names: &GRANITE_HYBRID,
        ..COMMON
    },
    FamilyDescription {
        family: Family::GraniteMoeShared,
        model_type: "granitemoeshared",
        name: "Granite MoE Shared",
        features: "as Granite MoE, with a shared MLP alongside the experts",
        names: &GRANITE_MOE,
        ..COMMON
    },
    FamilyDescription {
        family: Family::HunyuanV1Dense,
        model_type: "hunyuan_v1_dense",
        name: "Hunyuan dense",
        features: "norms on query and key heads after their rotation; a RoPE base scaled by alpha",
        norm_eps: 1e-5,
        names: &HUNYUAN,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Lfm2,
        model_type: "lfm2",
        name: "LFM2",
        features: "gated short convolutions in the place of attention in most layers; norms on query and key heads",
        positions: 128_000,
        theta: 1e6,
        norm_eps: 1e-5,
        tied: true,
        names: &LFM2,
    },
    FamilyDescription {
        family: Family::Lfm2Moe,
        model_type: "lfm2_moe",
        name: "LFM2 MoE",
        features: "as LFM2, with a mixture of experts after the first layers, chosen by corrected scores and weighted by scores",
        positions: 128_000,
        theta: 1e6,
        norm_eps: 1e-5,
        tied: true,
        names: &LFM2_MOE,
    },
    COMMON,
    FamilyDescription {
        family: Family::Llama4,
        model_type: "llama4_text",
        name: "Llama 4",
        features: "a mixture of experts in some layers, whose inputs are weighted, beside an MLP that all tokens share; attention within \
                   chunks; some layers without RoPE, there with scores scaled by the position of the query; RoPE of neighbouring \
                   dimensions; norms without weights on query and key heads",
        positions: 131_072,
        theta: 5e5,
        norm_eps: 1e-5,
        names: &LLAMA4,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Ministral,
        model_type: "ministral",
        name: "Ministral",
        features: "sliding windows in the layers that layer_types lists",
        positions: 131_072,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Ministral3,
        model_type: "ministral3",
        name: "Ministral 3",
        features: "attention scores scaled by the position of the query; sliding windows if configured",
        positions: 262_144,
        theta: 1e6,
        norm_eps: 1e-5,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Mistral,
        model_type: "mistral",
        name: "Mistral",
        features: "sliding windows",
        positions: 131_072,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Mixtral,
        model_type: "mixtral",
        name: "Mixtral",
        features: "a mixture of experts; routing weights add up to one; sliding windows if configured",
        positions: 131_072,
        theta: 1e6,
        norm_eps: 1e-5,
        names: &MIXTRAL,
        ..COMMON
    },
    FamilyDescription {
        family: Family::NemotronH,
        model_type: "nemotron_h",
        name: "Nemotron-H",
        features: "layers of one part each: a state space (Mamba 2), attention without RoPE, an MLP, or a mixture of experts chosen by \
                   corrected scores within groups and weighted by scores, beside an MLP that all tokens share; squared ReLU without a gate",
        positions: 4096,
        norm_eps: 1e-5,
        names: &NEMOTRON_H,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Olmo2,
        model_type: "olmo2",
        name: "OLMo 2",
        features: "norms only after attention and MLP, and over all query heads and all key heads together",
        norm_eps: 1e-5,
        names: &OLMO,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Olmo3,
        model_type: "olmo3",
        name: "OLMo 3",
        features: "as OLMo 2, with sliding windows in three of four layers, to which RoPE scaling does not apply",
        theta: 5e5,
        norm_eps: 1e-5,
        names: &OLMO,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Olmoe,
        model_type: "olmoe",
        name: "OLMoE",
        features: "a mixture of experts; routing weights are probabilities or add up to one; norms over all query heads and all \
                   key heads together",
        positions: 4096,
        norm_eps: 1e-5,
        names: &QWEN_MOE,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Phi3,
        model_type: "phi3",
        name: "Phi 3",
        features: "joint projections; partial RoPE; sliding windows",
        positions: 4096,
        norm_eps: 1e-5,
        names: &PHI,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Qwen2,
        model_type: "qwen2",
        name: "Qwen 2",
        features: "biases on query, key and value projections; sliding windows in the later layers if configured",
        positions: 32_768,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Qwen2Moe,
        model_type: "qwen2_moe",
        name: "Qwen 2 MoE",
        features: "as Qwen 2, with a mixture of experts in all or some layers, and there an MLP that all tokens share, weighted by \
                   a gate; routing weights are probabilities or add up to one",
        positions: 32_768,
        names: &QWEN2_MOE,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Qwen3,
        model_type: "qwen3",
        name: "Qwen 3",
        features: "norms on query and key heads; sliding windows in the later layers if configured",
        positions: 32_768,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Qwen3_5Moe,
        model_type: "qwen3_5_moe_text",
        name: "Qwen 3.5 MoE",
        features: "as Qwen 3.5, with a mixture of experts in the place of MLPs, beside an MLP that all tokens share, weighted by a gate; \
                   routing weights add up to one",
        positions: 32_768,
        names: &QWEN3_5_MOE,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Qwen3_5,
        model_type: "qwen3_5_text",
        name: "Qwen 3.5",
        features: "gated delta networks in the place of attention in most layers; norms on query and key heads and gated outputs in \
                   the others; norms with weights stored as offsets from one; partial RoPE",
        positions: 32_768,
        names: &QWEN3_5,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Qwen3Moe,
        model_type: "qwen3_moe",
        name: "Qwen 3 MoE",
        features: "as Qwen 3, with a mixture of experts in all or some layers; routing weights are probabilities or add up to \
                   one",
        positions: 32_768,
        names: &QWEN_MOE,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Qwen3Next,
        model_type: "qwen3_next",
        name: "Qwen 3 Next",
        features: "as Qwen 3.5 MoE, with joint projections in gated delta networks, and a mixture of experts in all or some layers; routing \
                   weights add up to one or are probabilities",
        positions: 32_768,
        names: &QWEN3_NEXT,
        ..COMMON
    },
    FamilyDescription {
        family: Family::SmolLm3,
        model_type: "smollm3",
        name: "SmolLM3",
        features: "some layers without RoPE; sliding windows in those if configured",
        positions: 32_768,
        theta: 2e6,
        tied: true,
        ..COMMON
    },
    FamilyDescription {
        family: Family::StableLm,
        model_type: "stablelm",
        name: "StableLM",
        features: "layer norms with biases; partial RoPE; biases on query, key and value projections if configured",
        positions: 4096,
        norm_eps: 1e-5,
        ..COMMON
    },
    FamilyDescription {
        family: Family::Starcoder2,
        model_type: "starcoder2",
        name: "StarCoder 2",
        features: "layer norms with biases; biases everywhere; GELU without a gate; sliding windows",
        positions: 4096,
        norm_eps: 1e-5,
        tied: true,
        names: &STARCODER,
        ..COMMON
    },
];

impl Family {
    /// Returns the family's properties.
    pub fn description(self) -> &'static FamilyDescription {
        // A test checks that the table has every family.
        FAMILIES.iter().find(|described| described.family == self).unwrap_or(&COMMON)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_each_family_once_and_in_order() {
        let types: Vec<&str> = FAMILIES.iter().map(|described| described.model_type).collect();
        assert!(types.is_sorted() && types.len() == Family::Starcoder2 as usize + 1);
        for (number, described) in FAMILIES.iter().enumerate() {
            assert_eq!(described.family as usize, number, "{}", described.model_type);
            assert_eq!(described.family.description().model_type, described.model_type);
        }
    }
}
