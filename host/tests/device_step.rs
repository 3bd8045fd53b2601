//! Compares complete training steps on a device with those on the CPU: log-probabilities, every gradient, updates, and the state saved in a
//! checkpoint, with and without an adapter. Needs the feature `cuda` and a device.
#![cfg(feature = "cuda")]
#![allow(clippy::print_stdout)]

use candle_core::{DType, Tensor};
use rlhost::config::OptimizerRule;
use rlhost::model::{
    ComputeBackend, Decoder, Derivatives, FrozenModel, LoraSettings, ModelFolder, PolicyModel, SelectedPredictions,
};
use rlhost::ops::{self, Forest};
use rlhost::optim::{Optimizer, OptimizerSettings, UpdateOutcome};
use std::path::Path;

#[path = "shared/families.rs"]
mod families;

const MODELS: [&str; 6] = ["llama", "llama_biased", "mistral", "qwen2", "qwen3", "smollm3"];

/// Returns the first device with products in f32 and in bf16; `None` without one, after printing the reason.
fn places() -> Option<[ComputeBackend; 2]> {
    match ops::device::count() {
        Ok(count) if count > 0 => Some([false, true].map(|bf16| ComputeBackend::cuda(0, bf16).unwrap())),
        Ok(_) => {
            println!("skipped: the driver has no device");
            None
        }
        Err(reason) => {
            println!("skipped: {reason}");
            None
        }
    }
}

/// Returns a fixture's model with a critic whose head is not zero.
fn decoder(name: &str) -> Decoder {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(name);
    let folder = ModelFolder::open(path).unwrap();
    let mut architecture = folder.architecture().clone();
    architecture.max_positions = 256;
    let decoder = folder.with_critic(folder.decoder().unwrap(), Path::new("none")).unwrap();
    let weights = decoder.weights().map(|name, t| {
        let wave: Vec<f32> = (0..t.elem_count()).map(|i| (i as f32 * 0.37).cos() * 0.2).collect();
        if name.starts_with("value_head") { Tensor::from_vec(wave, t.shape(), t.device()) } else { t.copy() }
    });
    Decoder::new(architecture, weights.unwrap())
}

fn batch() -> (Forest, SelectedPredictions) {
    let text = |seed: u32, len: u32| (0..len).map(|i| (seed * 31 + i * i * 7 + i * 13) % 96).collect::<Vec<u32>>();
    let (mut forest, mut selected) = (Forest::new(), SelectedPredictions::default());
    for (prompt, completions) in [(text(1, 70), vec![text(2, 5), text(3, 1), text(4, 67)]), (text(5, 1), vec![text(6, 9)])] {
        let prompt = forest.push(&prompt, None);
        for completion in completions {
            let segment = forest.push(&completion, Some(prompt));
            selected.push_segment(&forest, segment);
        }
    }
    (forest, selected)
}

fn column(n: usize, f: f32) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * f).sin() + 0.1).collect()
}

/// Results of a step, by name.
type NamedVectors = Vec<NamedVector>;
type NamedVector = (String, Vec<f32>);

/// Runs two steps; the second depends on the first one's update.
fn steps(policy: &PolicyModel) -> NamedVectors {
    let (forest, selected) = batch();
    // With such a large epsilon, an update is proportional to the gradient. Otherwise its sign would be that of each gradient value, which
    // near zero depends on rounding.
    let settings = OptimizerSettings {
        rule: OptimizerRule::AdamW,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1.0,
        weight_decay: 0.01,
        max_grad_norm: 1.0,
    };
    let mut optimizer = Optimizer::new(settings, &policy.weights().trained()).unwrap();
    let mut all = NamedVectors::new();
    for step in 0..2 {
        let gradients = policy.zero_gradients().unwrap();
        let pass = policy.forward(&forest, &selected, 0.9).unwrap();
        let named = [
            ("logp", pass.stats().logp.clone()),
            ("entropy", pass.stats().entropy.clone()),
            ("values", pass.values().unwrap().to_vec()),
            ("mean logits", pass.mean_logits().unwrap()),
        ];
        all.extend(named.map(|(name, figures)| (format!("{name} of step {step}"), figures)));
        let n = selected.len();
        pass.backward(
            Derivatives {
                logp: Some(&column(n, 0.7)),
                entropy: Some(&column(n, 1.3)),
                values: Some(&column(n, 0.9)),
                ..Derivatives::default()
            },
            &gradients,
        )
        .unwrap();
        for (name, gradient) in gradients.named() {
            assert_eq!(gradient.dtype(), DType::F32);
            all.push((format!("gradient of {name} in step {step}"), ops::to_vec(gradient).unwrap()));
        }
        let update = optimizer.step(&policy.parameters(&gradients), 0.05).unwrap();
        let UpdateOutcome::Made(norm) = update else { panic!("{update:?}") };
        all.push((format!("norm of step {step}"), vec![norm as f32]));
    }
    let (updates, moments) = optimizer.state().unwrap();
    assert!(updates == 2 && moments.values().all(|m| m.device().is_cpu() && m.dtype() == DType::F32));
    let weights = policy.copied_weights().unwrap();
    for (name, t) in weights.trained() {
        assert!(t.device().is_cpu() && t.dtype() == DType::F32);
        all.push((name, ops::to_vec(t).unwrap()));
    }
    all
}

/// Asserts that the distance of each result, as a vector, from its expected value is at most `tolerance` of its length. A key's bias adds
/// almost the same to all scores of a query, so the terms of its gradient nearly cancel, and rounding is of the size of the query bias's
/// gradient.
fn compare(what: &str, want: &NamedVectors, got: &NamedVectors, tolerance: f64) {
    assert_eq!(want.len(), got.len());
    let length = |xs: &mut dyn Iterator<Item = f32>| xs.map(|x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    let size = |name: &str| {
        let of_queries =
            (name.starts_with("gradient of") && name.contains("k_proj.bias")).then(|| name.replace("k_proj", "q_proj"));
        let alike = want.iter().filter(|(other, _)| other == name || Some(other) == of_queries.as_ref());
        alike.map(|(_, figure)| length(&mut figure.iter().copied())).fold(1e-9, f64::max)
    };
    let apart = |((name, want), (other, got)): (&NamedVector, &NamedVector)| {
        assert!(name == other && want.len() == got.len(), "{name} and {other}");
        let difference = length(&mut want.iter().zip(got).map(|(w, g)| w - g));
        (difference / size(name), name.clone())
    };
    let worst = want.iter().zip(got).map(apart).max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    println!("{what}: at most {:.1e} apart, {}", worst.0, worst.1);
    assert!(worst.0 <= tolerance, "{what}: {worst:?}");
}

#[test]
fn a_step_is_the_same_as_on_the_cpu() {
    let Some(places) = places() else { return };
    for name in MODELS.into_iter().chain(families::of_devices()) {
        let want = steps(&PolicyModel::new(decoder(name)));
        // Rounding in bf16 may route a token near the boundary to another expert, an error that no other operation has.
        let in_bf16 = if PolicyModel::new(decoder(name)).frozen().architecture().mixture.is_some() { 0.3 } else { 0.15 };
        for (backend, tolerance) in places.iter().zip([1e-4, in_bf16]) {
            let policy = PolicyModel::new(decoder(name)).on_backend(backend).unwrap();
            compare(&format!("{name} on {}", backend.describe()), &want, &steps(&policy), tolerance);
        }
    }
}

#[test]
fn an_adapter_trains_on_a_base_that_the_reference_shares() {
    let Some(places) = places() else { return };
    let targets: Vec<String> = ["q_proj", "v_proj", "down_proj"].map(String::from).into();
    let lora = LoraSettings::new(4, 8.0);
    for name in ["llama_biased", "qwen3", "gemma3", "stablelm"] {
        let want = steps(&PolicyModel::new(decoder(name).with_new_adapter(lora, &targets, 3).unwrap()));
        for (backend, tolerance) in places.iter().zip([1e-4, 0.15]) {
            let base = decoder(name).on_backend(backend).unwrap();
            let policy = PolicyModel::new(base.clone().with_new_adapter(lora, &targets, 3).unwrap()).on_backend(backend).unwrap();
            let (forest, selected) = batch();
            let reference = FrozenModel::new(base);
            let before = reference.score(&forest, &selected, 1.0).unwrap().logp;
            compare(&format!("{name} on {}", backend.describe()), &want, &steps(&policy), tolerance);
            assert_eq!(reference.score(&forest, &selected, 1.0).unwrap().logp, before, "{name}: the reference has moved");
        }
    }
}

#[test]
fn the_same_step_twice_gives_the_same_bits() {
    let Some(places) = places() else { return };
    for backend in &places {
        let run = || steps(&PolicyModel::new(decoder("qwen3")).on_backend(backend).unwrap());
        let again =
            |on: bool| steps(&PolicyModel::new(decoder("qwen3")).on_backend(backend).unwrap().with_gradient_checkpointing(on));
        let first = run();
        assert!(first == run(), "{}", backend.describe());
        assert!(first == again(true), "with gradient checkpointing on {}", backend.describe());
    }
}

#[test]
fn a_checkpoint_of_one_place_goes_on_in_another() {
    let Some(places) = places() else { return };
    let bits = |policy: &PolicyModel| -> Vec<Vec<f32>> {
        policy.copied_weights().unwrap().named().iter().map(|(_, t)| ops::to_vec(t).unwrap()).collect()
    };
    for backend in &places {
        let policy = PolicyModel::new(decoder("qwen2")).on_backend(backend).unwrap();
        steps(&policy);
        let (saved, trained) = (policy.copied_weights().unwrap(), bits(&policy));
        let architecture = policy.frozen().architecture().clone();
        let restored = PolicyModel::new(Decoder::new(architecture, saved));
        assert_eq!(bits(&restored), trained);
        assert_eq!(bits(&restored.on_backend(backend).unwrap()), trained, "masters are kept in f32 on {}", backend.describe());
    }
}
