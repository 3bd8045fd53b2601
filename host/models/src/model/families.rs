//! The families of decoders: their names, their features, and the names of their tensors.

/// A family of decoders, named after its class in transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `Gemma2ForCausalLM`
    Gemma2,
    /// `Gemma3ForCausalLM`, and the text part of `Gemma3ForConditionalGeneration`.
    Gemma3,
    /// `GPT2LMHeadModel`
    Gpt2,
    /// `GPTNeoXForCausalLM`
    GptNeoX,
    /// `GraniteForCausalLM`
    Granite,
    /// `GraniteMoeForCausalLM`
    GraniteMoe,
    /// `GraniteMoeSharedForCausalLM`
    GraniteMoeShared,
    /// `LlamaForCausalLM`
    Llama,
    /// `MinistralForCausalLM`
    Ministral,
    /// `MistralForCausalLM`
    Mistral,
    /// `MixtralForCausalLM`
    Mixtral,
    /// `Olmo2ForCausalLM`
    Olmo2,
    /// `Olmo3ForCausalLM`
    Olmo3,
    /// `OlmoeForCausalLM`
    Olmoe,
    /// `Phi3ForCausalLM`
    Phi3,
    /// `Qwen2ForCausalLM`
    Qwen2,
    /// `Qwen3ForCausalLM`
    Qwen3,
    /// `Qwen3MoeForCausalLM`
    Qwen3Moe,
    /// `SmolLM3ForCausalLM`
    SmolLm3,
    /// `StableLmForCausalLM`
    StableLm,
    /// `Starcoder2ForCausalLM`
    Starcoder2,
}

impl Family {
    /// Returns whether transformers has a sequence classification class of it, which opens its reward models.
    pub fn is_classified(self) -> bool {
        !matches!(self, Self::Granite | Self::GraniteMoe | Self::GraniteMoeShared | Self::Olmoe)
    }
}

/// The properties of a family that don't depend on its `config.json`.
#[derive(Debug)]
pub struct Described {
    /// The family.
    pub family: Family,
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// Its common name.
    pub name: &'static str,
    /// How it differs from a Llama.
    pub features: &'static str,
    /// Default of `max_position_embeddings`.
    pub(super) positions: usize,
    /// Default of `rope_theta`.
    pub(super) theta: f64,
    /// Default epsilon of its norms.
    pub(super) norm_eps: f64,
    /// Default of `tie_word_embeddings`.
    pub(super) tied: bool,
    /// Names of its tensors.
    pub(super) names: &'static Names,
}

/// Names of a family's tensors, without `.weight` and `.bias`. Those of a layer follow its number.
#[derive(Debug)]
pub(super) struct Names {
    pub embedding: &'static str,
    /// The position embedding, if positions are learned.
    pub positions: Option<&'static str>,
    pub layers: &'static str,
    pub norm: &'static str,
    pub head: &'static str,
    /// Query, key and value projections, or one that joins them.
    pub qkv: &'static [&'static str],
    pub o: &'static str,
    /// Gate and up projections, one that joins them, or the only one.
    pub mlp: &'static [&'static str],
    pub down: &'static str,
    /// Those of experts, if the family has them.
    pub experts: Option<&'static ExpertNames>,
    /// Norms before and after attention, and before and after the MLP.
    pub norms: [&'static str; 4],
    /// Whether files have the matrices of layers transposed, `[in, out]`.
    pub turned: bool,
}

/// Names of a layer's experts.
#[derive(Debug)]
pub(super) struct ExpertNames {
    /// The router, and its name in files.
    pub router: [&'static str; 2],
    /// All experts' gate and up projections.
    pub wide: &'static str,
    /// All experts' down projections.
    pub down: &'static str,
    /// How files store the projections, unless under the names above.
    pub in_files: ExpertsInFiles,
}

impl ExpertNames {
    /// Returns whether files have each expert by itself.
    pub fn are_apart(&self) -> bool {
        matches!(self.in_files, ExpertsInFiles::Each(..))
    }
}

/// How files store the projections of experts.
#[derive(Debug)]
pub(super) enum ExpertsInFiles {
    /// Each expert separately, under its number: gate, up and down projection.
    Each(&'static str, [&'static str; 3]),
    /// All together: gate and up, and down projections.
    Stacked([&'static str; 2]),
}

const LLAMA: Names = Names {
    embedding: "model.embed_tokens",
    positions: None,
    layers: "model.layers",
    norm: "model.norm",
    head: "lm_head",
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    o: "self_attn.o_proj",
    mlp: &["mlp.gate_proj", "mlp.up_proj"],
    down: "mlp.down_proj",
    experts: None,
    norms: ["input_layernorm", "", "post_attention_layernorm", ""],
    turned: false,
};

/// Norms before and after attention and MLP.
const GEMMA: Names = Names {
    norms: ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"],
    ..LLAMA
};

/// Norms after them only.
const OLMO: Names = Names { norms: ["", "post_attention_layernorm", "", "post_feedforward_layernorm"], ..LLAMA };

const PHI: Names = Names { qkv: &["self_attn.qkv_proj"], mlp: &["mlp.gate_up_proj"], ..LLAMA };

const GPT2: Names = Names {
    embedding: "transformer.wte",
    positions: Some("transformer.wpe"),
    layers: "transformer.h",
    norm: "transformer.ln_f",
    head: "lm_head",
    qkv: &["attn.c_attn"],
    o: "attn.c_proj",
    mlp: &["mlp.c_fc"],
    down: "mlp.c_proj",
    norms: ["ln_1", "", "ln_2", ""],
    turned: true,
    ..LLAMA
};

const NEOX: Names = Names {
    embedding: "gpt_neox.embed_in",
    layers: "gpt_neox.layers",
    norm: "gpt_neox.final_layer_norm",
    head: "embed_out",
    qkv: &["attention.query_key_value"],
    o: "attention.dense",
    mlp: &["mlp.dense_h_to_4h"],
    down: "mlp.dense_4h_to_h",
    ..LLAMA
};

const STARCODER: Names = Names { mlp: &["mlp.c_fc"], down: "mlp.c_proj", ..LLAMA };

const QWEN_MOE: Names = Names {
    experts: Some(&ExpertNames {
        router: ["mlp.gate", "mlp.gate"],
        wide: "mlp.experts.gate_up_proj",
        down: "mlp.experts.down_proj",
        in_files: ExpertsInFiles::Each("mlp.experts", ["gate_proj", "up_proj", "down_proj"]),
    }),
    ..LLAMA
};

const MIXTRAL: Names = Names {
    experts: Some(&ExpertNames {
        router: ["mlp.gate", "block_sparse_moe.gate"],
        wide: "mlp.experts.gate_up_proj",
        down: "mlp.experts.down_proj",
        in_files: ExpertsInFiles::Each("block_sparse_moe.experts", ["w1", "w3", "w2"]),
    }),
    ..LLAMA
};

/// The MLP is the one that a mixture's tokens share.
const GRANITE_MOE: Names = Names {
    mlp: &["shared_mlp.input_linear"],
    down: "shared_mlp.output_linear",
    experts: Some(&ExpertNames {
        router: ["block_sparse_moe.router", "block_sparse_moe.router.layer"],
        wide: "block_sparse_moe.experts.gate_up_proj",
        down: "block_sparse_moe.experts.down_proj",
        in_files: ExpertsInFiles::Stacked(["block_sparse_moe.input_linear", "block_sparse_moe.output_linear"]),
    }),
    ..LLAMA
};

const COMMON: Described = Described {
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
pub const FAMILIES: [Described; 21] = [
    Described {
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
    Described {
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
    Described {
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
    Described {
        family: Family::GptNeoX,
        model_type: "gpt_neox",
        name: "GPT-NeoX",
        features: "layer norms with biases; attention and MLP in parallel; joint query, key and value projection; partial RoPE; \
                   GELU without a gate",
        norm_eps: 1e-5,
        names: &NEOX,
        ..COMMON
    },
    Described {
        family: Family::Granite,
        model_type: "granite",
        name: "Granite",
        features: "multipliers for embedding, residuals, scores and logits",
        ..COMMON
    },
    Described {
        family: Family::GraniteMoe,
        model_type: "granitemoe",
        name: "Granite MoE",
        features: "as Granite, with a mixture of experts; routing weights add up to one",
        names: &GRANITE_MOE,
        ..COMMON
    },
    Described {
        family: Family::GraniteMoeShared,
        model_type: "granitemoeshared",
        name: "Granite MoE Shared",
        features: "as Granite MoE, with a shared MLP alongside the experts",
        names: &GRANITE_MOE,
        ..COMMON
    },
    COMMON,
    Described {
        family: Family::Ministral,
        model_type: "ministral",
        name: "Ministral",
        features: "sliding windows in the layers that layer_types lists",
        positions: 131_072,
        ..COMMON
    },
    Described {
        family: Family::Mistral,
        model_type: "mistral",
        name: "Mistral",
        features: "sliding windows",
        positions: 131_072,
        ..COMMON
    },
    Described {
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
    Described {
        family: Family::Olmo2,
        model_type: "olmo2",
        name: "OLMo 2",
        features: "norms only after attention and MLP, and over all query heads and all key heads together",
        norm_eps: 1e-5,
        names: &OLMO,
        ..COMMON
    },
    Described {
        family: Family::Olmo3,
        model_type: "olmo3",
        name: "OLMo 3",
        features: "as OLMo 2, with sliding windows in three of four layers, to which RoPE scaling does not apply",
        theta: 5e5,
        norm_eps: 1e-5,
        names: &OLMO,
        ..COMMON
    },
    Described {
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
    Described {
        family: Family::Phi3,
        model_type: "phi3",
        name: "Phi 3",
        features: "joint projections; partial RoPE; sliding windows",
        positions: 4096,
        norm_eps: 1e-5,
        names: &PHI,
        ..COMMON
    },
    Described {
        family: Family::Qwen2,
        model_type: "qwen2",
        name: "Qwen 2",
        features: "biases on query, key and value projections; sliding windows in the later layers if configured",
        positions: 32_768,
        ..COMMON
    },
    Described {
        family: Family::Qwen3,
        model_type: "qwen3",
        name: "Qwen 3",
        features: "norms on query and key heads; sliding windows in the later layers if configured",
        positions: 32_768,
        ..COMMON
    },
    Described {
        family: Family::Qwen3Moe,
        model_type: "qwen3_moe",
        name: "Qwen 3 MoE",
        features: "as Qwen 3, with a mixture of experts in all or some layers; routing weights are probabilities or add up to \
                   one",
        positions: 32_768,
        names: &QWEN_MOE,
        ..COMMON
    },
    Described {
        family: Family::SmolLm3,
        model_type: "smollm3",
        name: "SmolLM3",
        features: "some layers without RoPE; sliding windows in those if configured",
        positions: 32_768,
        theta: 2e6,
        tied: true,
        ..COMMON
    },
    Described {
        family: Family::StableLm,
        model_type: "stablelm",
        name: "StableLM",
        features: "layer norms with biases; partial RoPE; biases on query, key and value projections if configured",
        positions: 4096,
        norm_eps: 1e-5,
        ..COMMON
    },
    Described {
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
    pub fn described(self) -> &'static Described {
        // The table has every family: a test sees to it.
        FAMILIES.iter().find(|described| described.family == self).unwrap_or(&FAMILIES[7])
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
            assert_eq!(described.family.described().model_type, described.model_type);
        }
        assert_eq!(FAMILIES[7].family, Family::Llama);
    }
}
