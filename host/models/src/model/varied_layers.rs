//! Layers that differ in more than their windows (Gemma 4): heads of another size in layers that see everything, last layers without keys
//! and values of their own, and an embedding for each layer.

use super::bounds::MOST_LAYERS;
use super::family::Family;
use super::json::ConfigObject;
use crate::config::printable;
use crate::ops::attention::Heads;
use serde_json::Value;

/// Maximum number of heads, and maximum size of a head or of a layer's embedding.
const MOST_WIDTH: usize = 1 << 16;

/// Maximum `vocab_size_per_layer_input`.
const MOST_TOKENS: usize = 1 << 24;

/// What differs between the layers of a decoder besides their windows and rotary embeddings.
#[derive(Clone, Debug, PartialEq)]
pub struct VariedLayers {
    /// Whether each layer sees everything.
    pub whole: Vec<bool>,
    /// Heads of layers that see everything.
    pub whole_heads: Heads,
    /// Whether keys of these layers, before their norm, also serve as values.
    pub keys_are_values: bool,
    /// For each layer, the earlier layer whose keys and values it reads; `None` if it has its own.
    pub sources: Vec<Option<usize>>,
    /// Whether the MLPs of layers without own keys and values are twice as wide.
    pub double_wide: bool,
    /// Sizes of the embedding for each layer, if there is one.
    pub inputs: Option<LayerInputSizes>,
}

/// Sizes of an embedding for each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerInputSizes {
    /// Number of tokens with an embedding.
    pub tokens: usize,
    /// Width of one layer's embedding.
    pub width: usize,
}

impl VariedLayers {
    /// Reads what differs between layers, given each layer's window and the heads of those with one; `None` for other families.
    pub(super) fn read(
        config: &ConfigObject,
        family: Family,
        windows: &[Option<usize>],
        heads: Heads,
    ) -> Result<Option<Self>, String> {
        if !family.is_gemma4() {
            return Ok(None);
        }
        let whole: Vec<bool> = windows.iter().map(Option::is_none).collect();
        let keys_are_values = config.flag("attention_k_eq_v")?.unwrap_or(false);
        match config.text("use_bidirectional_attention")? {
            // Only images see what follows them.
            None | Some("vision") => {}
            Some(other) => {
                let other = printable(other, 80);
                return Err(format!("use_bidirectional_attention {other:?} is not supported; tokens see only earlier ones"));
            }
        }
        Ok(Some(Self {
            whole_heads: whole_heads(config, &whole, heads, keys_are_values)?,
            keys_are_values,
            sources: sources(config, &whole)?,
            double_wide: config.flag("use_double_wide_mlp")?.unwrap_or(false),
            inputs: if family == Family::Gemma4 { inputs(config)? } else { None },
            whole,
        }))
    }
}

/// Reads the size of heads in layers that see everything, as `global_head_dim` or as transformers 5.24 writes it.
pub(super) fn whole_head_dim(config: &ConfigObject, head_dim: usize) -> Result<usize, String> {
    match config.has("per_layer_config") {
        true => {
            let first =
                config.object("per_layer_config")?.and_then(|all| all.all().next().map(|(_, own)| own["head_dim"].clone()));
            Ok(first.and_then(|size| size.as_u64()).map_or(head_dim, |size| size as usize))
        }
        false => Ok(config.size("global_head_dim", MOST_WIDTH)?.unwrap_or(512)),
    }
}

/// Reads the heads of layers that see everything.
fn whole_heads(config: &ConfigObject, whole: &[bool], heads: Heads, keys_are_values: bool) -> Result<Heads, String> {
    let checked = |own: Heads, key: &str| {
        if own.head_dim == 0 || !own.head_dim.is_multiple_of(2) || own.head_dim > MOST_WIDTH {
            return Err(format!("{key}: the size of heads, {}, must be even and not zero", own.head_dim));
        }
        if own.kv_heads == 0 || !own.heads.is_multiple_of(own.kv_heads) {
            let (all, few) = (own.heads, own.kv_heads);
            return Err(format!("{key}: num_attention_heads {all} must be a multiple of the number of key heads, {few}"));
        }
        Ok(own)
    };
    if config.has("per_layer_config") {
        // transformers ignores these then.
        for key in ["global_head_dim", "num_global_key_value_heads"] {
            if config.get(key).is_some() {
                return Err(format!("{key} and per_layer_config are both given; transformers ignores the first, so remove it"));
            }
        }
        return checked(listed_heads(config, whole, heads)?, "per_layer_config");
    }
    // transformers reads the number only where keys serve as values.
    let given = config.size("num_global_key_value_heads", MOST_WIDTH)?.filter(|_| keys_are_values);
    let own = Heads { kv_heads: given.unwrap_or(heads.kv_heads), head_dim: whole_head_dim(config, heads.head_dim)?, ..heads };
    checked(own, "global_head_dim and num_global_key_value_heads")
}

/// Reads the heads of layers that see everything from an object for each layer that differs from the others.
fn listed_heads(config: &ConfigObject, whole: &[bool], heads: Heads) -> Result<Heads, String> {
    let listed = config.object("per_layer_config")?.unwrap_or_default();
    let mut all = vec![heads; whole.len()];
    for (key, own) in listed.all() {
        let shown = || format!("per_layer_config: {:?}: {}", printable(key, 80), printable(&own.to_string(), 80));
        let layer = key.parse::<usize>().ok().filter(|layer| *layer < whole.len());
        let (Some(layer), Some(own)) = (layer, own.as_object()) else {
            return Err(format!("{}; it must be a layer's number and an object", shown()));
        };
        for (name, value) in own {
            let size = value.as_u64().and_then(|size| usize::try_from(size).ok()).filter(|size| *size <= MOST_WIDTH);
            match (name.as_str(), size) {
                ("head_dim", Some(size)) => all[layer].head_dim = size,
                ("num_key_value_heads", Some(size)) => all[layer].kv_heads = size,
                _ => return Err(format!("{}; only head_dim and num_key_value_heads can differ", shown())),
            }
        }
    }
    let of_kind = |kind: bool| all.iter().zip(whole).filter(move |(_, whole)| **whole == kind).map(|(own, _)| *own);
    let first = of_kind(true).next().unwrap_or(heads);
    if of_kind(false).any(|own| own != heads) || of_kind(true).any(|own| own != first) {
        return Err("per_layer_config: layers of one kind have different heads, which is not supported".into());
    }
    Ok(first)
}

/// Returns the layer whose keys and values each layer reads, if they are not its own: the last one of its kind that has some.
fn sources(config: &ConfigObject, whole: &[bool]) -> Result<Vec<Option<usize>>, String> {
    let layers = whole.len();
    let sharing = config.count("num_kv_shared_layers", MOST_LAYERS)?.unwrap_or(0);
    let first = layers.checked_sub(sharing).filter(|first| *first > 0);
    let Some(first) = first else {
        return Err(format!("num_kv_shared_layers {sharing} must be less than num_hidden_layers {layers}"));
    };
    let source = |layer: usize| (0..first).rev().find(|earlier| whole[*earlier] == whole[layer]);
    let all: Vec<Option<usize>> = (0..layers).map(|layer| if layer < first { None } else { source(layer) }).collect();
    match (first..layers).find(|layer| all[*layer].is_none()) {
        None => Ok(all),
        Some(layer) => Err(format!(
            "num_kv_shared_layers is {sharing}, but no layer before those has the kind of layer {layer} in layer_types"
        )),
    }
}

/// Reads the sizes of the embedding for each layer.
fn inputs(config: &ConfigObject) -> Result<Option<LayerInputSizes>, String> {
    let width = config.count("hidden_size_per_layer_input", MOST_WIDTH)?;
    // Null turns it off; a missing key means the default.
    let width = width.unwrap_or(if config.has("hidden_size_per_layer_input") { 0 } else { 256 });
    let tokens = config.size("vocab_size_per_layer_input", MOST_TOKENS)?.unwrap_or(262_144);
    if width == 0 {
        return Ok(None);
    }
    match config.get("vocab_size").and_then(Value::as_u64).filter(|all| *all > tokens as u64) {
        Some(all) => Err(format!("vocab_size_per_layer_input {tokens} is less than vocab_size {all}")),
        None => Ok(Some(LayerInputSizes { tokens, width })),
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Architecture;
    use serde_json::{Value, json};

    fn parsed(more: Value) -> Result<Architecture, String> {
        let mut config = json!({
            "model_type": "gemma4_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 97, "global_head_dim": 16,
            "hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 97, "sliding_window": 5,
            "max_position_embeddings": 64,
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Architecture::parse(&config.to_string())
    }

    fn types(kinds: &str) -> Value {
        kinds.chars().map(|kind| if kind == 's' { "sliding_attention" } else { "full_attention" }).collect()
    }

    #[test]
    fn layers_read_the_keys_of_the_last_of_their_kind_that_has_some() {
        let a =
            parsed(json!({ "layer_types": types("sfsssf"), "num_kv_shared_layers": 3, "use_double_wide_mlp": true })).unwrap();
        let varied = a.varied.as_ref().unwrap();
        assert_eq!(varied.sources, [None, None, None, Some(2), Some(2), Some(1)]);
        assert_eq!(varied.whole, [false, true, false, false, false, true]);
        assert_eq!((a.heads_of(0).head_dim, a.heads_of(1).head_dim, a.heads_of(1).kv_heads), (8, 16, 2));
        assert_eq!((a.unit_width(2), a.unit_width(3), a.cached_width()), (48, 96, 16 + 32 + 16));
        assert_eq!((a.product_widths(1), a.product_widths(5)), (vec![64, 32, 32], vec![64]));
        assert!(a.is_key_source(1) && a.is_key_source(2) && !a.is_key_source(0) && !a.is_key_source(5));
        // What is counted is what there is.
        let joint = json!({ "attention_k_eq_v": true, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0 });
        let joint = parsed(joint).unwrap();
        assert_eq!((joint.product_widths(5), joint.layer_input_width()), (vec![64, 16], None));
        for a in [&a, &joint] {
            let matrices = a.parameters().into_iter().filter(|(_, shape)| shape.len() > 1);
            assert_eq!(a.values_of_matrices(), matrices.map(|(_, shape)| shape.iter().product::<usize>() as u128).sum());
        }
        let names: Vec<String> = a.parameters().into_iter().map(|(name, _)| name).collect();
        let has = |name: &str| names.iter().any(|own| own == name);
        assert!(has("model.layers.2.self_attn.k_proj.weight") && !has("model.layers.3.self_attn.k_proj.weight"));
        assert!(has("model.layers.3.self_attn.q_norm.weight") && !has("model.layers.3.self_attn.k_norm.weight"));
        assert!(has("model.layers.5.layer_scalar") && has("model.embed_tokens_per_layer.weight"));
        assert!(
            a.is_dropped("model.layers.3.self_attn.v_proj.weight") && !a.is_dropped("model.layers.2.self_attn.v_proj.weight")
        );
    }

    #[test]
    fn heads_are_read_as_published_and_as_transformers_writes_them() {
        let list = |own: Value| {
            let mut config = json!({ "per_layer_config": own });
            config["global_head_dim"] = Value::Null;
            parsed(config)
        };
        let a = list(json!({ "5": { "head_dim": 24, "num_key_value_heads": 1 } })).unwrap();
        assert_eq!((a.heads_of(5).head_dim, a.heads_of(5).kv_heads, a.heads_of(0).head_dim), (24, 1, 8));
        assert_eq!((a.ropes[0].dims, a.ropes[1].dims), (24, 8));
        assert_eq!(list(json!({})).unwrap().heads_of(5).head_dim, 8);
        let ignored = parsed(json!({ "num_global_key_value_heads": 1 })).unwrap();
        assert_eq!(ignored.heads_of(5).kv_heads, 2, "only where keys serve as values");
        let first = parsed(json!({ "global_head_dim": null })).unwrap();
        assert_eq!(first.heads_of(5).head_dim, 512);
        let rope = parsed(json!({})).unwrap().ropes[0].frequencies();
        assert!(rope[1] > 0.0 && rope[2..].iter().all(|f| *f == 0.0) && rope.len() == 8);
        // Published sizes: those of the 31B model.
        let large = parsed(json!({
            "hidden_size": 5376, "intermediate_size": 21_504, "num_hidden_layers": 60, "num_attention_heads": 32,
            "num_key_value_heads": 16, "head_dim": 256, "vocab_size": 262_144, "global_head_dim": 512,
            "num_global_key_value_heads": 4, "attention_k_eq_v": true, "hidden_size_per_layer_input": 0,
            "final_logit_softcapping": 30.0, "use_bidirectional_attention": "vision",
        }));
        assert_eq!(format!("{:.0}", large.unwrap().values_of_matrices() as f64 / 1e9), "31");
    }

    #[test]
    fn what_is_not_computed_is_refused_by_its_key() {
        for (key, value) in [
            ("use_bidirectional_attention", json!("all")),
            ("num_kv_shared_layers", json!(6)),
            ("num_kv_shared_layers", json!(5)),
            ("per_layer_config", json!({ "5": { "sliding_window": 3 } })),
            ("vocab_size_per_layer_input", json!(96)),
            ("global_head_dim", json!(7)),
            ("layer_types", types("ssssss").as_array().unwrap()[..5].into()),
            ("sliding_window", Value::Null),
            ("rope_theta", json!(1e6)),
            ("rope_parameters", json!({ "full_attention": { "rope_type": "default", "rope_theta": 1e4 } })),
        ] {
            let error = parsed(json!({ key: value })).unwrap_err();
            assert!(error.contains(key), "{key}: {error}");
        }
        assert!(parsed(json!({ "layer_types": types("ssssss") })).unwrap().windows[5].is_none(), "as transformers makes it");
        let different = json!({ "4": { "head_dim": 16 }, "5": { "head_dim": 16 } });
        let different = parsed(json!({ "global_head_dim": null, "per_layer_config": different }));
        assert!(different.unwrap_err().contains("per_layer_config"));
    }
}
