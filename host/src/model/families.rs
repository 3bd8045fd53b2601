//! The families of decoders: what they are called, which features they have, and the names of their tensors.

/// A family of decoders, named after its class in transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `Gemma2ForCausalLM`
    Gemma2,
    /// `Gemma3ForCausalLM`, and the text part of `Gemma3ForConditionalGeneration`.
    Gemma3,
    /// `GPTNeoXForCausalLM`
    GptNeoX,
    /// `GraniteForCausalLM`
    Granite,
    /// `LlamaForCausalLM`
    Llama,
    /// `MinistralForCausalLM`
    Ministral,
    /// `MistralForCausalLM`
    Mistral,
    /// `Olmo2ForCausalLM`
    Olmo2,
    /// `Olmo3ForCausalLM`
    Olmo3,
    /// `Phi3ForCausalLM`
    Phi3,
    /// `Qwen2ForCausalLM`
    Qwen2,
    /// `Qwen3ForCausalLM`
    Qwen3,
    /// `SmolLM3ForCausalLM`
    SmolLm3,
    /// `StableLmForCausalLM`
    StableLm,
    /// `Starcoder2ForCausalLM`
    Starcoder2,
}

/// What is known of a family before its `config.json` is read.
#[derive(Debug)]
pub struct Described {
    /// The family.
    pub family: Family,
    /// `model_type` in `config.json`.
    pub model_type: &'static str,
    /// Its name, as people write it.
    pub name: &'static str,
    /// How it differs from a Llama.
    pub features: &'static str,
    /// `max_position_embeddings` where `config.json` has none.
    pub(super) positions: usize,
    /// `rope_theta` where `config.json` has none.
    pub(super) theta: f64,
    /// Epsilon of its norms where `config.json` has none.
    pub(super) norm_eps: f64,
    /// `tie_word_embeddings` where `config.json` has none.
    pub(super) tied: bool,
    /// Names of its tensors.
    pub(super) names: &'static Names,
}

/// Names of a family's tensors, without `.weight` and `.bias`. Those of a layer follow its number.
#[derive(Debug)]
pub(super) struct Names {
    pub embedding: &'static str,
    pub layers: &'static str,
    pub norm: &'static str,
    pub head: &'static str,
    /// Query, key and value projections, or one that joins them.
    pub qkv: &'static [&'static str],
    pub o: &'static str,
    /// Gate and up projections, one that joins them, or the only one.
    pub mlp: &'static [&'static str],
    pub down: &'static str,
    /// Norms before and after attention, and before and after the unit that follows it.
    pub norms: [&'static str; 4],
}

const LLAMA: Names = Names {
    embedding: "model.embed_tokens",
    layers: "model.layers",
    norm: "model.norm",
    head: "lm_head",
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    o: "self_attn.o_proj",
    mlp: &["mlp.gate_proj", "mlp.up_proj"],
    down: "mlp.down_proj",
    norms: ["input_layernorm", "", "post_attention_layernorm", ""],
};

/// Norms around attention and the gated unit.
const GEMMA: Names = Names {
    norms: ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"],
    ..LLAMA
};

/// Norms after them only.
const OLMO: Names = Names { norms: ["", "post_attention_layernorm", "", "post_feedforward_layernorm"], ..LLAMA };

const PHI: Names = Names { qkv: &["self_attn.qkv_proj"], mlp: &["mlp.gate_up_proj"], ..LLAMA };

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

/// Every family that is supported, in alphabetical order.
pub const FAMILIES: [Described; 15] = [
    Described {
        family: Family::Gemma2,
        model_type: "gemma2",
        name: "Gemma 2",
        features: "norms around attention and gated unit, their weights counted from one; scaled embedding; bounded scores and \
                   logits; GELU; sliding windows in every other layer",
        positions: 8192,
        tied: true,
        names: &GEMMA,
        ..COMMON
    },
    Described {
        family: Family::Gemma3,
        model_type: "gemma3_text",
        name: "Gemma 3",
        features: "as Gemma 2, with norms on query and key heads instead of bounded scores, and a rotary base of its own for \
                   layers with sliding windows",
        positions: 131_072,
        theta: 1e6,
        tied: true,
        names: &GEMMA,
        ..COMMON
    },
    Described {
        family: Family::GptNeoX,
        model_type: "gpt_neox",
        name: "GPT-NeoX",
        features: "layer norms with biases; attention and unit side by side; query, key and value projection joined; partly \
                   rotated heads; GELU without a gate",
        norm_eps: 1e-5,
        names: &NEOX,
        ..COMMON
    },
    Described {
        family: Family::Granite,
        model_type: "granite",
        name: "Granite",
        features: "multipliers of embedding, residuals, scores and logits",
        ..COMMON
    },
    COMMON,
    Described {
        family: Family::Ministral,
        model_type: "ministral",
        name: "Ministral",
        features: "sliding windows in the layers that layer_types says",
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
        family: Family::Olmo2,
        model_type: "olmo2",
        name: "OLMo 2",
        features: "norms after attention and gated unit only, and on all query and all key heads together",
        norm_eps: 1e-5,
        names: &OLMO,
        ..COMMON
    },
    Described {
        family: Family::Olmo3,
        model_type: "olmo3",
        name: "OLMo 3",
        features: "as OLMo 2, with sliding windows in three of four layers, which rotary scalings leave alone",
        theta: 5e5,
        norm_eps: 1e-5,
        names: &OLMO,
        ..COMMON
    },
    Described {
        family: Family::Phi3,
        model_type: "phi3",
        name: "Phi 3",
        features: "joined projections; partly rotated heads; sliding windows",
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
        family: Family::SmolLm3,
        model_type: "smollm3",
        name: "SmolLM3",
        features: "layers without a rotary embedding; sliding windows in those if configured",
        positions: 32_768,
        theta: 2e6,
        tied: true,
        ..COMMON
    },
    Described {
        family: Family::StableLm,
        model_type: "stablelm",
        name: "StableLM",
        features: "layer norms with biases; partly rotated heads; biases on query, key and value projections if configured",
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

impl Described {
    /// Returns whether NVIDIA devices compute the family, as far as its configuration does not add what they can't.
    pub fn on_devices(&self) -> bool {
        matches!(self.family, Family::Llama | Family::Ministral | Family::Mistral | Family::Qwen2 | Family::Qwen3)
    }
}

impl Family {
    /// Returns what is known of the family.
    pub fn described(self) -> &'static Described {
        // The table has every family: a test sees to it.
        FAMILIES.iter().find(|described| described.family == self).unwrap_or(&FAMILIES[4])
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
        assert_eq!(FAMILIES[4].family, Family::Llama);
    }

    #[test]
    fn a_family_is_on_devices_if_nothing_of_a_plain_model_lacks_a_kernel() {
        for described in &FAMILIES {
            let config = serde_json::json!({
                "model_type": described.model_type, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
                "num_attention_heads": 4, "vocab_size": 257, "sliding_window": null,
                "layer_types": if described.family == Family::Llama { serde_json::Value::Null } else { vec!["full_attention"; 4].into() },
            });
            let mut config = config.as_object().unwrap().clone();
            use Family::{GptNeoX, Granite, Olmo2, Phi3, StableLm, Starcoder2};
            if matches!(described.family, Granite | Olmo2 | Phi3 | GptNeoX | StableLm | Starcoder2) {
                config.remove("layer_types");
            }
            let config = serde_json::Value::Object(config).to_string();
            let missing = crate::model::Architecture::parse(&config).unwrap().without_kernels();
            assert_eq!(missing.is_empty(), described.on_devices(), "{}: {missing:?}", described.model_type);
        }
    }
}
