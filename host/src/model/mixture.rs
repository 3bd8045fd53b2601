//! A mixture of experts: its sizes, its backward pass, and how evenly it is used.

use super::architecture::MOST_INTERMEDIATE;
use super::decoder::apply_backward;
use super::dropped::Masked;
use super::families::Family;
use super::json::Object;
use super::layer::{Routed, Wide};
use super::weights::{Experts, Linear};
use super::{Architecture, Result};
use crate::ops::experts::{self, Routes, Slope};
use crate::ops::{self, Forest, activation, columns};
use candle_core::Tensor;

/// Maximum number of experts.
const MOST_EXPERTS: usize = 1 << 16;

/// The sizes and switches of a decoder's experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixture {
    /// Number of experts, `E`.
    pub experts: usize,
    /// Experts per token, `K`.
    pub chosen: usize,
    /// Width of each expert, `I`.
    pub width: usize,
    /// Whether the weights of a token's experts add up to one, instead of being the router's probabilities.
    pub normalised: bool,
    /// Which layers have experts.
    pub sparse: Vec<bool>,
    /// Width of the shared MLP that every token goes through, if there is one.
    pub shared: Option<usize>,
    /// `router_aux_loss_coef`
    pub coefficient: f64,
}

impl Mixture {
    /// Reads the sizes of experts; none for other families, and for models without experts.
    pub(super) fn read(config: &Object, family: Family, layers: usize) -> std::result::Result<Option<Self>, String> {
        use Family::{GraniteMoe, GraniteMoeShared, Mixtral, Olmoe, Qwen3Moe};
        let (key, experts, chosen, coefficient) = match family {
            Qwen3Moe => (if config.has("num_experts") { "num_experts" } else { "num_local_experts" }, 128, 8, 0.001),
            Olmoe => ("num_experts", 64, 8, 0.01),
            GraniteMoe | GraniteMoeShared | Mixtral => ("num_local_experts", 8, 2, 0.001),
            _ => return Ok(None),
        };
        let experts = config.count(key, MOST_EXPERTS)?.unwrap_or(experts);
        let chosen = config.size("num_experts_per_tok", MOST_EXPERTS)?.unwrap_or(chosen);
        let (width, default) =
            if family == Qwen3Moe { ("moe_intermediate_size", Some(768)) } else { ("intermediate_size", None) };
        let width = match (config.size(width, MOST_INTERMEDIATE)?, default) {
            (Some(width), _) | (None, Some(width)) => width,
            (None, None) => config.needed_size(width, MOST_INTERMEDIATE)?,
        };
        let normalised = match family {
            Qwen3Moe | Olmoe => config.flag("norm_topk_prob")?.unwrap_or(false),
            _ => true,
        };
        let coefficient = config.number("router_aux_loss_coef")?.unwrap_or(coefficient);
        // A run decides by router_aux_loss_coef, as in TRL.
        config.flag("output_router_logits")?;
        let sparse = if family == Qwen3Moe { sparse(config, experts, layers)? } else { vec![true; layers] };
        if !sparse.contains(&true) {
            return Ok(None);
        }
        if chosen > experts {
            return Err(format!("num_experts_per_tok {chosen} is more than {key} {experts}"));
        }
        if !(0.0..=1e6).contains(&coefficient) {
            return Err(format!("router_aux_loss_coef {coefficient} must be between 0 and 1e6"));
        }
        let shared = match family {
            GraniteMoeShared => config.count("shared_intermediate_size", MOST_INTERMEDIATE)?.filter(|width| *width > 0),
            _ => None,
        };
        Ok(Some(Self { experts, chosen, width, normalised, sparse, shared, coefficient }))
    }
}

/// Returns which layers have experts, if `config.json` says so.
fn sparse(config: &Object, experts: usize, layers: usize) -> std::result::Result<Vec<bool>, String> {
    let step = config.size("decoder_sparse_step", layers.max(1 << 16))?.unwrap_or(1);
    let dense = config.indices("mlp_only_layers", layers)?.unwrap_or_default();
    Ok((0..layers).map(|layer| experts > 0 && (layer + 1).is_multiple_of(step) && !dense.contains(&layer)).collect())
}

/// Takes the gradient of the experts' output, adds those of their parameters to `grads`, and returns that of their input `h`.
pub(super) fn experts_backward(
    a: &Architecture,
    maps: &Experts<Masked<'_>>,
    kept: &Routed,
    h: &Tensor,
    d_out: &Tensor,
    (grads, balance): (&Experts<Linear<Option<Tensor>>>, Option<&Balance>),
) -> Result<Tensor> {
    let Routed { routes, wide: Wide { gate, up } } = kept;
    let active = activation::forward(gate, up.as_ref(), a.activation, false)?;
    let d_rows = ops::gather_rows(d_out, routes.tokens())?;
    // Before a row is weighed: its product with the row is the gradient of the weight.
    let d_unweighed = maps.down.grouped_input_backward(&d_rows, routes)?;
    let d_weights = experts::dots(&d_unweighed, &active)?;
    maps.down.grouped_weight_backward(|| routes.weighted(&active), &d_rows, &grads.down, routes)?;
    let (d_gate, d_up) = activation::backward(gate, up.as_ref(), &routes.weighted(&d_unweighed)?, a.activation, false)?;
    let d_up = d_up.ok_or_else(|| ops::Error::Shape { op: "experts", detail: "an expert without a gate".into() })?;
    let width = gate.dim(1)?;
    let d_wide = columns::join(&[&d_gate, &d_up], &[width, width])?;
    maps.wide.grouped_weight_backward(|| ops::gather_rows(h, routes.tokens()), &d_wide, &grads.wide, routes)?;
    let d_logits = routes.backward(&d_weights, balance.and_then(Balance::slope), h)?;
    let dh = apply_backward(&maps.router, h, &d_logits, &grads.router)?;
    routes.gather_into(&dh, &maps.wide.grouped_input_backward(&d_wide, routes)?, false)?;
    Ok(dh)
}

/// How evenly the tokens of a pass were routed to experts, over all layers (Fedus et al. 2021, arXiv 2101.03961, equations 4 to
/// 6, as in transformers): `E` times the sum over experts of the fraction of tokens routed there, times the mean probability of
/// going there. A prompt's tokens count once for each of its completions, as if it were repeated.
#[derive(Debug)]
pub(super) struct Balance {
    /// Number of texts that contain each token, `[N]`.
    of_tokens: Vec<f32>,
    /// Number of tokens routed to each expert, `[E]`.
    counts: Vec<f64>,
    /// Sums of probabilities, `[E]`.
    sums: Vec<f64>,
    /// Tokens of all layers.
    total: f64,
    /// Derivative of the loss with respect to each expert's probability, for a token of one text, `[E]`.
    slope: Option<Vec<f32>>,
}

impl Balance {
    /// Starts the measurement; none for a model without experts.
    pub(super) fn new(a: &Architecture, forest: &Forest) -> Option<Self> {
        let experts = a.mixture.as_ref()?.experts;
        let (counts, sums) = (vec![0.0; experts], vec![0.0; experts]);
        Some(Self { of_tokens: forest.texts_of_tokens(), counts, sums, total: 0.0, slope: None })
    }

    /// Adds a layer.
    pub(super) fn add(&mut self, routes: &Routes) {
        routes.add_load(&self.of_tokens, &mut self.counts, &mut self.sums);
        self.total += self.of_tokens.iter().map(|texts| f64::from(*texts)).sum::<f64>();
    }

    /// Returns the loss.
    pub(super) fn loss(&self) -> f64 {
        let pairs = self.counts.iter().zip(&self.sums);
        pairs.map(|(count, sum)| count * sum).sum::<f64>() * self.counts.len() as f64 / (self.total * self.total)
    }

    /// Sets its weight in the training loss.
    pub(super) fn weigh(&mut self, weight: f64) {
        let factor = weight * self.counts.len() as f64 / (self.total * self.total);
        self.slope = Some(self.counts.iter().map(|count| (factor * count) as f32).collect());
    }

    fn slope(&self) -> Option<Slope<'_>> {
        self.slope.as_ref().map(|experts| Slope { tokens: &self.of_tokens, experts })
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Architecture;
    use serde_json::{Value, json};

    fn parsed(more: Value) -> Result<Architecture, String> {
        let mut config = json!({
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 257,
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Architecture::parse(&config.to_string())
    }

    #[test]
    fn experts_are_where_and_as_many_as_the_family_says() {
        let read = |more: Value| parsed(more).unwrap();
        let qwen = |more: Value| {
            let mut config = json!({ "model_type": "qwen3_moe", "moe_intermediate_size": 24 });
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            read(config)
        };
        let every = qwen(json!({})).mixture.unwrap();
        assert_eq!((every.experts, every.chosen, every.width, every.normalised), (128, 8, 24, false));
        assert_eq!((every.sparse, every.coefficient), (vec![true; 4], 0.001));
        let some = qwen(json!({ "decoder_sparse_step": 2, "mlp_only_layers": [3], "num_experts": 8, "norm_topk_prob": true }));
        assert_eq!(some.mixture.as_ref().unwrap().sparse, [false, true, false, false]);
        assert!(some.has_unit(0) && !some.has_unit(1));
        // An adapter on a unit named as experts are would be one on the experts for peft.
        assert_eq!(some.modules(), ["q_proj", "k_proj", "v_proj", "o_proj"]);
        assert!(qwen(json!({ "num_experts": 0 })).mixture.is_none());
        let granite = read(json!({ "model_type": "granitemoeshared", "shared_intermediate_size": 32 }));
        assert_eq!((granite.intermediate_size, granite.mixture.as_ref().unwrap().width), (32, 128));
        assert!(granite.has_unit(0) && granite.modules().contains(&"input_linear"));
        let without = read(json!({ "model_type": "granitemoeshared" }));
        assert!(!without.has_unit(0) && without.modules() == ["q_proj", "k_proj", "v_proj", "o_proj"]);
        assert!(read(json!({ "model_type": "mixtral", "router_jitter_noise": 0.0 })).mixture.unwrap().normalised);
        assert!(!read(json!({ "model_type": "olmoe" })).mixture.unwrap().normalised);
    }

    #[test]
    fn what_experts_can_not_be_is_refused_by_its_key() {
        for (kind, key, value) in [
            ("mixtral", "num_experts_per_tok", json!(9)),
            ("mixtral", "num_local_experts", json!(0)),
            ("mixtral", "num_experts", json!(8)),
            ("mixtral", "router_jitter_noise", json!(0.1)),
            ("olmoe", "clip_qkv", json!(8.0)),
            ("olmoe", "num_experts", json!(1_000_000)),
            ("olmoe", "router_aux_loss_coef", json!(-1)),
            ("qwen3_moe", "mlp_only_layers", json!([4])),
            ("qwen3_moe", "decoder_sparse_step", json!(0)),
            ("qwen3_moe", "norm_topk_prob", json!("yes")),
            ("llama", "num_local_experts", json!(8)),
        ] {
            let error = parsed(json!({ "model_type": kind, key: value })).unwrap_err();
            assert!(error.contains(key), "{kind}, {key}: {error}");
        }
    }
}
