//! Products in bf16 on the CPU compared with those in f32. On a processor without instructions for them, operands are rounded just the
//! same, so these tests apply everywhere.

use crate::families::FAMILIES;
use crate::packed::packed;
use rlhost::model::{
    ComputeBackend, DecodeBatch, Derivatives, LoraSettings, ModelFolder, PolicyModel, PolicyPass, SelectedPredictions,
};
use rlhost::ops::{self, Forest, Precision};
use std::path::Path;

/// Models with biases, norms of heads, joined matrices, bounded scores and logits, layer norms, experts, convolutions, delta networks,
/// compressed keys and values, layers of one part, and layers with inputs of their own and unscaled scores.
const MODELS: [&str; 14] = [
    "llama_biased",
    "qwen3",
    "phi3",
    "gemma2",
    "gpt2",
    "starcoder2",
    "qwen3_moe",
    "lfm2",
    "qwen3_5",
    "deepseek_v3_dense",
    "nemotron_h_dense",
    "falcon_h1",
    "gemma4",
    "gemma4_unified",
];

fn policy(name: &str, backend: &ComputeBackend, adapter: bool) -> PolicyModel {
    policy_with(name, backend, adapter, false)
}

fn policy_with(name: &str, backend: &ComputeBackend, adapter: bool, use_dora: bool) -> PolicyModel {
    let folder = ModelFolder::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(name)).unwrap();
    let mut decoder = folder.decoder().unwrap();
    if adapter {
        let lora = LoraSettings { use_dora, ..LoraSettings::new(4, 8.0) };
        let targets: Vec<String> = folder.architecture().modules().iter().map(|name| (*name).to_owned()).collect();
        decoder = decoder.with_new_adapter(lora, &targets, 3).unwrap();
    }
    let policy = PolicyModel::new(decoder).on_backend(backend).unwrap();
    for (name, t) in policy.weights().trained().iter().filter(|(name, _)| name.ends_with("lora_B.weight")) {
        ops::write(t, |b| b.iter_mut().enumerate().for_each(|(i, b)| *b = ((i + name.len()) as f32).sin() * 0.05)).unwrap();
    }
    policy
}

fn forest() -> (Forest, SelectedPredictions) {
    let long = |from: u32| (0..14).map(|i| (from * 7 + i * 13) % 60 + 1).collect();
    packed(&[(long(1), vec![long(2), long(3)]), (vec![5, 9, 2, 41, 7], vec![vec![3, 1, 8, 20], vec![30, 11]])])
}

/// Returns log-probabilities of a pass, and all gradients, concatenated.
fn pass(policy: &PolicyModel) -> (Vec<f32>, Vec<f32>) {
    let (forest, selected) = forest();
    results(policy, &selected, policy.forward(&forest, &selected, 0.9).unwrap())
}

fn results(policy: &PolicyModel, selected: &SelectedPredictions, pass: PolicyPass<'_>) -> (Vec<f32>, Vec<f32>) {
    let gradients = policy.zero_gradients().unwrap();
    let logp = pass.stats().logp.clone();
    let d_logp: Vec<f32> = (0..selected.len()).map(|i| (i as f32 * 0.8).cos() + 0.5).collect();
    pass.backward(Derivatives::from_logp(&d_logp), &gradients).unwrap();
    (logp, gradients.named().into_iter().flat_map(|(_, g)| ops::to_vec(g).unwrap()).collect())
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn farthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn gradients_point_where_those_in_f32_do_and_are_the_same_when_layers_are_computed_again() {
    for (name, adapter) in MODELS.into_iter().flat_map(|name| [(name, false), (name, true)]) {
        let rounding = ComputeBackend::cpu_in(Precision::Bf16);
        let (wide, half) = (pass(&policy(name, &ComputeBackend::cpu(), adapter)), pass(&policy(name, &rounding, adapter)));
        // Log-probabilities of several nats, because these random models have low entropy.
        let off = wide.0.iter().zip(&half.0).map(|(a, b)| (a - b).abs()).sum::<f32>() / wide.0.len() as f32;
        let cosine = cosine(&wide.1, &half.1);
        assert!(off > 0.0 && off < 0.02, "{name}: log-probabilities are off by {off} in the mean");
        let least = match name {
            // Rounding may route a token near a tie to another expert.
            "qwen3_moe" => 0.99,
            // Scores that are not divided by the root of the heads' size are larger by it, and so is their rounding. Over six adapters,
            // cosines are 0.985 (this one) to 0.9992; transformers under autocast has 0.9968 with whole weights, and 0.9972 to 0.9987.
            "gemma4" | "gemma4_unified" => 0.98,
            _ => 0.999,
        };
        assert!(cosine > least, "{name}, adapter {adapter}: cosine {cosine}");
        let again = pass(&policy(name, &rounding, adapter).with_gradient_checkpointing(true));
        assert!(again == half, "{name}, adapter {adapter}: not the same bits when recomputed");
        assert!(pass(&policy(name, &rounding, adapter)) == half, "{name}, adapter {adapter}: not the same bits again");
    }
}

#[test]
fn a_pass_that_continues_that_of_its_prompts_has_the_same_bits() {
    if !ops::multiplies_bf16() {
        eprintln!("skipped: this processor can't multiply in bf16, and no pass is continued");
        return;
    }
    let long = |from: u32, count: u32| -> Vec<u32> { (0..count).map(|i| (from * 7 + i * 13) % 60 + 1).collect() };
    // The prompts of the generation, and the parts trained on: all of it, in another order with single-token completions; some prompts
    // only; and one completion of a single token, after which nothing is predicted.
    let asked = [long(1, 14), vec![5, 9, 2, 41, 7], vec![11]];
    let parts = [
        vec![(0, vec![long(2, 9), long(3, 14)]), (1, vec![vec![3, 1, 8], vec![30]]), (2, vec![vec![4, 4]])],
        vec![(2, vec![vec![9], long(5, 20)]), (0, vec![vec![30]])],
        vec![(1, vec![vec![8]])],
    ];
    let with = |name| [(name, false, false), (name, true, false)];
    for (name, adapter, dora) in FAMILIES.into_iter().chain(MODELS).flat_map(with).chain([("qwen3", true, true)]) {
        let policy = policy_with(name, &ComputeBackend::cpu_in(Precision::Bf16), adapter, dora);
        if policy.architecture().mixture.is_some() {
            assert!(!policy.continues_prompts(), "{name} has experts");
            continue;
        }
        assert!(policy.continues_prompts(), "{name}");
        let decoding = policy.frozen().decoding().unwrap();
        let mut prompts = Forest::new();
        for prompt in &asked {
            prompts.push(prompt, None);
        }
        for part in &parts {
            let part: Vec<(Vec<u32>, Vec<Vec<u32>>)> =
                part.iter().map(|(prompt, own)| (asked[*prompt].clone(), own.clone())).collect();
            let (forest, selected) = packed(&part);
            let want = results(&policy, &selected, policy.forward_learning(&forest, &selected, 0.9, 3, None).unwrap());
            let (caches, logits, known) = decoding.prefill_keeping(&prompts).unwrap();
            let pass = policy.forward_learning(&forest, &selected, 0.9, 3, Some(known)).unwrap();
            assert!(pass.known_work() > 0.0, "{name}: nothing was continued");
            let got = results(&policy, &selected, pass);
            assert!(got == want, "{name}, adapter {adapter}: other bits");
            let (others, other_logits) = decoding.prefill(&prompts).unwrap();
            assert_eq!((caches.len(), ops::to_vec(&logits).unwrap()), (others.len(), ops::to_vec(&other_logits).unwrap()));
        }
        // A prompt that was not generated for is computed, and so is a prompt of which more than the last token is scored.
        let other = packed(&[(long(4, 6), vec![vec![3, 1]])]);
        let mut scored = packed(&[(asked[1].clone(), vec![vec![3, 1]])]);
        scored.1.push_segment(&scored.0, 0);
        for (forest, selected) in [other, scored] {
            let (_, _, known) = decoding.prefill_keeping(&prompts).unwrap();
            let pass = policy.forward_learning(&forest, &selected, 0.9, 3, Some(known)).unwrap();
            assert!(pass.known_work() == 0.0);
            let want = policy.forward_learning(&forest, &selected, 0.9, 3, None).unwrap();
            assert!(results(&policy, &selected, pass) == results(&policy, &selected, want), "{name}");
        }
    }
}

#[test]
fn a_generation_gives_the_logits_of_a_pass() {
    let prompt = [5, 9, 2, 41, 7];
    for name in MODELS {
        let model = policy(name, &ComputeBackend::cpu_in(Precision::Bf16), false).frozen();
        let decoding = model.decoding().unwrap();
        let mut forest = Forest::new();
        forest.push(&prompt, None);
        let (caches, _) = decoding.prefill(&forest).unwrap();
        let mut own = decoding.empty_cache(16);
        let mut tokens = prompt.to_vec();
        for (at, token) in [3, 1, 8].into_iter().enumerate() {
            let positions = [(prompt.len() + at) as u32];
            let step = DecodeBatch {
                tokens: &[token],
                positions: &positions,
                counts: &[1],
                prompt_of: &[0],
                prompts: &[&caches[0]],
                own: &mut [&mut own],
            };
            let got = ops::to_vec(&decoding.decode(step).unwrap()).unwrap();
            tokens.push(token);
            let mut whole = Forest::new();
            whole.push(&tokens, None);
            let want = ops::to_vec(&model.logits(&whole, &[tokens.len() - 1]).unwrap()).unwrap();
            let size = want.iter().map(|x| x.abs()).fold(0.0, f32::max);
            let off = farthest(&got, &want);
            // Unscaled scores, as in Gemma 4, have a larger rounding error.
            let most = if name.starts_with("gemma4") { 0.04 } else { 0.02 };
            assert!(off < most * size.max(1.0), "{name}: logits of at most {size} are off by {off}");
        }
    }
}
