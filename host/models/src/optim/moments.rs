//! Optimizer state of a parameter, and the update computed from it.

use super::OptimizerSettings;
use crate::config::{AdafactorArgs, LrAdjustment, MuonArgs, OptimizerRule};
use crate::ops::adamw::{self, Parameter};
use crate::ops::adamw_8bit::{self, BLOCK, Moment8Bit};
use crate::ops::optimizers::{self as rules, CommonScalars, SecondMoment};
use crate::ops::{self};
use candle_core::{DType, Tensor};

/// Minimum root mean square of a parameter by which Adafactor scales the learning rate.
const LEAST_SCALE: f64 = 1e-3;

/// Epsilon that Adafactor adds to squared gradients.
const SQUARED_EPS: f64 = 1e-30;

/// Minimum number of values of a parameter whose moments are in 8 bits, from bitsandbytes.
const LEAST_8BIT: usize = 4096;

/// Last parts of the names of embedding tables. Most gradients of a row are zero, so its moments vary too much for 8 bits (Dettmers et al.
/// 2022, section 2.3); transformers also keeps them in 32 bits.
const TABLES: [&str; 4] = ["embed_tokens", "embed_in", "wte", "wpe"];

/// A moment stored in 8 bits; see [`Moment8Bit`].
pub(super) struct QuantizedMoment {
    codes: Tensor,
    scales: Tensor,
}

impl QuantizedMoment {
    fn new(parameter: &Tensor) -> ops::Result<Self> {
        let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, parameter.device());
        let blocks = parameter.elem_count().div_ceil(BLOCK);
        Ok(Self { codes: zeros(parameter.dims(), DType::U8)?, scales: zeros(&[blocks], DType::F32)? })
    }

    /// Returns the moment in the form that [`adamw_8bit`] reads.
    pub(super) fn moment(&self) -> Moment8Bit<'_> {
        Moment8Bit { codes: &self.codes, scales: &self.scales }
    }
}

/// Optimizer state of one parameter.
pub(super) enum ParameterMoments {
    AdamW { m: Tensor, v: Tensor },
    AdamW8Bit { m: QuantizedMoment, v: QuantizedMoment },
    Sgd(Option<Tensor>),
    RmsProp { v: Tensor, buffer: Option<Tensor> },
    Lion(Tensor),
    Factored { rows: Tensor, columns: Tensor, first: Option<Tensor> },
    Whole { v: Tensor, first: Option<Tensor> },
    Muon(Tensor),
}

impl ParameterMoments {
    /// Creates zero moments for a parameter.
    pub(super) fn new(rule: OptimizerRule, name: &str, parameter: &Tensor) -> ops::Result<Self> {
        let of = |dims: &[usize]| Tensor::zeros(dims, DType::F32, parameter.device());
        let whole = || of(parameter.dims());
        Ok(match rule {
            OptimizerRule::Sgd(args) => Self::Sgd((args.momentum > 0.0).then(whole).transpose()?),
            OptimizerRule::RmsProp(args) => Self::RmsProp { v: whole()?, buffer: (args.momentum > 0.0).then(whole).transpose()? },
            OptimizerRule::Lion => Self::Lion(whole()?),
            OptimizerRule::Adafactor(AdafactorArgs { beta1, .. }) => {
                let first = beta1.map(|_| whole()).transpose()?;
                match parameter.dims() {
                    [height, width] => Self::Factored { rows: of(&[*height])?, columns: of(&[*width])?, first },
                    _ => Self::Whole { v: whole()?, first },
                }
            }
            OptimizerRule::Muon(_) if is_of_layer(name, parameter) => Self::Muon(whole()?),
            OptimizerRule::AdamW8Bit if parameter.elem_count() >= LEAST_8BIT && !is_table(name) => {
                Self::AdamW8Bit { m: QuantizedMoment::new(parameter)?, v: QuantizedMoment::new(parameter)? }
            }
            OptimizerRule::AdamW | OptimizerRule::AdamW8Bit | OptimizerRule::Muon(_) => Self::AdamW { m: whole()?, v: whole()? },
        })
    }

    /// Returns the state's tensors with the suffixes of their names in a checkpoint.
    pub(super) fn named(&self) -> Vec<(&'static str, &Tensor)> {
        match self {
            Self::AdamW { m, v } => vec![("m", m), ("v", v)],
            Self::AdamW8Bit { m, v } => {
                vec![("m", &m.codes), ("m_scales", &m.scales), ("v", &v.codes), ("v_scales", &v.scales)]
            }
            Self::Sgd(buffer) => buffer.iter().map(|buffer| ("momentum", buffer)).collect(),
            Self::RmsProp { v, buffer } => {
                [("v", v)].into_iter().chain(buffer.iter().map(|buffer| ("momentum", buffer))).collect()
            }
            Self::Lion(m) => vec![("m", m)],
            Self::Factored { rows, columns, first } => {
                let first = first.iter().map(|m| ("m", m));
                [("rows", rows), ("columns", columns)].into_iter().chain(first).collect()
            }
            Self::Whole { v, first } => [("v", v)].into_iter().chain(first.iter().map(|m| ("m", m))).collect(),
            Self::Muon(buffer) => vec![("momentum", buffer)],
        }
    }

    /// Returns the state's tensors mutably, with their names.
    pub(super) fn named_mut(&mut self) -> Vec<(&'static str, &mut Tensor)> {
        match self {
            Self::AdamW { m, v } => vec![("m", m), ("v", v)],
            Self::AdamW8Bit { m, v } => {
                vec![("m", &mut m.codes), ("m_scales", &mut m.scales), ("v", &mut v.codes), ("v_scales", &mut v.scales)]
            }
            Self::Sgd(buffer) => buffer.iter_mut().map(|buffer| ("momentum", buffer)).collect(),
            Self::RmsProp { v, buffer } => {
                [("v", v)].into_iter().chain(buffer.iter_mut().map(|buffer| ("momentum", buffer))).collect()
            }
            Self::Lion(m) => vec![("m", m)],
            Self::Factored { rows, columns, first } => {
                let first = first.iter_mut().map(|m| ("m", m));
                [("rows", rows), ("columns", columns)].into_iter().chain(first).collect()
            }
            Self::Whole { v, first } => [("v", v)].into_iter().chain(first.iter_mut().map(|m| ("m", m))).collect(),
            Self::Muon(buffer) => vec![("momentum", buffer)],
        }
    }

    /// Updates a parameter and its moments in place.
    pub(super) fn update(&self, p: &Parameter<'_>, settings: OptimizerSettings, s: CommonScalars) -> ops::Result<()> {
        match (self, settings.rule) {
            (Self::Sgd(buffer), OptimizerRule::Sgd(args)) => {
                let rule = rules::Sgd { momentum: args.momentum, dampening: args.dampening, nesterov: args.nesterov };
                rules::sgd(p.master, p.gradient, buffer.as_ref(), rule, s)
            }
            (Self::RmsProp { v, buffer }, OptimizerRule::RmsProp(args)) => {
                let rule = rules::RmsProp { alpha: args.alpha, eps: args.eps, momentum: args.momentum };
                rules::rmsprop(p.master, p.gradient, (v, buffer.as_ref()), rule, s)
            }
            (Self::Lion(m), _) => {
                rules::lion(p.master, p.gradient, m, rules::Lion { beta1: settings.beta1, beta2: settings.beta2 }, s)
            }
            (Self::Factored { rows, columns, first }, OptimizerRule::Adafactor(args)) => rules::adafactor(
                p.master,
                p.gradient,
                SecondMoment::Factored { rows, columns },
                first.as_ref(),
                adafactor(args),
                s,
            ),
            (Self::Whole { v, first }, OptimizerRule::Adafactor(args)) => {
                rules::adafactor(p.master, p.gradient, SecondMoment::Full(v), first.as_ref(), adafactor(args), s)
            }
            (Self::Muon(buffer), OptimizerRule::Muon(args)) => rules::muon(p.master, p.gradient, buffer, muon(args, p.master), s),
            (Self::AdamW8Bit { m, v }, _) => {
                adamw_8bit::update(p.master, p.gradient, m.moment(), v.moment(), adamw_step(settings, s))
            }
            (Self::AdamW { m, v }, _) => adamw::update(p.master, p.gradient, m, v, p.rounded, adamw_step(settings, s)),
            _ => Err(ops::Error::Shape { op: "optimizer", detail: "its moments are another optimizer's".into() }),
        }
    }
}

/// Returns whether Muon updates a parameter: a matrix of a layer or of an adapter.
fn is_of_layer(name: &str, parameter: &Tensor) -> bool {
    // Families name the list of layers differently, but the name always contains the layer's number.
    parameter.dims().len() == 2 && name.split('.').any(|part| part.parse::<usize>().is_ok())
}

/// Returns whether a parameter is an embedding table.
fn is_table(name: &str) -> bool {
    let module = name.strip_suffix(".weight").and_then(|module| module.rsplit('.').next());
    module.is_some_and(|module| TABLES.contains(&module))
}

/// Returns AdamW's scalars.
pub(super) fn adamw_step(settings: OptimizerSettings, s: CommonScalars) -> adamw::AdamWStep {
    let OptimizerSettings { beta1, beta2, eps, .. } = settings;
    let CommonScalars { lr, weight_decay, grad_scale, t } = s;
    adamw::AdamWStep { lr, beta1, beta2, eps, weight_decay, t, grad_scale }
}

fn adafactor(args: AdafactorArgs) -> rules::Adafactor {
    let AdafactorArgs { beta1, clip_threshold, decay_rate, scale_parameter } = args;
    let scale_parameter = scale_parameter.then_some(LEAST_SCALE);
    rules::Adafactor { eps: SQUARED_EPS, clip_threshold, decay_rate, beta1, scale_parameter }
}

fn muon(args: MuonArgs, parameter: &Tensor) -> rules::Muon {
    let MuonArgs { momentum, nesterov, ns_steps, adjust_lr_fn } = args;
    rules::Muon { momentum, nesterov, ns_steps, adjusted: adjusted(adjust_lr_fn, parameter) }
}

/// Returns Muon's learning rate multiplier for a matrix.
pub(super) fn adjusted(how: LrAdjustment, parameter: &Tensor) -> f64 {
    let (height, width) = parameter.dims2().map_or((1.0, 1.0), |(height, width)| (height as f64, width as f64));
    match how {
        LrAdjustment::Original => (height / width).max(1.0).sqrt(),
        LrAdjustment::MatchRmsAdamw => 0.2 * height.max(width).sqrt(),
        LrAdjustment::SpectralUnclamped => (height / width).sqrt(),
    }
}
