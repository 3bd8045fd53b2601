//! Adapters written by `peft` (`tests/fixtures/make_adapters.py`): their outputs, their training, and their saved files.

use crate::packed::packed;
use candle_core::{Device, Tensor};
use rlhost::model::{DecodeBatch, Decoder, Derivatives, FrozenModel, ModelFolder, PolicyModel, Weights, merge, save};
use rlhost::ops::{self, Forest};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Adapters on linear layers, with biases that are trained too.
const TRAINABLE: [&str; 17] = [
    "rank_pattern",
    "alpha_pattern",
    "both_patterns",
    "patterns_dora",
    "all_linear_experts",
    "experts_patterns",
    "fused_experts",
    "regex",
    "excluded",
    "excluded_names",
    "layers",
    "layers_pattern",
    "bias_all",
    "bias_all_norms",
    "bias_of_adapted",
    "bias_of_b",
    "with_modules",
];
/// Adapters on the embedding, on positions and on the output matrix, and on single rows of these.
const TABLES: [&str; 8] =
    ["tokens", "tokens_tied", "embedding", "embedding_and_head", "embedding_tied", "head_tied", "head_dora", "positions"];

const TOLERANCE: f32 = 1e-4;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/adapters").join(name)
}

fn opened(name: &str) -> ModelFolder {
    ModelFolder::open(folder(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn decoder(name: &str) -> Decoder {
    opened(name).decoder().unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Returns the texts and peft's logits of all their tokens.
fn reference(name: &str) -> (Vec<Vec<u32>>, Vec<f32>) {
    let all = candle_core::safetensors::load(folder(name).join("reference.safetensors"), &Device::Cpu).unwrap();
    let ids: Vec<Vec<i64>> = all["input_ids"].to_vec2().unwrap();
    (ids.into_iter().map(|row| row.into_iter().map(|id| id as u32).collect()).collect(), ops::to_vec(&all["logits"]).unwrap())
}

fn logits(model: &FrozenModel, texts: &[Vec<u32>]) -> Vec<f32> {
    let mut forest = Forest::new();
    for text in texts {
        forest.push(text, None);
    }
    ops::to_vec(&model.logits(&forest, &(0..forest.len()).collect::<Vec<usize>>()).unwrap()).unwrap()
}

fn greatest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

fn bits(weights: &Weights) -> Vec<(String, Vec<f32>)> {
    weights.named().into_iter().map(|(name, t)| (name, ops::to_vec(t).unwrap())).collect()
}

#[test]
fn adapters_give_the_logits_of_peft() {
    for name in TRAINABLE.into_iter().chain(TABLES) {
        let (texts, want) = reference(name);
        let difference = greatest_difference(&logits(&FrozenModel::new(decoder(name)), &texts), &want);
        assert!(difference <= TOLERANCE, "{name}: {difference}");
    }
}

#[test]
fn generation_gives_the_same() {
    for name in TRAINABLE.into_iter().chain(TABLES) {
        let (texts, want) = reference(name);
        let (model, text) = (FrozenModel::new(decoder(name)).decoding().unwrap(), &texts[0]);
        let vocab = want.len() / (text.len() * texts.len());
        let mut prompt = Forest::new();
        prompt.push(&text[..6], None);
        let (caches, _) = model.prefill(&prompt).unwrap();
        let mut own = model.empty_cache(text.len());
        for at in 6..text.len() {
            let step = DecodeBatch {
                tokens: &text[at..=at],
                positions: &[at as u32],
                counts: &[1],
                prompt_of: &[0],
                prompts: &[&caches[0]],
                own: &mut [&mut own],
            };
            let got = ops::to_vec(&model.decode(step).unwrap()).unwrap();
            let difference = greatest_difference(&got, &want[at * vocab..(at + 1) * vocab]);
            assert!(difference <= TOLERANCE, "{name} at {at}: {difference}");
        }
    }
}

#[test]
fn merged_models_give_the_same_without_the_adapter() {
    for name in TRAINABLE.into_iter().chain(TABLES) {
        let (texts, want) = reference(name);
        let place = tempfile::tempdir().unwrap();
        merge(&opened(name), place.path()).unwrap();
        let merged = ModelFolder::open(place.path()).unwrap();
        assert!(merged.lora().is_none(), "{name}");
        let difference = greatest_difference(&logits(&FrozenModel::new(merged.decoder().unwrap()), &texts), &want);
        assert!(difference <= TOLERANCE, "{name}: {difference}");
    }
}

/// Checks that each adapted weight is `W + s B A`, with the file's tensors and each module's own rank and alpha.
#[test]
fn merged_weights_are_the_base_with_the_products_of_the_matrices() {
    // Returns rank and alpha of a module, by a part of its name.
    let of_rank_pattern = |module: &str| match module {
        _ if module.contains("q_proj") => (2.0, 6.0),
        _ if module.contains("layers.1.mlp") && !module.contains("gate") => (6.0, 6.0),
        _ => (4.0, 6.0),
    };
    let of_alpha_pattern = |module: &str| match module {
        _ if module.contains("layers.0.self_attn.k_proj") => (4.0, 3.0),
        _ if module.contains("v_proj") => (4.0, 16.5),
        _ => (4.0, 6.0),
    };
    let of_both = |module: &str| match module {
        _ if module.contains("layers.1.self_attn.o_proj") => (1.0, 6.0),
        _ if module.contains("k_proj") => (5.0, 7.0),
        _ => (4.0, 6.0),
    };
    type RankAndAlpha<'a> = &'a dyn Fn(&str) -> (f64, f64);
    let cases: [(&str, RankAndAlpha<'_>, bool); 3] = [
        ("rank_pattern", &of_rank_pattern, false),
        ("alpha_pattern", &of_alpha_pattern, false),
        ("both_patterns", &of_both, true),
    ];
    for (name, settings, by_root) in cases {
        let file = candle_core::safetensors::load(folder(name).join("adapter_model.safetensors"), &Device::Cpu).unwrap();
        let adapted = decoder(name);
        let base: HashMap<String, Tensor> =
            adapted.weights().without_adapter().named().into_iter().map(|(name, t)| (name, t.clone())).collect();
        let merged = adapted.weights().merged().unwrap();
        let mut compared = 0;
        for (weight, got) in merged.named() {
            let module = weight.trim_end_matches(".weight");
            let Some(a) = file.get(&format!("base_model.model.{module}.lora_A.weight")) else { continue };
            let b = &file[&format!("base_model.model.{module}.lora_B.weight")];
            let (r, alpha) = settings(module);
            assert_eq!(a.dims()[0] as f64, r, "{name}: {module}");
            let scale = if by_root { alpha / r.sqrt() } else { alpha / r };
            let want = (&base[&weight] + (b.matmul(a).unwrap() * scale).unwrap()).unwrap();
            let difference = greatest_difference(&ops::to_vec(got).unwrap(), &ops::to_vec(&want).unwrap());
            assert!(difference <= 1e-5, "{name}: {module}: {difference}");
            compared += 1;
        }
        assert_eq!(2 * compared, file.len(), "{name}");
    }
}

#[test]
fn what_is_written_of_an_adapter_is_what_peft_wrote() {
    for name in TRAINABLE {
        let (source, place) = (opened(name), tempfile::tempdir().unwrap());
        let weights = source.decoder().unwrap();
        save(weights.weights(), &source, place.path()).unwrap();
        let again = ModelFolder::open(place.path()).unwrap();
        assert_eq!(again.lora(), source.lora(), "{name}");
        assert!(bits(again.decoder().unwrap().weights()) == bits(weights.weights()), "{name}");
        let tensors = |folder: &Path| -> BTreeMap<String, Vec<f32>> {
            let all = candle_core::safetensors::load(folder.join("adapter_model.safetensors"), &Device::Cpu).unwrap();
            all.into_iter().map(|(name, t)| (name, ops::to_vec(&t).unwrap())).collect()
        };
        let (own, theirs) = (tensors(place.path()), tensors(&folder(name)));
        assert!(own.keys().eq(theirs.keys()), "{name}: {:?} and {:?}", own.keys(), theirs.keys());
        assert!(own == theirs, "{name}");
    }
}

/// Returns the weighted sum of log-probabilities.
fn loss(policy: &PolicyModel) -> f64 {
    let (forest, selected) = packed(&[(vec![5, 9, 2, 41, 7], vec![vec![3, 1, 8, 20], vec![60, 11]])]);
    let pass = policy.forward(&forest, &selected, 1.0).unwrap();
    pass.stats().logp.iter().enumerate().map(|(i, logp)| f64::from(*logp) * (i as f64 * 0.8).cos()).sum()
}

fn gradients(policy: &PolicyModel) -> Vec<(String, Vec<f32>)> {
    let (forest, selected) = packed(&[(vec![5, 9, 2, 41, 7], vec![vec![3, 1, 8, 20], vec![60, 11]])]);
    let (gradients, d_logp): (_, Vec<f32>) =
        (policy.zero_gradients().unwrap(), (0..selected.len()).map(|i| (i as f64 * 0.8).cos() as f32).collect());
    policy.forward(&forest, &selected, 1.0).unwrap().backward(Derivatives::from_logp(&d_logp), &gradients).unwrap();
    gradients.named().into_iter().map(|(name, t)| (name, ops::to_vec(t).unwrap())).collect()
}

#[test]
fn gradients_of_all_that_is_trained_are_those_of_finite_differences() {
    // DoRA's lengths have no gradient, so finite differences differ from its gradients.
    for name in TRAINABLE.into_iter().filter(|name| *name != "patterns_dora") {
        let policy = PolicyModel::new(decoder(name));
        let trained = policy.weights().trained();
        let file = candle_core::safetensors::load(folder(name).join("adapter_model.safetensors"), &Device::Cpu).unwrap();
        assert_eq!(trained.len(), file.len(), "{name}: all that peft trains");
        for ((parameter, tensor), (_, gradient)) in trained.into_iter().zip(gradients(&policy)) {
            // Tests the direction of the gradient itself, in which f32 is most accurate.
            let before = ops::to_vec(tensor).unwrap();
            let length = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            let at = |step: f64| {
                let moved =
                    before.iter().zip(&gradient).map(|(p, g)| (f64::from(*p) + step * f64::from(*g) / length.max(1e-9)) as f32);
                let moved: Vec<f32> = moved.collect();
                ops::write(tensor, |p| p.copy_from_slice(&moved)).unwrap();
                loss(&policy)
            };
            // Small enough for the loss to be nearly linear, and large enough for f32.
            let step = (0.02 / length.max(1e-9)).min(0.01);
            let slope = (at(step) - at(-step)) / (2.0 * step);
            ops::write(tensor, |p| p.copy_from_slice(&before)).unwrap();
            assert!((slope - length).abs() < 0.03 * length + 3e-3, "{name}: {parameter}: {slope} and {length}");
        }
    }
}

#[test]
fn what_a_folder_has_beside_its_settings_is_refused_by_name() {
    let refusal = |name: &str, edit: &dyn Fn(&mut serde_json::Value)| {
        let place = tempfile::tempdir().unwrap();
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            std::fs::copy(folder(name).join(file), place.path().join(file)).unwrap();
        }
        let path = place.path().join("adapter_config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let base = folder(name).join(config["base_model_name_or_path"].as_str().unwrap());
        config["base_model_name_or_path"] = base.to_str().unwrap().into();
        edit(&mut config);
        std::fs::write(&path, config.to_string()).unwrap();
        ModelFolder::open(place.path()).and_then(|folder| folder.decoder()).unwrap_err().to_string()
    };
    for (name, key, value, said) in [
        ("rank_pattern", "rank_pattern", serde_json::json!({}), "q_proj"),
        ("both_patterns", "rank_pattern", serde_json::json!({ "(": 2 }), "rank_pattern"),
        ("bias_all", "bias", "none".into(), "bias"),
        ("bias_all", "bias", "lora_only".into(), "bias"),
        ("bias_of_b", "lora_bias", false.into(), "lora_bias"),
        ("tokens", "trainable_token_indices", serde_json::json!(null), "trainable_tokens_delta"),
        ("tokens", "trainable_token_indices", serde_json::json!([3, 96, 17]), "96"),
        ("all_linear_experts", "target_parameters", serde_json::json!(["gate_up_proj", "down_proj"]), "mlp.gate"),
    ] {
        let refused = refusal(name, &|config| config[key] = value.clone());
        assert!(refused.contains(said), "{name}: {refused}");
    }
}
