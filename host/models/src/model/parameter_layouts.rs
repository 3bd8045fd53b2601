//! Layouts of a decoder's parameters in files. Most are stored as they are used, under the same names. Those of experts are stacked in
//! memory, but separate or differently named in most files; GPT-2's matrices are transposed.

use super::names::{ExpertFileLayout, ExpertNames, FileForm, TensorNames};
use super::shards::SafetensorsReader;
use super::weights::{SCORE, Weights, is_adapter_parameter, is_critic_parameter};
use super::{Error, Result, WeightDtype};
use crate::ops;
use crate::ops::mxfp4;
use candle_core::{Device, Tensor};
use std::path::Path;

/// Layout of a parameter in a file.
enum ParameterLayout {
    /// Unchanged.
    Whole(String),
    /// A matrix, transposed.
    Turned(String),
    /// Parts of each expert, whose rows are concatenated.
    Each(Vec<Vec<String>>),
    /// All experts' matrices, each transposed, or their biases. If `alternating`, the outputs of gate and up projections alternate.
    Crossed { name: String, alternating: bool },
    /// All experts' matrices in MXFP4, not transposed: the names of their blocks and their exponents.
    Packed { names: [String; 2], alternating: bool },
}

impl TensorNames {
    /// Returns the name of the map that a parameter may belong to, if files may store it in an experts' layout.
    fn of_experts<'a>(&self, name: &'a str) -> Option<&'a str> {
        let bias =
            || name.strip_suffix(".bias").filter(|map| !self.experts.is_some_and(|experts| map.ends_with(experts.router[0])));
        name.strip_suffix(".weight").or_else(bias)
    }

    /// Returns whether this is the parameter of experts' biases.
    fn is_bias_of_experts(&self, name: &str) -> bool {
        let part = |experts: &ExpertNames| experts.part_of(self.of_experts(name)?);
        name.ends_with(".bias") && self.experts.is_some_and(|experts| part(experts).is_some())
    }

    /// Returns the possible layouts of the parameter of this name and shape in files, starting with the one used for writing.
    fn forms(&self, name: &str, shape: &[usize]) -> Vec<ParameterLayout> {
        let Some((experts, (layer, part))) =
            self.experts.and_then(|experts| Some((experts, experts.part_of(self.of_experts(name)?)?)))
        else {
            let turned = self.in_files == FileForm::Turned
                && shape.len() == 2
                && name.starts_with(self.layers)
                && !is_adapter_parameter(name);
            return vec![if turned { ParameterLayout::Turned(name.to_owned()) } else { ParameterLayout::Whole(name.to_owned()) }];
        };
        let in_layer = |part: &str| format!("{layer}.{part}");
        if experts.are_crossed() && part != ExpertPart::Router {
            let wide = part == ExpertPart::Wide;
            let (own, alternating) = (if wide { experts.wide } else { experts.down }, wide && experts.have_biases());
            let end = if name.ends_with(".bias") { "_bias" } else { "" };
            let mut forms = vec![ParameterLayout::Crossed { name: in_layer(own) + end, alternating }];
            if experts.have_biases() && shape.last().is_some_and(|d_in| shape.len() == 3 && d_in.is_multiple_of(mxfp4::BLOCK)) {
                forms.push(ParameterLayout::Packed { names: ["_blocks", "_scales"].map(|end| in_layer(own) + end), alternating });
            }
            return forms;
        }
        if part == ExpertPart::Router {
            return [experts.router[1], experts.router[0]]
                .map(|router| ParameterLayout::Whole(in_layer(router) + ".weight"))
                .into();
        }
        // In files, this is not the weight of a module.
        let stacked = ParameterLayout::Whole(in_layer(if part == ExpertPart::Wide { experts.wide } else { experts.down }));
        let each = |folder: &str, parts: &[&str]| {
            let of = |expert: usize| parts.iter().map(|part| format!("{layer}.{folder}.{expert}.{part}.weight")).collect();
            ParameterLayout::Each((0..shape[0]).map(of).collect())
        };
        let first = match &experts.in_files {
            ExpertFileLayout::Together | ExpertFileLayout::Crossed { .. } => return vec![stacked],
            ExpertFileLayout::Stacked([wide, down]) => {
                ParameterLayout::Whole(in_layer(if part == ExpertPart::Wide { wide } else { down }) + ".weight")
            }
            ExpertFileLayout::Each(folder, [gate, up, down]) => {
                if part == ExpertPart::Wide {
                    each(folder, &[*gate, *up])
                } else {
                    each(folder, &[*down])
                }
            }
            ExpertFileLayout::EachUngated(folder, [up, down]) => {
                each(folder, &[if part == ExpertPart::Wide { *up } else { *down }])
            }
        };
        vec![first, stacked]
    }
}

/// Returns the name of one of GPT-2's tensors; its oldest files omit the first part.
pub(super) fn with_prefix(name: &str) -> String {
    let old = ["wte.", "wpe.", "h.", "ln_f."].into_iter().any(|start| name.starts_with(start));
    if old { format!("transformer.{name}") } else { name.to_owned() }
}

/// A parameter of experts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExpertPart {
    Router,
    Wide,
    Down,
}

impl ExpertNames {
    /// Returns the layer and the part of a parameter of experts; `None` for other parameters.
    fn part_of<'a>(&self, name: &'a str) -> Option<(&'a str, ExpertPart)> {
        let all = [(self.router[0], ExpertPart::Router), (self.wide, ExpertPart::Wide), (self.down, ExpertPart::Down)];
        all.into_iter().find_map(|(own, part)| Some((name.strip_suffix(own)?.strip_suffix('.')?, part)))
    }
}

impl ParameterLayout {
    /// Returns the tensors of this layout with their shapes.
    fn tensors(&self, shape: &[usize]) -> Vec<(&str, Vec<usize>)> {
        match self {
            Self::Crossed { name, .. } => match *shape {
                [experts, d_out, d_in] => vec![(name, vec![experts, d_in, d_out])],
                _ => vec![(name, shape.to_vec())],
            },
            Self::Packed { names: [blocks, exponents], .. } => {
                let (rows, count) = (&shape[..shape.len() - 1], shape.last().map_or(0, |d_in| d_in / mxfp4::BLOCK));
                vec![(blocks, [rows, &[count, mxfp4::BYTES]].concat()), (exponents, [rows, &[count]].concat())]
            }
            Self::Whole(name) => vec![(name, shape.to_vec())],
            Self::Turned(name) => vec![(name, shape.iter().rev().copied().collect())],
            Self::Each(all) => {
                let (parts, rest) = (all.first().map_or(1, Vec::len), &shape[2..]);
                let shape = [&[shape[1] / parts.max(1)], rest].concat();
                all.iter().flatten().map(|name| (name.as_str(), shape.clone())).collect()
            }
        }
    }
}

/// Returns whether a model's files have the parameter of this name.
///
/// # Errors
/// As [`SafetensorsReader::check`].
pub(super) fn check(shards: &SafetensorsReader, names: &TensorNames, name: &str, shape: &[usize]) -> Result<bool> {
    Ok(found(shards, names, name, shape)?.is_some())
}

/// Returns the name of a tensor that a model's files lack for the parameter of this name: in the layout of which they have a part, or else
/// in the usual one.
pub(super) fn missing(shards: &SafetensorsReader, names: &TensorNames, name: &str, shape: &[usize]) -> String {
    let forms = names.forms(name, shape);
    let held = |form: &&ParameterLayout| form.tensors(shape).iter().any(|(tensor, _)| shards.has(tensor));
    let form = forms.iter().find(held).or(forms.first());
    let lacking = form.and_then(|form| form.tensors(shape).into_iter().find(|(tensor, _)| !shards.has(tensor)));
    lacking.map_or_else(|| name.to_owned(), |(tensor, _)| tensor.to_owned())
}

fn found(shards: &SafetensorsReader, names: &TensorNames, name: &str, shape: &[usize]) -> Result<Option<ParameterLayout>> {
    for form in names.forms(name, shape) {
        let mut all = true;
        for (tensor, shape) in form.tensors(shape) {
            all &= match form {
                ParameterLayout::Packed { .. } => shards.has_bytes(tensor, &shape, BY)?,
                _ => shards.check(tensor, &shape, BY)?,
            };
        }
        if all {
            return Ok(Some(form));
        }
    }
    Ok(None)
}

/// Source of the shapes, for error messages.
const BY: &str = "config.json";

/// Takes the parameter of this name from a model's files in `folder`. Returns `None` if they lack it.
///
/// # Errors
/// As [`SafetensorsReader::take_in`].
pub(super) fn take(
    (folder, shards): (&Path, &mut SafetensorsReader),
    names: &TensorNames,
    (name, shape): (&str, &[usize]),
    dtype: Option<WeightDtype>,
) -> Result<Option<Tensor>> {
    // Experts' products read f32.
    let dtype = if shape.len() > 2 || names.is_bias_of_experts(name) { Some(WeightDtype::F32) } else { dtype };
    let Some(form) = found(shards, names, name, shape)? else { return Ok(None) };
    let tensors = form.tensors(shape);
    if let ParameterLayout::Turned(tensor) = &form {
        return Ok(shards.take_in(tensor, &tensors[0].1, BY, dtype)?.map(|t| t.t()?.contiguous()).transpose()?);
    }
    if let ParameterLayout::Crossed { name, alternating } = &form {
        return Ok(shards.take_in(name, &tensors[0].1, BY, dtype)?.map(|t| uncrossed(&t, *alternating)).transpose()?);
    }
    if let ParameterLayout::Packed { alternating, .. } = &form {
        let mut bytes = Vec::with_capacity(2);
        for (tensor, shape) in &tensors {
            bytes.extend(shards.take_bytes(tensor, shape, BY)?);
        }
        let [blocks, exponents] = &bytes[..] else { return Ok(None) };
        let t = Tensor::from_vec(mxfp4::unpack(blocks, exponents)?, shape, &Device::Cpu)?;
        if !ops::all_finite(&t)? {
            return Err(SafetensorsReader::damaged(folder, tensors[1].0));
        }
        return Ok(Some(if *alternating { gates_first(&t)? } else { t }));
    }
    let mut parts = Vec::with_capacity(tensors.len());
    for (tensor, shape) in tensors {
        parts.extend(shards.take_in(tensor, &shape, BY, dtype)?);
    }
    let one = if let [_] = &parts[..] { parts.pop() } else { None };
    Ok(Some(one.map_or_else(|| Tensor::cat(&parts, 0), Ok)?.reshape(shape)?))
}

/// Converts experts' matrices `[E, in, out]`, or biases `[E, out]`, to their layout in memory, with all gate rows before all up rows.
fn uncrossed(t: &Tensor, alternating: bool) -> candle_core::Result<Tensor> {
    let t = if t.dims().len() == 3 { t.transpose(1, 2)?.contiguous()? } else { t.clone() };
    if alternating { gates_first(&t) } else { Ok(t) }
}

/// Moves all gates of alternating outputs before all up outputs.
fn gates_first(t: &Tensor) -> candle_core::Result<Tensor> {
    let (experts, outputs) = (t.dims()[0], t.dims()[1]);
    t.reshape((experts, outputs / 2, 2, ()))?.transpose(1, 2)?.contiguous()?.reshape(t.shape())
}

/// Converts experts' matrices or biases to their layout in files.
fn crossed(t: &Tensor, alternating: bool) -> candle_core::Result<Tensor> {
    let (experts, outputs) = (t.dims()[0], t.dims()[1]);
    let t = match alternating {
        true => t.reshape((experts, 2, outputs / 2, ()))?.transpose(1, 2)?.contiguous()?.reshape(t.shape())?,
        false => t.clone(),
    };
    if t.dims().len() == 3 { t.transpose(1, 2)?.contiguous() } else { Ok(t) }
}

impl Weights {
    /// Returns all parameters except an adapter's in the layout of files.
    ///
    /// # Errors
    /// If a tensor can't be split.
    pub(super) fn in_files(&self) -> Result<Vec<(String, Tensor)>> {
        self.some_in_files(|_| true)
    }

    /// Returns the parameters that `which` selects by name in the layout of the model's (or value model's) files. An adapter and a critic's
    /// head are excluded.
    ///
    /// # Errors
    /// If a tensor can't be split.
    pub fn shard(&self, which: impl Fn(&str) -> bool) -> Result<Vec<(String, Tensor)>> {
        let is_value_model = self.is_value_model();
        let all = self.some_in_files(|name| (is_value_model || !is_critic_parameter(name)) && which(name))?;
        Ok(all.into_iter().map(|(name, t)| (if is_critic_parameter(&name) { SCORE.to_owned() } else { name }, t)).collect())
    }

    fn some_in_files(&self, which: impl Fn(&str) -> bool) -> Result<Vec<(String, Tensor)>> {
        let mut all = Vec::new();
        for (name, t) in self.named().into_iter().filter(|(name, _)| !is_adapter_parameter(name) && which(name)) {
            let missing = || Error::Op(crate::ops::Error::Shape { op: "save", detail: format!("no form for {name}") });
            let form = self.names.forms(&name, t.dims()).into_iter().next().ok_or_else(missing)?;
            match &form {
                ParameterLayout::Whole(name) => all.push((name.clone(), t.clone())),
                ParameterLayout::Turned(name) => all.push((name.clone(), t.t()?.contiguous()?)),
                // This is never the first layout.
                ParameterLayout::Packed { .. } => return Err(missing()),
                ParameterLayout::Crossed { name, alternating } => all.push((name.clone(), crossed(t, *alternating)?)),
                ParameterLayout::Each(_) => {
                    let tensors = form.tensors(t.dims());
                    let parts = t.reshape((tensors.len(), tensors[0].1[0], ()))?;
                    for (i, (name, _)) in tensors.into_iter().enumerate() {
                        all.push((name.to_owned(), parts.get(i)?));
                    }
                }
            }
        }
        Ok(all.into_iter().map(|(name, t)| (self.names.to_file(name), t)).collect())
    }
}
