//! Fixtures of the families that differ more from Llama.

/// Folder names of the fixtures.
pub const FAMILIES: [&str; 43] = [
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
    "glm4",
    "exaone4",
    "cohere2",
    "ministral3",
    "ernie4_5",
    "hunyuan_v1_dense",
    "qwen2_moe",
    "glm4_moe",
    "gpt_oss",
    "llama4_text",
    "lfm2",
    "lfm2_wide",
    "lfm2_moe",
    "qwen3_5",
    "qwen3_5_wide",
    "qwen3_5_moe",
    "qwen3_next",
    "granitemoehybrid",
    "granitemoehybrid_dense",
    "deepseek_v2",
    "deepseek_v2_greedy",
    "deepseek_v3",
    "deepseek_v3_dense",
];

/// Fixtures that devices have no kernels for.
const OF_THE_CPU: [&str; 21] = [
    "cohere2",
    "deepseek_v2",
    "deepseek_v2_greedy",
    "deepseek_v3",
    "deepseek_v3_dense",
    "ernie4_5",
    "glm4",
    "gpt_oss",
    "hunyuan_v1_dense",
    "lfm2",
    "lfm2_wide",
    "lfm2_moe",
    "llama4_text",
    "ministral3",
    "qwen2_moe",
    "qwen3_5",
    "qwen3_5_wide",
    "qwen3_5_moe",
    "qwen3_next",
    "granitemoehybrid",
    "granitemoehybrid_dense",
];

/// Returns the fixtures that devices have kernels for.
#[allow(dead_code, reason = "not every test needs a device")]
pub fn of_devices() -> impl Iterator<Item = &'static str> {
    FAMILIES.into_iter().filter(|name| !OF_THE_CPU.contains(name))
}
