//! Sliding windows and RoPE of each layer of a decoder.

use super::bounds::{MOST_LAYERS, MOST_POSITIONS};
use super::family::Family;
use super::json::ConfigObject;

const SLIDING: &str = "sliding_attention";

const CHUNKED: &str = "chunked_attention";

/// Valid `layer_types` of most families.
const KINDS: &[&str] = &["full_attention", SLIDING];

/// Valid `layer_types` of Llama 4.
const LLAMA4_KINDS: &[&str] = &["full_attention", CHUNKED];

/// Properties that differ between the layers of a decoder.
pub(super) struct LayerKinds {
    /// Sliding window of each layer.
    pub windows: Vec<Option<usize>>,
    /// RoPE of each layer: the first, the second, or none.
    pub rotary: Vec<Option<usize>>,
}

/// Reads the properties of layers by the family's rules. With `two` RoPEs, the second is that of layers with windows.
pub(super) fn kinds(config: &ConfigObject, family: Family, layers: usize, two: bool) -> Result<LayerKinds, String> {
    let rotates = rotates(config, family, layers)?;
    let sliding = if family == Family::Llama4 { chunks(config, &rotates)? } else { sliding(config, family, &rotates)? };
    // In these models, if some layers have windows, those without have no positions.
    let by_window = match family {
        Family::Cohere2 => true,
        Family::Exaone4 => config.get("sliding_window").is_some() || !config.has("sliding_window"),
        _ => false,
    };
    let rope = |layer: usize| match sliding[layer] {
        None if by_window => None,
        _ if !rotates[layer] => None,
        Some(_) if two => Some(1),
        _ => Some(0),
    };
    let rotary = (0..layers).map(rope).collect();
    Ok(LayerKinds { windows: sliding, rotary })
}

/// Returns the size of each layer's chunks.
fn chunks(config: &ConfigObject, rotates: &[bool]) -> Result<Vec<Option<usize>>, String> {
    // Null turns chunks off; a missing key means the default.
    let given = config.size("attention_chunk_size", MOST_POSITIONS)?;
    let size = given.or((!config.has("attention_chunk_size")).then_some(8192));
    let types = config.words("layer_types", LLAMA4_KINDS, rotates.len())?;
    let is_chunked = |layer: usize| types.as_ref().map_or(rotates[layer], |types| types[layer] == CHUNKED);
    if size.is_none() && types.iter().flatten().any(|kind| *kind == CHUNKED) {
        return Err(format!("layer_types has {CHUNKED:?}, but there is no attention_chunk_size"));
    }
    Ok((0..rotates.len()).map(|layer| size.filter(|_| is_chunked(layer))).collect())
}

/// Returns each layer's sliding window.
fn sliding(config: &ConfigObject, family: Family, rotates: &[bool]) -> Result<Vec<Option<usize>>, String> {
    let layers = rotates.len();
    let size = || config.size("sliding_window", MOST_POSITIONS);
    // Null turns windows off; a missing key means the default.
    let size_or = |default: usize| Ok::<_, String>(size()?.or((!config.has("sliding_window")).then_some(default)));
    let if_in_use = |size: Option<usize>| {
        let in_use = config.flag("use_sliding_window")? == Some(true);
        Ok::<_, String>(size.filter(|_| in_use))
    };
    let size = match family {
        Family::Cohere2 | Family::Exaone4 => size_or(4096)?,
        Family::Gemma4 => size_or(512)?,
        Family::Gemma4Unified => size_or(1024)?,
        Family::GptOss => size_or(128)?,
        Family::Gemma2 | Family::Gemma3 | Family::Ministral | Family::Mistral | Family::Olmo3 => size_or(4096)?,
        Family::Ministral3 | Family::Mixtral | Family::Phi3 | Family::Starcoder2 => size()?,
        // transformers writes 0 if windows are not used.
        Family::Qwen2Moe if config.flag("use_sliding_window")? != Some(true) => {
            config.count("sliding_window", MOST_POSITIONS)?;
            None
        }
        Family::Qwen2 | Family::Qwen2Moe | Family::Qwen3 | Family::Qwen3Moe => if_in_use(size_or(4096)?)?,
        Family::SmolLm3 => if_in_use(size()?)?,
        _ => None,
    };
    if !obeys_types(family) {
        return alike(config, size, layers);
    }
    if let Some(other) = config.size("sliding_window_size", MOST_POSITIONS)?.filter(|other| Some(*other) != size) {
        return Err(format!("sliding_window_size is {other}, which transformers ignores; write sliding_window"));
    }
    let pattern = match family {
        Family::Gemma3 => gemma3_pattern(config)?,
        Family::Gemma4 | Family::Gemma4Unified => 6,
        Family::Gemma2 | Family::GptOss => 2,
        Family::Cohere2 | Family::Exaone4 => pattern(config)?,
        _ => 4,
    };
    let first = match family {
        Family::Qwen2 | Family::Qwen2Moe | Family::Qwen3 => config.count("max_window_layers", MOST_LAYERS)?.unwrap_or(28),
        // The key has no effect: windows follow from the layers without a rotary embedding.
        Family::SmolLm3 => config.count("max_window_layers", MOST_LAYERS)?.map_or(0, |_| 0),
        _ => 0,
    };
    let types = config.words("layer_types", KINDS, layers)?;
    let by_default = |layer: usize| match family {
        Family::Cohere2 | Family::Gemma2 | Family::Gemma3 | Family::GptOss | Family::Olmo3 => {
            !(layer + 1).is_multiple_of(pattern)
        }
        Family::Gemma4 | Family::Gemma4Unified => !(layer + 1).is_multiple_of(pattern),
        Family::Exaone4 => size.is_some() && !(layer + 1).is_multiple_of(pattern),
        // Applies to every second one of the first layers, whose number the key gives.
        Family::Qwen2Moe => layer.is_multiple_of(2) && layer < first && size.is_some(),
        Family::SmolLm3 => !rotates[layer],
        _ => layer >= first,
    };
    // transformers lets the last layer of a Gemma 4 see everything, whatever the list says.
    let whole = |layer: usize| family.is_gemma4() && layer + 1 == layers;
    let listed = |layer: usize| types.as_ref().map_or_else(|| by_default(layer), |types| types[layer] == SLIDING);
    let slides = |layer: usize| listed(layer) && !whole(layer);
    let patterned = matches!(family, Family::Cohere2 | Family::Gemma2 | Family::Gemma3 | Family::GptOss | Family::Olmo3)
        || family.is_gemma4();
    if size.is_none() && (types.is_some() || patterned) && (0..layers).any(slides) {
        return Err(format!("layer_types has {SLIDING:?}, but there is no sliding_window"));
    }
    Ok((0..layers).map(|layer| size.filter(|_| slides(layer))).collect())
}

/// Returns whether models of this family use `layer_types`.
pub(super) fn obeys_types(family: Family) -> bool {
    use Family::{
        Cohere2, Exaone4, Gemma2, Gemma3, Gemma4, Gemma4Unified, GptOss, Ministral, Mistral, Olmo3, Qwen2, Qwen2Moe, Qwen3,
        SmolLm3,
    };
    matches!(
        family,
        Cohere2
            | Exaone4
            | Gemma4
            | Gemma4Unified
            | GptOss
            | Qwen2Moe
            | Gemma2
            | Gemma3
            | Ministral
            | Mistral
            | Olmo3
            | Qwen2
            | Qwen3
            | SmolLm3
    )
}

/// Returns the same window for each layer. `layer_types`, which this family ignores, must not contradict it.
fn alike(config: &ConfigObject, size: Option<usize>, layers: usize) -> Result<Vec<Option<usize>>, String> {
    let types = config.words("layer_types", KINDS, layers)?;
    if let Some(other) = types.unwrap_or_default().into_iter().find(|kind| (*kind == SLIDING) != size.is_some()) {
        let size = size.map_or_else(|| "none".to_owned(), |size| size.to_string());
        return Err(format!("layer_types has {other:?}, but the sliding window of all layers is {size} in a model of this type"));
    }
    Ok(vec![size; layers])
}

/// Returns the distance between full-attention layers in configurations without `layer_types`.
fn pattern(config: &ConfigObject) -> Result<usize, String> {
    // A pattern in letters only repeats `layer_types`.
    let spelt = config.get("sliding_window_pattern").is_some_and(|pattern| pattern.is_string());
    if spelt && config.get("layer_types").is_some() {
        return Ok(4);
    }
    Ok(config.size("sliding_window_pattern", MOST_LAYERS)?.unwrap_or(4))
}

/// Returns the distance between Gemma 3's full-attention layers in configurations without `layer_types`.
fn gemma3_pattern(config: &ConfigObject) -> Result<usize, String> {
    let pattern = config.size("sliding_window_pattern", MOST_LAYERS)?.unwrap_or(6);
    match config.size("_sliding_window_pattern", MOST_LAYERS)? {
        Some(other) if other != pattern && config.get("layer_types").is_none() => {
            Err(format!("_sliding_window_pattern is {other}, which transformers ignores; write layer_types"))
        }
        _ => Ok(pattern),
    }
}

/// Returns whether each layer has RoPE.
fn rotates(config: &ConfigObject, family: Family, layers: usize) -> Result<Vec<bool>, String> {
    if !matches!(family, Family::Llama4 | Family::SmolLm3) {
        return Ok(vec![family != Family::Gpt2; layers]);
    }
    let interval = config.size("no_rope_layer_interval", MOST_LAYERS)?.unwrap_or(4);
    // For an empty list, Llama 4 uses the default.
    let is_empty = config.get("no_rope_layers").and_then(|all| all.as_array()).is_some_and(Vec::is_empty);
    let given = if family == Family::Llama4 && is_empty { None } else { config.bits("no_rope_layers", layers)? };
    Ok(given.unwrap_or_else(|| (1..=layers).map(|layer| layer % interval != 0).collect()))
}

#[cfg(test)]
mod tests {
    use crate::model::Architecture;
    use serde_json::{Value, json};

    #[test]
    fn each_layer_has_the_window_that_its_family_says() {
        let windows = |more: Value| {
            let mut config = json!({
                "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 257,
                "max_position_embeddings": 128, "sliding_window": 16,
            });
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            Architecture::parse(&config.to_string()).unwrap().windows
        };
        assert_eq!(windows(json!({ "model_type": "llama", "sliding_window": null })), [None; 3]);
        assert_eq!(windows(json!({ "model_type": "mistral" })), [Some(16); 3]);
        assert_eq!(windows(json!({ "model_type": "mistral", "sliding_window": null })), [None; 3]);
        // A window hides nothing of texts that are no longer than it.
        assert_eq!(windows(json!({ "model_type": "mistral", "sliding_window": 128 })), [None; 3]);
        assert_eq!(windows(json!({ "model_type": "qwen2", "max_window_layers": 1 })), [None; 3]);
        let sliding = json!({ "model_type": "qwen2", "use_sliding_window": true, "max_window_layers": 1 });
        assert_eq!(windows(sliding), [None, Some(16), Some(16)]);
        let types = ["sliding_attention", "full_attention", "sliding_attention"];
        assert_eq!(windows(json!({ "model_type": "mistral", "layer_types": types })), [Some(16), None, Some(16)]);
        let smollm3 = json!({ "model_type": "smollm3", "use_sliding_window": true, "no_rope_layer_interval": 2 });
        assert_eq!(windows(smollm3), [None, Some(16), None]);
        let gemma = |kind: &str| json!({ "model_type": kind, "head_dim": 16 });
        assert_eq!(windows(gemma("gemma2")), [Some(16), None, Some(16)]);
        assert_eq!(windows(gemma("gemma3_text")), [Some(16); 3]);
        assert_eq!(windows(json!({ "model_type": "gemma3_text", "sliding_window_pattern": 3 })), [Some(16), Some(16), None]);
        let long = json!({ "model_type": "olmo3", "num_hidden_layers": 4, "sliding_window": 100 });
        assert_eq!(windows(long), [Some(100), Some(100), Some(100), None]);
        assert_eq!(windows(json!({ "model_type": "phi3" })), [Some(16); 3]);
        let full = json!({ "layer_types": vec!["full_attention"; 3], "sliding_window": null });
        for kind in ["llama", "gpt_neox", "granite", "olmo2", "stablelm", "phi3", "starcoder2"] {
            let mut config = full.clone();
            config["model_type"] = kind.into();
            assert_eq!(windows(config), [None; 3], "{kind}");
        }
        assert_eq!(windows(json!({ "model_type": "gemma2", "sliding_window_size": 16 }))[0], Some(16));
    }

    #[test]
    fn kinds_that_a_family_does_not_obey_are_refused_where_they_say_something_else() {
        for (kind, key, value) in [
            ("phi3", "layer_types", json!(["full_attention", "full_attention"])),
            ("llama", "layer_types", json!(["full_attention", "sliding_attention"])),
            ("gemma2", "sliding_window_size", json!(8)),
        ] {
            let mut config = json!({
                "model_type": kind, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
                "vocab_size": 257, "max_position_embeddings": 128, "sliding_window": if kind == "llama" { 0 } else { 16 },
            });
            config[key] = value;
            let error = Architecture::parse(&config.to_string()).unwrap_err();
            assert!(error.contains(key), "{kind}: {error}");
        }
    }

    #[test]
    fn layers_that_see_everything_have_no_positions_beside_others_with_windows() {
        let kinds = |more: Value| {
            let mut config = json!({
                "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 257,
                "max_position_embeddings": 128, "sliding_window": 16,
            });
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let a = Architecture::parse(&config.to_string())?;
            let rotates: Vec<bool> = a.rotary.iter().map(Option::is_some).collect();
            Ok::<_, String>((a.windows, rotates))
        };
        let (some, three) = (Some(16), vec![true, true, true, false]);
        for kind in ["cohere2", "exaone4"] {
            let usual = kinds(json!({ "model_type": kind })).unwrap();
            assert_eq!(usual, (vec![some, some, some, None], three.clone()), "{kind}");
            let every = kinds(json!({ "model_type": kind, "sliding_window_pattern": 2 })).unwrap();
            assert_eq!(every, (vec![some, None, some, None], vec![true, false, true, false]), "{kind}");
            let types = ["full_attention", "sliding_attention", "full_attention", "full_attention"];
            let listed = kinds(json!({ "model_type": kind, "layer_types": types })).unwrap();
            assert_eq!(listed, (vec![None, some, None, None], vec![false, true, false, false]), "{kind}");
            // A window longer than any text hides nothing, and says which layers have positions all the same.
            let long = kinds(json!({ "model_type": kind, "sliding_window": 4096 })).unwrap();
            assert_eq!(long, (vec![None; 4], three.clone()), "{kind}");
        }
        let plain = json!({ "model_type": "exaone4", "sliding_window": null, "layer_types": vec!["full_attention"; 4] });
        assert_eq!(kinds(plain).unwrap(), (vec![None; 4], vec![true; 4]));
        let spelt = json!({ "model_type": "exaone4", "sliding_window_pattern": "LLLG" });
        assert!(kinds(spelt.clone()).unwrap_err().contains("sliding_window_pattern"));
        let mut listed = spelt;
        listed["layer_types"] = json!(vec!["sliding_attention"; 4]);
        assert_eq!(kinds(listed).unwrap().0, [some; 4]);
        assert!(kinds(json!({ "model_type": "cohere2", "sliding_window": null })).unwrap_err().contains("sliding_window"));
        assert!(kinds(json!({ "model_type": "cohere2", "head_dim": 8 })).unwrap_err().contains("head_dim"));
    }

    #[test]
    fn each_layer_is_rotated_unless_its_family_says_otherwise() {
        let rotates = |more: Value| {
            let mut config = json!({
                "model_type": "smollm3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 5,
                "num_attention_heads": 4, "vocab_size": 257,
            });
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            Architecture::parse(&config.to_string()).map(|a| a.rotary.into_iter().map(|rope| rope.is_some()).collect::<Vec<_>>())
        };
        assert_eq!(rotates(json!({})).unwrap(), [true, true, true, false, true]);
        assert_eq!(rotates(json!({ "no_rope_layer_interval": 2 })).unwrap(), [true, false, true, false, true]);
        let given = json!({ "no_rope_layers": [0, 1, 1, 1, 0], "no_rope_layer_interval": 2 });
        assert_eq!(rotates(given).unwrap(), [false, true, true, true, false]);
        assert_eq!(rotates(json!({ "model_type": "llama" })).unwrap(), [true; 5]);
        for (key, value) in [
            ("no_rope_layers", json!([0, 1])),
            ("no_rope_layers", json!([0, 1, 1, 1, 2])),
            ("no_rope_layers", json!("all")),
            ("no_rope_layer_interval", json!(0)),
            // Other families don't have these keys.
            ("use_nope", json!(true)),
            // Only some readers would obey it without use_sliding_window.
            ("layer_types", json!(vec!["sliding_attention"; 5])),
        ] {
            let error = rotates(json!({ key: value })).unwrap_err();
            assert!(error.contains(key), "{key}: {error}");
        }
    }
}
