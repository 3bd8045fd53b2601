//! A model's folder.

use super::{choice, parts, put, refused, scratch};
use crate::data::Tokenizer;
use crate::gguf;
use crate::model::{Architecture, ModelFolder};

/// Configuration of a model with few parameters: vocabulary 2, hidden size 2, one layer.
const TINY: &str = r#"{"model_type": "llama", "hidden_size": 2, "intermediate_size": 2, "num_hidden_layers": 1,
    "num_attention_heads": 1, "vocab_size": 2, "tie_word_embeddings": true, "max_position_embeddings": 8}"#;

const ADAPTER: &str = r#"{"peft_type": "LORA", "base_model_name_or_path": "..", "r": 1, "lora_alpha": 2}"#;

/// Returns a safetensors file with the tiny model's weights, all zero.
fn weights() -> Vec<u8> {
    let layer = |part: &str| format!("model.layers.0.{part}.weight");
    let square = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
    let square = square.into_iter().chain(["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]).map(layer);
    let norms = ["input_layernorm", "post_attention_layernorm"].map(layer);
    let tensors = square.chain(["model.embed_tokens.weight".into()]).map(|name| (name, 4)).collect::<Vec<_>>();
    let norms = norms.into_iter().chain(["model.norm.weight".into()]).map(|name| (name, 2));
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, values) in tensors.into_iter().chain(norms) {
        let shape = if values == 4 { vec![2, 2] } else { vec![2] };
        let begin = end;
        end += 4 * values;
        header.insert(name, serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, end] }));
    }
    let header = serde_json::Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; end]].concat()
}

/// Fuzzes one file of a model's folder, with the others valid: config.json, the weights, the index of shards, generation_config.json, an
/// adapter's settings or its weights.
pub fn model(input: &[u8]) {
    let Some((which, input)) = choice(input, 6) else { return };
    let folder = scratch().join("model");
    let _ = std::fs::remove_dir_all(&folder);
    let right: [(&str, &[u8]); 2] = [("config.json", TINY.as_bytes()), ("model.safetensors", &weights())];
    for (name, bytes) in right {
        put(&format!("model/{name}"), bytes);
    }
    let file = [
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "generation_config.json",
        "adapter/adapter_config.json",
        "adapter/adapter_model.safetensors",
    ][usize::from(which)];
    if which > 3 {
        put("model/adapter/adapter_config.json", ADAPTER.as_bytes());
    }
    put(&format!("model/{file}"), input);
    let Ok(opened) = ModelFolder::open(if which > 3 { folder.join("adapter") } else { folder }) else { return };
    let _ = opened.decoder();
}

/// Fuzzes a tokenizer.json; a text; a tokenizer_config.json.
pub fn tokenizer(input: &[u8]) {
    let mut parts = parts(input);
    let mut next = || parts.next().unwrap_or_default();
    put("tokenizer/tokenizer.json", next());
    let text = String::from_utf8_lossy(next());
    put(
        "tokenizer/tokenizer_config.json",
        match next() {
            b"" => b"{}",
            config => config,
        },
    );
    let Ok(tokenizer) = Tokenizer::open(&scratch().join("tokenizer")) else { return };
    let _ = (tokenizer.vocab_size(), tokenizer.eos_text());
    if let Ok(ids) = tokenizer.encode(&text, true) {
        let _ = tokenizer.decode(&ids);
    }
    let _ = tokenizer.decode(&[0, 1, 2, u32::MAX]);
}

/// Fuzzes a tokenizer.json that becomes part of a GGUF file.
pub fn gguf_tokenizer(input: &[u8]) {
    put("gguf/tokenizer.json", input);
    put("gguf/tokenizer_config.json", br#"{"eos_token": "<s>"}"#);
    let config = TINY.replace("\"vocab_size\": 2", "\"vocab_size\": 300");
    let architecture = Architecture::parse(&config).unwrap_or_else(|e| panic!("{e}"));
    if let Err(error) = gguf::read_tokenizer(&scratch().join("gguf"), &architecture) {
        refused(&error);
    }
}
