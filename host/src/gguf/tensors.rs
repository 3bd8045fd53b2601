//! A model's weights under llama.cpp's names, in its order of rows.

use super::gguf_tensor::GgufTensor;
use super::keys::RopeDivisors;
use super::precision::BLOCK;
use super::targets::{LlamaCppGraph, TensorPresence};
use super::{GgufPrecision, Result};
use crate::model::{Architecture, Linear, NormKind, NormWeights, ProjectionLayout, Weights};
use candle_core::{Device, Tensor};

/// Returns the tensors of a file. Most share their storage with the weights.
///
/// # Errors
/// If a tensor can't be split.
pub(super) fn parts(
    weights: &Weights,
    a: &Architecture,
    target: &LlamaCppGraph,
    ropes: &RopeDivisors,
    precision: GgufPrecision,
) -> Result<Vec<GgufTensor>> {
    let mut all = GgufTensors { a, target, precision, parts: Vec::new() };
    all.matrix("token_embd.weight", &weights.embedding);
    if let Some(positions) = &weights.positions {
        // The graph adds positions to f32 activations.
        all.exact("position_embd.weight", positions);
    }
    all.norm("output_norm", Some(&weights.norm))?;
    match (&weights.head, target.output) {
        (Some(head), _) => all.matrix("output.weight", head),
        (None, TensorPresence::Always) => all.matrix("output.weight", &weights.embedding),
        (None, _) => {}
    }
    let [short, long] = ropes.by_length.as_ref().map_or([None, None], |[short, long]| [Some(short), Some(long)]);
    for (name, divisors) in [("rope_freqs", ropes.divisors.as_ref()), ("rope_factors_short", short), ("rope_factors_long", long)]
    {
        if let Some(divisors) = divisors {
            let divisors = Tensor::from_slice(divisors, divisors.len(), &Device::Cpu)?;
            all.exact(&format!("{name}.weight"), &divisors);
        }
    }
    for (number, layer) in weights.layers.iter().enumerate() {
        let name = |part: &str| format!("blk.{number}.{part}");
        all.attention(&name, &layer.qkv)?;
        if let Some(output) = layer.o.first() {
            all.linear(&name("attn_output"), output);
        }
        if let Some(unit) = &layer.unit {
            all.unit(&name, &unit.wide, &unit.down)?;
        }
        if let Some(experts) = &layer.experts {
            let width = experts.down.weight.dim(2)?;
            all.exact(&name("ffn_gate_inp.weight"), &experts.router.weight);
            all.matrix(&name("ffn_gate_exps.weight"), &experts.wide.weight.narrow(1, 0, width)?);
            all.matrix(&name("ffn_up_exps.weight"), &experts.wide.weight.narrow(1, width, width)?);
            all.matrix(&name("ffn_down_exps.weight"), &experts.down.weight);
        }
        for (part, norm) in [
            ("attn_norm", &layer.input_norm),
            ("post_attention_norm", &layer.attended_norm),
            ("ffn_norm", &layer.mlp_norm),
            ("post_ffw_norm", &layer.added_norm),
        ] {
            all.norm(&name(part), norm.as_ref())?;
        }
        if let Some((q, k)) = &layer.attention.qk_norm {
            all.norm_weight(&name("attn_q_norm"), q)?;
            all.norm_weight(&name("attn_k_norm"), k)?;
        }
    }
    Ok(all.parts)
}

/// Returns a note about tensors that don't have the requested precision because their rows don't divide into its blocks.
pub(super) fn fallen_back(parts: &[GgufTensor], precision: GgufPrecision) -> Option<String> {
    let narrower: Vec<&str> = parts
        .iter()
        .filter(|part| part.precision != precision && part.precision == GgufPrecision::F16)
        .map(|part| part.name.as_str())
        .collect();
    let first = narrower.first()?;
    Some(format!(
        "{} tensors ({first} is the first) are stored in f16: {} has blocks of {BLOCK} values, and their rows don't divide into \
         blocks",
        narrower.len(),
        precision.name()
    ))
}

struct GgufTensors<'a> {
    a: &'a Architecture,
    target: &'a LlamaCppGraph,
    precision: GgufPrecision,
    parts: Vec<GgufTensor>,
}

impl GgufTensors<'_> {
    /// Adds values with a shape other than that of their reordered view.
    fn shaped(&mut self, name: &str, shape: &[usize], values: &Tensor, precision: GgufPrecision) {
        self.parts.push(GgufTensor { name: name.to_owned(), shape: shape.to_vec(), values: values.clone(), precision });
    }

    /// Adds a tensor in f32: a small one, or one that selects experts.
    fn exact(&mut self, name: &str, values: &Tensor) {
        self.shaped(name, values.dims(), values, GgufPrecision::F32);
    }

    fn matrix(&mut self, name: &str, values: &Tensor) {
        self.matrix_of(name, values.dims(), values);
    }

    /// Adds a matrix in the requested precision; in f16 if its rows don't divide into blocks, as llama.cpp's converter does.
    fn matrix_of(&mut self, name: &str, shape: &[usize], values: &Tensor) {
        let whole = shape.last().is_some_and(|row| row.is_multiple_of(BLOCK));
        let precision = if self.precision == GgufPrecision::Q8 && !whole { GgufPrecision::F16 } else { self.precision };
        self.shaped(name, shape, values, precision);
    }

    fn linear(&mut self, name: &str, linear: &Linear) {
        self.matrix(&format!("{name}.weight"), &linear.weight);
        if let Some(bias) = &linear.bias {
            self.exact(&format!("{name}.bias"), bias);
        }
    }

    /// Adds a linear map whose outputs are reordered by `view`.
    fn reordered(&mut self, name: &str, linear: &Linear, view: impl Fn(&Tensor) -> Result<Tensor>) -> Result<()> {
        self.matrix_of(&format!("{name}.weight"), linear.weight.dims(), &view(&linear.weight)?);
        if let Some(bias) = &linear.bias {
            self.shaped(&format!("{name}.bias"), bias.dims(), &view(bias)?, GgufPrecision::F32);
        }
        Ok(())
    }

    fn attention(&mut self, name: &impl Fn(&str) -> String, qkv: &[Linear]) -> Result<()> {
        let heads = self.a.heads;
        match self.a.projections {
            ProjectionLayout::Apart => {
                let each = [("attn_q", heads.heads), ("attn_k", heads.kv_heads), ("attn_v", 0)];
                for ((part, heads), linear) in each.into_iter().zip(qkv) {
                    if self.target.neighbours && heads > 0 {
                        self.reordered(&name(part), linear, |rows| neighbours(rows, heads))?;
                    } else {
                        self.linear(&name(part), linear);
                    }
                }
            }
            ProjectionLayout::Joined => qkv.iter().for_each(|linear| self.linear(&name("attn_qkv"), linear)),
            ProjectionLayout::JoinedByHead => {
                for linear in qkv {
                    self.reordered(&name("attn_qkv"), linear, |rows| by_kind(rows, heads.heads))?;
                }
            }
        }
        Ok(())
    }

    fn unit(&mut self, name: &impl Fn(&str) -> String, wide: &[Linear], down: &Linear) -> Result<()> {
        // In a mixture, this MLP is the shared expert.
        let shared = self.a.mixture.is_some();
        let of = |part: &str| name(&if shared { format!("{part}_shexp") } else { part.to_owned() });
        match wide {
            [gate, up] => {
                self.linear(&of("ffn_gate"), gate);
                self.linear(&of("ffn_up"), up);
            }
            [joined] if shared => {
                let width = self.a.intermediate_size;
                for (part, start) in [("ffn_gate", 0), ("ffn_up", width)] {
                    self.matrix(&(of(part) + ".weight"), &joined.weight.narrow(0, start, width)?);
                }
            }
            only => only.iter().for_each(|linear| self.linear(&of("ffn_up"), linear)),
        }
        self.linear(&of("ffn_down"), down);
        Ok(())
    }

    fn norm(&mut self, name: &str, norm: Option<&NormWeights>) -> Result<()> {
        let Some(norm) = norm else { return Ok(()) };
        self.norm_weight(name, &norm.weight)?;
        if let Some(bias) = &norm.bias {
            self.exact(&format!("{name}.bias"), bias);
        }
        Ok(())
    }

    /// Adds a norm's weight. The graphs of all families multiply by it directly.
    fn norm_weight(&mut self, name: &str, weight: &Tensor) -> Result<()> {
        let counted_from_one = self.a.norm == NormKind::RmsFromOne;
        let weight = if counted_from_one { (weight + 1.0)? } else { weight.clone() };
        self.exact(&format!("{name}.weight"), &weight);
        Ok(())
    }
}

/// Returns a view of the rows of query or key heads in which rotated pairs are adjacent, as in Meta's own files (`permute` of llama.cpp's
/// converter). In transformers, the second half of a head follows the first.
fn neighbours(rows: &Tensor, heads: usize) -> Result<Tensor> {
    let (count, rest) = (rows.dim(0)?, &rows.dims()[1..]);
    let split = [&[heads, 2, count / heads / 2][..], rest].concat();
    Ok(rows.reshape(split)?.transpose(1, 2)?)
}

/// Returns a view of the rows of a projection that is joined per head, with all queries first, then all keys and all values.
fn by_kind(rows: &Tensor, heads: usize) -> Result<Tensor> {
    let (count, rest) = (rows.dim(0)?, &rows.dims()[1..]);
    let split = [&[heads, 3, count / heads / 3][..], rest].concat();
    Ok(rows.reshape(split)?.transpose(0, 1)?)
}
