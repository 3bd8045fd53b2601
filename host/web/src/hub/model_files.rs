//! Files of a model's repository.

use serde::Deserialize;
use std::collections::BTreeMap;

/// Configuration of a model.
pub(super) const CONFIG: &str = "config.json";

/// Files of a model folder besides the weights, and whether each is required.
pub(super) const BESIDE_WEIGHTS: [(&str, bool); 8] = [
    (CONFIG, true),
    ("tokenizer.json", true),
    ("generation_config.json", false),
    ("tokenizer_config.json", false),
    ("special_tokens_map.json", false),
    ("added_tokens.json", false),
    ("chat_template.jinja", false),
    ("additional_chat_templates/tool_use.jinja", false),
];

/// Files that may hold a chat template.
pub(super) const TEMPLATES: [&str; 2] = ["tokenizer_config.json", "chat_template.jinja"];

/// Files that are fetched together with a chat template.
pub(super) const BESIDE_TEMPLATES: [&str; 2] = ["special_tokens_map.json", "additional_chat_templates/tool_use.jinja"];

pub(super) const INDEX: &str = "model.safetensors.index.json";

pub(super) const WEIGHTS: &str = "model.safetensors";

/// Maximum size of a model's files other than weights, in bytes.
pub(super) const SMALL: u64 = 256 << 20;

#[derive(Deserialize)]
pub(super) struct HubShardIndex {
    pub(super) weight_map: BTreeMap<String, String>,
}
