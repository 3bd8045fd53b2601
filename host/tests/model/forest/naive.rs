//! The naive form of a decoder: a padded batch through candle's differentiable operations.

use super::{LORA_SCALE, TEMPERATURE};
use candle_core::{D, DType, Device, Result, Tensor, Var};
use candle_nn::ops::{log_softmax, sigmoid, softmax};
use rlhost::model::{Architecture, Family, HeadNorms, LatentAttention, NormKind, Rope};
use rlhost::ops::activation::Activation;
use rlhost::ops::rope::RopePairing;
use std::cell::RefCell;
use std::collections::HashMap;

/// A decoder for padded batches, with candle's operations.
pub struct NaiveDecoder<'a> {
    pub a: &'a Architecture,
    pub vars: &'a HashMap<String, Var>,
    /// Probabilities of experts, `[B * T, E]`, and the chosen ones, for each layer that has experts.
    pub routed: RefCell<Vec<(Tensor, Tensor)>>,
    /// Newest keys and values of layers with windows, and of those without, where heads differ between layers.
    pub known: RefCell<HashMap<bool, (Tensor, Tensor)>>,
}

impl NaiveDecoder<'_> {
    pub(super) fn var(&self, name: &str) -> &Tensor {
        self.vars[name].as_tensor()
    }

    pub(super) fn linear(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let w = self.var(&format!("{name}.weight"));
        let part = |part: &str| self.vars.get(&format!("{name}.{part}"));
        let y = match (part("lora_A.weight"), part("lora_B.weight"), part("lora_magnitude_vector")) {
            (Some(a), Some(b), None) => {
                let adapted = (x.broadcast_matmul(&a.t()?)?.broadcast_matmul(&b.t()?)? * LORA_SCALE)?;
                (x.broadcast_matmul(&w.t()?)? + adapted)?
            }
            // DoRA, whose lengths have no gradient.
            (Some(a), Some(b), Some(m)) => {
                let v = (w + (b.matmul(a)? * LORA_SCALE)?)?;
                let lengths = v.detach().sqr()?.sum(1)?.sqrt()?;
                x.broadcast_matmul(&v.broadcast_mul(&(m.as_tensor() / lengths)?.unsqueeze(1)?)?.t()?)?
            }
            _ => x.broadcast_matmul(&w.t()?)?,
        };
        match self.vars.get(&format!("{name}.bias")) {
            Some(b) => y.broadcast_add(b),
            None => Ok(y),
        }
    }

    pub(super) fn norm(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        let weight = self.var(&format!("{name}.weight")).clone();
        let weight = if self.a.norm == NormKind::RmsFromOne { (weight + 1.0)? } else { weight };
        let x = match self.a.norm {
            NormKind::Layer | NormKind::Centred => x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?,
            _ => x.clone(),
        };
        let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
        let y = x.broadcast_div(&(mean + self.a.norm_eps)?.sqrt()?)?.broadcast_mul(&weight)?;
        match self.vars.get(&format!("{name}.bias")) {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }

    /// Applies the norm of this name, if the model has it; otherwise returns the input.
    fn norm_if(&self, x: &Tensor, name: &str) -> Result<Tensor> {
        if self.vars.contains_key(&format!("{name}.weight")) { self.norm(x, name) } else { Ok(x.clone()) }
    }

    /// Converts `[B, T, heads, C]` to rotated `[B, heads, T, C]`.
    pub(super) fn rotated(&self, x: &Tensor, rope: Option<&Rope>) -> Result<Tensor> {
        let x = x.transpose(1, 2)?.contiguous()?;
        let Some(rope) = rope else { return Ok(x) };
        let (_, _, t, c) = x.dims4()?;
        let half = rope.dims / 2;
        let frequencies = rope.frequencies();
        let angles: Vec<f32> = (0..t).flat_map(|p| frequencies.iter().map(move |f| p as f32 * f)).collect();
        let angles = Tensor::from_vec(angles, (t, half), &Device::Cpu)?;
        let by = f64::from(rope.attention_factor());
        let (cos, sin) = ((angles.cos()? * by)?, (angles.sin()? * by)?);
        let part = x.narrow(3, 0, 2 * half)?.contiguous()?;
        let turned = match self.a.family {
            Family::Cohere2 | Family::Ernie45 | Family::Glm4 | Family::Llama4 => {
                candle_nn::rotary_emb::rope_i_slow(&part, &cos, &sin)?
            }
            Family::DeepseekV2 | Family::DeepseekV3
                if self.a.latent.is_some_and(|latent| latent.pairs == RopePairing::Neighbours) =>
            {
                candle_nn::rotary_emb::rope_i_slow(&part, &cos, &sin)?
            }
            _ => candle_nn::rotary_emb::rope_slow(&part, &cos, &sin)?,
        };
        if 2 * half == c { Ok(turned) } else { Tensor::cat(&[turned, x.narrow(3, 2 * half, c - 2 * half)?], 3) }
    }

    /// Returns queries, keys and values, `[B, T, heads, C]`, before their rotation.
    fn heads(&self, x: &Tensor, layer: &str) -> Result<[Tensor; 3]> {
        let ((b, t, _), a, h) = (x.dims3()?, self.a, self.a.heads);
        let c = h.head_dim;
        let counts = [h.heads, h.kv_heads, h.kv_heads];
        let name = |part: &str| format!("{layer}.{part}");
        let has = |part: &str| self.vars.contains_key(&format!("{}.weight", name(part)));
        let all: Vec<Tensor> = if has("attention.query_key_value") {
            // Head by head, a query, a key and a value.
            let joined = self.linear(x, &name("attention.query_key_value"))?.reshape((b, t, h.heads, 3 * c))?;
            (0..3).map(|i| joined.narrow(3, i * c, c)).collect::<Result<_>>()?
        } else if let Some(joined) = ["self_attn.qkv_proj", "attn.c_attn"].into_iter().find(|part| has(part)) {
            let joined = self.linear(x, &name(joined))?.reshape((b, t, h.heads + 2 * h.kv_heads, c))?;
            let first = [0, h.heads, h.heads + h.kv_heads];
            (0..3).map(|i| joined.narrow(2, first[i], counts[i])).collect::<Result<_>>()?
        } else {
            let apart = ["q", "k", "v"].into_iter().zip(counts).map(|(part, count)| {
                let y = self.linear(x, &name(&format!("{}.{part}_proj", attention_of(a.family))))?;
                // Each query is followed by the gate of its output.
                let y = if part == "q" && a.output_gate {
                    y.reshape((b, t, count, 2 * c))?.narrow(3, 0, c)?.contiguous()?
                } else {
                    y
                };
                let kind = if matches!(a.family, Family::Lfm2 | Family::Lfm2Moe) { "layernorm" } else { "norm" };
                let norm = name(&format!("self_attn.{part}_{kind}"));
                // Norm over all heads, or over each.
                let y = if self.a.head_norms == HeadNorms::All { self.norm_if(&y, &norm)? } else { y };
                let y = y.reshape((b, t, count, c))?;
                if self.a.head_norms == HeadNorms::Each { self.norm_if(&y, &norm) } else { Ok(y) }
            });
            apart.collect::<Result<_>>()?
        };
        all.into_iter().map(|t| t.contiguous()).collect::<Result<Vec<_>>>().map(|all| all.try_into().expect("three"))
    }

    pub(super) fn attention(&self, x: &Tensor, layer: &str, l: usize) -> Result<Tensor> {
        let ((b, t, _), a, h) = (x.dims3()?, self.a, self.a.heads);
        let mask = self.mask(t, l)?;
        let rope = a.rotary[l].map(|rope| &a.ropes[rope]);
        if let Some(latent) = a.latent {
            return self.latent_attention(x, layer, (latent, rope), &mask);
        }
        if a.family.is_gemma4() {
            return self.varied_attention(x, layer, (l, rope), &mask);
        }
        let [q, k, v] = self.heads(x, layer)?;
        let (mut q, mut k, v) = (self.rotated(&q, rope)?, self.rotated(&k, rope)?, self.rotated(&v, None)?);
        if a.head_norms == HeadNorms::Rotated {
            q = self.norm(&q, &format!("{layer}.self_attn.query_layernorm"))?;
            k = self.norm(&k, &format!("{layer}.self_attn.key_layernorm"))?;
        }
        if a.head_norms == HeadNorms::Unweighted && rope.is_some() {
            let normed = |x: Tensor| {
                let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
                x.broadcast_div(&(mean + a.norm_eps)?.sqrt()?)
            };
            (q, k) = (normed(q)?, normed(k)?);
        }
        if let Some(scale) = a.query_scale.filter(|_| a.family == Family::Ministral3 || rope.is_none()) {
            let first = if a.family == Family::Llama4 { 1 } else { 0 };
            let step = |p: usize| (1.0 + ((p + first) as f32 / scale.length as f32).floor()).ln();
            let by: Vec<f32> = (0..t).map(|p| 1.0 + scale.strength * step(p)).collect();
            q = q.broadcast_mul(&Tensor::from_vec(by, (1, 1, t, 1), &Device::Cpu)?)?;
        }
        let repeat = |x: Tensor| -> Result<Tensor> {
            let r = h.heads / h.kv_heads;
            x.unsqueeze(2)?.broadcast_as((b, h.kv_heads, r, t, h.head_dim))?.reshape((b, h.heads, t, h.head_dim))
        };
        let (k, v) = (repeat(k)?.contiguous()?, repeat(v)?.contiguous()?);
        let scale = f64::from(a.factors.scores) / if a.scores_by_layer { l as f64 + 1.0 } else { 1.0 };
        let scores = (q.matmul(&k.transpose(2, 3)?.contiguous()?)? * scale)?;
        let scores = bounded(scores, a.factors.scores_cap)?.broadcast_add(&mask)?;
        let p = match self.vars.get(&format!("{layer}.self_attn.sinks")) {
            Some(sinks) => {
                let sinks = sinks.reshape((1, h.heads, 1, 1))?.broadcast_as((b, h.heads, t, 1))?;
                softmax(&Tensor::cat(&[&scores, &sinks], 3)?, D::Minus1)?.narrow(3, 0, t)?.contiguous()?
            }
            None => softmax(&scores, D::Minus1)?,
        };
        let y = p.matmul(&v)?.transpose(1, 2)?.contiguous()?;
        let output = match a.family {
            Family::GptNeoX => "attention.dense",
            Family::Gpt2 => "attn.c_proj",
            Family::Lfm2 | Family::Lfm2Moe => "self_attn.out_proj",
            Family::NemotronH => "mixer.o_proj",
            _ => "self_attn.o_proj",
        };
        let y = y.reshape((b, t, h.heads * h.head_dim))?;
        if a.output_gate {
            let joined = self.linear(x, &format!("{layer}.self_attn.q_proj"))?.reshape((b, t, h.heads, 2 * h.head_dim))?;
            let gate = joined.narrow(3, h.head_dim, h.head_dim)?.contiguous()?.reshape(y.shape())?;
            return self.linear(&(y * sigmoid(&gate)?)?, &format!("{layer}.{output}"));
        }
        self.linear(&y, &format!("{layer}.{output}"))
    }

    /// Computes attention with compressed keys and values, whose heads end with their rotated part.
    fn latent_attention(
        &self,
        x: &Tensor,
        layer: &str,
        (latent, rope): (LatentAttention, Option<&Rope>),
        mask: &Tensor,
    ) -> Result<Tensor> {
        let ((b, t, _), h, name) = (x.dims3()?, latent.heads, |part: &str| format!("{layer}.self_attn.{part}"));
        // The epsilon of these norms is not the configured one.
        let norm = |x: &Tensor, part: &str| {
            let size = (x.sqr()?.mean_keepdim(D::Minus1)? + 1e-6)?.sqrt()?;
            x.broadcast_div(&size)?.broadcast_mul(self.var(&format!("{}.weight", name(part))))
        };
        let q = match latent.query_rank {
            None => self.linear(x, &name("q_proj"))?,
            Some(_) => self.linear(&norm(&self.linear(x, &name("q_a_proj"))?, "q_a_layernorm")?, &name("q_b_proj"))?,
        };
        let q = q.reshape((b, t, h.heads, h.unrotated + h.rotated))?;
        let both = self.linear(x, &name("kv_a_proj_with_mqa"))?;
        let shared = both.narrow(2, latent.rank, h.rotated)?.reshape((b, t, 1, h.rotated))?;
        let kv = self.linear(&norm(&both.narrow(2, 0, latent.rank)?.contiguous()?, "kv_a_layernorm")?, &name("kv_b_proj"))?;
        let kv = kv.reshape((b, t, h.heads, h.unrotated + h.values))?;
        let turned_q = self.rotated(&q.narrow(3, h.unrotated, h.rotated)?, rope)?;
        let turned_k = self.rotated(&shared, rope)?.broadcast_as((b, h.heads, t, h.rotated))?.contiguous()?;
        let plain = |x: &Tensor, first: usize, size: usize| x.narrow(3, first, size)?.transpose(1, 2)?.contiguous();
        let q = Tensor::cat(&[plain(&q, 0, h.unrotated)?, turned_q], 3)?;
        let k = Tensor::cat(&[plain(&kv, 0, h.unrotated)?, turned_k], 3)?;
        let v = plain(&kv, h.unrotated, h.values)?;
        let scores = (q.matmul(&k.transpose(2, 3)?.contiguous()?)? * f64::from(self.a.factors.scores))?;
        let y = softmax(&scores.broadcast_add(mask)?, D::Minus1)?.matmul(&v)?.transpose(1, 2)?.contiguous()?;
        self.linear(&y.reshape((b, t, h.heads * h.values))?, &name("o_proj"))
    }

    /// Returns the scores of experts, and a mask of the chosen ones, `[N, E]`.
    pub(super) fn scored(&self, logits: &Tensor, layer: &str) -> Result<(Tensor, Tensor)> {
        let Some(mixture) = self.a.mixture.as_ref() else { candle_core::bail!("no experts") };
        let n = logits.dim(0)?;
        let ranked = |t: &Tensor, best: usize| -> Result<Tensor> {
            let rank = t.arg_sort_last_dim(false)?.arg_sort_last_dim(true)?;
            rank.lt(best as u32)?.to_dtype(DType::F32)
        };
        let corrections = ["mlp.gate.e_score_correction_bias", "mixer.gate.e_score_correction_bias", "feed_forward.expert_bias"];
        let (p, by) = match corrections.iter().find_map(|name| self.vars.get(&format!("{layer}.{name}"))) {
            Some(correction) => {
                let p = sigmoid(logits)?;
                let by = p.detach().broadcast_add(&correction.detach())?;
                // Selects the groups whose two best experts have the highest sum.
                let (groups, kept) = mixture.routing.groups;
                let in_groups = by.reshape((n, groups, mixture.experts / groups))?;
                let sums = (ranked(&in_groups, 2)? * &in_groups)?.sum(2)?;
                let hidden = ((1.0 - ranked(&sums, kept)?.unsqueeze(2)?)? * 100.0)?;
                (p, in_groups.broadcast_sub(&hidden)?.reshape((n, mixture.experts))?)
            }
            None if self.a.family == Family::DeepseekV2 => {
                let p = softmax(logits, D::Minus1)?;
                // Selects the groups with the best experts.
                let (groups, kept) = mixture.routing.groups;
                let in_groups = p.detach().reshape((n, groups, mixture.experts / groups))?;
                let hidden = ((1.0 - ranked(&in_groups.max(2)?, kept)?.unsqueeze(2)?)? * 100.0)?;
                (p, in_groups.broadcast_sub(&hidden)?.reshape((n, mixture.experts))?)
            }
            None if self.a.family == Family::Llama4 => (sigmoid(logits)?, logits.detach()),
            None => {
                let p = softmax(logits, D::Minus1)?;
                (p.clone(), p)
            }
        };
        let chosen = ranked(&by, mixture.routing.chosen)?;
        Ok((p, chosen))
    }

    /// Computes all experts for all tokens, times the weights of the chosen ones.
    fn experts(&self, x: &Tensor, layer: &str) -> Result<Tensor> {
        let Some(mixture) = self.a.mixture.as_ref() else { candle_core::bail!("no experts") };
        let (b, t, d) = x.dims3()?;
        let (folder, router) = match self.a.family {
            Family::GptOss => ("mlp", "router"),
            Family::Lfm2Moe => ("feed_forward", "gate"),
            Family::Llama4 => ("feed_forward", "router"),
            Family::NemotronH => ("mixer", "gate"),
            family if family.is_granite() => ("block_sparse_moe", "router"),
            _ => ("mlp", "gate"),
        };
        let x = x.reshape((b * t, d))?;
        let logits = self.linear(&x, &format!("{layer}.{folder}.{router}"))?;
        let (p, chosen) = self.scored(&logits, layer)?;
        self.routed.borrow_mut().push((p.clone(), chosen.clone()));
        let mut weights = (p * chosen)?;
        if mixture.routing.normalised {
            weights = weights.broadcast_div(&(weights.sum_keepdim(1)? + f64::from(mixture.routing.epsilon))?)?;
        }
        weights = (weights * f64::from(mixture.routing.factor))?;
        self.sum_of_experts(&x, &weights, &format!("{layer}.{folder}"))?.reshape((b, t, d))
    }

    /// Computes all experts of this module for all rows `x: [N, D]`, times their weights `[N, E]`.
    pub(super) fn sum_of_experts(&self, x: &Tensor, weights: &Tensor, module: &str) -> Result<Tensor> {
        let Some(mixture) = self.a.mixture.as_ref() else { candle_core::bail!("no experts") };
        let first = if self.a.gated { "gate_up_proj" } else { "up_proj" };
        let (wide, down) = (format!("{module}.experts.{first}"), format!("{module}.experts.down_proj"));
        let matrix = |stack: &str, expert: usize| -> Result<Tensor> {
            let w = self.var(&format!("{stack}.weight")).get(expert)?;
            let part = |part: &str| self.vars.get(&format!("{stack}.{part}.weight"));
            match (part("lora_A"), part("lora_B")) {
                (Some(a), Some(b)) => w + (b.get(expert)?.matmul(&a.get(expert)?)? * LORA_SCALE)?,
                _ => Ok(w),
            }
        };
        let biased = |y: Tensor, stack: &str, expert: usize| match self.vars.get(&format!("{stack}.bias")) {
            Some(biases) => y.broadcast_add(&biases.get(expert)?),
            None => Ok(y),
        };
        let through = |x: &Tensor, part: &str| self.linear(x, &format!("{module}.{part}_latent_proj"));
        let x = if mixture.latent.is_some() { through(x, "fc1")? } else { x.clone() };
        let mut sum = x.zeros_like()?;
        let inputs = self.a.family == Family::Llama4;
        for expert in 0..mixture.experts {
            let weight = weights.narrow(1, expert, 1)?;
            let x = if inputs { x.broadcast_mul(&weight)? } else { x.clone() };
            let both = biased(x.matmul(&matrix(&wide, expert)?.t()?)?, &wide, expert)?;
            let gate = both.narrow(1, 0, mixture.width)?;
            let up = if self.a.gated { both.narrow(1, mixture.width, mixture.width)? } else { gate.clone() };
            let active = match self.a.activation {
                Activation::SquaredRelu => gate.relu()?.sqr(),
                Activation::Clamped { alpha, limit } => {
                    let (gate, up) = (gate.minimum(f64::from(limit))?, up.clamp(-limit, limit)?);
                    (&gate * sigmoid(&(&gate * f64::from(alpha))?)?)? * (up + 1.0)?
                }
                Activation::GeluTanh => gate.gelu()? * up,
                _ => gate.silu()? * up,
            }?;
            let y = biased(active.matmul(&matrix(&down, expert)?.t()?)?, &down, expert)?;
            sum = (sum + if inputs { y } else { y.broadcast_mul(&weight)? })?;
        }
        if mixture.latent.is_some() { through(&sum, "fc2") } else { Ok(sum) }
    }

    /// Computes the MLP, or the experts, or both, given normalised rows `x` of `source`.
    fn fed(&self, (x, source): (&Tensor, &Tensor), layer: &str, l: usize) -> Result<Tensor> {
        match self.a.mixture.as_ref().filter(|mixture| mixture.sparse[l]) {
            None => self.unit(x, layer),
            Some(mixture) if mixture.normed => self.fed_apart(x, source, layer),
            Some(mixture) if mixture.shared.is_some() => self.shared(x, layer)? + self.experts(x, layer)?,
            Some(_) => self.experts(x, layer),
        }
    }

    /// Computes the shared expert.
    fn shared(&self, x: &Tensor, layer: &str) -> Result<Tensor> {
        let gated = |folder: &str| {
            let name = |part: &str| format!("{layer}.{folder}.{part}");
            let (gate, up) = (self.linear(x, &name("gate_proj"))?, self.linear(x, &name("up_proj"))?);
            self.linear(&(gate.silu()? * up)?, &name("down_proj"))
        };
        match self.a.family {
            Family::Qwen2Moe | Family::Qwen3_5Moe | Family::Qwen3Next => {
                let weight = sigmoid(&self.linear(x, &format!("{layer}.mlp.shared_expert_gate"))?)?;
                gated("mlp.shared_expert")?.broadcast_mul(&weight)
            }
            Family::DeepseekV2 | Family::DeepseekV3 | Family::Glm4Moe => gated("mlp.shared_experts"),
            Family::Llama4 => gated("feed_forward.shared_expert"),
            Family::NemotronH => {
                let name = |part: &str| format!("{layer}.mixer.shared_experts.{part}");
                self.linear(&self.linear(x, &name("up_proj"))?.relu()?.sqr()?, &name("down_proj"))
            }
            _ => self.unit(x, layer),
        }
    }

    pub(super) fn unit(&self, x: &Tensor, layer: &str) -> Result<Tensor> {
        let folder = match self.a.family {
            Family::FalconH1 | Family::Llama4 => "feed_forward",
            Family::NemotronH => "mixer",
            _ => "mlp",
        };
        let name = |part: &str| format!("{layer}.{folder}.{part}");
        let f = |x: &Tensor| match self.a.activation {
            Activation::Silu => x.silu(),
            Activation::Gelu => x.gelu_erf(),
            Activation::GeluTanh => x.gelu(),
            Activation::SquaredRelu => x.relu()?.sqr(),
            Activation::Clamped { .. } => candle_core::bail!("a clamped unit"),
        };
        let i = self.a.intermediate_size;
        match self.a.family {
            Family::GptNeoX => self.linear(&f(&self.linear(x, &name("dense_h_to_4h"))?)?, &name("dense_4h_to_h")),
            Family::NemotronH => self.linear(&f(&self.linear(x, &name("up_proj"))?)?, &name("down_proj")),
            Family::Starcoder2 | Family::Gpt2 => self.linear(&f(&self.linear(x, &name("c_fc"))?)?, &name("c_proj")),
            Family::Glm4 | Family::Phi3 => {
                let both = self.linear(x, &name("gate_up_proj"))?;
                self.linear(&(f(&both.narrow(2, 0, i)?)? * both.narrow(2, i, i)?)?, &name("down_proj"))
            }
            Family::GraniteMoeHybrid | Family::GraniteMoeShared => {
                let both = self.linear(x, &format!("{layer}.shared_mlp.input_linear"))?;
                let active = (f(&both.narrow(2, 0, i)?)? * both.narrow(2, i, i)?)?;
                self.linear(&active, &format!("{layer}.shared_mlp.output_linear"))
            }
            Family::Lfm2 | Family::Lfm2Moe => {
                let part = |x: &Tensor, part: &str| self.linear(x, &format!("{layer}.feed_forward.{part}"));
                part(&(f(&part(x, "w1")?)? * part(x, "w3")?)?, "w2")
            }
            _ => {
                let (gate, up) = (self.linear(x, &name("gate_proj"))?, self.linear(x, &name("up_proj"))?);
                let gate = (gate * f64::from(self.a.factors.gates))?;
                self.linear(&(f(&gate)? * up)?, &name("down_proj"))? * f64::from(self.a.factors.lowered)
            }
        }
    }

    /// Returns log-probabilities `[B, T, V]` of the next token, and values `[B, T]`.
    pub fn forward(&self, ids: &Tensor) -> Result<(Tensor, Tensor)> {
        let (b, t) = ids.dims2()?;
        let a = self.a;
        let [embedding, layers, last, head] = match a.family {
            Family::GptNeoX => ["gpt_neox.embed_in.weight", "gpt_neox.layers", "gpt_neox.final_layer_norm", "embed_out.weight"],
            Family::Gpt2 => ["transformer.wte.weight", "transformer.h", "transformer.ln_f", "lm_head.weight"],
            Family::Lfm2 | Family::Lfm2Moe => {
                ["model.embed_tokens.weight", "model.layers", "model.embedding_norm", "lm_head.weight"]
            }
            Family::FalconH1 => ["model.embed_tokens.weight", "model.layers", "model.final_layernorm", "lm_head.weight"],
            Family::NemotronH => ["model.embeddings.weight", "model.layers", "model.norm_f", "lm_head.weight"],
            _ => ["model.embed_tokens.weight", "model.layers", "model.norm", "lm_head.weight"],
        };
        let mut x = self.var(embedding).index_select(&ids.flatten_all()?, 0)?.reshape((b, t, a.hidden_size))?;
        x = (x * f64::from(a.factors.embedding))?;
        if let Some(table) = self.vars.get("transformer.wpe.weight") {
            x = x.broadcast_add(&table.narrow(0, 0, t)?)?;
        }
        let inputs = self.inputs_of_layers(ids, &x)?;
        let residual = f64::from(a.factors.residual);
        for l in 0..a.layers {
            let layer = format!("{layers}.{l}");
            let norm = |x: &Tensor, name: &str| self.norm_if(x, &format!("{layer}.{name}"));
            let [first, attended, before, fed] = norms_of(a.family);
            if a.feeds(l) && !a.mixes(l) {
                x = (&x + self.fed((&norm(&x, before)?, &x), &layer, l)?)?;
                continue;
            }
            let read = norm(&x, first)?;
            let mixed = self.mixed(&read, &layer, l)?;
            let y = norm(&mixed, attended)?;
            let middle = (&x + (y * residual)?)?;
            if !a.feeds(l) {
                x = middle;
                continue;
            }
            let read = if a.parallel { &x } else { &middle };
            let y = norm(&self.fed((&norm(read, before)?, read), &layer, l)?, fed)?;
            let input = inputs.as_ref().map(|all| all.narrow(2, l, 1)?.squeeze(2)).transpose()?;
            x = self.ended((middle + (y * residual)?)?, &layer, input)?;
        }
        let x = self.norm(&x, last)?;
        let logits = x.broadcast_matmul(&self.var(if a.tied { embedding } else { head }).t()?)?;
        let logits = (bounded((logits / f64::from(a.factors.logits))?, a.factors.logits_cap)? / TEMPERATURE)?;
        Ok((log_softmax(&logits, D::Minus1)?, self.linear(&x, "value_head")?.squeeze(2)?))
    }
}

/// Returns the names of the norms before attention, of its output, before the MLP, and of its output.
fn norms_of(family: Family) -> [&'static str; 4] {
    let [input, behind] = ["input_layernorm", "post_attention_layernorm"];
    match family {
        Family::Cohere2 => [input, "", input, ""],
        Family::Exaone4 | Family::Olmo2 | Family::Olmo3 => ["", behind, "", "post_feedforward_layernorm"],
        Family::Gemma2 | Family::Gemma3 | Family::Gemma4 | Family::Gemma4Unified => {
            [input, behind, "pre_feedforward_layernorm", "post_feedforward_layernorm"]
        }
        Family::FalconH1 => [input, "", "pre_ff_layernorm", ""],
        Family::Glm4 => [input, "post_self_attn_layernorm", behind, "post_mlp_layernorm"],
        Family::Gpt2 => ["ln_1", "", "ln_2", ""],
        Family::Lfm2 | Family::Lfm2Moe => ["operator_norm", "", "ffn_norm", ""],
        Family::NemotronH => ["norm", "", "norm", ""],
        _ => [input, "", behind, ""],
    }
}

/// Returns the name of the module of attention.
fn attention_of(family: Family) -> &'static str {
    if family == Family::NemotronH { "mixer" } else { "self_attn" }
}

fn bounded(x: Tensor, cap: Option<f32>) -> Result<Tensor> {
    let Some(cap) = cap.map(f64::from) else { return Ok(x) };
    (x / cap)?.tanh()? * cap
}

/// Returns the auxiliary loss of experts over all rows without their padding, as transformers computes it.
pub fn unevenness(routed: &[(Tensor, Tensor)], lengths: &[usize], longest: usize) -> Result<Tensor> {
    let mask: Vec<f32> = lengths.iter().flat_map(|n| (0..longest).map(move |i| if i < *n { 1.0 } else { 0.0 })).collect();
    let mask = Tensor::from_vec(mask, (lengths.len() * longest, 1), &Device::Cpu)?;
    let (mut counts, mut sums) = (Vec::new(), Vec::new());
    for (p, chosen) in routed {
        counts.push(chosen.broadcast_mul(&mask)?.sum(0)?);
        sums.push(p.broadcast_mul(&mask)?.sum(0)?);
    }
    let (counts, sums) = (Tensor::stack(&counts, 0)?.sum(0)?, Tensor::stack(&sums, 0)?.sum(0)?);
    let total = (lengths.iter().sum::<usize>() * routed.len()) as f64;
    ((counts / total)? * (sums / total)?)?.sum_all()? * routed[0].0.dim(1)? as f64
}
