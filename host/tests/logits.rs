//! Logits of random models against those that transformers gave for the same weights
//! (`tests/fixtures/make_models.py` made both).

use candle_core::{Device, Tensor};
use rlhost::model::{Decode, Dtype, Frozen, ModelFolder, export};
use rlhost::ops::Forest;
use std::path::{Path, PathBuf};

const MODELS: [&str; 23] = [
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
    "granite",
    "gemma2",
    "gemma3",
    "olmo2",
    "olmo3",
    "phi3",
    "gpt_neox",
    "gpt_neox_serial",
    "qwen3_yarn",
    "ministral",
    "stablelm",
    "starcoder2",
    "gemma3_vision",
];
const TOLERANCE: f32 = 1e-4;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(name)
}

/// The texts and their reference logits, `[texts][tokens * vocabulary]`.
fn reference(name: &str) -> (Vec<Vec<u32>>, Vec<Vec<f32>>) {
    let all = candle_core::safetensors::load(folder(name).join("reference.safetensors"), &Device::Cpu).unwrap();
    let ids: Vec<Vec<i64>> = all["input_ids"].to_vec2().unwrap();
    let logits = &all["logits"];
    let rows = (0..ids.len()).map(|i| logits.get(i).unwrap().flatten_all().unwrap().to_vec1().unwrap()).collect();
    (ids.into_iter().map(|row| row.into_iter().map(|id| id as u32).collect()).collect(), rows)
}

fn model(name: &str) -> Frozen {
    Frozen::new(ModelFolder::open(folder(name)).unwrap().decoder().unwrap())
}

fn greatest_difference(a: &Tensor, b: &[f32]) -> f32 {
    let a: Vec<f32> = a.flatten_all().unwrap().to_vec1().unwrap();
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

#[test]
fn a_packed_forward_gives_the_logits_of_transformers() {
    for name in MODELS {
        let (model, (texts, want)) = (model(name), reference(name));
        let mut forest = Forest::new();
        for text in &texts {
            forest.push(text, None);
        }
        let rows: Vec<usize> = (0..forest.len()).collect();
        let got = model.logits(&forest, &rows).unwrap();
        let difference = greatest_difference(&got, &want.concat());
        assert!(difference <= TOLERANCE, "{name}: {difference}");
    }
}

#[test]
fn decoding_token_by_token_after_a_shared_prompt_gives_the_same() {
    for name in MODELS {
        let (model, (texts, want)) = (model(name).decoding().unwrap(), reference(name));
        let (text, want) = (&texts[0], &want[0]);
        let vocab = want.len() / text.len();
        let split = 6;
        let mut prompt = Forest::new();
        prompt.push(&text[..split], None);
        let (caches, logits) = model.prefill(&prompt).unwrap();
        assert!(greatest_difference(&logits, &want[(split - 1) * vocab..split * vocab]) <= TOLERANCE, "{name} after the prompt");
        // Two sequences continue the prompt; the second goes another way and must not be heard.
        let (mut first, mut second) = (model.empty_cache(64), model.empty_cache(64));
        for at in split..text.len() {
            let mut own = [&mut first, &mut second];
            let step = Decode {
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
fn the_text_part_of_a_model_that_sees_images_becomes_a_model_of_its_own() {
    let (whole, to) = (ModelFolder::open(folder("gemma3_vision")).unwrap(), tempfile::tempdir().unwrap());
    export(&whole, to.path(), Dtype::F32).unwrap();
    let alone = ModelFolder::open(to.path()).unwrap();
    assert!(whole.architecture().text_part && !alone.architecture().text_part);
    assert_eq!(alone.architecture().windows, whole.architecture().windows);
    let names: Vec<String> =
        candle_core::safetensors::load(to.path().join("model.safetensors"), &Device::Cpu).unwrap().into_keys().collect();
    assert!(names.iter().all(|name| name.starts_with("model.") && !name.contains("language_model")), "{names:?}");
    let (texts, want) = reference("gemma3_vision");
    let mut forest = Forest::new();
    forest.push(&texts[0], None);
    let rows: Vec<usize> = (0..forest.len()).collect();
    let got = Frozen::new(alone.decoder().unwrap()).logits(&forest, &rows).unwrap();
    assert!(greatest_difference(&got, &want[0]) <= TOLERANCE);
}
