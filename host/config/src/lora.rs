//! Keys of a low-rank adapter.

use super::{RunConfig, did_you_mean, shortest};

/// Linear layers that an adapter can apply to, in all model families: most families have the first seven, Phi 3 joins some of them, and the
/// others belong to GPT-NeoX, StarCoder 2, GPT-2, Granite MoE Shared, Granite 4, Nemotron-H, LFM2, Qwen 3.5, Qwen 3 Next, DeepSeek and
/// Gemma 4.
const MODULES: [&str; 37] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "qkv_proj",
    "gate_up_proj",
    "query_key_value",
    "dense",
    "dense_h_to_4h",
    "dense_4h_to_h",
    "c_fc",
    "c_proj",
    "c_attn",
    "input_linear",
    "output_linear",
    "in_proj",
    "out_proj",
    "w1",
    "w2",
    "w3",
    "in_proj_qkv",
    "in_proj_z",
    "in_proj_b",
    "in_proj_a",
    "in_proj_qkvz",
    "in_proj_ba",
    "q_a_proj",
    "q_b_proj",
    "kv_a_proj_with_mqa",
    "kv_b_proj",
    "per_layer_input_gate",
    "per_layer_projection",
    "per_layer_model_projection",
    "proj",
];

/// The name that selects all layers.
const ALL: &str = "all-linear";

fn listed(given: &Option<Vec<String>>) -> impl Iterator<Item = &str> {
    let given = given.iter().flatten();
    given.flat_map(|text| text.split(',')).map(str::trim).filter(|name| !name.is_empty())
}

impl RunConfig {
    /// Returns whether the keys request an adapter.
    pub fn asks_for_adapter(&self) -> bool {
        self.use_peft || self.lora_r.is_some()
    }

    /// Returns the names of the linear layers that a new adapter applies to, among those that the model has.
    ///
    /// # Errors
    /// If a name was given that the model does not have.
    pub fn lora_targets(&self, modules: &[&str]) -> Result<Vec<String>, String> {
        let given: Vec<&str> = self.lora_modules().collect();
        let all = given.is_empty() || given.contains(&ALL);
        if let Some(name) = given.iter().find(|name| **name != ALL && !modules.contains(name)) {
            return Err(format!("this model has no linear layer named {name:?}; it has {}", modules.join(", ")));
        }
        Ok(modules.iter().filter(|module| all || given.contains(module)).map(|module| (*module).to_owned()).collect())
    }

    /// Returns the given names, which may be separate or joined in one text.
    fn lora_modules(&self) -> impl Iterator<Item = &str> {
        listed(&self.lora_target_modules)
    }

    /// Returns the names of the modules that are fully trained in addition to an adapter.
    pub fn whole_modules(&self) -> impl Iterator<Item = &str> {
        listed(&self.lora_modules_to_save)
    }

    /// Returns the names of the experts' matrices that a new adapter applies to.
    pub fn adapted_parameters(&self) -> impl Iterator<Item = &str> {
        listed(&self.lora_target_parameters)
    }

    pub(super) fn check_adapter(&self) -> Result<(), (&'static str, String)> {
        if self.lora_r == Some(0) {
            return Err(("lora_r", "must be at least 1".into()));
        }
        if let Some(alpha) = self.lora_alpha.filter(|alpha| !(*alpha > 0.0 && alpha.is_finite())) {
            return Err(("lora_alpha", format!("is {}; it must be greater than 0", shortest(alpha))));
        }
        if let Some(p) = self.lora_dropout.filter(|p| !(0.0..1.0).contains(p)) {
            return Err(("lora_dropout", format!("is {}; it must be at least 0 and less than 1", shortest(p))));
        }
        if self.load_in_8bit && self.load_in_4bit {
            return Err(("load_in_4bit", "and load_in_8bit are both set; choose one".into()));
        }
        if let Some(name) = self.lora_modules().find(|name| *name != ALL && !MODULES.contains(name)) {
            let meant = did_you_mean(name, MODULES);
            let detail = format!("no linear layer is named {name:?}; choose from {} and {ALL}{meant}", MODULES.join(", "));
            return Err(("lora_target_modules", detail));
        }
        Ok(())
    }
}
