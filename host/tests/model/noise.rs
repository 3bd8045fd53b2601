//! Noise on embeddings in training: a pass with noise equals one without it over embeddings that the noise has shifted.

use crate::packed::packed;
use candle_core::{DType, Device, Tensor};
use rlhost::model::{Decoder, Derivatives, ModelFolder, PolicyModel, SelectedPredictions};
use rlhost::ops::dropout::mixed_bits;
use rlhost::ops::noise::UniformNoise;
use rlhost::ops::{self, Forest};
use std::path::Path;

const KEY: u64 = 5;
const ALPHA: f64 = 5.0;

/// Returns texts in which no token occurs twice, so that a position's noise can be added to its token's embedding.
fn forest() -> (Forest, SelectedPredictions) {
    packed(&[(vec![5, 9, 2, 41, 7], vec![vec![3, 1, 8, 20], vec![60, 11]]), (vec![12], vec![vec![13, 14, 15]])])
}

/// Lengths of the longest texts that contain each token of [`forest`].
const LENGTHS: [usize; 15] = [9, 9, 9, 9, 9, 9, 9, 9, 9, 7, 7, 4, 4, 4, 4];

/// Returns a policy whose embeddings are multiplied after the noise was added, as transformers does for Granite.
fn policy(name: &str) -> PolicyModel {
    let folder = ModelFolder::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(name)).unwrap();
    let mut architecture = folder.architecture().clone();
    architecture.factors.embedding = 3.0;
    PolicyModel::new(Decoder::new(architecture, folder.decoder().unwrap().weights().clone()))
}

/// Returns log-probabilities, and the gradient of a weighted sum of them.
fn learned(policy: &PolicyModel, key: Option<u64>) -> (Vec<f32>, Vec<(String, Vec<f32>)>) {
    let (forest, selected) = forest();
    let d_logp: Vec<f32> = (0..selected.len()).map(|i| (i as f32 * 0.8).cos()).collect();
    let gradients = policy.zero_gradients().unwrap();
    let pass = match key {
        Some(key) => policy.forward_learning(&forest, &selected, 1.0, key, None).unwrap(),
        None => policy.forward(&forest, &selected, 1.0).unwrap(),
    };
    let logp = pass.stats().logp.clone();
    pass.backward(Derivatives::from_logp(&d_logp), &gradients).unwrap();
    (logp, gradients.named().into_iter().map(|(name, t)| (name, ops::to_vec(t).unwrap())).collect())
}

fn close(got: &[f32], want: &[f32], what: &str) {
    let size = want.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
    assert_eq!(got.len(), want.len(), "{what}");
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() < 1e-5 * size, "{what}: {got} and {want} of {size}");
    }
}

#[test]
fn a_pass_with_noise_is_one_over_embeddings_that_it_has_moved() {
    for name in ["llama_biased", "granitemoeshared", "gpt_neox"] {
        let noised = policy(name).with_noise(ALPHA);
        let (forest, _) = forest();
        let embedding = &noised.weights().embedding;
        let (_, width) = embedding.dims2().unwrap();
        assert_eq!(forest.lengths_of_texts(), LENGTHS);
        let bounds = LENGTHS.map(|length| (ALPHA / (length as f64 * width as f64).sqrt()) as f32);
        let noise = Tensor::zeros((forest.len(), width), DType::F32, &Device::Cpu).unwrap();
        let key = mixed_bits(KEY ^ mixed_bits(u64::MAX));
        UniformNoise { rows: &forest.texts(), bounds: &bounds, key }.add_to(&noise).unwrap();
        let noise = ops::to_vec(&noise).unwrap();

        let moved = policy(name);
        assert!(!moved.architecture().tied, "{name}: an output matrix that is the embedding would be moved, too");
        ops::write(&moved.weights().embedding, |values| {
            for (noise, token) in noise.chunks(width).zip(forest.tokens()) {
                let row = &mut values[*token as usize * width..][..width];
                row.iter_mut().zip(noise).for_each(|(x, noise)| *x += noise);
            }
        })
        .unwrap();
        let (got, want) = (learned(&noised, Some(KEY)), learned(&moved, None));
        close(&got.0, &want.0, name);
        for ((parameter, got), (_, want)) in got.1.iter().zip(&want.1) {
            close(got, want, &format!("{name}, {parameter}"));
        }

        let plain = learned(&policy(name), None);
        assert!(learned(&noised, None) == plain, "{name}: a pass without a key has no noise");
        assert!(learned(&noised, Some(KEY + 1)).0 != got.0 && plain.0 != got.0, "{name}");
        let again = policy(name).with_noise(ALPHA).with_gradient_checkpointing(true);
        assert!(learned(&again, Some(KEY)) == got, "{name}: layers that run again have the same");
    }
}
