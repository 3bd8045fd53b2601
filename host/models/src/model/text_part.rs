//! The text part of a multimodal model, used as a separate model.

use super::ignored_keys;
use crate::config::printable;
use serde_json::{Map, Value, json};

/// A multimodal model.
struct MultimodalModel {
    /// `model_type` of the multimodal model.
    model_type: &'static str,
    /// `model_type` and class of the text part: the first one, unless `text_config` names another.
    texts: &'static [(&'static str, &'static str)],
    /// Keys of `config.json` that are about images.
    of_images: &'static [&'static str],
    /// Whether the outer `tie_word_embeddings` applies, whatever the text part's is.
    ties: bool,
}

const OF_IMAGES_OF_QWEN: &[&str] = &["image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"];

const OF_IMAGES_OF_GEMMA4: &[&str] = &[
    "audio_config",
    "audio_token_id",
    "boa_token_id",
    "boi_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "image_token_id",
    "video_token_id",
];

const MULTIMODAL_MODELS: [MultimodalModel; 7] = [
    MultimodalModel {
        model_type: "gemma3",
        texts: &[("gemma3_text", "Gemma3ForCausalLM")],
        of_images: &["mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index", "image_token_id"],
        ties: false,
    },
    MultimodalModel {
        model_type: "gemma4",
        texts: &[("gemma4_text", "Gemma4ForCausalLM")],
        of_images: OF_IMAGES_OF_GEMMA4,
        ties: true,
    },
    MultimodalModel {
        model_type: "gemma4_unified",
        texts: &[("gemma4_unified_text", "Gemma4UnifiedForCausalLM")],
        of_images: OF_IMAGES_OF_GEMMA4,
        ties: true,
    },
    MultimodalModel {
        model_type: "llama4",
        texts: &[("llama4_text", "Llama4ForCausalLM")],
        of_images: &["boi_token_index", "eoi_token_index", "image_token_index"],
        ties: true,
    },
    MultimodalModel {
        model_type: "mistral3",
        texts: &[("mistral", "MistralForCausalLM"), ("ministral3", "Ministral3ForCausalLM")],
        of_images: &[
            "image_token_index",
            "image_token_id",
            "multimodal_projector_bias",
            "projector_hidden_act",
            "spatial_merge_size",
            "vision_feature_layer",
        ],
        ties: true,
    },
    MultimodalModel {
        model_type: "qwen3_5",
        texts: &[("qwen3_5_text", "Qwen3_5ForCausalLM")],
        of_images: OF_IMAGES_OF_QWEN,
        ties: true,
    },
    MultimodalModel {
        model_type: "qwen3_5_moe",
        texts: &[("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM")],
        of_images: OF_IMAGES_OF_QWEN,
        ties: true,
    },
];

/// Keys of a multimodal `config.json` that are about the parts, which are read separately, or are passed on.
const OF_THE_WHOLE: [&str; 5] = ["text_config", "vision_config", "model_type", "tie_word_embeddings", "eos_token_id"];

/// Returns whether this is the `model_type` of a multimodal model.
pub(super) fn is_multimodal(model_type: Option<&str>) -> bool {
    MULTIMODAL_MODELS.iter().any(|whole| Some(whole.model_type) == model_type)
}

/// Returns transformers' defaults for keys that a Gemma's text part may lack.
fn gemma() -> Map<String, Value> {
    let all = [("num_attention_heads", json!(8)), ("num_key_value_heads", json!(4)), ("vocab_size", json!(262_208))];
    all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Returns the `config.json` of the text part, with transformers' defaults for omitted keys.
///
/// # Errors
/// If there is no text part, or a key is unknown.
pub(super) fn config<'a>(keys: impl Iterator<Item = (&'a str, &'a Value)>) -> Result<Map<String, Value>, String> {
    let keys: Vec<_> = keys.collect();
    let of_whole = |key: &str| keys.iter().find(|(own, _)| *own == key).map(|(_, value)| *value);
    let whole = MULTIMODAL_MODELS.iter().find(|whole| of_whole("model_type").and_then(Value::as_str) == Some(whole.model_type));
    let whole = whole.unwrap_or(&MULTIMODAL_MODELS[0]);
    let is_gemma = whole.model_type == "gemma3";
    let mut config = if is_gemma { gemma() } else { Map::new() };
    let mut text = None;
    for &(key, value) in &keys {
        match key {
            "text_config" => text = value.as_object(),
            "eos_token_id" | "bos_token_id" | "pad_token_id" | "dtype" | "torch_dtype" | "tie_word_embeddings" => {
                config.insert(key.to_owned(), value.clone());
            }
            _ => {}
        }
        if !OF_THE_WHOLE.contains(&key) && !whole.of_images.contains(&key) {
            ignored_keys::check(whole.model_type, key, value)?;
        }
    }
    let text = text.ok_or("text_config is missing; it must be an object with the sizes of the text part")?;
    if let Some(cap) = text.get("final_logit_softcapping").filter(|cap| is_gemma && !cap.is_null()) {
        return Err(format!(
            "final_logit_softcapping is {cap}: transformers applies it in a text model, but not in a multimodal one"
        ));
    }
    let given = text.iter().filter(|(key, value)| !value.is_null() || !config.contains_key(*key)).collect::<Vec<_>>();
    config.extend(given.into_iter().map(|(key, value)| (key.clone(), value.clone())));
    let named = config.get("model_type").and_then(Value::as_str).filter(|_| whole.texts.len() > 1);
    let found = whole.texts.iter().find(|(own, _)| named.is_none_or(|named| named == *own));
    let (model_type, class) = found.ok_or_else(|| {
        let known: Vec<&str> = whole.texts.iter().map(|(own, _)| *own).collect();
        let named = printable(named.unwrap_or_default(), 80);
        format!(
            "text_config has model_type {named:?}, which is not supported in a {}; {} are",
            whole.model_type,
            known.join(", ")
        )
    })?;
    config.insert("model_type".into(), (*model_type).into());
    config.insert("architectures".into(), json!([class]));
    let by_default = match whole.model_type {
        "gemma4" | "gemma4_unified" => Some(&Value::Bool(true)),
        "qwen3_5" | "qwen3_5_moe" => Some(&Value::Bool(false)),
        _ => None,
    };
    if let Some(tied) = of_whole("tie_word_embeddings").or(by_default).filter(|_| whole.ties) {
        config.insert("tie_word_embeddings".into(), tied.clone());
    }
    Ok(config)
}

/// Returns the name that a tensor has in a model of the text part alone.
pub(super) fn name(whole: &str) -> String {
    let known =
        [("language_model.model.", "model."), ("model.language_model.", "model."), ("language_model.lm_head.", "lm_head.")];
    let found = known.into_iter().find_map(|(prefix, own)| Some((own, whole.strip_prefix(prefix)?)));
    found.map_or_else(|| whole.to_owned(), |(own, rest)| format!("{own}{rest}"))
}

/// Returns whether a tensor belongs to the image parts.
pub(super) fn is_vision_tensor(name: &str) -> bool {
    let name = name.strip_prefix("model.").unwrap_or(name);
    let parts = ["vision_tower.", "vision_model.", "multi_modal_projector.", "visual."];
    let of_gemma4 = ["audio_tower.", "embed_audio.", "embed_vision.", "vision_embedder."];
    parts.iter().chain(&of_gemma4).any(|part| name.starts_with(part))
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
        let mistral = |text: &str| {
            read(&json!({
                "model_type": "mistral3", "image_token_index": 10, "spatial_merge_size": 2, "tie_word_embeddings": true,
                "vision_config": {}, "text_config": { "model_type": text, "tie_word_embeddings": false, "head_dim": 16 },
            }))
        };
        let text = mistral("ministral3").unwrap();
        assert_eq!((&text["model_type"], &text["tie_word_embeddings"]), (&json!("ministral3"), &json!(true)));
        assert_eq!((&text["architectures"], text.get("vocab_size")), (&json!(["Ministral3ForCausalLM"]), None));
        assert_eq!(mistral("mistral").unwrap()["architectures"], json!(["MistralForCausalLM"]));
        assert!(mistral("qwen3").unwrap_err().contains("ministral3"));
        let llama = json!({ "model_type": "llama4", "text_config": { "head_dim": 128 }, "boi_token_index": 7 });
        assert_eq!(read(&llama).unwrap()["model_type"], "llama4_text");
        assert!(is_multimodal(Some("llama4")) && !is_multimodal(Some("llama4_text")) && !is_multimodal(None));
        assert_eq!(name("language_model.model.layers.0.x"), "model.layers.0.x");
        assert_eq!(name("model.language_model.norm.weight"), "model.norm.weight");
        let qwen = json!({
            "model_type": "qwen3_5", "image_token_id": 5, "tie_word_embeddings": true, "vision_config": {},
            "text_config": { "model_type": "qwen3_5_text", "hidden_size": 64, "tie_word_embeddings": false },
        });
        let text = read(&qwen).unwrap();
        assert_eq!((&text["model_type"], &text["tie_word_embeddings"]), (&json!("qwen3_5_text"), &json!(true)));
        assert!(is_multimodal(Some("qwen3_5")) && is_multimodal(Some("gemma3")) && !is_multimodal(Some("qwen3_5_text")));
        assert!(is_vision_tensor("model.visual.blocks.0.a") && !is_vision_tensor("model.language_model.visual.a"));
        assert!(
            is_vision_tensor("model.vision_tower.a")
                && is_vision_tensor("multi_modal_projector.b")
                && !is_vision_tensor("model.layers.0.vision_tower.")
        );
    }
}
