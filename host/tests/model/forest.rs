//! Compares the forest batch and the hand-written backward pass with the naive form: every row padded to the longest, prompts repeated,
//! with candle's own differentiable operations and its autograd.

mod naive;
mod recurrent;
mod varied;

use crate::families::FAMILIES;
use crate::packed::packed;
use candle_core::{DType, Device, Result, Tensor, Var};
use naive::{NaiveDecoder, unevenness};
use rlhost::model::{
    Architecture, Derivatives, ExpertStacks, Family, Gradients, LearningOptions, Linear, LoraSettings, ModelFolder, ModelPart,
    PassDirection, PassObserver, PolicyModel, ValueHeadInit, Weights,
};
use rlhost::ops;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

const TEMPERATURE: f64 = 0.8;

/// Settings of an adapter, and its factor: alpha divided by the square root of the rank.
const LORA: LoraSettings = LoraSettings { use_rslora: true, ..LoraSettings::new(4, 3.0) };
const LORA_SCALE: f64 = 1.5;

/// Returns prompts, each with its completions.
fn texts() -> Vec<(Vec<u32>, Vec<Vec<u32>>)> {
    let text = |seed: u32, len: u32| (0..len).map(|i| (seed * 31 + i * i * 7 + i * 13) % 96).collect::<Vec<u32>>();
    vec![
        // Longer than a block of queries, so that adjacent blocks interact.
        (text(1, 70), vec![text(2, 5), text(3, 1), text(4, 67)]),
        (text(5, 1), vec![text(6, 9), text(7, 3)]),
        (text(8, 12), vec![text(9, 4)]),
    ]
}

fn policy(name: &str) -> (PolicyModel, Architecture) {
    let folder = ModelFolder::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(name)).unwrap();
    // Positions beyond the fixture's context are allowed: the rotation has no limit of its own, and a table of positions is long enough.
    let mut architecture = folder.architecture().clone();
    architecture.max_positions = 256;
    let weights = folder.decoder().unwrap().weights().copied().unwrap();
    (PolicyModel::new(rlhost::model::Decoder::new(architecture.clone(), weights)), architecture)
}

/// Derivatives of a synthetic loss with respect to this many log-probabilities, entropies and values: the coefficients in the sum of
/// `c * logp + e * entropy + v * value` over completion tokens.
type LossDerivatives = fn(usize) -> (Vec<f32>, Vec<f32>, Vec<f32>);

fn coefficients(n: usize) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let wave = |f: f32| move |i: usize| (i as f32 * f).sin();
    let column = |f: &dyn Fn(usize) -> f32| (0..n).map(f).collect();
    (column(&|i| wave(0.7)(i) + 0.2), column(&|i| 0.3 * wave(1.3)(i)), column(&|i| 0.5 * wave(0.9)(i) - 0.1))
}

/// Returns the weights with a critic's head that is not zero.
fn with_critic(mut weights: Weights, a: &Architecture) -> Weights {
    let head: Vec<f32> = (0..a.hidden_size).map(|i| (i as f32 * 0.37).cos() * 0.2).collect();
    let weight = Tensor::from_vec(head, (1, a.hidden_size), &Device::Cpu).unwrap();
    weights.value_head = Some(Linear::new(weight, Some(Tensor::new(&[0.3f32], &Device::Cpu).unwrap())));
    weights
}

/// Results of the naive form.
struct NaiveOutputs {
    logp: Vec<f32>,
    entropy: Vec<f32>,
    values: Vec<f32>,
    aux_loss: Option<f64>,
    gradients: HashMap<String, Tensor>,
}

/// Computes the naive padded form of the loss that all tests share.
fn naive(a: &Architecture, weights: &Weights) -> Result<NaiveOutputs> {
    naive_of(a, weights, coefficients)
}

/// Computes the naive padded form of a loss with these derivatives.
fn naive_of(a: &Architecture, weights: &Weights, derivatives: LossDerivatives) -> Result<NaiveOutputs> {
    naive_with(a, weights, derivatives, 0.0)
}

/// Computes the naive padded form of a loss with these derivatives, with the auxiliary loss of experts at weight `aux`.
fn naive_with(a: &Architecture, weights: &Weights, derivatives: LossDerivatives, aux: f64) -> Result<NaiveOutputs> {
    let vars: HashMap<String, Var> =
        weights.named().into_iter().map(|(n, t)| Ok((n, Var::from_tensor(&t.copy()?)?))).collect::<Result<_>>()?;
    // This parameter is only compared with, so it has no gradient.
    let has_gradient = |name: &str| {
        !name.ends_with("e_score_correction_bias") && !name.ends_with("expert_bias") && !name.ends_with("layer_scalar")
    };
    let rows: Vec<(usize, Vec<u32>)> =
        texts().into_iter().flat_map(|(p, cs)| cs.into_iter().map(move |c| (p.len(), [p.clone(), c].concat()))).collect();
    let longest = rows.iter().map(|(_, r)| r.len()).max().unwrap_or(0);
    let padded: Vec<u32> = rows.iter().flat_map(|(_, r)| r.iter().copied().chain(std::iter::repeat(0)).take(longest)).collect();
    let ids = Tensor::from_vec(padded, (rows.len(), longest), &Device::Cpu)?;
    let naive = NaiveDecoder { a, vars: &vars, routed: RefCell::default(), known: RefCell::default() };
    let (all, valued) = naive.forward(&ids)?;
    let (mut logp, mut entropy, mut values) = (Vec::new(), Vec::new(), Vec::new());
    for (i, (prompt, row)) in rows.iter().enumerate() {
        let n = row.len() - prompt;
        let predictions = all.get(i)?.narrow(0, prompt - 1, n)?.contiguous()?;
        let targets = Tensor::from_slice(&row[*prompt..], (n, 1), &Device::Cpu)?;
        logp.push(predictions.gather(&targets, 1)?.squeeze(1)?);
        entropy.push((predictions.exp()? * &predictions)?.sum(1)?.neg()?);
        values.push(valued.get(i)?.narrow(0, prompt - 1, n)?);
    }
    let (logp, entropy, values) = (Tensor::cat(&logp, 0)?, Tensor::cat(&entropy, 0)?, Tensor::cat(&values, 0)?);
    let (c, e, v) = derivatives(logp.elem_count());
    let weigh = |t: &Tensor, by: Vec<f32>| (t * Tensor::from_vec(by, t.shape(), &Device::Cpu)?)?.sum_all();
    let mut loss = ((weigh(&logp, c)? + weigh(&entropy, e)?)? + weigh(&values, v)?)?;
    let mut aux_loss = None;
    if aux > 0.0 {
        let lengths: Vec<usize> = rows.iter().map(|(_, row)| row.len()).collect();
        let uneven = unevenness(&naive.routed.borrow(), &lengths, longest)?;
        aux_loss = Some(f64::from(uneven.to_scalar::<f32>()?));
        loss = (loss + (uneven * aux)?)?;
    }
    let grads = loss.backward()?;
    let gradients = vars
        .iter()
        .filter(|(n, _)| has_gradient(n))
        .map(|(n, v)| (n.clone(), grads.get(v).expect("candle gives every parameter a gradient").clone()))
        .collect();
    Ok(NaiveOutputs { logp: logp.to_vec1()?, entropy: entropy.to_vec1()?, values: values.to_vec1()?, aux_loss, gradients })
}

/// Returns the largest difference relative to the largest magnitude.
fn relative(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let size = want.iter().fold(0f32, |m, x| m.max(x.abs()));
    got.iter().zip(want).fold(0f32, |m, (g, w)| m.max((g - w).abs())) / size.max(1e-30)
}

impl NaiveOutputs {
    fn gradient(&self, parameter: &str) -> Vec<f32> {
        self.gradients[parameter].flatten_all().unwrap().to_vec1().unwrap()
    }
}

/// Compares gradients with those of the naive form, and returns the values of the former.
fn compared(name: &str, gradients: &Gradients, want: &NaiveOutputs) -> Vec<(String, Vec<f32>)> {
    let compare = |(parameter, gradient): (String, &Tensor)| {
        let got = ops::to_vec(gradient).unwrap();
        let difference = relative(&got, &want.gradient(&parameter));
        assert!(difference <= 1e-5, "{name}: gradient of {parameter} differs by {difference}");
        (parameter, got)
    };
    gradients.named().into_iter().map(compare).collect()
}

#[test]
fn log_probabilities_and_all_gradients_equal_the_naive_padded_form() {
    let plain = ["llama", "llama_biased", "qwen2", "qwen3", "llama, windows", "qwen3, windows", "mistral", "smollm3"];
    for name in plain.into_iter().chain(FAMILIES) {
        let (policy, mut a) = policy(name.split(',').next().unwrap());
        // One window is shorter than a completion; the other is longer than a block, and than some prompts.
        if name.ends_with("windows") {
            a.windows = [Some(3), Some(69)].into_iter().cycle().take(a.layers).collect();
        }
        let weights = with_critic(policy.weights().copied().unwrap(), &a);
        let policy = PolicyModel::new(rlhost::model::Decoder::new(a.clone(), weights));
        let want = naive(&a, policy.weights()).unwrap();
        let (forest, selected) = packed(&texts());
        let pass = policy.forward(&forest, &selected, TEMPERATURE as f32).unwrap();
        let (logp, entropy) = (pass.stats().logp.clone(), pass.stats().entropy.clone());
        let values = pass.values().unwrap().to_vec();
        for (what, got, want) in
            [("log-probabilities", &logp, &want.logp), ("entropies", &entropy, &want.entropy), ("values", &values, &want.values)]
        {
            assert!(relative(got, want) <= 1e-5, "{name}: {what} differ by {}", relative(got, want));
        }

        let gradients = policy.zero_gradients().unwrap();
        let (c, e, v) = coefficients(logp.len());
        pass.backward(Derivatives { logp: Some(&c), entropy: Some(&e), values: Some(&v), ..Derivatives::default() }, &gradients)
            .unwrap();
        for (parameter, got) in compared(name, &gradients, &want) {
            assert!(got.iter().all(|g| g.is_finite()) && got.iter().any(|g| *g != 0.0), "{name}: {parameter} has no gradient");
        }

        let scored = policy.frozen().score(&forest, &selected, TEMPERATURE as f32).unwrap();
        assert_eq!(scored.logp, logp, "{name}: the frozen view gives the same bits");
        assert_eq!(policy.frozen().values(&forest, &selected.rows).unwrap().unwrap(), values, "{name}: of values too");
    }
}

/// Returns whether keys of a layer also serve as values.
fn values_are_keys(a: &Architecture, layer: usize) -> bool {
    a.varied.as_ref().is_some_and(|varied| varied.keys_are_values && varied.whole[layer])
}

/// Returns the number of a layer's linear maps to which this many targets refer.
fn maps(a: &Architecture, layer: usize, targets: usize) -> usize {
    match a.family {
        // Two maps have the same short name.
        Family::Gpt2 => targets + 1,
        // Two projections around a convolution and three of the MLP; or those of queries, keys and values, and four others.
        Family::Lfm2 => {
            if a.is_recurrent(layer) {
                5
            } else {
                7
            }
        }
        // Five projections around a network, or four around attention, and three of the MLP.
        Family::Qwen3_5 if a.is_recurrent(layer) => 8,
        Family::Qwen3_5 => 7,
        // As above, without MLPs: a mixture's adapter leaves them alone.
        Family::Lfm2Moe if a.is_recurrent(layer) => 2,
        // All maps but those of keys and values, if these are another layer's; those of the layer's own input, and the one before them.
        Family::Gemma4 | Family::Gemma4Unified => {
            let own = if a.key_source(layer).is_some() { 0 } else { 1 + usize::from(!values_are_keys(a, layer)) };
            let inputs = if a.layer_input_width().is_some() { 2 + usize::from(layer == 0) } else { 0 };
            5 + own + inputs
        }
        // Two projections around a state space, or four around attention, and two of the MLP.
        Family::GraniteMoeHybrid if a.is_recurrent(layer) => 4,
        Family::GraniteMoeHybrid => 6,
        // One projection that reads the state space's input, two of an MLP, or four around attention.
        // One projection that reads the state space's input, four around attention, and three of the MLP.
        Family::FalconH1 => 8,
        Family::NemotronH if a.is_recurrent(layer) => 1,
        Family::NemotronH => {
            if a.feeds(layer) {
                2
            } else {
                4
            }
        }
        Family::Qwen3Next if a.is_recurrent(layer) => 3,
        Family::Qwen3_5Moe if a.is_recurrent(layer) => 5,
        Family::Lfm2Moe | Family::Qwen3_5Moe | Family::Qwen3Next => 4,
        // Names of compressed queries, and of those that are not.
        Family::DeepseekV2 | Family::DeepseekV3 if a.latent.is_some_and(|latent| latent.query_rank.is_none()) => targets - 2,
        Family::DeepseekV2 | Family::DeepseekV3 => targets - 1,
        _ => targets,
    }
}

/// Returns the short names of all linear maps that an adapter can apply to, except those of experts.
fn targets(a: &Architecture) -> Vec<String> {
    let all: &[&str] = match a.family {
        Family::DeepseekV2 | Family::DeepseekV3 if a.mixture.is_some() => {
            &["q_a_proj", "q_b_proj", "q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
        }
        Family::DeepseekV3 => {
            &["q_a_proj", "q_b_proj", "q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        }
        Family::Gemma4 if a.layer_input_width().is_some() => &[
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_proj",
            "up_proj",
            "down_proj",
            "per_layer_input_gate",
            "per_layer_projection",
            "per_layer_model_projection",
        ],
        Family::Glm4 => &["q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"],
        Family::Phi3 => &["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
        Family::Starcoder2 => &["q_proj", "k_proj", "v_proj", "o_proj", "c_fc", "c_proj"],
        Family::Gpt2 => &["c_attn", "c_proj", "c_fc"],
        Family::GraniteMoeHybrid => {
            &["in_proj", "out_proj", "q_proj", "k_proj", "v_proj", "o_proj", "input_linear", "output_linear"]
        }
        Family::GraniteMoeShared => &["q_proj", "k_proj", "v_proj", "o_proj", "input_linear", "output_linear"],
        Family::FalconH1 => &["in_proj", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        Family::Llama4 => &["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        Family::Lfm2 => &["in_proj", "out_proj", "q_proj", "k_proj", "v_proj", "w1", "w2", "w3"],
        Family::Lfm2Moe => &["in_proj", "out_proj", "q_proj", "k_proj", "v_proj"],
        Family::NemotronH => &["in_proj", "q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"],
        Family::Qwen3Next => &["in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj", "k_proj", "v_proj", "o_proj"],
        Family::Qwen3_5Moe => {
            &["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj", "q_proj", "k_proj", "v_proj", "o_proj"]
        }
        Family::Qwen3_5 => &[
            "in_proj_qkv",
            "in_proj_z",
            "in_proj_b",
            "in_proj_a",
            "out_proj",
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_proj",
            "up_proj",
            "down_proj",
        ],
        _ if a.mixture.is_some() => &["q_proj", "k_proj", "v_proj", "o_proj"],
        Family::GptNeoX => &["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
        _ => &["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    };
    all.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn an_adapter_and_a_critic_are_all_that_has_gradients_and_they_equal_the_naive_form() {
    let plain = ["llama", "qwen2", "qwen3", "smollm3"].into_iter().chain(FAMILIES).map(|name| (name, LORA));
    // Layers with biases, joined and transposed matrices, and MLPs without a gate.
    let directed = ["llama", "qwen2", "phi3", "gpt2"].map(|name| (name, LoraSettings { use_dora: true, ..LORA }));
    let both = ExpertStacks { wide: true, down: true, router: false };
    let all = ExpertStacks { router: true, ..both };
    let stacked =
        [("qwen3_moe", all), ("mixtral", ExpertStacks { wide: false, ..both }), ("granitemoeshared", both), ("nemotron_h", all)];
    let stacked = stacked.map(|(name, stacks)| (name, LoraSettings { stacks, ..LORA }));
    for (name, lora) in plain.chain(directed).chain(stacked) {
        let (policy, a) = policy(name);
        let targets = if name == "qwen2" { vec!["v_proj".to_owned(), "down_proj".to_owned()] } else { targets(&a) };
        let weights = with_critic(policy.weights().copied().unwrap(), &a).with_new_adapter(lora, &targets, 7).unwrap();
        // Initially, B and therefore the gradient of A are zero, and magnitudes are lengths.
        let weights = weights.map(|name, t| {
            let wave: Vec<f32> = (0..t.elem_count()).map(|i| (i as f32 * 0.61).sin() * 0.1).collect();
            match name {
                _ if name.ends_with("lora_B.weight") => Tensor::from_vec(wave, t.shape(), &Device::Cpu),
                _ if name.ends_with("lora_magnitude_vector") => t + Tensor::from_vec(wave, t.shape(), &Device::Cpu)?,
                _ => Ok(t.clone()),
            }
        });
        let policy = PolicyModel::new(rlhost::model::Decoder::new(a.clone(), weights.unwrap()));
        let want = naive(&a, policy.weights()).unwrap();
        let (forest, selected) = packed(&texts());
        let pass = policy.forward(&forest, &selected, TEMPERATURE as f32).unwrap();
        for (what, got, want) in [("logp", &pass.stats().logp, &want.logp), ("entropy", &pass.stats().entropy, &want.entropy)] {
            assert!(relative(got, want) <= 1e-5, "{name}: {what} differs by {}", relative(got, want));
        }

        let gradients = policy.zero_gradients().unwrap();
        let (c, e, v) = coefficients(selected.len());
        pass.backward(Derivatives { logp: Some(&c), entropy: Some(&e), values: Some(&v), ..Derivatives::default() }, &gradients)
            .unwrap();
        let trained: Vec<String> = gradients.named().into_iter().map(|(name, _)| name).collect();
        let maps: usize = (0..a.layers).map(|layer| maps(&a, layer, targets.len())).sum();
        let sparse = a.mixture.as_ref().map_or(0, |mixture| mixture.sparse.iter().filter(|sparse| **sparse).count());
        let ExpertStacks { wide, down, router } = lora.stacks;
        let stacks = sparse * [wide, down, router].map(usize::from).iter().sum::<usize>();
        assert_eq!(trained.len(), (2 + usize::from(lora.use_dora)) * maps + 2 * stacks + 2, "{trained:?}");
        assert!(trained.iter().all(|name| name.contains(".lora_") || name.starts_with("value_head.")), "{trained:?}");
        for (parameter, got) in compared(name, &gradients, &want) {
            assert!(got.iter().any(|g| *g != 0.0), "{name}: {parameter} has no gradient");
        }
    }
}

#[test]
fn a_value_model_has_the_naive_forms_values_and_gradients_and_nothing_of_a_policys_loss() {
    let of_values = |n: usize| (vec![0.0; n], vec![0.0; n], coefficients(n).2);
    for name in ["llama", "qwen2", "qwen3"].into_iter().chain(FAMILIES) {
        let folder =
            ModelFolder::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models").join(name)).unwrap();
        let decoder = folder.value_model_over(folder.trunk().unwrap(), ValueHeadInit::Zero).unwrap();
        assert!(decoder.weights().head.is_none(), "{name} has an output matrix");
        // Positions beyond the fixture's context, as above.
        let a = Architecture { max_positions: 256, tied: true, ..folder.architecture().clone() };
        let mut weights = with_critic(decoder.weights().clone(), &a);
        let head = weights.value_head.as_mut().unwrap();
        head.bias = None;
        let decoder = rlhost::model::Decoder::new(a.clone(), weights);
        let model = PolicyModel::new(decoder);
        let want = naive_of(&a, model.weights(), of_values).unwrap();
        let (forest, selected) = packed(&texts());
        let pass = model.forward_values(&forest, &selected.rows, None, None).unwrap();
        assert_eq!(pass.values(), model.frozen().values(&forest, &selected.rows).unwrap().unwrap());
        assert!(relative(pass.values(), &want.values) <= 1e-5, "{name}: values");
        let gradients = model.zero_gradients().unwrap();
        pass.backward(&of_values(selected.len()).2, &gradients).unwrap();
        for (parameter, got) in compared(name, &gradients, &want) {
            assert!(got.iter().any(|g| *g != 0.0), "{name}: {parameter} has no gradient");
        }
    }
}

/// Returns derivatives of an episode's loss, 0 for the tokens of replies.
fn of_turns(n: usize) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let turns = |column: Vec<f32>| column.into_iter().enumerate().map(|(i, d)| if i % 7 < 3 { d } else { 0.0 }).collect();
    let (c, e, v) = coefficients(n);
    (turns(c), turns(e), turns(v))
}

#[test]
fn gradients_of_episodes_equal_the_naive_form_in_which_replies_have_no_loss() {
    for name in ["llama", "qwen3"] {
        let (policy, a) = policy(name);
        let policy =
            PolicyModel::new(rlhost::model::Decoder::new(a.clone(), with_critic(policy.weights().copied().unwrap(), &a)));
        let want = naive_of(&a, policy.weights(), of_turns).unwrap();
        let all = naive(&a, policy.weights()).unwrap();
        let (forest, selected) = packed(&texts());
        let pass = policy.forward(&forest, &selected, TEMPERATURE as f32).unwrap();
        let gradients = policy.zero_gradients().unwrap();
        let (c, e, v) = of_turns(selected.len());
        pass.backward(Derivatives { logp: Some(&c), entropy: Some(&e), values: Some(&v), ..Derivatives::default() }, &gradients)
            .unwrap();
        for (parameter, got) in compared(name, &gradients, &want) {
            assert!(relative(&got, &all.gradient(&parameter)) > 1e-3, "{name}: {parameter} has the gradient of replies, too");
        }
    }
}

#[test]
fn running_layers_again_on_the_way_back_changes_no_bit() {
    for name in ["llama_biased", "qwen3"].into_iter().chain(FAMILIES) {
        let gradients = |on: bool| {
            let policy = policy(name).0.with_gradient_checkpointing(on);
            let (forest, selected) = packed(&texts());
            let (c, e, _) = coefficients(selected.len());
            let gradients = policy.zero_gradients().unwrap();
            policy
                .forward(&forest, &selected, 1.0)
                .unwrap()
                .backward(Derivatives { logp: Some(&c), entropy: Some(&e), ..Derivatives::default() }, &gradients)
                .unwrap();
            gradients.named().into_iter().map(|(name, t)| (name, ops::to_vec(t).unwrap())).collect::<Vec<_>>()
        };
        assert!(gradients(true) == gradients(false), "{name}");
    }
}

/// Copies the gradients of each part that a backward pass completes.
struct PartGradientRecorder<'a> {
    weights: &'a Weights,
    gradients: &'a Gradients,
    seen: RefCell<Vec<(ModelPart, Vec<Vec<f32>>)>>,
}

impl PartGradientRecorder<'_> {
    fn part_gradients(&self, part: ModelPart) -> Vec<Vec<f32>> {
        let own = self.gradients.named().into_iter().filter(|(name, _)| self.weights.part_of(name) == part);
        own.map(|(_, t)| ops::to_vec(t).unwrap()).collect()
    }
}

impl PassObserver for PartGradientRecorder<'_> {
    fn enter(&self, _direction: PassDirection, _part: ModelPart) -> rlhost::model::Result<()> {
        Ok(())
    }

    fn leave(&self, direction: PassDirection, part: ModelPart) -> rlhost::model::Result<()> {
        if direction == PassDirection::Backward {
            self.seen.borrow_mut().push((part, self.part_gradients(part)));
        }
        Ok(())
    }
}

#[test]
fn a_gradient_changes_no_more_once_its_part_is_left() {
    for name in ["llama", "qwen2", "qwen3"].into_iter().chain(FAMILIES) {
        let (policy, a) = policy(name);
        let weights = with_critic(policy.weights().copied().unwrap(), &a);
        let policy = PolicyModel::new(rlhost::model::Decoder::new(a, weights));
        let (forest, selected) = packed(&texts());
        let (c, e, v) = coefficients(selected.len());
        let gradients = policy.zero_gradients().unwrap();
        let leaving = PartGradientRecorder { weights: policy.weights(), gradients: &gradients, seen: RefCell::default() };
        let learning = LearningOptions { key: Some(1), by_logp: true, watch: Some(&leaving) };
        policy
            .forward_learning(&forest, &selected, 1.0, learning, None)
            .unwrap()
            .backward(Derivatives { logp: Some(&c), entropy: Some(&e), values: Some(&v), ..Derivatives::default() }, &gradients)
            .unwrap();
        let seen = leaving.seen.borrow();
        for (part, values) in &*seen {
            assert!(*values == leaving.part_gradients(*part), "{name}, {part:?}");
        }
        assert!(seen.is_sorted_by(|(a, _), (b, _)| a > b), "{name}: from the top to the bottom");
        let all = seen.iter().map(|(_, values)| values.len()).sum::<usize>();
        assert_eq!(all, gradients.named().len(), "{name}: all are in a part");
    }
}

#[test]
fn the_auxiliary_loss_of_experts_and_its_gradients_equal_the_naive_form() {
    const WEIGHT: f64 = 3.0;
    for name in [
        "gpt_oss",
        "qwen2_moe",
        "qwen3_5_moe",
        "qwen3_moe",
        "qwen3_moe_normalised",
        "olmoe",
        "mixtral",
        "granitemoe",
        "granitemoeshared",
        "granitemoehybrid",
        "qwen3_next",
    ] {
        for again in [false, true] {
            let (policy, a) = policy(name);
            let weights = with_critic(policy.weights().copied().unwrap(), &a);
            let want = naive_with(&a, &weights, coefficients, WEIGHT).unwrap();
            let policy =
                PolicyModel::new(rlhost::model::Decoder::new(a, weights)).with_aux_loss(true).with_gradient_checkpointing(again);
            let (forest, selected) = packed(&texts());
            let pass = policy.forward(&forest, &selected, TEMPERATURE as f32).unwrap();
            assert!(relative(&pass.stats().logp, &want.logp) <= 1e-5, "{name}: log-probabilities");
            let (got, aux) = (pass.aux_loss().unwrap(), want.aux_loss.unwrap());
            assert!((got - aux).abs() <= 1e-5 * aux, "{name}: {got}, and {aux} in the naive form");
            let gradients = policy.zero_gradients().unwrap();
            let (c, e, v) = coefficients(selected.len());
            pass.with_aux_loss_weight(WEIGHT)
                .backward(
                    Derivatives { logp: Some(&c), entropy: Some(&e), values: Some(&v), ..Derivatives::default() },
                    &gradients,
                )
                .unwrap();
            compared(name, &gradients, &want);
        }
    }
}

#[test]
fn gradients_add_up_over_micro_batches() {
    let (policy, _) = policy("qwen3");
    let (forest, selected) = packed(&texts());
    let (c, e, _) = coefficients(selected.len());
    let whole = policy.zero_gradients().unwrap();
    policy
        .forward(&forest, &selected, 1.0)
        .unwrap()
        .backward(Derivatives { logp: Some(&c), entropy: Some(&e), ..Derivatives::default() }, &whole)
        .unwrap();

    let parts = policy.zero_gradients().unwrap();
    let mut at = 0;
    for (prompt, completions) in texts() {
        for completion in completions {
            let (forest, selected) = packed(&[(prompt.clone(), vec![completion])]);
            let n = selected.len();
            policy
                .forward(&forest, &selected, 1.0)
                .unwrap()
                .backward(
                    Derivatives { logp: Some(&c[at..at + n]), entropy: Some(&e[at..at + n]), ..Derivatives::default() },
                    &parts,
                )
                .unwrap();
            at += n;
        }
    }
    for ((name, got), (_, want)) in parts.named().into_iter().zip(whole.named()) {
        let difference = relative(&ops::to_vec(got).unwrap(), &ops::to_vec(want).unwrap());
        assert!(difference <= 1e-5, "{name}: {difference}");
    }
    assert!(parts.named().iter().all(|(_, t)| t.dtype() == DType::F32));
}
