//! Adapters: new ones change nothing, training changes only them, and merging leaves the model's outputs unchanged.

use crate::packed::packed;
use candle_core::{DType, Device, Tensor};
use rlhost::config::OptimizerRule;
use rlhost::model::{
    DecodeBatch, Decoder, Derivatives, FrozenModel, LoraSettings, ModelFolder, PolicyModel, SelectedPredictions, Weights, merge,
    save,
};
use rlhost::ops::dropout::DropoutMask;
use rlhost::ops::{self, Forest};
use rlhost::optim::{Optimizer, OptimizerSettings};
use std::path::Path;

const LORA: LoraSettings = LoraSettings::new(4, 8.0);

fn folder(name: &str) -> ModelFolder {
    ModelFolder::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(name)).unwrap()
}

fn targets() -> Vec<String> {
    ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"].map(String::from).into()
}

fn forest() -> (Forest, SelectedPredictions) {
    packed(&[(vec![5, 9, 2, 41, 7], vec![vec![3, 1, 8, 20], vec![60, 11]])])
}

fn logits(model: &FrozenModel) -> Vec<f32> {
    let (forest, _) = forest();
    ops::to_vec(&model.logits(&forest, &(0..forest.len()).collect::<Vec<_>>()).unwrap()).unwrap()
}

fn bits(weights: &Weights) -> Vec<(String, Vec<f32>)> {
    weights.named().into_iter().map(|(name, t)| (name, ops::to_vec(t).unwrap())).collect()
}

fn greatest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

const DORA: LoraSettings = LoraSettings { use_dora: true, ..LORA };

/// Returns a policy whose adapter was changed by some updates.
fn trained(base: &Decoder) -> PolicyModel {
    trained_as(LORA, base)
}

fn trained_as(lora: LoraSettings, base: &Decoder) -> PolicyModel {
    let policy = PolicyModel::new(base.clone().with_new_adapter(lora, &targets(), 3).unwrap());
    let settings = OptimizerSettings {
        rule: OptimizerRule::AdamW,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.1,
        max_grad_norm: 1.0,
    };
    let mut optimizer = Optimizer::new(settings, &policy.weights().trained()).unwrap();
    for _ in 0..4 {
        let (forest, selected) = forest();
        let gradients = policy.zero_gradients().unwrap();
        let d_logp: Vec<f32> = (0..selected.len()).map(|i| (i as f32 * 0.8).cos()).collect();
        policy.forward(&forest, &selected, 1.0).unwrap().backward(Derivatives::from_logp(&d_logp), &gradients).unwrap();
        optimizer.step(&policy.parameters(&gradients), 0.01).unwrap();
    }
    let parts = if lora.use_dora { 3 } else { 2 };
    assert_eq!(optimizer.state().unwrap().1.len(), 2 * parts * 7 * base.weights().layers.len(), "moments of the adapter alone");
    policy
}

#[test]
fn a_new_adapter_changes_no_bit_of_the_logits() {
    for name in ["llama_biased", "qwen2", "qwen3"] {
        let base = folder(name).decoder().unwrap();
        let adapted = FrozenModel::new(base.clone().with_new_adapter(LORA, &targets(), 3).unwrap());
        assert!(logits(&adapted) == logits(&FrozenModel::new(base.clone())), "{name}");
        // Initial magnitudes are the lengths that they replace.
        let directed = FrozenModel::new(base.clone().with_new_adapter(DORA, &targets(), 3).unwrap());
        assert!(logits(&directed) == logits(&FrozenModel::new(base)), "{name}");
    }
}

#[test]
fn a_new_adapter_is_drawn_as_peft_draws_it_and_the_same_from_the_same_seed() {
    let base = folder("llama").decoder().unwrap();
    let weights =
        |seed| base.clone().with_new_adapter(LoraSettings { r: 64, ..LORA }, &targets(), seed).unwrap().weights().clone();
    assert_eq!(bits(&weights(3)), bits(&weights(3)));
    assert_ne!(bits(&weights(3)), bits(&weights(4)));
    for (name, values) in bits(&weights(3)).into_iter().filter(|(name, _)| name.contains("lora_A")) {
        // torch's kaiming_uniform_ with a = sqrt(5): within 1 / sqrt(inputs), a variance of a third of that squared.
        let inputs = (values.len() / 64) as f32;
        let square = values.iter().map(|v| v * v).sum::<f32>() / values.len() as f32;
        assert!(values.iter().all(|v| v.abs() <= inputs.sqrt().recip()), "{name}");
        assert!((square * inputs * 3.0 - 1.0).abs() < 0.1, "{name}: {}", square * inputs * 3.0);
        assert!((values.iter().sum::<f32>() / values.len() as f32).abs() < 0.05 * inputs.sqrt().recip(), "{name}");
    }
}

#[test]
fn training_an_adapter_changes_no_bit_of_the_base_whose_storage_the_reference_has() {
    let base = folder("qwen3").decoder().unwrap();
    let before = (bits(base.weights()), logits(&FrozenModel::new(base.clone())));
    let policy = trained(&base);
    assert_eq!(bits(&policy.weights().without_adapter()), before.0);
    assert!(greatest_difference(&logits(&policy.frozen()), &before.1) > 0.01, "the adapter has learned nothing");
    assert!(logits(&FrozenModel::new(base.clone())) == before.1);

    // Tensors that share storage see each other's writes.
    ops::fill_zero(&base.weights().norm.weight).unwrap();
    assert!(ops::to_vec(&policy.weights().norm.weight).unwrap().iter().all(|x| *x == 0.0), "the base was copied");
    assert!(ops::to_vec(&policy.copied_weights().unwrap().norm.weight).unwrap().iter().all(|x| *x == 0.0));
}

#[test]
fn a_copy_for_reference_or_checkpoint_does_not_follow_the_adapter() {
    let policy = trained(&folder("llama").decoder().unwrap());
    let (copy, before) = (policy.frozen_copy().unwrap(), logits(&policy.frozen()));
    for (_, t) in policy.weights().trained() {
        ops::fill_zero(t).unwrap();
    }
    assert!(logits(&copy) == before);
    assert!(logits(&policy.frozen()) != before);
}

#[test]
fn merged_weights_and_generation_give_the_logits_of_base_and_adapter() {
    for (name, lora) in [("llama_biased", LORA), ("qwen3", LORA), ("llama_biased", DORA), ("qwen3", DORA)] {
        let base = folder(name).decoder().unwrap();
        let policy = trained_as(lora, &base);
        let want = logits(&policy.frozen());
        let merged = FrozenModel::new(Decoder::new(folder(name).architecture().clone(), policy.weights().merged().unwrap()));
        assert!(merged.weights().lora.is_none());
        let difference = greatest_difference(&logits(&merged), &want);
        assert!(difference <= 1e-5, "{name}: {difference}");

        // The prompt's five tokens at once, then the first completion's tokens one by one.
        let (forest, _) = forest();
        let (decoding, vocab) = (policy.frozen().decoding().unwrap(), want.len() / forest.len());
        let mut prompt = Forest::new();
        prompt.push(&forest.tokens()[..5], None);
        let (caches, _) = decoding.prefill(&prompt).unwrap();
        let mut own = decoding.empty_cache(16);
        for at in 5..9 {
            let step = DecodeBatch {
                tokens: &forest.tokens()[at..=at],
                positions: &[at as u32],
                counts: &[1],
                prompt_of: &[0],
                prompts: &[&caches[0]],
                own: &mut [&mut own],
            };
            let got = ops::to_vec(&decoding.decode(step).unwrap()).unwrap();
            let difference = greatest_difference(&got, &want[at * vocab..(at + 1) * vocab]);
            assert!(difference <= 1e-5, "{name}: {difference}");
        }
    }
}

#[test]
fn an_adapters_folder_gives_the_same_adapter_back_and_can_be_merged() {
    let base = folder("qwen2");
    let policy = trained(&base.decoder().unwrap());
    let place = tempfile::tempdir().unwrap();
    let (adapter, whole) = (place.path().join("adapter"), place.path().join("whole"));
    for folder in [&adapter, &whole] {
        std::fs::create_dir(folder).unwrap();
    }
    save(policy.weights(), &base, &adapter).unwrap();
    assert!(!adapter.join("model.safetensors").exists() && !adapter.join("config.json").exists());
    let opened = ModelFolder::open(&adapter).unwrap();
    assert_eq!((opened.lora(), opened.base()), (Some(LORA), base.path()));
    assert_eq!(bits(opened.decoder().unwrap().weights()), bits(policy.weights()));

    merge(&opened, &whole).unwrap();
    let merged = ModelFolder::open(&whole).unwrap();
    assert!(merged.lora().is_none());
    let difference = greatest_difference(&logits(&FrozenModel::new(merged.decoder().unwrap())), &logits(&policy.frozen()));
    assert!(difference <= 1e-5, "{difference}");

    // The error names a part that no linear layer of the model has, and a part of the wrong rank.
    let file = adapter.join("adapter_model.safetensors");
    let tensors = candle_core::safetensors::load(&file, &Device::Cpu).unwrap();
    let head = "base_model.model.lm_head.lora_A.weight";
    let some = "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight";
    for (name, shape) in [(head, (4, 8)), (some, (3, 5))] {
        let mut other = tensors.clone();
        other.insert(name.into(), Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu).unwrap());
        candle_core::safetensors::save(&other, &file).unwrap();
        let refusal = ModelFolder::open(&adapter).unwrap().decoder().unwrap_err().to_string();
        let module = name.trim_start_matches("base_model.model.").trim_end_matches(".weight");
        assert!(refusal.contains(module), "{refusal}");
    }
    let mut half = tensors;
    half.remove(some);
    candle_core::safetensors::save(&half, &file).unwrap();
    let refusal = ModelFolder::open(&adapter).unwrap().decoder().unwrap_err().to_string();
    assert!(refusal.contains("has only one of lora_A and lora_B"), "{refusal}");
}

#[test]
fn magnitudes_are_in_the_folder_and_in_the_merged_model() {
    let base = folder("qwen2");
    let policy = trained_as(DORA, &base.decoder().unwrap());
    let place = tempfile::tempdir().unwrap();
    let (adapter, whole) = (place.path().join("adapter"), place.path().join("whole"));
    for folder in [&adapter, &whole] {
        std::fs::create_dir(folder).unwrap();
    }
    save(policy.weights(), &base, &adapter).unwrap();
    let opened = ModelFolder::open(&adapter).unwrap();
    assert_eq!(opened.lora(), Some(DORA));
    assert_eq!(bits(opened.decoder().unwrap().weights()), bits(policy.weights()));
    let plain = logits(&FrozenModel::new(base.decoder().unwrap().with_new_adapter(DORA, &targets(), 3).unwrap()));
    assert!(greatest_difference(&logits(&policy.frozen()), &plain) > 0.01, "the adapter has learned nothing");
    merge(&opened, &whole).unwrap();
    let merged = ModelFolder::open(&whole).unwrap();
    let difference = greatest_difference(&logits(&FrozenModel::new(merged.decoder().unwrap())), &logits(&policy.frozen()));
    assert!(difference <= 1e-5, "{difference}");

    // A row's merged weight has the length given by its magnitude.
    let (merged, trained) = (policy.weights().merged().unwrap(), policy.weights().named());
    let (name, values) = trained.iter().find(|(name, _)| name.ends_with("lora_magnitude_vector")).unwrap();
    let weight = name.replace("lora_magnitude_vector", "weight");
    let (_, rows) = merged.named().into_iter().find(|(name, _)| *name == weight).unwrap();
    let lengths = ops::to_vec(&rows.sqr().unwrap().sum(1).unwrap().sqrt().unwrap()).unwrap();
    let values = ops::to_vec(values).unwrap();
    assert!(lengths.iter().zip(&values).all(|(length, m)| (length - m.abs()).abs() < 1e-5 * m.abs()), "{lengths:?} {values:?}");

    let file = adapter.join("adapter_model.safetensors");
    let mut tensors = candle_core::safetensors::load(&file, &Device::Cpu).unwrap();
    let name = "base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector";
    assert_eq!(tensors[name].dims(), [base.architecture().intermediate_size]);
    tensors.remove(name);
    candle_core::safetensors::save(&tensors, &file).unwrap();
    let refusal = opened.decoder().unwrap_err().to_string();
    assert!(refusal.contains("up_proj has no lora_magnitude_vector") && refusal.contains("use_dora"), "{refusal}");
    save(trained_as(LORA, &base.decoder().unwrap()).weights(), &base, &adapter).unwrap();
    let mut tensors = candle_core::safetensors::load(&file, &Device::Cpu).unwrap();
    tensors.insert(name.into(), Tensor::zeros(base.architecture().intermediate_size, DType::F32, &Device::Cpu).unwrap());
    candle_core::safetensors::save(&tensors, &file).unwrap();
    let refusal = ModelFolder::open(&adapter).unwrap().decoder().unwrap_err().to_string();
    assert!(refusal.contains(name) && refusal.contains("use_dora"), "{refusal}");
}

/// Returns the weighted sum of log-probabilities whose gradient is [`d_logp`], with dropout.
fn dropped_loss(policy: &PolicyModel, key: u64) -> f64 {
    let (forest, selected) = forest();
    let pass = policy.forward_learning(&forest, &selected, 1.0, key, None).unwrap();
    pass.stats().logp.iter().zip(d_logp(selected.len())).map(|(logp, d)| f64::from(*logp) * f64::from(d)).sum()
}

fn dropped_gradients(policy: &PolicyModel) -> Vec<(String, Vec<f32>)> {
    let (forest, selected) = forest();
    let gradients = policy.zero_gradients().unwrap();
    let pass = policy.forward_learning(&forest, &selected, 1.0, 5, None).unwrap();
    pass.backward(Derivatives::from_logp(&d_logp(selected.len())), &gradients).unwrap();
    gradients.named().into_iter().map(|(name, t)| (name, ops::to_vec(t).unwrap())).collect()
}

fn d_logp(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.8).cos()).collect()
}

#[test]
fn with_dropout_gradients_are_those_of_finite_differences_and_none_is_the_model_itself() {
    for name in ["llama_biased", "qwen3"] {
        let policy = trained(&folder(name).decoder().unwrap());
        let plain = dropped_loss(&policy, 5);
        let policy = policy.with_dropout(0.4);
        let [one, other] = [5, 6].map(|key| dropped_loss(&policy, key));
        assert!(plain != one && one != other, "{plain} {one} {other}");

        let whole = dropped_gradients(&policy);
        let policy = policy.with_gradient_checkpointing(true);
        assert_eq!(whole, dropped_gradients(&policy), "layers that run again drop the same");
        for ((name, parameter), (_, gradient)) in policy.weights().trained().into_iter().zip(&whole) {
            // Tests the direction of the gradient itself, in which f32 is most accurate.
            let before = ops::to_vec(parameter).unwrap();
            let length = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            let at = |step: f64| {
                let moved = before.iter().zip(gradient).map(|(p, g)| (f64::from(*p) + step * f64::from(*g) / length) as f32);
                let moved: Vec<f32> = moved.collect();
                ops::write(parameter, |p| p.copy_from_slice(&moved)).unwrap();
                dropped_loss(&policy, 5)
            };
            let step = 0.01;
            let slope = (at(step) - at(-step)) / (2.0 * step);
            ops::write(parameter, |p| p.copy_from_slice(&before)).unwrap();
            assert!((slope - length).abs() < 0.02 * length + 1e-4, "{name}: {slope} and {length}");
        }
    }
}

#[test]
fn the_right_share_is_dropped_independently_by_key_row_and_feature_and_the_mean_stays() {
    let mut forest = Forest::new();
    forest.push(&(0..400).collect::<Vec<u32>>(), None);
    let texts = forest.texts();
    let ones = Tensor::ones((400, 101), DType::F32, &Device::Cpu).unwrap();
    let of = |key: u64, p: f64| ops::to_vec(&DropoutMask { rows: &texts, key, p }.apply(&ones).unwrap()).unwrap();
    for p in [0.05, 0.5] {
        let (a, b) = (of(1, p), of(2, p));
        let n = a.len() as f64;
        let share = |both: &dyn Fn(usize) -> bool| (0..a.len()).filter(|i| both(*i)).count() as f64 / n;
        // Five standard deviations.
        let near = |got: f64, want: f64| (got - want).abs() < 5.0 * (want * (1.0 - want) / n).sqrt();
        assert!(near(share(&|i| a[i] == 0.0), p), "{}", share(&|i| a[i] == 0.0));
        assert!(near(share(&|i| a[i] == 0.0 && b[i] == 0.0), p * p));
        assert!(near(share(&|i| a[i] == 0.0 && a[(i + 1) % a.len()] == 0.0), p * p));
        assert!(near(share(&|i| a[i] == 0.0 && a[(i + 101) % a.len()] == 0.0), p * p));
        assert!(a.iter().all(|x| *x == 0.0 || (f64::from(*x) - 1.0 / (1.0 - p)).abs() < 1e-6));
    }
    assert_eq!(of(3, 0.0), vec![1.0; 400 * 101]);
}

#[test]
fn a_text_has_the_same_numbers_wherever_it_lies() {
    let (mut whole, mut cut) = (Forest::new(), Forest::new());
    let prompt = whole.push(&[1, 2, 3], None);
    whole.push(&[4, 5], Some(prompt));
    let second = whole.push(&[6], Some(prompt));
    cut.push(&[9, 2, 3, 6], None);
    cut.push(&[1, 2, 3, 6], None);
    let (whole_texts, cut) = (whole.texts(), cut.texts());
    assert_eq!(whole_texts[whole.segments()[second].start], cut[7]);
    assert_eq!(whole_texts[..3], cut[4..7]);
    assert!(cut[..4].iter().all(|text| !cut[4..].contains(text)));
}
