//! Frozen weights in fewer bits than f32, in which everything is computed: results are bit-identical to those with the same values in f32.

use crate::packed::packed;
use rlhost::model::{
    ComputeBackend, DecodeBatch, Decoder, Derivatives, FrozenModel, LoraSettings, ModelFolder, PolicyModel, SelectedPredictions,
    WeightDtype, WeightStorage, Weights, copy_companions, export,
};
use rlhost::ops::quantized::QuantizationScheme;
use rlhost::ops::{self, Forest};
use std::path::Path;
use tempfile::TempDir;

const LORA: LoraSettings = LoraSettings::new(4, 8.0);
const DORA: LoraSettings = LoraSettings { use_dora: true, ..LORA };

/// Models with biases, norms of heads, joined matrices, an MLP without a gate, compressed keys and values, layers of one part, and layers
/// that read others' keys or an input of their own, or have attention and a state space.
const MODELS: [&str; 8] =
    ["llama_biased", "qwen3", "phi3", "starcoder2", "deepseek_v3_dense", "nemotron_h_dense", "gemma4", "falcon_h1"];

fn fixture(name: &str) -> ModelFolder {
    ModelFolder::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(name)).unwrap()
}

/// Returns a model of the fixtures, stored in this precision.
fn stored(name: &str, dtype: WeightDtype) -> (TempDir, ModelFolder) {
    let to = tempfile::tempdir().unwrap();
    export(&fixture(name), to.path(), dtype).unwrap();
    copy_companions(fixture(name).path(), to.path()).unwrap();
    let folder = ModelFolder::open(to.path()).unwrap();
    (to, folder)
}

/// Returns a policy with a nonzero adapter on a model whose weights are stored in this form.
fn adapted(lora: LoraSettings, folder: &ModelFolder, held: WeightStorage) -> PolicyModel {
    let base = folder.clone().with_weight_storage(held).decoder().unwrap();
    over(lora, base, folder)
}

fn over(lora: LoraSettings, base: Decoder, folder: &ModelFolder) -> PolicyModel {
    let targets: Vec<String> = folder.architecture().modules().iter().map(|name| (*name).to_owned()).collect();
    let policy = PolicyModel::new(base.with_new_adapter(lora, &targets, 3).unwrap()).on_backend(&ComputeBackend::cpu()).unwrap();
    for (name, t) in policy.weights().trained().iter().filter(|(name, _)| name.ends_with("lora_B.weight")) {
        ops::write(t, |b| b.iter_mut().enumerate().for_each(|(i, b)| *b = ((i + name.len()) as f32).sin() * 0.05)).unwrap();
    }
    policy
}

fn forest() -> (Forest, SelectedPredictions) {
    packed(&[(vec![5, 9, 2, 41, 7], vec![vec![3, 1, 8, 20], vec![30, 11]])])
}

/// Results of a pass.
#[derive(PartialEq)]
struct PassResults {
    logp: Vec<f32>,
    entropy: Vec<f32>,
    gradients: Vec<(String, Vec<f32>)>,
}

fn pass(policy: &PolicyModel) -> PassResults {
    let (forest, selected) = forest();
    let gradients = policy.zero_gradients().unwrap();
    let d_logp: Vec<f32> = (0..selected.len()).map(|i| (i as f32 * 0.8).cos()).collect();
    let pass = policy.forward(&forest, &selected, 0.9).unwrap();
    let stats = pass.stats().clone();
    pass.backward(Derivatives { logp: Some(&d_logp), entropy: Some(&d_logp), ..Derivatives::default() }, &gradients).unwrap();
    let gradients = gradients.named().into_iter().map(|(name, g)| (name, ops::to_vec(g).unwrap())).collect();
    PassResults { logp: stats.logp, entropy: stats.entropy, gradients }
}

/// Returns the logits after a prompt, and after three further tokens.
fn decoded(model: &FrozenModel) -> Vec<f32> {
    let decoding = model.decoding().unwrap();
    let mut prompt = Forest::new();
    prompt.push(&[5, 9, 2, 41, 7], None);
    let (caches, logits) = decoding.prefill(&prompt).unwrap();
    let (mut own, mut all) = (decoding.empty_cache(16), ops::to_vec(&logits).unwrap());
    for (at, token) in [3, 1, 8].into_iter().enumerate() {
        let step = DecodeBatch {
            tokens: &[token],
            positions: &[5 + at as u32],
            counts: &[1],
            prompt_of: &[0],
            prompts: &[&caches[0]],
            own: &mut [&mut own],
        };
        all.extend(ops::to_vec(&decoding.decode(step).unwrap()).unwrap());
    }
    all
}

fn bytes(weights: &Weights) -> usize {
    weights.bytes(|name| !name.contains(".lora_"))
}

#[test]
fn a_base_in_half_precision_gives_every_bit_of_a_pass_and_of_a_generation_in_half_the_memory() {
    let all = MODELS
        .into_iter()
        .flat_map(|name| [(name, WeightDtype::Bf16, LORA), (name, WeightDtype::F16, LORA), (name, WeightDtype::Bf16, DORA)]);
    for (name, dtype, lora) in all {
        let (_place, folder) = stored(name, dtype);
        assert_eq!(folder.stored_in().unwrap(), Some(dtype));
        let (half, wide) = (adapted(lora, &folder, WeightStorage::AS_STORED), adapted(lora, &folder, WeightStorage::default()));
        let (least, most) = (bytes(half.weights()), bytes(wide.weights()));
        assert!(10 * least < 6 * most, "{name}: {least} bytes against {most}");
        assert_eq!(half.weights().parameters(), wide.weights().parameters());
        assert!(pass(&half) == pass(&wide), "{name} in {dtype:?}");
        let recomputing = adapted(lora, &folder, WeightStorage::AS_STORED).with_gradient_checkpointing(true);
        assert!(pass(&recomputing) == pass(&wide), "{name} in {dtype:?}, recomputing");

        let model = |held| FrozenModel::new(folder.clone().with_weight_storage(held).decoder().unwrap());
        assert!(decoded(&model(WeightStorage::AS_STORED)) == decoded(&model(WeightStorage::default())), "{name} in {dtype:?}");
        let copied = |held| model(held).decoding().unwrap().copied_bytes();
        assert!(
            copied(WeightStorage::AS_STORED) < copied(WeightStorage::default()) / 4,
            "{name}: the weights were copied for generation"
        );
        // With an adapter, one adds its products, the other merges it into a copy of the weights.
        let (half, wide) = (half.frozen(), wide.frozen());
        let (got, want) = (decoded(&half), decoded(&wide));
        let most = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(most < 1e-5 && got.len() == want.len(), "{name} in {dtype:?}: {most}");
    }
}

#[test]
fn a_quantized_base_gives_every_bit_of_its_values_in_f32() {
    for (name, lora) in MODELS.into_iter().flat_map(|name| [(name, LORA), (name, DORA)]) {
        let folder = fixture(name);
        let wide = adapted(lora, &folder, WeightStorage::default());
        let logp = pass(&wide).logp;
        let far = [QuantizationScheme::Int8, QuantizationScheme::Nf4].map(|scheme| {
            let few = adapted(lora, &folder, WeightStorage { scheme: Some(scheme), ..WeightStorage::default() });
            assert_eq!(few.weights().parameters(), wide.weights().parameters(), "{name} in {scheme:?}");
            let layers = |weights: &Weights| weights.bytes(|name| name.contains("layers.") && !name.contains(".lora_"));
            let (least, most) = (layers(few.weights()), layers(wide.weights()));
            assert!(least < most / 2, "{name} in {scheme:?}: {least} bytes against {most}");

            // The dequantized values, in f32.
            let plain = few.weights().without_adapter().merged().unwrap();
            assert!(plain.named().iter().all(|(_, t)| t.dtype() == candle_core::DType::F32));
            let same = over(lora, Decoder::new(folder.architecture().clone(), plain), &folder);
            assert!(pass(&few) == pass(&same), "{name} in {scheme:?}");
            let base = |policy: &PolicyModel| {
                let weights = policy.weights().without_adapter();
                FrozenModel::new(Decoder::new(folder.architecture().clone(), weights))
            };
            assert!(decoded(&base(&few)) == decoded(&base(&same)), "{name} in {scheme:?}");
            pass(&few).logp.iter().zip(&logp).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        });
        assert!(far[0] > 0.0 && far[0] < far[1], "{name}: {far:?}");
    }
}

#[test]
fn weights_that_are_trained_become_f32_and_a_reference_stays_as_it_is_stored() {
    let (_place, folder) = stored("qwen3", WeightDtype::Bf16);
    let held = folder.clone().with_weight_storage(WeightStorage::AS_STORED).decoder().unwrap();
    let policy = PolicyModel::new(held.clone()).on_backend(&ComputeBackend::cpu()).unwrap();
    assert!(policy.weights().named().iter().all(|(_, t)| t.dtype() == candle_core::DType::F32));
    let wide = PolicyModel::new(folder.decoder().unwrap());
    assert!(pass(&policy) == pass(&wide));
    let reference = FrozenModel::new(held.unshared().unwrap());
    let scored = |model: &FrozenModel| {
        let (forest, selected) = forest();
        model.score(&forest, &selected, 0.9).unwrap().logp
    };
    let before = scored(&reference);
    assert!(before == scored(&policy.frozen()));
    for (_, t) in policy.weights().trained() {
        ops::fill_zero(t).unwrap();
    }
    assert!(scored(&reference) == before, "the reference shares storage with what is trained");
    // A reference that follows the policy has more digits than bf16.
    let mixed = reference.mixed(policy.weights(), 0.3).unwrap();
    assert!(mixed.weights().named().iter().all(|(_, t)| t.dtype() == candle_core::DType::F32));
}

#[test]
fn weights_are_rounded_where_that_is_asked_for_and_refused_where_they_do_not_fit() {
    let folder = fixture("llama");
    let held = |dtype| WeightStorage { dtype: Some(dtype), scheme: None };
    let rounded = folder.clone().with_weight_storage(held(WeightDtype::Bf16)).decoder().unwrap();
    let (_place, exported) = stored("llama", WeightDtype::Bf16);
    let same = exported.with_weight_storage(WeightStorage::AS_STORED).decoder().unwrap();
    for ((name, a), (_, b)) in rounded.weights().named().into_iter().zip(same.weights().named()) {
        if a.dims().len() > 1 {
            assert_eq!(a.dtype(), candle_core::DType::BF16, "{name}");
            assert!(ops::to_vec(a).unwrap() == ops::to_vec(b).unwrap(), "{name}");
        }
    }
    let place = tempfile::tempdir().unwrap();
    std::fs::copy(folder.path().join("config.json"), place.path().join("config.json")).unwrap();
    let weights = folder.decoder().unwrap();
    ops::write(&weights.weights().embedding, |values| values[3] = 1e6).unwrap();
    rlhost::model::write_weights(weights.weights(), &place.path().join("model.safetensors")).unwrap();
    let large = ModelFolder::open(place.path()).unwrap();
    large.clone().with_weight_storage(held(WeightDtype::Bf16)).decoder().unwrap();
    let refusal = large.with_weight_storage(held(WeightDtype::F16)).decoder().unwrap_err().to_string();
    assert!(refusal.contains("too large for float16") && refusal.contains("embed"), "{refusal}");
}
