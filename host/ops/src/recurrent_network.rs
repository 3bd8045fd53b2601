//! Recurrent layers between their projections: gated delta networks (`gated_delta.rs`) and state spaces (`state_space.rs`). Both are a short
//! convolution of queries, keys and values with SiLU, a rule that reads and writes a state (`delta_rule.rs`), and a norm with a gate.
//!
//! The backward pass reads the stored results of the projections and recomputes the rest.

use super::convolution::ConvolutionState;
use super::delta_rule::{DeltaHeads, DeltaRuleInputs};
use super::elementwise::cast;
use super::forest::Forest;
use super::gated_delta::GatedDelta;
use super::network_kind::{NetworkGradient, NetworkKind, NetworkParameters, RuleRows, add_columns, silu};
use super::simd::wide;
use super::slices::{SharedPointer, read, tensor};
use super::state_space::StateSpace;
use super::{Error, Result, matrix_dims, team};
use candle_core::{DType, Tensor};
use rayon::prelude::*;

/// A network's parameters, excluding its projections.
#[derive(Clone, Copy, Debug)]
pub enum RecurrentNetwork<'a> {
    /// A gated delta network. Its inputs are queries, keys and values, `[N, row_width]`; gates, `[N, value_width]`; `b` and `a`, `[N,
    /// values]`.
    GatedDelta(GatedDelta<'a>),
    /// A state space. Its inputs are gates, `[N, value_width]`; values, keys and queries, `[N, row_width]`; and step sizes, `[N, values]`.
    StateSpace(StateSpace<'a>),
}

/// State of a network after a text.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkState {
    convolution: ConvolutionState,
    /// States of the heads, `[values, K, V]`.
    states: Vec<f32>,
}

impl NetworkState {
    /// Creates the state before a text, for heads of these sizes and a convolution over `width` tokens.
    pub fn empty(heads: DeltaHeads, width: usize) -> Self {
        let convolution = ConvolutionState::empty(width, heads.row_width());
        Self { convolution, states: vec![0.0; heads.values * heads.state()] }
    }

    /// Returns the size of the state in bytes.
    pub fn bytes(&self) -> usize {
        self.convolution.bytes() + size_of_val(&self.states[..])
    }
}

/// Applies SiLU to all values.
fn activated(sums: &[f32]) -> Vec<f32> {
    let mut all = sums.to_vec();
    all.par_chunks_mut(1 << 13).for_each(|part| wide!(part.iter_mut().for_each(|x| *x = silu(*x).0)));
    all
}

impl RuleRows {
    fn rule(&self, kind: &dyn NetworkKind) -> DeltaRuleInputs<'_> {
        let rows = self.ordered.as_deref().unwrap_or(&self.mixed);
        DeltaRuleInputs {
            heads: kind.common().heads,
            rows,
            decays: &self.decays,
            betas: kind.corrects().then_some(&self.write_rates),
        }
    }
}

/// A network's inputs as operations read them.
#[derive(Clone, Copy)]
struct Inputs<'a> {
    /// Number of rows.
    n: usize,
    rows: &'a [f32],
    gates: &'a [f32],
    /// Inputs `[N, values]`.
    small: &'a [&'a [f32]],
}

impl<'a> RecurrentNetwork<'a> {
    fn kind(self) -> Result<Box<dyn NetworkKind + 'a>> {
        Ok(match self {
            Self::GatedDelta(network) => Box::new(network.parsed()?),
            Self::StateSpace(network) => Box::new(network.parsed()?),
        })
    }

    /// Returns the inputs in the order of gated delta networks: rows, gates, and those `[N, values]`.
    fn ordered<T: Clone>(self, inputs: &[T]) -> Vec<T> {
        let mut all = inputs.to_vec();
        if matches!(self, Self::StateSpace(_)) && all.len() > 1 {
            all.swap(0, 1);
        }
        all
    }

    /// Calls `f` with the network and its inputs in f32.
    fn with<T>(self, inputs: &[Tensor], f: impl FnOnce(&dyn NetworkKind, Inputs<'_>) -> Result<T>) -> Result<T> {
        let kind = self.kind()?;
        let (h, n) = (kind.common().heads, inputs.first().map_or(0, |t| matrix_dims(t).0));
        let count = match self {
            Self::GatedDelta(_) => 4,
            Self::StateSpace(_) => 3,
        };
        let widths = [h.row_width(), h.value_width(), h.values, h.values];
        let all = self.ordered(inputs);
        if all.len() != count || !all.iter().zip(widths).all(|(t, width)| matrix_dims(t) == (n, width)) {
            let shapes: Vec<_> = inputs.iter().map(Tensor::shape).collect();
            return Err(Error::shape("recurrent network", format!("{shapes:?} for {h:?}")));
        }
        let all = all.iter().map(|t| cast(t, DType::F32)).collect::<Result<Vec<_>>>()?;
        let slices = all.iter().map(read).collect::<Result<Vec<_>>>()?;
        let slices: Vec<&[f32]> = slices.iter().map(|slice| &slice[..]).collect();
        match &slices[..] {
            [rows, gates, small @ ..] => f(kind.as_ref(), Inputs { n, rows, gates, small }),
            _ => Err(Error::shape("recurrent network", format!("{} inputs", slices.len()))),
        }
    }
}

fn check_rows(n: usize, forest: &Forest) -> Result<()> {
    let tokens = forest.len();
    if n == tokens { Ok(()) } else { Err(Error::shape("recurrent network", format!("{n} rows of {tokens} tokens"))) }
}

/// Computes the results `[N, value_width]` for all rows of a forest, or those of some `segments` in this order, from the inputs of all
/// rows.
pub fn forward(inputs: &[Tensor], network: RecurrentNetwork<'_>, forest: &Forest, segments: Option<&[usize]>) -> Result<Tensor> {
    network.with(inputs, |kind, Inputs { n, rows, gates, small }| {
        check_rows(n, forest)?;
        let NetworkParameters { heads, taps, .. } = kind.common();
        let (d, width) = (taps.d, heads.value_width());
        let given = kind.rule_rows(activated(&taps.sums(rows, forest, None)), small);
        let mut wanted = vec![segments.is_none(); forest.segments().len()];
        segments.into_iter().flatten().for_each(|segment| wanted[*segment] = true);
        let mut out = vec![0f32; forest.len() * width];
        given.rule(kind).forward(forest, &wanted, SharedPointer::new(&mut out));
        let places: Vec<usize> = match segments {
            None => (0..n).collect(),
            Some(segments) => {
                let places = segments.iter().flat_map(|segment| forest.segments()[*segment].range()).collect::<Vec<usize>>();
                out = places.iter().flat_map(|place| out[place * width..(place + 1) * width].iter().copied()).collect();
                places
            }
        };
        out.par_chunks_mut(width).zip(&places).for_each(|(row, place)| {
            kind.finish(row, &given.mixed[place * d..][..d], &gates[place * width..][..width]);
        });
        let n = out.len() / width;
        tensor(out, (n, width))
    })
}

/// Returns the gradients of the inputs, given that of the results of all rows, and adds those of the parameters.
pub fn backward(
    inputs: &[Tensor],
    network: RecurrentNetwork<'_>,
    dy: &Tensor,
    forest: &Forest,
    gradient: NetworkGradient<'_>,
) -> Result<Vec<Tensor>> {
    network.with(inputs, |kind, Inputs { n, rows, gates, small }| {
        check_rows(n, forest)?;
        let NetworkParameters { heads: h, taps, .. } = kind.common();
        let (d, width, values) = (taps.d, h.value_width(), h.values);
        if matrix_dims(dy) != (n, width) {
            return Err(Error::shape("recurrent network backward", format!("{:?} for {n} rows of {width}", dy.shape())));
        }
        let dy = read(dy)?;
        let sums = taps.sums(rows, forest, None);
        let given = kind.rule_rows(activated(&sums), small);
        let rule = given.rule(kind);
        let mut heads = vec![0f32; n * width];
        rule.forward(forest, &vec![true; forest.segments().len()], SharedPointer::new(&mut heads));
        let finish = kind.finish_backward(heads, &given, gates, &dy);
        let of_rule = rule.backward(forest, &finish.heads);
        add_columns(gradient.norm, finish.norm.iter().copied())?;
        let of_inputs = kind.read_backward(&given, of_rule, &finish, small, &gradient)?;
        let mut d_sums = of_inputs.mixed;
        d_sums.par_chunks_mut(1 << 13).zip(sums.par_chunks(1 << 13)).for_each(|(d, sums)| {
            wide!(d.iter_mut().zip(sums).for_each(|(d, sum)| *d *= silu(*sum).1));
        });
        let d_rows = taps.backward(rows, &d_sums, forest, gradient.convolution)?;
        let mut all = vec![tensor(d_rows, (n, d))?, tensor(finish.gates, (n, width))?];
        for small in of_inputs.small {
            all.push(tensor(small, (n, values))?);
        }
        Ok(network.ordered(&all))
    })
}

/// Returns the states at the ends of all segments of a forest.
pub fn states(inputs: &[Tensor], network: RecurrentNetwork<'_>, forest: &Forest) -> Result<Vec<NetworkState>> {
    if forest.segments().iter().any(|segment| segment.prefix.is_some()) {
        return Err(Error::shape("recurrent network", "states of segments that continue others".to_owned()));
    }
    network.with(inputs, |kind, Inputs { n, rows, small, .. }| {
        check_rows(n, forest)?;
        let taps = &kind.common().taps;
        let d = taps.d;
        let given = kind.rule_rows(activated(&taps.sums(rows, forest, None)), small);
        let unwanted = vec![false; forest.segments().len()];
        let ends = given.rule(kind).forward(forest, &unwanted, SharedPointer::new(&mut []));
        let state = |(segment, states): (&super::Segment, Vec<f32>)| NetworkState {
            convolution: ConvolutionState::from_inputs(taps, segment.range(), |place, u| {
                u.copy_from_slice(&rows[place * d..][..d]);
            }),
            states,
        };
        Ok(forest.segments().iter().zip(ends).map(state).collect())
    })
}

/// Computes the results `[N, value_width]` for new tokens of sequences, sequence by sequence, and advances the states. Each state comes
/// with the number of its sequence's new tokens.
pub fn step(inputs: &[Tensor], network: RecurrentNetwork<'_>, sequences: &mut [(&mut NetworkState, usize)]) -> Result<Tensor> {
    network.with(inputs, |kind, Inputs { n, rows, gates, small }| {
        let NetworkParameters { heads: h, taps, .. } = kind.common();
        let (d, width) = (taps.d, h.value_width());
        let fits =
            |(state, _): &(&mut NetworkState, usize)| state.convolution.fits(taps) && state.states.len() == h.values * h.state();
        if !sequences.iter().all(fits) || sequences.iter().map(|(_, count)| count).sum::<usize>() != n {
            return Err(Error::shape("recurrent network", format!("{n} rows for {} states", sequences.len())));
        }
        let (mut mixed, mut tasks, mut row) = (vec![0f32; n * d], Vec::new(), 0);
        for (state, count) in sequences {
            for row in row..row + *count {
                let own = &mut mixed[row * d..][..d];
                state.convolution.step(taps, &rows[row * d..][..d], own);
                wide!(own.iter_mut().for_each(|x| *x = silu(*x).0));
            }
            let states = SharedPointer::new(&mut state.states);
            tasks.extend((0..h.values).map(|head| (states, row..row + *count, head)));
            row += *count;
        }
        let given = kind.rule_rows(mixed, small);
        let rule = given.rule(kind);
        let mut out = vec![0f32; n * width];
        let to = SharedPointer::new(&mut out);
        team::for_each_part(tasks.len(), |task| {
            let (states, rows, head) = &tasks[task];
            // SAFETY: only this task accesses this head's state of this sequence, and its outputs of these rows.
            let state = unsafe { std::slice::from_raw_parts_mut(states.at(head * h.state()), h.state()) };
            for row in rows.clone() {
                // SAFETY: as above.
                let out = unsafe { std::slice::from_raw_parts_mut(to.at(row * width + head * h.value_dim), h.value_dim) };
                rule.token(row, *head, state, out);
            }
        });
        for (i, row) in out.chunks_exact_mut(width).enumerate() {
            kind.finish(row, &given.mixed[i * d..][..d], &gates[i * width..][..width]);
        }
        tensor(out, (n, width))
    })
}

#[cfg(test)]
mod tests {
    use super::super::convolution::{Convolution, ConvolutionGradient};
    use super::super::delta_rule::tests::{HEADS, defined as rule, forest, near, texts, values};
    use super::*;
    use crate::NormPlace;
    use crate::testing::random;
    use candle_core::{D, Device, Var};

    /// A gated delta network, and state spaces by the places of their norms.
    const KINDS: [Option<NormPlace>; 4] =
        [None, Some(NormPlace::AfterGates), Some(NormPlace::BeforeGates), Some(NormPlace::Absent)];

    /// Returns the parameters: kernel, `dt`, `A`, the norm, and for a state space the convolution's bias and `D`.
    fn parameters(k: usize, kind: Option<NormPlace>) -> Vec<Var> {
        let space = kind.is_some();
        let norm = if space { HEADS.value_width() } else { HEADS.value_dim };
        let mut shapes = vec![vec![HEADS.row_width(), 1, k], vec![HEADS.values], vec![HEADS.values], vec![norm]];
        shapes.extend(space.then(|| [vec![HEADS.row_width()], vec![HEADS.values]]).into_iter().flatten());
        shapes.iter().map(|shape| Var::from_tensor(&random(shape).affine(0.7, 0.2).unwrap()).unwrap()).collect()
    }

    // The norm divides by the size of few values. The larger epsilon keeps it from multiplying the rounding errors of a nearly zero head by
    // hundreds.
    const EPS: f64 = 1e-3;
    const LIMITS: [f32; 2] = [0.3, 1.5];

    fn network(parameters: &[Var], kind: Option<NormPlace>) -> RecurrentNetwork<'_> {
        let (heads, eps, limits) = (HEADS, EPS, LIMITS);
        match (parameters, kind) {
            ([kernel, dt, a_log, norm], _) => RecurrentNetwork::GatedDelta(GatedDelta { heads, kernel, dt, a_log, norm, eps }),
            ([kernel, dt, a_log, norm, bias, skip], Some(norm_place)) => {
                let convolution = Convolution { weight: kernel, bias: Some(bias) };
                let norm = (norm_place != NormPlace::Absent).then_some(norm.as_tensor());
                RecurrentNetwork::StateSpace(StateSpace { heads, convolution, dt, a_log, skip, norm, norm_place, limits, eps })
            }
            _ => unreachable!("four or six parameters"),
        }
    }

    fn inputs(n: usize, kind: Option<NormPlace>) -> Vec<Var> {
        let (row, gate, small) = (HEADS.row_width(), HEADS.value_width(), HEADS.values);
        let widths = if kind.is_some() { vec![gate, row, small] } else { vec![row, gate, small, small] };
        widths.into_iter().map(|width| Var::from_tensor(&random(&[n, width])).unwrap()).collect()
    }

    fn tensors(vars: &[Var]) -> Vec<Tensor> {
        vars.iter().map(|var| var.as_tensor().clone()).collect()
    }

    fn wide(t: &Tensor) -> Tensor {
        t.to_dtype(DType::F64).unwrap()
    }

    fn silu(x: &Tensor) -> candle_core::Result<Tensor> {
        x / (x.neg()?.exp()? + 1.0)?
    }

    fn convolved(rows: &Tensor, kernel: &Tensor) -> candle_core::Result<Tensor> {
        let (t, k, width) = (rows.dim(0)?, kernel.dim(2)?, HEADS.row_width());
        let padded = Tensor::cat(&[Tensor::zeros((k - 1, width), DType::F64, &Device::Cpu)?, rows.clone()], 0)?;
        let mut sum = Tensor::zeros((t, width), DType::F64, &Device::Cpu)?;
        for i in 0..k {
            sum = (sum + padded.narrow(0, i, t)?.broadcast_mul(&kernel.narrow(2, i, 1)?.reshape((1, width))?)?)?;
        }
        Ok(sum)
    }

    /// Divides groups of this many values by their size.
    fn normalised(x: &Tensor, group: usize) -> candle_core::Result<Tensor> {
        let groups = x.reshape((x.dim(0)?, (), group))?;
        let size = (groups.sqr()?.mean_keepdim(D::Minus1)? + EPS)?.sqrt()?;
        groups.broadcast_div(&size)?.reshape(x.shape())
    }

    /// Computes the definition for a complete text, by candle's operations in f64.
    fn defined(inputs: &[Tensor], parameters: &[Var], kind: Option<NormPlace>) -> candle_core::Result<Tensor> {
        let inputs: Vec<Tensor> = inputs.iter().map(wide).collect();
        let parameters: Vec<Tensor> = parameters.iter().map(|var| wide(var)).collect();
        let (t, h, width) = (inputs[0].dim(0)?, HEADS, HEADS.value_width());
        let softplus = |a: &Tensor| (a.broadcast_add(&parameters[1])?.exp()? + 1.0)?.log();
        let rates = parameters[2].exp()?.neg()?;
        let [gates, rows] = if parameters.len() == 4 { [&inputs[1], &inputs[0]] } else { [&inputs[0], &inputs[1]] };
        let sum = convolved(rows, &parameters[0])?;
        if parameters.len() == 4 {
            let betas = ((inputs[2].neg()?.exp()? + 1.0)?).recip()?;
            let heads = rule(&silu(&sum)?, &softplus(&inputs[3])?.broadcast_mul(&rates)?, &betas)?;
            let norm = parameters[3].repeat(h.values)?;
            return normalised(&heads, h.value_dim)?.broadcast_mul(&norm)? * silu(gates)?;
        }
        let mixed = silu(&sum.broadcast_add(&parameters[4])?)?;
        let steps = softplus(&inputs[2])?.clamp(f64::from(LIMITS[0]), f64::from(LIMITS[1]))?;
        let each = h.values / h.keys;
        let heads = |first: usize, count: usize, dim: usize| mixed.narrow(1, first, count * dim)?.reshape((t, count, dim));
        let shared = |x: Tensor| x.unsqueeze(2)?.broadcast_as((t, h.keys, each, h.key_dim))?.reshape((t, h.values, h.key_dim));
        let x = heads(0, h.values, h.value_dim)?;
        let (b, c) = (shared(heads(width, h.keys, h.key_dim)?)?, shared(heads(width + h.key_width(), h.keys, h.key_dim)?)?);
        let mut state = Tensor::zeros((h.values, h.key_dim, h.value_dim), DType::F64, &Device::Cpu)?;
        let mut outputs = Vec::new();
        for i in 0..t {
            let kept = (steps.get(i)? * &rates)?.exp()?.reshape((h.values, 1, 1))?;
            let write = x.get(i)?.broadcast_mul(&steps.get(i)?.unsqueeze(1)?)?;
            state = (state.broadcast_mul(&kept)? + b.get(i)?.unsqueeze(2)?.broadcast_mul(&write.unsqueeze(1)?)?)?;
            let out = state.broadcast_mul(&c.get(i)?.unsqueeze(2)?)?.sum(1)?;
            let skip = x.get(i)?.broadcast_mul(&parameters[5].unsqueeze(1)?)?;
            outputs.push((out + skip)?.reshape((1, width))?);
        }
        let outputs = Tensor::cat(&outputs, 0)?;
        let normed = |x: &Tensor| normalised(x, width / h.keys)?.broadcast_mul(&parameters[3]);
        match kind {
            Some(NormPlace::BeforeGates) => normed(&outputs)? * silu(gates)?,
            Some(NormPlace::Absent) => outputs * silu(gates)?,
            _ => normed(&(outputs * silu(gates)?)?),
        }
    }

    fn rows_of(all: &[Tensor], rows: &[u32]) -> Vec<Tensor> {
        let index = Tensor::from_vec(rows.to_vec(), rows.len(), &Device::Cpu).unwrap();
        all.iter().map(|t| t.index_select(&index, 0).unwrap()).collect()
    }

    #[test]
    fn values_and_gradients_are_those_of_the_definition_for_each_whole_text() {
        for kind in KINDS {
            let (forest, parameters) = (forest(), parameters(4, kind));
            let (n, network) = (forest.len(), network(&parameters, kind));
            let vars = inputs(n, kind);
            let given = tensors(&vars);
            let mut places = vec![None; n];
            for (text, own) in texts() {
                let result = defined(&rows_of(&given, &text), &parameters, kind).unwrap();
                for (at, row) in text.iter().enumerate().skip(text.len() - own) {
                    places[*row as usize] = Some(result.narrow(0, at, 1).unwrap());
                }
            }
            let want = Tensor::cat(&places.into_iter().map(Option::unwrap).collect::<Vec<_>>(), 0).unwrap();
            let dy = random(&[n, HEADS.value_width()]);
            let autograd = (&want * wide(&dy)).unwrap().sum_all().unwrap().backward().unwrap();
            near("outputs", &values(&forward(&given, network, &forest, None).unwrap()), &values(&want));
            let some = forward(&given, network, &forest, Some(&[4, 1])).unwrap();
            let own = Tensor::cat(&[want.narrow(0, 230, 1).unwrap(), want.narrow(0, 150, 70).unwrap()], 0).unwrap();
            near("outputs of some", &values(&some), &values(&own));

            let sums: Vec<Tensor> = parameters.iter().map(|var| random(var.dims())).collect();
            let before: Vec<Vec<f32>> = sums.iter().map(values).collect();
            let convolution = ConvolutionGradient { weight: Some(&sums[0]), bias: sums.get(4) };
            let [dt, a_log, norm, skip] = [1, 2, 3, 5].map(|i| sums.get(i));
            let got = backward(&given, network, &dy, &forest, NetworkGradient { convolution, dt, a_log, norm, skip }).unwrap();
            assert_eq!(got.len(), vars.len());
            for (i, (got, var)) in got.iter().zip(&vars).enumerate() {
                near(&format!("input {i}"), &values(got), &values(autograd.get(var).unwrap()));
            }
            for (i, ((got, before), var)) in sums.iter().zip(before).zip(&parameters).enumerate() {
                if i == 3 && kind == Some(NormPlace::Absent) {
                    continue;
                }
                let added: Vec<f32> = values(got).iter().zip(before).map(|(a, b)| a - b).collect();
                near(&format!("parameter {i}"), &added, &values(autograd.get(var).unwrap()));
            }
            let rounded: Vec<Tensor> = given.iter().map(|t| t.to_dtype(DType::BF16).unwrap()).collect();
            let same: Vec<Tensor> = rounded.iter().map(|t| t.to_dtype(DType::F32).unwrap()).collect();
            let of = |inputs: &[Tensor]| {
                let all = backward(inputs, network, &dy, &forest, NetworkGradient::default()).unwrap();
                all.iter().map(values).collect::<Vec<_>>()
            };
            assert_eq!(of(&rounded), of(&same));
            assert!(forward(&tensors(&inputs(n - 1, kind)), network, &forest, None).is_err());
            assert!(forward(&given[1..], network, &forest, None).is_err());
        }
    }

    #[test]
    fn tokens_that_come_later_have_the_same_results_and_a_state_forks() {
        for kind in KINDS {
            let parameters = parameters(3, kind);
            let (network, given) = (network(&parameters, kind), tensors(&inputs(90, kind)));
            let whole = |text: &[u32], last: usize| {
                let all = values(&defined(&rows_of(&given, text), &parameters, kind).unwrap());
                all[all.len() - last * HEADS.value_width()..].to_vec()
            };
            let mut prompts = Forest::new();
            prompts.push(&[1; 70], None);
            prompts.push(&[1], None);
            let of_prompts = rows_of(&given, &(0..70).chain([80]).collect::<Vec<u32>>());
            let states = states(&of_prompts, network, &prompts).unwrap();
            let (mut first, mut second, mut other) = (states[0].clone(), states[0].clone(), states[1].clone());
            let mut read: [Vec<u32>; 3] = [(0..70).collect(), (0..70).collect(), vec![80]];
            // Sequences that read one token or several at a time.
            for new in [[vec![71], vec![72, 73], vec![74]], [vec![75, 76, 77], vec![71], vec![70, 71]]] {
                let rows = rows_of(&given, &new.concat());
                let counts = new.each_ref().map(Vec::len);
                let mut all = [(&mut first, counts[0]), (&mut second, counts[1]), (&mut other, counts[2])];
                let got = values(&step(&rows, network, &mut all).unwrap());
                let mut want = Vec::new();
                for (text, new) in read.iter_mut().zip(&new) {
                    text.extend(new);
                    want.extend(whole(text, new.len()));
                }
                near("steps", &got, &want);
            }
            assert!(step(&of_prompts, network, &mut []).is_err());
        }
    }
}
