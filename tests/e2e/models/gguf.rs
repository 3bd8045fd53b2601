//! Models as GGUF files, read back by a reader of the test's own.

use rlhost_tests::{TestFolder, tiny};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/models");

/// What a file has: metadata as JSON, and tensors with their sizes (the innermost first), type and bytes.
struct Gguf {
    keys: BTreeMap<String, Value>,
    tensors: BTreeMap<String, TestGgufTensor>,
}

struct TestGgufTensor {
    sizes: Vec<usize>,
    kind: u64,
    bytes: Vec<u8>,
}

/// Reads little-endian values one after the other.
struct LittleEndianReader<'a>(&'a [u8], usize);

impl LittleEndianReader<'_> {
    fn take(&mut self, count: usize) -> Vec<u8> {
        self.1 += count;
        self.0[self.1 - count..self.1].to_vec()
    }

    fn number(&mut self, bytes: usize) -> u64 {
        self.take(bytes).into_iter().rev().fold(0, |value, byte| value << 8 | u64::from(byte))
    }

    fn text(&mut self) -> String {
        let length = self.number(8) as usize;
        String::from_utf8(self.take(length)).unwrap()
    }

    fn value(&mut self, kind: u64) -> Value {
        match kind {
            4 => self.number(4).into(),
            5 => i64::from(self.number(4) as u32 as i32).into(),
            6 => f64::from(f32::from_bits(self.number(4) as u32)).into(),
            7 => (self.number(1) == 1).into(),
            8 => self.text().into(),
            9 => {
                let (kind, count) = (self.number(4), self.number(8));
                (0..count).map(|_| self.value(kind)).collect()
            }
            other => panic!("a value of type {other}"),
        }
    }
}

impl Gguf {
    fn read(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        let mut reader = LittleEndianReader(&bytes, 0);
        assert_eq!((reader.take(4), reader.number(4)), (b"GGUF".to_vec(), 3));
        let (tensors, keys) = (reader.number(8), reader.number(8));
        let keys = (0..keys).map(|_| {
            let (key, kind) = (reader.text(), reader.number(4));
            (key, reader.value(kind))
        });
        let keys: BTreeMap<String, Value> = keys.collect();
        let infos: Vec<(String, Vec<usize>, u64, usize)> = (0..tensors)
            .map(|_| {
                let (name, count) = (reader.text(), reader.number(4));
                let sizes = (0..count).map(|_| reader.number(8) as usize).collect();
                (name, sizes, reader.number(4), reader.number(8) as usize)
            })
            .collect();
        let start = reader.1.next_multiple_of(32);
        let mut end = start;
        let tensor = |(name, sizes, kind, offset): (String, Vec<usize>, u64, usize)| {
            let values: usize = sizes.iter().product();
            let length = match kind {
                0 => 4 * values,
                1 | 30 => 2 * values,
                8 => values / 32 * 34,
                other => panic!("a tensor of type {other}"),
            };
            assert_eq!(start + offset, end, "{name} begins where the one before it ends");
            end = (start + offset + length).next_multiple_of(32);
            (name, TestGgufTensor { sizes, kind, bytes: bytes[start + offset..][..length].to_vec() })
        };
        let tensors = infos.into_iter().map(tensor).collect();
        assert_eq!(end, bytes.len(), "nothing follows the last tensor");
        Self { keys, tensors }
    }

    /// The values of a tensor in f32.
    fn values(&self, name: &str) -> Vec<f32> {
        assert_eq!(self.tensors[name].kind, 0, "{name}");
        floats(&self.tensors[name].bytes)
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The value of an f16, by the definition of IEEE 754.
fn half(bits: u16) -> f64 {
    let (sign, exponent, fraction) = (bits >> 15, i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let size = if exponent == 0 { fraction * 2f64.powi(-24) } else { (1024.0 + fraction) * 2f64.powi(exponent - 25) };
    if sign == 1 { -size } else { size }
}

/// A tokenizer of 96 tokens, one for each printable byte and one that ends a text.
fn small_tokenizer(place: &TestFolder, folder: &str) {
    let mut vocabulary: BTreeMap<String, u32> = (0..94u32).map(|i| (char::from(b'!' + i as u8).to_string(), i)).collect();
    vocabulary.insert("\u{120}".into(), 94);
    let tokenizer = json!({
        "added_tokens": [{ "id": 95, "content": "<end>", "special": true, "single_word": false, "lstrip": false, "rstrip": false,
                           "normalized": false }],
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "vocab": vocabulary, "merges": [] },
    });
    place.write(&format!("{folder}/tokenizer.json"), tokenizer.to_string());
    place.write(&format!("{folder}/tokenizer_config.json"), json!({ "eos_token": "<end>" }).to_string());
}

/// A fixture with a tokenizer and a configuration that differs in some keys.
fn fixture(place: &TestFolder, name: &str, change: &[(&str, Value)]) {
    fs::create_dir(place.path(name)).unwrap();
    let from = Path::new(FIXTURES).join(name);
    fs::copy(from.join("model.safetensors"), place.path(name).join("model.safetensors")).unwrap();
    let mut config: Value = serde_json::from_slice(&fs::read(from.join("config.json")).unwrap()).unwrap();
    for (key, value) in change {
        config[*key] = value.clone();
    }
    place.write(&format!("{name}/config.json"), config.to_string());
    small_tokenizer(place, name);
}

fn exported(place: &TestFolder, from: &str, dtype: &str) -> Gguf {
    let to = format!("{}-{dtype}.gguf", Path::new(from).file_name().unwrap().display());
    place.run(&["export", from, &to, "--format", "gguf", "--dtype", dtype]).succeeded();
    Gguf::read(&place.path(&to))
}

/// The rows of Llama's query or key heads as its own files have them: row `2 j + half` of a head is row `half * c / 2 + j` here.
fn neighbours(rows: &[f32], heads: usize, width: usize) -> Vec<f32> {
    let size = rows.len() / width / heads;
    let row = |r: usize| {
        let (head, at) = (r / size, r % size);
        head * size + at % 2 * (size / 2) + at / 2
    };
    (0..heads * size).flat_map(|r| rows[row(r) * width..][..width].to_vec()).collect()
}

#[test]
fn a_file_has_the_models_weights_sizes_tokenizer_and_template() {
    let place = TestFolder::new();
    let from = place.path("model");
    fs::create_dir(&from).unwrap();
    for entry in fs::read_dir(tiny()).unwrap().map(|entry| entry.unwrap().path()) {
        fs::copy(&entry, from.join(entry.file_name().unwrap())).unwrap();
    }
    place.write("model/chat_template.jinja", "{{ messages }}");
    let file = exported(&place, "model", "f32");
    for (key, value) in [
        ("general.architecture", json!("llama")),
        ("general.name", json!("model")),
        ("general.file_type", json!(0)),
        ("llama.vocab_size", json!(257)),
        ("llama.context_length", json!(192)),
        ("llama.embedding_length", json!(64)),
        ("llama.block_count", json!(2)),
        ("llama.feed_forward_length", json!(160)),
        ("llama.attention.head_count", json!(4)),
        ("llama.attention.head_count_kv", json!(2)),
        ("llama.attention.key_length", json!(16)),
        ("llama.rope.dimension_count", json!(16)),
        ("llama.rope.freq_base", json!(10000.0)),
        ("tokenizer.ggml.model", json!("gpt2")),
        ("tokenizer.ggml.pre", json!("qwen2")),
        ("tokenizer.ggml.eos_token_id", json!(0)),
        ("tokenizer.ggml.add_bos_token", json!(false)),
        ("tokenizer.chat_template", json!("{{ messages }}")),
    ] {
        assert_eq!(file.keys.get(key), Some(&value), "{key}");
    }
    let (tokens, kinds) = (&file.keys["tokenizer.ggml.tokens"], &file.keys["tokenizer.ggml.token_type"]);
    assert_eq!(
        (tokens.as_array().unwrap().len(), &tokens[0], &kinds[0], &kinds[1]),
        (257, &json!("<|endoftext|>"), &json!(3), &json!(1))
    );
    let stored = place.tensors("model/model.safetensors");
    let weight = |name: &str| floats(&stored[&format!("{name}.weight")]);
    assert_eq!(file.values("token_embd.weight"), weight("model.embed_tokens"));
    assert_eq!(file.values("output.weight"), weight("lm_head"));
    assert_eq!(file.values("output_norm.weight"), weight("model.norm"));
    for layer in 0..2 {
        let own = |part: &str| file.values(&format!("blk.{layer}.{part}.weight"));
        let want = |part: &str| weight(&format!("model.layers.{layer}.{part}"));
        assert_eq!(own("attn_q"), neighbours(&want("self_attn.q_proj"), 4, 64));
        assert_eq!(own("attn_k"), neighbours(&want("self_attn.k_proj"), 2, 64));
        for (part, theirs) in [
            ("attn_v", "self_attn.v_proj"),
            ("attn_output", "self_attn.o_proj"),
            ("ffn_gate", "mlp.gate_proj"),
            ("ffn_up", "mlp.up_proj"),
            ("ffn_down", "mlp.down_proj"),
            ("attn_norm", "input_layernorm"),
            ("ffn_norm", "post_attention_layernorm"),
        ] {
            assert_eq!(own(part), want(theirs), "{part}");
        }
    }
    assert_eq!(file.tensors.len(), 3 + 2 * 9);
    assert_eq!(file.tensors["blk.0.ffn_down.weight"].sizes, [160, 64]);
}

#[test]
fn matrices_have_the_precision_that_was_asked_for_and_vectors_have_all_digits() {
    let place = TestFolder::new();
    let whole = exported(&place, tiny(), "f32");
    for (dtype, kind, number) in [("f16", 1, 1), ("bf16", 30, 32), ("q8_0", 8, 7)] {
        let file = exported(&place, tiny(), dtype);
        assert_eq!(file.keys["general.file_type"], number);
        assert_eq!(file.tensors["output_norm.weight"].kind, 0);
        let (tensor, values) = (&file.tensors["blk.1.ffn_up.weight"], whole.values("blk.1.ffn_up.weight"));
        assert_eq!(tensor.kind, kind);
        let word = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
        let got: Vec<f64> = match dtype {
            "f16" => tensor.bytes.chunks(2).map(|b| half(word(b))).collect(),
            "bf16" => tensor.bytes.chunks(2).map(|b| f64::from(f32::from_bits(u32::from(word(b)) << 16))).collect(),
            _ => tensor
                .bytes
                .chunks(34)
                .flat_map(|b| b[2..].iter().map(|code| half(word(b)) * f64::from(*code as i8)).collect::<Vec<_>>())
                .collect(),
        };
        for (block, wanted) in got.chunks(32).zip(values.chunks(32)) {
            let most = wanted.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            for (x, want) in block.iter().zip(wanted) {
                let want = f64::from(*want);
                let bound = match dtype {
                    // Half a unit of the last of 11 and of 8 digits; below the normal numbers, of a fixed one.
                    "f16" => (want.abs() * 2f64.powi(-11)).max(2f64.powi(-25)),
                    "bf16" => want.abs() * 2f64.powi(-8),
                    // Half a step, and the factor's own rounding.
                    _ => f64::from(most) / 127.0 * 0.501 + f64::from(most) * 2f64.powi(-11),
                };
                assert!((x - want).abs() <= bound, "{dtype}: {x} for {want}");
            }
        }
    }
    // Weights that are stored in fewer digits are written from there.
    place.run(&["export", tiny(), "half", "--dtype", "bf16"]).succeeded();
    let (half, direct) = (exported(&place, "half", "bf16"), Gguf::read(&place.path("tiny-bf16.gguf")));
    assert!(half.tensors.iter().all(|(name, tensor)| tensor.bytes == direct.tensors[name].bytes || tensor.kind == 0));
    assert!(half.tensors["blk.0.attn_q.weight"].kind == 30);
    // Rows of 160 are whole blocks, and those of a fixture are not.
    fixture(&place, "qwen3", &[]);
    let outcome = place.run(&["export", "qwen3", "narrow.gguf", "--format", "gguf", "--dtype", "q8_0"]);
    assert!(outcome.succeeded().stderr.contains("blk.0.ffn_down.weight"), "{}", outcome.stderr);
    let file = Gguf::read(&place.path("narrow.gguf"));
    assert_eq!((file.tensors["blk.0.ffn_down.weight"].kind, file.tensors["blk.0.ffn_up.weight"].kind), (1, 8));
}

#[test]
fn an_adapter_is_merged_into_its_base() {
    let place = TestFolder::with_answers();
    let run = ["sft", "--model", tiny(), "--dataset", "answers.jsonl", "--output-dir", "run", "--max-steps", "2"];
    let more = ["--lora-r", "4", "--learning-rate", "0.01", "--save-steps", "2"];
    place.run(&[&run[..], &more].concat()).succeeded();
    place.run(&["merge", "run/checkpoint-2", "merged"]).succeeded();
    let (adapter, merged) = (exported(&place, "run/checkpoint-2", "f32"), exported(&place, "merged", "f32"));
    let base = exported(&place, tiny(), "f32");
    for (name, tensor) in &adapter.tensors {
        assert!(tensor.bytes == merged.tensors[name].bytes, "{name}");
    }
    assert!(adapter.tensors["blk.0.attn_q.weight"].bytes != base.tensors["blk.0.attn_q.weight"].bytes);
    assert_eq!(adapter.keys["tokenizer.ggml.tokens"], base.keys["tokenizer.ggml.tokens"]);
}

/// A fixture's file, and its weights as its own files have them.
fn of_fixture(name: &str, change: &[(&str, Value)]) -> (Gguf, BTreeMap<String, Vec<f32>>) {
    let place = TestFolder::new();
    fixture(&place, name, change);
    let stored = place.tensors(&format!("{name}/model.safetensors"));
    (exported(&place, name, "f32"), stored.into_iter().map(|(name, bytes)| (name, floats(&bytes))).collect())
}

#[test]
fn families_like_llama_have_their_own_names_orders_and_keys() {
    let (file, stored) = of_fixture("qwen3", &[]);
    assert_eq!(file.values("blk.0.attn_q.weight"), stored["model.layers.0.self_attn.q_proj.weight"]);
    assert_eq!(file.values("blk.1.attn_k_norm.weight"), stored["model.layers.1.self_attn.k_norm.weight"]);
    assert!(!file.tensors.contains_key("output.weight") && file.keys["general.architecture"] == "qwen3");
    assert_eq!(file.keys["tokenizer.ggml.pre"], "gpt-2");

    let (file, stored) = of_fixture("llama_biased", &[]);
    let bias = neighbours(&stored["model.layers.0.self_attn.q_proj.bias"], 4, 1);
    assert_eq!(file.values("blk.0.attn_q.bias"), bias);
    assert_eq!(file.values("blk.0.ffn_down.bias"), stored["model.layers.0.mlp.down_proj.bias"]);
    assert_eq!((&file.keys["llama.rope.scaling.type"], &file.keys["llama.rope.scaling.factor"]), (&json!("linear"), &json!(2.0)));

    // The first wave has 6.28 positions, between 8 / 4 and 8 / 1; the last has more than 8.
    let (file, _) = of_fixture("llama3_parameters", &[]);
    let divisors = file.values("rope_freqs.weight");
    let smooth = (8.0 / std::f32::consts::TAU - 1.0) / (4.0 - 1.0);
    let first = ((1.0 - smooth) / 8.0 + smooth).recip();
    assert!(divisors.len() == 4 && (divisors[0] - first).abs() < 1e-5 && (divisors[3] - 8.0).abs() < 1e-5, "{divisors:?}");
}

#[test]
fn joined_and_transposed_matrices_are_in_the_order_of_llama_cpp() {
    // Of each head, files have queries, keys and values; here, all queries come first.
    let (file, stored) = of_fixture("gpt_neox", &[]);
    let (given, own) = (&stored["gpt_neox.layers.0.attention.query_key_value.weight"], file.values("blk.0.attn_qkv.weight"));
    for (row, got) in own.chunks(32).enumerate() {
        let (kind, head, at) = (row / 32, row % 32 / 16, row % 16);
        assert_eq!(got, &given[((head * 3 + kind) * 16 + at) * 32..][..32]);
    }
    assert_eq!(
        (&file.keys["gptneox.rope.dimension_count"], &file.keys["gptneox.use_parallel_residual"]),
        (&json!(4), &json!(true))
    );

    let (file, stored) = of_fixture("gpt2", &[("scale_attn_by_inverse_layer_idx", json!(false))]);
    let (given, own) = (&stored["transformer.h.0.mlp.c_fc.weight"], file.values("blk.0.ffn_up.weight"));
    assert_eq!(file.tensors["blk.0.ffn_up.weight"].sizes, [32, 128]);
    assert!((0..128).all(|out| (0..32).all(|input| own[out * 32 + input] == given[input * 128 + out])));
    assert_eq!(file.values("position_embd.weight"), stored["transformer.wpe.weight"]);
}

#[test]
fn experts_are_stacked_with_gates_apart_from_the_rest() {
    let (file, stored) = of_fixture("granitemoeshared", &[]);
    let (wide, own) = (&stored["model.layers.1.block_sparse_moe.input_linear.weight"], file.values("blk.1.ffn_up_exps.weight"));
    assert_eq!(file.tensors["blk.1.ffn_up_exps.weight"].sizes, [32, 16, 4]);
    for (expert, got) in own.chunks(16 * 32).enumerate() {
        assert_eq!(got, &wide[(expert * 2 + 1) * 16 * 32..][..16 * 32]);
    }
    assert_eq!(file.values("blk.0.ffn_gate_shexp.weight"), stored["model.layers.0.shared_mlp.input_linear.weight"][..24 * 32]);
    assert_eq!((&file.keys["granitemoe.expert_count"], &file.keys["granitemoe.expert_used_count"]), (&json!(4), &json!(2)));
}

#[test]
fn norms_of_gemma_are_counted_from_zero_in_a_file() {
    let place = TestFolder::new();
    let config = json!({
        "model_type": "gemma3_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 5, "sliding_window_pattern": 2,
        "max_position_embeddings": 64,
    });
    place.write("config.json", config.to_string());
    place.write("corpus.jsonl", "{\"text\": \"nothing\"}");
    place.run(&["new-model", "gemma", "--config", "config.json", "--corpus", "corpus.jsonl", "--vocab-size", "257"]).succeeded();
    let file = exported(&place, "gemma", "f32");
    // New weights are zero, which stands for one.
    for name in ["output_norm", "blk.0.attn_norm", "blk.1.post_attention_norm", "blk.2.post_ffw_norm", "blk.0.attn_q_norm"] {
        assert!(file.values(&format!("{name}.weight")).iter().all(|x| *x == 1.0), "{name}");
    }
    assert_eq!(file.keys["gemma3.attention.sliding_window"], 5);
    assert_eq!(file.keys["gemma3.attention.sliding_window_pattern"], json!([true, false, true]));
    assert_eq!((&file.keys["gemma3.rope.freq_base"], &file.keys["gemma3.rope.freq_base_swa"]), (&json!(1e6), &json!(1e4)));
}

#[test]
fn what_llama_cpp_does_not_compute_is_refused_by_name_and_leaves_no_file() {
    let place = TestFolder::new();
    for (name, change, says) in [
        ("ministral", vec![], "ministral"),
        ("olmo3", vec![], "olmo3"),
        ("gpt2", vec![], "scale_attn_by_inverse_layer_idx"),
        ("olmo2", vec![], "bias on the attention output"),
        ("olmoe", vec![], "fewer key heads"),
        ("gpt_neox_serial", vec![], "projections without biases"),
        ("gemma3", vec![], "bias on the attention output"),
        ("gemma2", vec![("attention_bias", json!(false))], "scale of attention scores"),
        ("smollm3", vec![], "biases in the MLP"),
        (
            "qwen2",
            vec![(
                "rope_parameters",
                json!({ "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8 }),
            )],
            "this RoPE scaling",
        ),
        ("llama", vec![("hidden_act", json!("gelu"))], "activation function"),
        // The graph takes one rotation here, whatever the file says.
        (
            "qwen3_yarn",
            vec![(
                "rope_parameters",
                json!({ "rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "beta_slow": 0.1,
                        "original_max_position_embeddings": 32 }),
            )],
            "this RoPE scaling",
        ),
    ] {
        fixture(&place, name, &change);
        let outcome = place.run(&["export", name, "out.gguf", "--format", "gguf"]);
        assert!(outcome.code == Some(2) && outcome.error().contains(says), "{name}: {}", outcome.stderr);
        assert!(!place.path("out.gguf").exists(), "{name}");
    }
    fs::remove_dir_all(place.path("llama")).unwrap();
    fixture(&place, "llama", &[]);
    let export = ["export", "llama", "out.gguf", "--format", "gguf"];
    let tokenizer = fs::read_to_string(place.path("llama/tokenizer.json")).unwrap();
    for (from, to, says) in [
        ("\"use_regex\":true", "\"use_regex\":false", "pre-tokenizer"),
        ("\"type\":\"BPE\"", "\"type\":\"WordLevel\",\"unk_token\":\"!\"", "WordLevel"),
        ("\"id\":95", "\"id\":96", "96"),
        ("\"pre_tokenizer\"", "\"normalizer\":{\"type\":\"Lowercase\"},\"pre_tokenizer\"", "Lowercase"),
    ] {
        assert!(tokenizer.contains(from), "{from}");
        place.write("llama/tokenizer.json", tokenizer.replace(from, to));
        let outcome = place.run(&export);
        assert!(outcome.code == Some(2) && outcome.error().contains(says), "{from}: {}", outcome.stderr);
    }
    place.write("llama/tokenizer.json", &tokenizer);
    place.run(&export).succeeded();
    let again = place.run(&export);
    assert!(again.code == Some(2) && again.error().contains("out.gguf already exists; choose another file"), "{}", again.stderr);
    let folder = place.run(&["export", "llama", "folder", "--dtype", "q8_0"]);
    assert!(folder.code == Some(2) && folder.error().contains("--format gguf"), "{}", folder.stderr);
    assert!(!place.path("folder").exists());
}
