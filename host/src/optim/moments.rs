//! An optimizer's state for a parameter, and the update that it computes from it.

use super::Settings;
use crate::config::{AdafactorArgs, AdjustLr, MuonArgs, Rule};
use crate::ops::adamw::{self, Parameter};
use crate::ops::optimizers::{self as rules, Common, Second};
use crate::ops::{self};
use candle_core::{DType, Tensor};

/// Minimum root mean square by which Adafactor scales a rate.
const LEAST_SCALE: f64 = 1e-3;

/// What Adafactor adds to squared gradients.
const SQUARED_EPS: f64 = 1e-30;

/// The state of one parameter.
pub(super) enum Moments {
    AdamW { m: Tensor, v: Tensor },
    Sgd(Option<Tensor>),
    RmsProp { v: Tensor, buffer: Option<Tensor> },
    Lion(Tensor),
    Factored { rows: Tensor, columns: Tensor, first: Option<Tensor> },
    Whole { v: Tensor, first: Option<Tensor> },
    Muon(Tensor),
}

impl Moments {
    /// Creates zero moments for a parameter.
    pub(super) fn new(rule: Rule, name: &str, parameter: &Tensor) -> ops::Result<Self> {
        let of = |dims: &[usize]| Tensor::zeros(dims, DType::F32, parameter.device());
        let whole = || of(parameter.dims());
        Ok(match rule {
            Rule::Sgd(args) => Self::Sgd((args.momentum > 0.0).then(whole).transpose()?),
            Rule::RmsProp(args) => Self::RmsProp { v: whole()?, buffer: (args.momentum > 0.0).then(whole).transpose()? },
            Rule::Lion => Self::Lion(whole()?),
            Rule::Adafactor(AdafactorArgs { beta1, .. }) => {
                let first = beta1.map(|_| whole()).transpose()?;
                match parameter.dims() {
                    [height, width] => Self::Factored { rows: of(&[*height])?, columns: of(&[*width])?, first },
                    _ => Self::Whole { v: whole()?, first },
                }
            }
            Rule::Muon(_) if is_of_layer(name, parameter) => Self::Muon(whole()?),
            Rule::AdamW | Rule::Muon(_) => Self::AdamW { m: whole()?, v: whole()? },
        })
    }

    /// Returns its tensors, with the suffixes of their names in a checkpoint.
    pub(super) fn named(&self) -> Vec<(&'static str, &Tensor)> {
        match self {
            Self::AdamW { m, v } => vec![("m", m), ("v", v)],
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

    /// Returns the same tensors, to be replaced.
    pub(super) fn named_mut(&mut self) -> Vec<(&'static str, &mut Tensor)> {
        match self {
            Self::AdamW { m, v } => vec![("m", m), ("v", v)],
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

    /// Updates a parameter and the moments in place.
    pub(super) fn update(&self, p: &Parameter<'_>, settings: Settings, s: Common) -> ops::Result<()> {
        match (self, settings.rule) {
            (Self::Sgd(buffer), Rule::Sgd(args)) => {
                let rule = rules::Sgd { momentum: args.momentum, dampening: args.dampening, nesterov: args.nesterov };
                rules::sgd(p.master, p.gradient, buffer.as_ref(), rule, s)
            }
            (Self::RmsProp { v, buffer }, Rule::RmsProp(args)) => {
                let rule = rules::RmsProp { alpha: args.alpha, eps: args.eps, momentum: args.momentum };
                rules::rmsprop(p.master, p.gradient, (v, buffer.as_ref()), rule, s)
            }
            (Self::Lion(m), _) => {
                rules::lion(p.master, p.gradient, m, rules::Lion { beta1: settings.beta1, beta2: settings.beta2 }, s)
            }
            (Self::Factored { rows, columns, first }, Rule::Adafactor(args)) => {
                rules::adafactor(p.master, p.gradient, Second::Factored { rows, columns }, first.as_ref(), adafactor(args), s)
            }
            (Self::Whole { v, first }, Rule::Adafactor(args)) => {
                rules::adafactor(p.master, p.gradient, Second::Whole(v), first.as_ref(), adafactor(args), s)
            }
            (Self::Muon(buffer), Rule::Muon(args)) => rules::muon(p.master, p.gradient, buffer, muon(args, p.master), s),
            (Self::AdamW { m, v }, _) => adamw::update(p.master, p.gradient, m, v, p.rounded, adamw_step(settings, s)),
            _ => Err(ops::Error::Shape { op: "optimizer", detail: "its moments are another optimizer's".into() }),
        }
    }
}

/// Returns whether Muon updates a parameter: a matrix inside a layer, or an adapter's.
fn is_of_layer(name: &str, parameter: &Tensor) -> bool {
    // Families name the list of their layers differently, but a layer's number is always a part of the name.
    parameter.dims().len() == 2 && name.split('.').any(|part| part.parse::<usize>().is_ok())
}

/// Returns AdamW's scalars.
pub(super) fn adamw_step(settings: Settings, s: Common) -> adamw::Step {
    let Settings { beta1, beta2, eps, .. } = settings;
    let Common { lr, weight_decay, grad_scale, t } = s;
    adamw::Step { lr, beta1, beta2, eps, weight_decay, t, grad_scale }
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

/// Returns the factor of Muon's rate for a matrix.
pub(super) fn adjusted(how: AdjustLr, parameter: &Tensor) -> f64 {
    let (height, width) = parameter.dims2().map_or((1.0, 1.0), |(height, width)| (height as f64, width as f64));
    match how {
        AdjustLr::Original => (height / width).max(1.0).sqrt(),
        AdjustLr::MatchRmsAdamw => 0.2 * height.max(width).sqrt(),
        AdjustLr::SpectralUnclamped => (height / width).sqrt(),
    }
}
