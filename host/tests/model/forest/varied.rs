//! The naive form of layers that differ from each other: in what their tokens see, and in more (Gemma 4).

use super::naive::NaiveDecoder;
use candle_core::{D, Device, Result, Tensor};
use candle_nn::ops::softmax;
use rlhost::model::{Family, Rope};

impl NaiveDecoder<'_> {
    /// Returns what is added to a layer's scores of `t` tokens: minus infinity where a token may not see another one.
    pub(super) fn mask(&self, t: usize, l: usize) -> Result<Tensor> {
        let window = self.a.windows[l].unwrap_or(t);
        let chunks = self.a.family == Family::Llama4;
        let far = |i: usize, j: usize| if chunks { j / window < i / window } else { j + window <= i };
        let hides = |i: usize, j: usize| if j > i || far(i, j) { f32::NEG_INFINITY } else { 0.0 };
        let mask: Vec<f32> = (0..t).flat_map(|i| (0..t).map(move |j| hides(i, j))).collect();
        Tensor::from_vec(mask, (t, t), &Device::Cpu)
    }

    /// Computes attention whose heads differ between layers, and whose keys and values may be those of an earlier layer.
    pub(super) fn varied_attention(
        &self,
        x: &Tensor,
        layer: &str,
        (l, rope): (usize, Option<&Rope>),
        mask: &Tensor,
    ) -> Result<Tensor> {
        let ((b, t, _), h, name) = (x.dims3()?, self.a.heads_of(l), |part: &str| format!("{layer}.self_attn.{part}"));
        let heads = |part: &str, count: usize| self.linear(x, &name(part))?.reshape((b, t, count, h.head_dim));
        let q = self.rotated(&self.norm(&heads("q_proj", h.heads)?, &name("q_norm"))?, rope)?;
        let (k, v) = match self.vars.contains_key(&name("k_proj.weight")) {
            // The last layers have none of their own, and read those of the last layer of their kind that has some.
            false => self.known.borrow()[&self.a.windows[l].is_some()].clone(),
            true => {
                let k = heads("k_proj", h.kv_heads)?;
                let v = if self.vars.contains_key(&name("v_proj.weight")) { heads("v_proj", h.kv_heads)? } else { k.clone() };
                let v = v.broadcast_div(&(v.sqr()?.mean_keepdim(D::Minus1)? + self.a.norm_eps)?.sqrt()?)?;
                let k = self.rotated(&self.norm(&k, &name("k_norm"))?, rope)?;
                (k, v.transpose(1, 2)?.contiguous()?)
            }
        };
        self.known.borrow_mut().insert(self.a.windows[l].is_some(), (k.clone(), v.clone()));
        let repeat = |x: Tensor| {
            let wide = x.unsqueeze(2)?.broadcast_as((b, h.kv_heads, h.heads / h.kv_heads, t, h.head_dim))?;
            wide.reshape((b, h.heads, t, h.head_dim))?.contiguous()
        };
        let scores = q.matmul(&repeat(k)?.transpose(2, 3)?.contiguous()?)?;
        let y = softmax(&scores.broadcast_add(mask)?, D::Minus1)?.matmul(&repeat(v)?)?.transpose(1, 2)?.contiguous()?;
        self.linear(&y.reshape((b, t, h.heads * h.head_dim))?, &name("o_proj"))
    }

    /// Computes an MLP, and experts beside it that read and write by norms of their own, given normalised rows `x` of `source`.
    pub(super) fn fed_apart(&self, x: &Tensor, source: &Tensor, layer: &str) -> Result<Tensor> {
        let ((b, t, d), name) = (source.dims3()?, |part: &str| format!("{layer}.{part}"));
        let rows = source.reshape((b * t, d))?;
        let normed = rows.broadcast_div(&(rows.sqr()?.mean_keepdim(D::Minus1)? + self.a.norm_eps)?.sqrt()?)?;
        let read = (normed.broadcast_mul(self.var(&name("router.scale")))? / (d as f64).sqrt())?;
        let (p, chosen) = self.scored(&self.linear(&read, &name("router.proj"))?, layer)?;
        self.routed.borrow_mut().push((p.clone(), chosen.clone()));
        let weights = (p * chosen)?;
        let weights = weights.broadcast_div(&weights.sum_keepdim(1)?)?;
        let weights = weights.broadcast_mul(self.var(&name("router.per_expert_scale")))?;
        let experts = self.sum_of_experts(&self.norm(&rows, &name("pre_feedforward_layernorm_2"))?, &weights, layer)?;
        let experts = self.norm(&experts, &name("post_feedforward_layernorm_2"))?.reshape((b, t, d))?;
        self.norm(&self.unit(x, layer)?, &name("post_feedforward_layernorm_1"))? + experts
    }

    /// Returns all layers' own inputs, `[B, T, L, P]`, given the tokens and the first layer's input.
    pub(super) fn inputs_of_layers(&self, ids: &Tensor, x: &Tensor) -> Result<Option<Tensor>> {
        let Some(width) = self.a.layer_input_width() else { return Ok(None) };
        let ((b, t), shape) = (ids.dims2()?, self.a.layers);
        let product = (self.linear(x, "model.per_layer_model_projection")? / (self.a.hidden_size as f64).sqrt())?;
        let normed = self.norm(&product.reshape((b, t, shape, width))?, "model.per_layer_projection_norm")?;
        let rows = self.var("model.embed_tokens_per_layer.weight").index_select(&ids.flatten_all()?, 0)?;
        let rows = (rows.reshape((b, t, shape, width))? * (width as f64).sqrt())?;
        ((normed + rows)? * 0.5f64.sqrt()).map(Some)
    }

    /// Computes the end of a layer: a stage that reads the layer's own input, and a factor.
    pub(super) fn ended(&self, x: Tensor, layer: &str, input: Option<Tensor>) -> Result<Tensor> {
        let Some(factor) = self.vars.get(&format!("{layer}.layer_scalar")) else { return Ok(x) };
        let name = |part: &str| format!("{layer}.{part}");
        let x = match input {
            None => x,
            Some(input) => {
                let active = (self.linear(&x, &name("per_layer_input_gate"))?.gelu()? * input)?;
                let back = self.linear(&active, &name("per_layer_projection"))?;
                (&x + self.norm(&back, &name("post_per_layer_input_norm"))?)?
            }
        };
        x.broadcast_mul(&factor.detach())
    }
}
