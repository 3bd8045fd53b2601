//! A small model with random weights, for runs that name none: a byte-level vocabulary and two
//! layers. It has learned nothing; a reward can still be seen to steer it.

use super::{Error, Result};
use serde_json::json;
use std::collections::HashMap;
use std::path::Path;

const EOS: u32 = 256;

/// GPT-2's printable character for each byte, which byte-level tokenizers use as its name.
fn byte_names() -> Vec<String> {
    let printable = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut next = 256;
    (0..256u32)
        .map(|b| {
            let code = if printable(b) {
                b
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).map(String::from).unwrap_or_default()
        })
        .collect()
}

/// Writes the model folder.
pub fn write(folder: &Path, seed: u64) -> Result<()> {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 160,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 257,
        "max_position_embeddings": 192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": false, "eos_token_id": EOS, "torch_dtype": "float32",
    });
    let vocab: HashMap<String, u32> = byte_names().into_iter().zip(0..).chain([("<|end|>".to_owned(), EOS)]).collect();
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let end = json!({ "id": EOS, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [end], "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": [] },
    });
    let put = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|source| Error::Io { path, source })
    };
    put("tokenizer.json", format!("{tokenizer:#}\n"))?;
    super::write_random(&config, folder, seed).map(drop)
}
