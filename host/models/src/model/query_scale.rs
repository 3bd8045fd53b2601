//! Attention scores that grow with the position of the query, as in Llama 4 and Ministral 3.

use super::bounds::MOST_POSITIONS;
use super::family::Family;
use super::json::ConfigObject;
use crate::config::shortest;

/// Scale of attention scores by the position `p` of the query: `1 + strength * ln(1 + floor((p + offset) / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryScale {
    /// `llama_4_scaling_beta`, or `attn_scale` of Llama 4.
    pub strength: f32,
    /// `original_max_position_embeddings`, or `floor_scale` of Llama 4. Queries up to this position are not scaled.
    pub length: usize,
    /// Position of the first token.
    pub offset: usize,
    /// Whether the scale applies to layers with a rotary embedding, or to those without.
    pub rotated: bool,
}

impl QueryScale {
    /// Reads the scale from the parameters of the rotary embedding; `None` for families without one.
    ///
    /// # Errors
    /// If the parameters lack it.
    pub(super) fn read(config: &ConfigObject, family: Family) -> Result<Option<Self>, String> {
        match family {
            Family::Llama4 => return Self::from_llama4_config(config),
            Family::Ministral3 => {}
            _ => return Ok(None),
        }
        let missing = "rope_parameters is missing; a model of type ministral3 needs llama_4_scaling_beta in it";
        let (key, p) = match (config.object("rope_parameters")?, config.object("rope_scaling")?) {
            (Some(p), _) => ("rope_parameters", p),
            (None, Some(p)) => ("rope_scaling", p),
            (None, None) => return Err(missing.into()),
        };
        let inside = |e: String| format!("{key}: {e}");
        let needed = |name: &str| format!("{key}: a model of type ministral3 needs {name}");
        let strength = p.number("llama_4_scaling_beta").map_err(inside)?.ok_or_else(|| needed("llama_4_scaling_beta"))?;
        if !(0.0..=1e3).contains(&strength) {
            return Err(inside(format!("llama_4_scaling_beta {} must be between 0 and 1000", shortest(strength))));
        }
        let length = p.size("original_max_position_embeddings", MOST_POSITIONS).map_err(inside)?;
        let length = length.ok_or_else(|| needed("original_max_position_embeddings"))?;
        Ok(Some(Self { strength: strength as f32, length, offset: 0, rotated: true }))
    }

    fn from_llama4_config(config: &ConfigObject) -> Result<Option<Self>, String> {
        let strength = config.number("attn_scale")?.unwrap_or(0.1);
        if !(0.0..=1e3).contains(&strength) {
            return Err(format!("attn_scale {} must be between 0 and 1000", shortest(strength)));
        }
        let length = config.size("floor_scale", MOST_POSITIONS)?.unwrap_or(8192);
        // In Meta's own files, this is a number.
        let is_on = match config.get("attn_temperature_tuning") {
            Some(value) if value.is_u64() => value.as_u64() != Some(0),
            _ => config.flag("attn_temperature_tuning")?.unwrap_or(true),
        };
        Ok(is_on.then_some(Self { strength: strength as f32, length, offset: 1, rotated: false }))
    }

    /// Returns the factor of each position's query.
    pub fn factors(self, positions: &[u32]) -> Vec<f32> {
        positions.iter().map(|&p| 1.0 + self.strength * (((p as usize + self.offset) / self.length) as f32).ln_1p()).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Architecture;
    use serde_json::{Value, json};

    fn parsed(rope: Value) -> Result<Architecture, String> {
        let config = json!({
            "model_type": "ministral3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16,
            "num_attention_heads": 4, "vocab_size": 257, "max_position_embeddings": 64, "rope_parameters": rope,
        });
        Architecture::parse(&config.to_string())
    }

    #[test]
    fn queries_grow_with_each_multiple_of_the_original_length() {
        let rope = json!({
            "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 1.0,
            "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5, "max_position_embeddings": 64,
        });
        let scale = parsed(rope.clone()).unwrap().query_scale.unwrap();
        let want = [1.0, 1.0, 1.0 + 0.5 * 2f32.ln(), 1.0 + 0.5 * 4f32.ln()];
        let got = scale.factors(&[0, 15, 16, 63]);
        assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{got:?}");
        for (key, value) in [
            ("llama_4_scaling_beta", Value::Null),
            ("llama_4_scaling_beta", json!(-1)),
            ("original_max_position_embeddings", Value::Null),
        ] {
            let mut rope = rope.clone();
            rope[key] = value;
            assert!(parsed(rope).unwrap_err().contains(key), "{key}");
        }
        assert!(parsed(Value::Null).unwrap_err().contains("rope_parameters"));
    }

    #[test]
    fn queries_of_llama4_grow_in_layers_without_positions() {
        let read = |key: &str, value: Value| {
            let config = json!({
                "model_type": "llama4_text", "hidden_size": 64, "intermediate_size": 128, "intermediate_size_mlp": 96,
                "num_hidden_layers": 4, "head_dim": 16, "num_attention_heads": 4, "vocab_size": 257, "floor_scale": 4,
                "attn_scale": 0.5, "attention_chunk_size": 16, key: value,
            });
            Architecture::parse(&config.to_string())
        };
        let a = read("use_qk_norm", json!(true)).unwrap();
        let got = a.query_scale.unwrap().factors(&[0, 2, 3, 7]);
        let want = [1.0, 1.0, 1.0 + 0.5 * 2f32.ln(), 1.0 + 0.5 * 3f32.ln()];
        assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6), "{got:?}");
        assert_eq!((0..4).map(|layer| a.query_scale_of(layer).is_some()).collect::<Vec<_>>(), [false, false, false, true]);
        assert_eq!(a.windows, [Some(16), Some(16), Some(16), None]);
        assert!(read("attn_temperature_tuning", json!(false)).unwrap().query_scale.is_none());
        assert!(read("attn_temperature_tuning", json!(4)).unwrap().query_scale.is_some());
        assert_eq!(read("attention_chunk_size", Value::Null).unwrap().windows, [None; 4]);
        for (key, value) in [
            ("attn_scale", json!(-1)),
            ("floor_scale", json!(0)),
            ("moe_layers", json!([4])),
            ("layer_types", json!(vec!["sliding_attention"; 4])),
            ("router_jitter_noise", json!(0.1)),
        ] {
            assert!(read(key, value).unwrap_err().contains(key), "{key}");
        }
    }
}
