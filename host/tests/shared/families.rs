//! Fixtures of the families that differ more from a Llama.

/// Their folders' names.
pub const FAMILIES: [&str; 20] = [
    "granite",
    "gemma2",
    "gemma3",
    "olmo2",
    "olmo3",
    "phi3",
    "gpt_neox",
    "gpt_neox_serial",
    "qwen3_yarn",
    "ministral",
    "stablelm",
    "starcoder2",
    "gemma3_vision",
    "qwen3_moe",
    "qwen3_moe_normalised",
    "olmoe",
    "mixtral",
    "granitemoe",
    "granitemoeshared",
    "gpt2",
];
