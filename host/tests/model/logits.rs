//! Compares logits of random models with those of transformers for the same weights (`tests/fixtures/make_models.py` generated both).

use crate::families::FAMILIES;
use candle_core::{DType, Device, Tensor};
use rlhost::model::{DecodeBatch, FrozenModel, ModelFolder, WeightDtype, export};
use rlhost::ops::Forest;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Models of the families that are most similar to Llama, and variants of them.
const PLAIN: [&str; 12] = [
    "mistral3_vision",
    "gpt_oss_mxfp4",
    "llama",
    "llama3_scaled",
    "llama3_parameters",
    "llama_biased",
    "mistral",
    "qwen2",
    "qwen2_sharded",
    "qwen2_sliding",
    "qwen3",
    "smollm3",
];
const TOLERANCE: f32 = 1e-4;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(name)
}

/// Returns the texts and their reference logits, `[texts][tokens * vocabulary]`.
fn reference(name: &str) -> (Vec<Vec<u32>>, Vec<Vec<f32>>) {
    let all = candle_core::safetensors::load(folder(name).join("reference.safetensors"), &Device::Cpu).unwrap();
    let ids: Vec<Vec<i64>> = all["input_ids"].to_vec2().unwrap();
    let logits = &all["logits"];
    let rows = (0..ids.len()).map(|i| logits.get(i).unwrap().flatten_all().unwrap().to_vec1().unwrap()).collect();
    (ids.into_iter().map(|row| row.into_iter().map(|id| id as u32).collect()).collect(), rows)
}

fn model(name: &str) -> FrozenModel {
    FrozenModel::new(ModelFolder::open(folder(name)).unwrap().decoder().unwrap())
}

/// Returns the logits of all tokens of packed texts.
fn logits(model: &FrozenModel, texts: &[Vec<u32>]) -> Tensor {
    let mut forest = Forest::new();
    for text in texts {
        forest.push(text, None);
    }
    model.logits(&forest, &(0..forest.len()).collect::<Vec<usize>>()).unwrap()
}

fn greatest_difference(a: &Tensor, b: &[f32]) -> f32 {
    let a: Vec<f32> = a.flatten_all().unwrap().to_vec1().unwrap();
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

#[test]
fn a_packed_forward_gives_the_logits_of_transformers() {
    for name in PLAIN.into_iter().chain(FAMILIES) {
        let (model, (texts, want)) = (model(name), reference(name));
        let got = logits(&model, &texts);
        let difference = greatest_difference(&got, &want.concat());
        assert!(difference <= TOLERANCE, "{name}: {difference}");
    }
}

#[test]
fn decoding_token_by_token_after_a_shared_prompt_gives_the_same() {
    for name in PLAIN.into_iter().chain(FAMILIES) {
        let (model, (texts, want)) = (model(name).decoding().unwrap(), reference(name));
        let (text, want) = (&texts[0], &want[0]);
        let vocab = want.len() / text.len();
        let split = 6;
        let mut prompt = Forest::new();
        prompt.push(&text[..split], None);
        let (caches, logits) = model.prefill(&prompt).unwrap();
        assert!(greatest_difference(&logits, &want[(split - 1) * vocab..split * vocab]) <= TOLERANCE, "{name} after the prompt");
        // Two sequences continue the prompt; the second one diverges and must not affect the first.
        let (mut first, mut second) = (model.empty_cache(64), model.empty_cache(64));
        for at in split..text.len() {
            let mut own = [&mut first, &mut second];
            let step = DecodeBatch {
                tokens: &[text[at], (text[at] + 1) % vocab as u32],
                positions: &[at as u32, at as u32],
                counts: &[1, 1],
                prompt_of: &[0, 0],
                prompts: &[&caches[0]],
                own: &mut own,
            };
            let logits = model.decode(step).unwrap().get(0).unwrap();
            let difference = greatest_difference(&logits, &want[at * vocab..(at + 1) * vocab]);
            assert!(difference <= TOLERANCE, "{name} at token {at}: {difference}");
        }
    }
}

#[test]
fn packed_experts_are_written_unpacked() {
    let (packed, to) = (ModelFolder::open(folder("gpt_oss_mxfp4")).unwrap(), tempfile::tempdir().unwrap());
    export(&packed, to.path(), WeightDtype::Bf16).unwrap();
    let config = std::fs::read_to_string(to.path().join("config.json")).unwrap();
    assert!(!config.contains("quantization"), "{config}");
    let (texts, want) = reference("gpt_oss_mxfp4");
    let unpacked = ModelFolder::open(to.path()).unwrap();
    let got = logits(&FrozenModel::new(unpacked.decoder().unwrap()), &texts[..1]);
    // All MXFP4 numbers are exactly representable in bf16.
    assert!(greatest_difference(&got, &want[0]) <= TOLERANCE);
    let tensors = |path: &Path| candle_core::safetensors::load(path.join("model.safetensors"), &Device::Cpu).unwrap();
    let (own, packed) = (tensors(to.path()), tensors(&folder("gpt_oss_mxfp4")));
    assert_eq!(own["model.layers.1.mlp.experts.down_proj"].dims(), [3, 32, 32]);
    assert!(own.keys().all(|name| !name.ends_with("_blocks")) && packed.keys().any(|name| name.ends_with("_blocks")));
    // Too few bytes, and an exponent that encodes no number.
    for (name, value) in [("down_proj_scales", 255u8), ("gate_up_proj_blocks", 0)] {
        let spelt = respelt("gpt_oss_mxfp4", |mut all| {
            let own = format!("model.layers.0.mlp.experts.{name}");
            let t = Tensor::full(value, all[&own].shape(), &Device::Cpu).unwrap();
            all.insert(
                own,
                if value == 0 { t.narrow(2, 0, 1).unwrap().narrow(1, 0, 5).unwrap().contiguous().unwrap() } else { t },
            );
            all
        });
        let error = ModelFolder::open(spelt.path()).unwrap().decoder().unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

/// Rewrites a model's folder with other tensors.
fn respelt(name: &str, spell: impl Fn(HashMap<String, Tensor>) -> HashMap<String, Tensor>) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    std::fs::copy(folder(name).join("config.json"), to.path().join("config.json")).unwrap();
    let tensors = candle_core::safetensors::load(folder(name).join("model.safetensors"), &Device::Cpu).unwrap();
    candle_core::safetensors::save(&spell(tensors), to.path().join("model.safetensors")).unwrap();
    to
}

/// Stacks the projections of experts, as transformers 5 has them in memory and optionally writes them.
fn stacked(mut tensors: HashMap<String, Tensor>, folder: &str, [gate, up, down]: [&str; 3]) -> HashMap<String, Tensor> {
    for layer in 0..3 {
        let prefix = format!("model.layers.{layer}.{folder}");
        let mut take = |part: &str| -> Vec<Tensor> {
            (0..8).map_while(|e| tensors.remove(&format!("{prefix}.experts.{e}.{part}.weight"))).collect()
        };
        let (gates, ups, downs) = (take(gate), take(up), take(down));
        if gates.is_empty() {
            continue;
        }
        let joined: Vec<Tensor> = gates.iter().zip(&ups).map(|(g, u)| Tensor::cat(&[g, u], 0).unwrap()).collect();
        let own = format!("model.layers.{layer}.mlp");
        tensors.insert(format!("{own}.experts.gate_up_proj"), Tensor::stack(&joined, 0).unwrap());
        tensors.insert(format!("{own}.experts.down_proj"), Tensor::stack(&downs, 0).unwrap());
        let router = tensors.remove(&format!("{prefix}.gate.weight")).unwrap();
        tensors.insert(format!("{own}.gate.weight"), router);
    }
    tensors
}

#[test]
fn experts_are_read_under_all_their_names_and_written_as_transformers_writes_them() {
    let renamed = |tensors: HashMap<String, Tensor>, names: &[[&str; 2]]| {
        let rename = |name: String| names.iter().fold(name, |name, [old, new]| name.replace(old, new));
        tensors.into_iter().map(|(name, t)| (rename(name), t)).collect()
    };
    let granite = [["input_linear.weight", "experts.gate_up_proj"], ["output_linear.weight", "experts.down_proj"]];
    for (name, spelt) in [
        ("qwen3_moe", respelt("qwen3_moe", |all| stacked(all, "mlp", ["gate_proj", "up_proj", "down_proj"]))),
        ("mixtral", respelt("mixtral", |all| stacked(all, "block_sparse_moe", ["w1", "w3", "w2"]))),
        ("granitemoe", respelt("granitemoe", |all| renamed(all, &[granite[0], granite[1], ["router.layer", "router"]]))),
        ("gpt2", respelt("gpt2", |all| renamed(all, &[["transformer.", ""]]))),
        ("nemotron_h", respelt("nemotron_h", |all| renamed(all, &[["backbone.", "model."]]))),
    ] {
        let (other, (texts, want)) = (ModelFolder::open(spelt.path()).unwrap(), reference(name));
        let got = logits(&FrozenModel::new(other.decoder().unwrap()), &texts[..1]);
        assert!(greatest_difference(&got, &want[0]) <= TOLERANCE, "{name}");
        let to = tempfile::tempdir().unwrap();
        export(&other, to.path(), WeightDtype::F32).unwrap();
        let load = |file: PathBuf| candle_core::safetensors::load(file, &Device::Cpu).unwrap();
        let (own, mut want) = (load(to.path().join("model.safetensors")), load(folder(name).join("model.safetensors")));
        for (tensor, t) in own {
            let want = want.remove(&tensor).unwrap_or_else(|| panic!("{name}: {tensor}"));
            assert_eq!(t.dims(), want.dims(), "{name}: {tensor}");
            let want: Vec<f32> = want.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
            assert_eq!(t.flatten_all().unwrap().to_vec1::<f32>().unwrap(), want, "{name}: {tensor}");
        }
        assert!(want.is_empty(), "{name}: {want:?}");
    }
}

#[test]
fn a_missing_expert_is_named_as_the_files_have_it() {
    let without = |name: &str, tensor: &'static str| {
        let spelt = respelt(name, |mut all| {
            all.remove(tensor).unwrap();
            all
        });
        ModelFolder::open(spelt.path()).unwrap().decoder().unwrap_err().to_string()
    };
    for (name, tensor) in [
        ("qwen3_moe", "model.layers.0.mlp.experts.3.up_proj.weight"),
        ("mixtral", "model.layers.1.block_sparse_moe.experts.0.w2.weight"),
        ("mixtral", "model.layers.0.block_sparse_moe.gate.weight"),
        ("granitemoe", "model.layers.1.block_sparse_moe.output_linear.weight"),
        ("nemotron_h", "backbone.layers.1.mixer.experts.2.up_proj.weight"),
        ("nemotron_h", "backbone.layers.5.mixer.fc2_latent_proj.weight"),
    ] {
        let error = without(name, tensor);
        assert!(error.contains(tensor), "{name}: {error}");
    }
}

#[test]
fn the_text_part_of_a_model_that_sees_images_becomes_a_model_of_its_own() {
    let (whole, to) = (ModelFolder::open(folder("gemma3_vision")).unwrap(), tempfile::tempdir().unwrap());
    export(&whole, to.path(), WeightDtype::F32).unwrap();
    let alone = ModelFolder::open(to.path()).unwrap();
    assert!(whole.architecture().text_part && !alone.architecture().text_part);
    assert_eq!(alone.architecture().windows, whole.architecture().windows);
    let names: Vec<String> =
        candle_core::safetensors::load(to.path().join("model.safetensors"), &Device::Cpu).unwrap().into_keys().collect();
    assert!(names.iter().all(|name| name.starts_with("model.") && !name.contains("language_model")), "{names:?}");
    let (texts, want) = reference("gemma3_vision");
    let got = logits(&FrozenModel::new(alone.decoder().unwrap()), &texts[..1]);
    assert!(greatest_difference(&got, &want[0]) <= TOLERANCE);
}

#[test]
fn the_text_part_of_a_multimodal_qwen_3_5_is_read_without_its_images_and_further_predictions() {
    let spelt = respelt("qwen3_5", |all| {
        let other = |name: &str| (name.to_owned(), Tensor::zeros(3, DType::F32, &Device::Cpu).unwrap());
        let own = all.into_iter().map(|(name, t)| (name.replacen("model.", "model.language_model.", 1), t));
        own.chain([other("model.visual.pos_embed.weight"), other("mtp.norm.weight")]).collect()
    });
    let path = spelt.path().join("config.json");
    let text: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let whole = serde_json::json!({
        "model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "image_token_id": 90, "video_token_id": 91,
        "vision_start_token_id": 92, "vision_end_token_id": 93, "tie_word_embeddings": true, "vision_config": {}, "text_config": text,
    });
    std::fs::write(&path, whole.to_string()).unwrap();
    let (folder, (texts, want)) = (ModelFolder::open(spelt.path()).unwrap(), reference("qwen3_5"));
    assert!(folder.architecture().text_part);
    let got = logits(&FrozenModel::new(folder.decoder().unwrap()), &texts[..1]);
    assert!(greatest_difference(&got, &want[0]) <= TOLERANCE);
}
