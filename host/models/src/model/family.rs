//! The families of decoders, and what distinguishes them by themselves.

use crate::ops::rope::RopePairing;

/// A family of decoders, named after its class in transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `Cohere2ForCausalLM`
    Cohere2,
    /// `DeepseekV2ForCausalLM`
    DeepseekV2,
    /// `DeepseekV3ForCausalLM`
    DeepseekV3,
    /// `Ernie4_5ForCausalLM`
    Ernie45,
    /// `Exaone4ForCausalLM`
    Exaone4,
    /// `FalconH1ForCausalLM`
    FalconH1,
    /// `Gemma2ForCausalLM`
    Gemma2,
    /// `Gemma3ForCausalLM`, and the text part of `Gemma3ForConditionalGeneration`.
    Gemma3,
    /// `Gemma4ForCausalLM`, and the text part of `Gemma4ForConditionalGeneration`.
    Gemma4,
    /// `Gemma4UnifiedForCausalLM`, and the text part of `Gemma4UnifiedForConditionalGeneration`.
    Gemma4Unified,
    /// `Glm4ForCausalLM`
    Glm4,
    /// `Glm4MoeForCausalLM`
    Glm4Moe,
    /// `GPT2LMHeadModel`
    Gpt2,
    /// `GPTNeoXForCausalLM`
    GptNeoX,
    /// `GptOssForCausalLM`
    GptOss,
    /// `GraniteForCausalLM`
    Granite,
    /// `GraniteMoeForCausalLM`
    GraniteMoe,
    /// `GraniteMoeHybridForCausalLM`
    GraniteMoeHybrid,
    /// `GraniteMoeSharedForCausalLM`
    GraniteMoeShared,
    /// `HunYuanDenseV1ForCausalLM`
    HunyuanV1Dense,
    /// `Lfm2ForCausalLM`
    Lfm2,
    /// `Lfm2MoeForCausalLM`
    Lfm2Moe,
    /// `LlamaForCausalLM`
    Llama,
    /// `Llama4ForCausalLM`
    Llama4,
    /// `MinistralForCausalLM`
    Ministral,
    /// `Ministral3ForCausalLM`
    Ministral3,
    /// `MistralForCausalLM`
    Mistral,
    /// `MixtralForCausalLM`
    Mixtral,
    /// `NemotronHForCausalLM`
    NemotronH,
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
    /// `Qwen2MoeForCausalLM`
    Qwen2Moe,
    /// `Qwen3ForCausalLM`
    Qwen3,
    /// `Qwen3_5MoeForCausalLM`, and the text part of `Qwen3_5MoeForConditionalGeneration`.
    Qwen3_5Moe,
    /// `Qwen3_5ForCausalLM`, and the text part of `Qwen3_5ForConditionalGeneration`.
    Qwen3_5,
    /// `Qwen3MoeForCausalLM`
    Qwen3Moe,
    /// `Qwen3NextForCausalLM`
    Qwen3Next,
    /// `SmolLM3ForCausalLM`
    SmolLm3,
    /// `StableLmForCausalLM`
    StableLm,
    /// `Starcoder2ForCausalLM`
    Starcoder2,
}

impl Family {
    /// Returns whether transformers has a sequence classification class of the family, which opens its reward models.
    pub fn is_classified(self) -> bool {
        use Family::{Cohere2, Ernie45, FalconH1, Glm4Moe, Lfm2, Lfm2Moe, Llama4, NemotronH, Olmoe};
        !matches!(self, Cohere2 | Ernie45 | FalconH1 | Glm4Moe | Lfm2 | Lfm2Moe | Llama4 | NemotronH | Olmoe)
            && !self.is_granite()
            && !self.is_gemma4()
            && (!self.has_delta_networks() || self == Self::Qwen3Next)
    }

    /// Returns whether this is one of the Granite families, which share their multipliers.
    pub fn is_granite(self) -> bool {
        matches!(self, Self::Granite | Self::GraniteMoe | Self::GraniteMoeHybrid | Self::GraniteMoeShared)
    }

    /// Returns whether this is one of the Gemma 4 families, whose layers differ in more than their windows.
    pub fn is_gemma4(self) -> bool {
        matches!(self, Self::Gemma4 | Self::Gemma4Unified)
    }

    /// Returns whether the family's recurrent layers are gated delta networks.
    pub(super) fn has_delta_networks(self) -> bool {
        matches!(self, Self::Qwen3_5 | Self::Qwen3_5Moe | Self::Qwen3Next)
    }

    /// Returns whether the family's recurrent layers are short convolutions.
    pub(super) fn has_convolutions(self) -> bool {
        matches!(self, Self::Lfm2 | Self::Lfm2Moe)
    }

    /// Returns whether an adapter can apply to the projections after recurrences. peft refuses that for the other families.
    pub(super) fn adapts_behind_recurrences(self) -> bool {
        !matches!(self, Self::FalconH1 | Self::NemotronH)
    }

    /// Returns which dimensions of a head are rotated together.
    pub(super) fn rope_pairs(self) -> RopePairing {
        match self {
            Self::Cohere2 | Self::Ernie45 | Self::Glm4 | Self::Llama4 => RopePairing::Neighbours,
            _ => RopePairing::Halves,
        }
    }
}
