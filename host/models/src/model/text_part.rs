//! The text part of a multimodal Gemma 3, which is used as a separate model.

use super::harmless;
use serde_json::{Map, Value, json};

/// `model_type` of the multimodal model.
pub(super) const WHOLE: &str = "gemma3";

/// Keys of its `config.json` that are about images, or about the text part, which is read separately.
const OF_THE_WHOLE: [&str; 10] = [
    "text_config",
    "vision_config",
    "model_type",
    "mm_tokens_per_image",
    "boi_token_index",
    "eoi_token_index",
    "image_token_index",
    "image_token_id",
    "tie_word_embeddings",
    "eos_token_id",
];

/// Returns the `config.json` of the text part, with transformers' defaults for omitted keys.
///
/// # Errors
/// If there is no text part, or a key is unknown.
pub(super) fn config<'a>(whole: impl Iterator<Item = (&'a str, &'a Value)>) -> Result<Map<String, Value>, String> {
    let mut config = Map::new();
    for (key, value) in [("num_attention_heads", json!(8)), ("num_key_value_heads", json!(4)), ("vocab_size", json!(262_208))] {
        config.insert(key.to_owned(), value);
    }
    let mut text = None;
    for (key, value) in whole {
        match key {
            "text_config" => text = value.as_object(),
            "eos_token_id" | "bos_token_id" | "pad_token_id" | "dtype" | "torch_dtype" | "tie_word_embeddings" => {
                config.insert(key.to_owned(), value.clone());
            }
            _ => {}
        }
        if !OF_THE_WHOLE.contains(&key) {
            harmless::check(WHOLE, key, value)?;
        }
    }
    let text = text.ok_or("text_config is missing; it must be an object with the sizes of the text part")?;
    if let Some(cap) = text.get("final_logit_softcapping").filter(|cap| !cap.is_null()) {
        return Err(format!(
            "final_logit_softcapping is {cap}: transformers applies it in a text model, but not in a multimodal one"
        ));
    }
    let given = text.iter().filter(|(key, value)| !value.is_null() || !config.contains_key(*key)).collect::<Vec<_>>();
    config.extend(given.into_iter().map(|(key, value)| (key.clone(), value.clone())));
    config.insert("model_type".into(), "gemma3_text".into());
    config.insert("architectures".into(), json!(["Gemma3ForCausalLM"]));
    Ok(config)
}

/// Returns the name of a tensor in a model of the text part alone.
pub(super) fn name(whole: &str) -> String {
    let known =
        [("language_model.model.", "model."), ("model.language_model.", "model."), ("language_model.lm_head.", "lm_head.")];
    let found = known.into_iter().find_map(|(prefix, own)| Some((own, whole.strip_prefix(prefix)?)));
    found.map_or_else(|| whole.to_owned(), |(own, rest)| format!("{own}{rest}"))
}

/// Returns whether a tensor is about images.
pub(super) fn sees(name: &str) -> bool {
    let name = name.strip_prefix("model.").unwrap_or(name);
    name.starts_with("vision_tower.") || name.starts_with("multi_modal_projector.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_part_has_its_own_keys_over_the_wholes_and_the_defaults() {
        let whole = json!({
            "model_type": "gemma3", "eos_token_id": [1, 106], "vision_config": {}, "mm_tokens_per_image": 256,
            "text_config": { "hidden_size": 2560, "num_attention_heads": 4, "vocab_size": null },
        });
        let read = |whole: &Value| config(whole.as_object().unwrap().iter().map(|(key, value)| (key.as_str(), value)));
        let text = read(&whole).unwrap();
        assert_eq!((&text["num_attention_heads"], &text["num_key_value_heads"]), (&json!(4), &json!(4)));
        assert_eq!((&text["vocab_size"], &text["eos_token_id"]), (&json!(262_208), &json!([1, 106])));
        assert_eq!(text["model_type"], "gemma3_text");
        let mut other = whole.clone();
        other["audio_config"] = json!({ "hidden_size": 4 });
        assert!(read(&other).unwrap_err().contains("audio_config"));
        other = whole;
        other["text_config"]["final_logit_softcapping"] = json!(30.0);
        assert!(read(&other).unwrap_err().contains("final_logit_softcapping"));
        assert!(read(&json!({ "model_type": "gemma3" })).unwrap_err().contains("text_config"));
        assert_eq!(name("language_model.model.layers.0.x"), "model.layers.0.x");
        assert_eq!(name("model.language_model.norm.weight"), "model.norm.weight");
        assert!(sees("model.vision_tower.a") && sees("multi_modal_projector.b") && !sees("model.layers.0.vision_tower."));
    }
}
