//! A gated delta network between its projections (Yang et al. 2025, arXiv 2412.06464; Qwen 3.5): a short convolution of queries, keys and
//! values with SiLU, the gated delta rule, and a norm of each head, multiplied by SiLU of a gate.
//!
//! A token's correction rate is `beta = sigmoid(b)`, and its decay is `exp(-exp(A) softplus(a + dt))`. The backward pass reads the stored
//! results of the projections and recomputes the rest.

use super::convolution::{Convolution, ConvolutionGradient as KernelGradient, ConvolutionState, Taps};
use super::delta_rule::{DeltaHeads, DeltaRuleInputs};
use super::elementwise::cast;
use super::forest::Forest;
use super::math::{dot, exp, sigmoid};
use super::simd::wide;
use super::slices::{ROWS_PER_TASK, SharedPointer, read, tensor, write};
use super::{Error, Result, matrix_dims, team};
use candle_core::{DType, Tensor};
use rayon::prelude::*;

/// Parameters of a network, excluding its projections.
#[derive(Clone, Copy, Debug)]
pub struct GatedDelta<'a> {
    /// Numbers and sizes of heads.
    pub heads: DeltaHeads,
    /// Kernel of the convolution, `[row_width, 1, K]`.
    pub kernel: &'a Tensor,
    /// `dt`, `[values]`.
    pub dt: &'a Tensor,
    /// `A`, `[values]`.
    pub a_log: &'a Tensor,
    /// Weight of the norm of each head, `[V]`.
    pub norm: &'a Tensor,
    /// Epsilon added to the mean square in the norm.
    pub eps: f64,
}

/// Tensors to which the gradients of a network's parameters are added, if they are trained.
#[derive(Clone, Copy, Debug, Default)]
pub struct GatedDeltaGradient<'a> {
    /// Gradient of the kernel.
    pub kernel: Option<&'a Tensor>,
    /// Gradient of `dt`.
    pub dt: Option<&'a Tensor>,
    /// Gradient of `A`.
    pub a_log: Option<&'a Tensor>,
    /// Gradient of the norm's weight.
    pub norm: Option<&'a Tensor>,
}

/// Results of the projections for each token: queries, keys and values, `[N, row_width]`; gates, `[N, value_width]`; `b` and `a`, `[N,
/// values]`.
pub type GatedDeltaInputs<'a> = [&'a Tensor; 4];

/// State of a network after a text.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaState {
    convolution: ConvolutionState,
    /// States of the heads, `[values, K, V]`.
    states: Vec<f32>,
}

impl DeltaState {
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

/// A network's parameters as operations read them.
struct GatedDeltaParameters {
    heads: DeltaHeads,
    taps: Taps,
    dt: Vec<f32>,
    /// Decay rates, `-exp(A)`.
    rates: Vec<f32>,
    norm: Vec<f32>,
    eps: f64,
}

/// Returns SiLU and its slope.
#[inline(always)]
fn silu(x: f32) -> (f32, f32) {
    let s = sigmoid(x);
    (x * s, s + x * s * (1.0 - s))
}

/// Returns `ln(1 + exp(x))`.
#[inline(always)]
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { exp(x).ln_1p() }
}

impl GatedDeltaParameters {
    fn new(network: GatedDelta<'_>, inputs: GatedDeltaInputs<'_>) -> Result<Self> {
        let GatedDelta { heads, kernel, dt, a_log, norm, eps } = network;
        let taps = Taps::new(Convolution { weight: kernel, bias: None })?;
        let n = matrix_dims(inputs[0]).0;
        let widths = [heads.row_width(), heads.value_width(), heads.values, heads.values];
        let fits = taps.d == heads.row_width()
            && heads.values.is_multiple_of(heads.keys.max(1))
            && [(dt, heads.values), (a_log, heads.values), (norm, heads.value_dim)].iter().all(|(t, n)| t.dims() == [*n])
            && inputs.iter().zip(widths).all(|(t, width)| matrix_dims(t) == (n, width));
        if !fits {
            let detail = format!("{:?} with a kernel {:?} and {heads:?}", inputs.map(Tensor::shape), kernel.shape());
            return Err(Error::shape("gated delta", detail));
        }
        let rates = read(a_log)?.iter().map(|a| -exp(*a)).collect();
        Ok(Self { heads, taps, dt: read(dt)?.to_vec(), rates, norm: read(norm)?.to_vec(), eps })
    }

    /// Returns the logarithms of decays and the correction rates of all tokens, `[N, values]`.
    fn decays_and_betas(&self, b: &[f32], a: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let h = self.heads.values;
        let decay = |(i, a): (usize, &f32)| self.rates[i % h] * softplus(a + self.dt[i % h]);
        (a.iter().enumerate().map(decay).collect(), b.iter().map(|b| sigmoid(*b)).collect())
    }

    fn inverse_rms(&self, head: &[f32]) -> f32 {
        (1.0 / (f64::from(dot(head, head)) / head.len() as f64 + self.eps).sqrt()) as f32
    }

    /// Normalises the heads of a row in place and multiplies them by SiLU of the gates.
    fn finish(&self, row: &mut [f32], gates: &[f32]) {
        let v = self.heads.value_dim;
        for (head, gates) in row.chunks_exact_mut(v).zip(gates.chunks_exact(v)) {
            let scale = self.inverse_rms(head);
            wide!(for ((x, w), gate) in head.iter_mut().zip(&self.norm).zip(gates) {
                *x *= scale * w * silu(*gate).0;
            });
        }
    }
}

/// Applies SiLU to all values.
fn activated(sums: &[f32]) -> Vec<f32> {
    let mut all = sums.to_vec();
    all.par_chunks_mut(1 << 13).for_each(|part| wide!(part.iter_mut().for_each(|x| *x = silu(*x).0)));
    all
}

fn check_rows(inputs: GatedDeltaInputs<'_>, forest: &Forest) -> Result<()> {
    let (n, tokens) = (matrix_dims(inputs[0]).0, forest.len());
    if n == tokens { Ok(()) } else { Err(Error::shape("gated delta", format!("{n} rows of {tokens} tokens"))) }
}

/// Computes the results `[N, value_width]` for all rows of a forest, or those of some `segments` in this order, from the inputs of all
/// rows.
pub fn forward(
    inputs: GatedDeltaInputs<'_>,
    network: GatedDelta<'_>,
    forest: &Forest,
    segments: Option<&[usize]>,
) -> Result<Tensor> {
    let p = GatedDeltaParameters::new(network, inputs)?;
    check_rows(inputs, forest)?;
    let all = inputs.map(|t| cast(t, DType::F32));
    let [rows, gates, b, a] = all;
    let (rows, gates, b, a) = (rows?, gates?, b?, a?);
    let (rows, gates, b, a) = (read(&rows)?, read(&gates)?, read(&b)?, read(&a)?);
    let (width, gates) = (p.heads.value_width(), &gates[..]);
    let (decays, betas) = p.decays_and_betas(&b, &a);
    let mixed = activated(&p.taps.sums(&rows, forest, None));
    let mut wanted = vec![segments.is_none(); forest.segments().len()];
    segments.into_iter().flatten().for_each(|segment| wanted[*segment] = true);
    let mut out = vec![0f32; forest.len() * width];
    DeltaRuleInputs { heads: p.heads, rows: &mixed, decays: &decays, betas: &betas }.forward(
        forest,
        &wanted,
        SharedPointer::new(&mut out),
    );
    if let Some(segments) = segments {
        let of = |segment: &usize| forest.segments()[*segment].range();
        let places: Vec<usize> = segments.iter().flat_map(of).collect();
        out = places.iter().flat_map(|place| out[place * width..(place + 1) * width].iter().copied()).collect();
        out.par_chunks_mut(width).zip(&places).for_each(|(row, place)| p.finish(row, &gates[place * width..][..width]));
    } else {
        out.par_chunks_mut(width).zip(gates.par_chunks(width)).for_each(|(row, gates)| p.finish(row, gates));
    }
    let n = out.len() / width;
    tensor(out, (n, width))
}

/// Returns the gradients of the inputs, given that of the results of all rows, and adds those of the parameters.
pub fn backward(
    inputs: GatedDeltaInputs<'_>,
    network: GatedDelta<'_>,
    dy: &Tensor,
    forest: &Forest,
    gradient: GatedDeltaGradient<'_>,
) -> Result<[Tensor; 4]> {
    let p = GatedDeltaParameters::new(network, inputs)?;
    check_rows(inputs, forest)?;
    let (h, n, width) = (p.heads, forest.len(), p.heads.value_width());
    if matrix_dims(dy) != (n, width) {
        return Err(Error::shape("gated delta backward", format!("{:?} for {n} rows of {width}", dy.shape())));
    }
    let [rows, gates, b, a] = inputs.map(|t| cast(t, DType::F32));
    let (rows, gates, b, a) = (rows?, gates?, b?, a?);
    let (rows, gates, b, a, dy) = (read(&rows)?, read(&gates)?, read(&b)?, read(&a)?, read(dy)?);
    let (decays, betas) = p.decays_and_betas(&b, &a);
    let sums = p.taps.sums(&rows, forest, None);
    let mixed = activated(&sums);
    let rule = DeltaRuleInputs { heads: h, rows: &mixed, decays: &decays, betas: &betas };
    let mut heads = vec![0f32; n * width];
    rule.forward(forest, &vec![true; forest.segments().len()], SharedPointer::new(&mut heads));
    // From here on, `heads` holds the gradients of the rule's outputs.
    let (d_gates, d_norm) = p.finish_backward(&mut heads, &gates, &dy);
    let of_rule = rule.backward(forest, &heads);
    let mut d_sums = of_rule.rows;
    d_sums.par_chunks_mut(1 << 13).zip(sums.par_chunks(1 << 13)).for_each(|(d, sums)| {
        wide!(d.iter_mut().zip(sums).for_each(|(d, sum)| *d *= silu(*sum).1));
    });
    let kernel = KernelGradient { weight: gradient.kernel, bias: None };
    let d_rows = p.taps.backward(&rows, &d_sums, forest, kernel)?;
    let d_b: Vec<f32> = of_rule.betas.iter().zip(&betas).map(|(d, beta)| d * beta * (1.0 - beta)).collect();
    let slope = |(i, (d, a)): (usize, (&f32, &f32))| d * p.rates[i % h.values] * sigmoid(a + p.dt[i % h.values]);
    let d_a: Vec<f32> = of_rule.decays.iter().zip(a.iter()).enumerate().map(slope).collect();
    add_columns(gradient.dt, d_a.iter().copied())?;
    // A decay is proportional to `exp(A)`.
    add_columns(gradient.a_log, of_rule.decays.iter().zip(&decays).map(|(d, decay)| d * decay))?;
    add_columns(gradient.norm, d_norm.into_iter())?;
    Ok([
        tensor(d_rows, (n, h.row_width()))?,
        tensor(d_gates, (n, width))?,
        tensor(d_b, (n, h.values))?,
        tensor(d_a, (n, h.values))?,
    ])
}

/// Adds rows of values, one after the other, to a vector, if it is trained.
fn add_columns(to: Option<&Tensor>, values: impl Iterator<Item = f32>) -> Result<()> {
    let Some(to) = to else { return Ok(()) };
    write(to, |to| {
        // The terms of many tokens nearly cancel, hence f64.
        let mut sums = vec![0f64; to.len()];
        values.enumerate().for_each(|(i, x)| sums[i % to.len()] += f64::from(x));
        to.iter_mut().zip(sums).for_each(|(to, sum)| *to += sum as f32);
    })
}

impl GatedDeltaParameters {
    /// Replaces the rule's outputs with their gradient. Returns the gradients of the gates, and those of the norm for each task.
    fn finish_backward(&self, heads: &mut [f32], gates: &[f32], dy: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (v, task) = (self.heads.value_dim, ROWS_PER_TASK * self.heads.value_width());
        let (mut d_gates, mut d_norm) = (vec![0f32; gates.len()], Vec::new());
        let all =
            heads.par_chunks_mut(task).zip(d_gates.par_chunks_mut(task)).zip(gates.par_chunks(task).zip(dy.par_chunks(task)));
        all.map(|((heads, d_gates), (gates, dys))| {
            let mut d_norm = vec![0f32; v];
            let each =
                heads.chunks_exact_mut(v).zip(d_gates.chunks_exact_mut(v)).zip(gates.chunks_exact(v).zip(dys.chunks_exact(v)));
            for ((head, d_gate), (gate, dy)) in each {
                let scale = self.inverse_rms(head);
                wide!({
                    let mut along = 0.0;
                    for i in 0..v {
                        let (active, slope) = silu(gate[i]);
                        let normed = head[i] * scale;
                        d_gate[i] = dy[i] * normed * self.norm[i] * slope;
                        d_norm[i] += dy[i] * active * normed;
                        along += dy[i] * active * self.norm[i] * head[i];
                    }
                    along *= scale * scale * scale / v as f32;
                    for i in 0..v {
                        head[i] = dy[i] * silu(gate[i]).0 * self.norm[i] * scale - head[i] * along;
                    }
                });
            }
            d_norm
        })
        .collect_into_vec(&mut d_norm);
        (d_gates, d_norm.concat())
    }
}

/// Returns the states at the ends of all segments of a forest.
pub fn states(inputs: GatedDeltaInputs<'_>, network: GatedDelta<'_>, forest: &Forest) -> Result<Vec<DeltaState>> {
    let p = GatedDeltaParameters::new(network, inputs)?;
    check_rows(inputs, forest)?;
    if forest.segments().iter().any(|segment| segment.prefix.is_some()) {
        return Err(Error::shape("gated delta", "states of segments that continue others".to_owned()));
    }
    let [rows, _, b, a] = inputs;
    let (rows, b, a) = (read(rows)?, read(b)?, read(a)?);
    let (decays, betas) = p.decays_and_betas(&b, &a);
    let mixed = activated(&p.taps.sums(&rows, forest, None));
    let rule = DeltaRuleInputs { heads: p.heads, rows: &mixed, decays: &decays, betas: &betas };
    let ends = rule.forward(forest, &vec![false; forest.segments().len()], SharedPointer::new(&mut []));
    let d = p.taps.d;
    let state = |(segment, states): (&super::Segment, Vec<f32>)| DeltaState {
        convolution: ConvolutionState::from_inputs(&p.taps, segment.range(), |place, u| {
            u.copy_from_slice(&rows[place * d..][..d]);
        }),
        states,
    };
    Ok(forest.segments().iter().zip(ends).map(state).collect())
}

/// Computes the results `[N, value_width]` for new tokens of sequences, sequence by sequence, and advances the states. Each state comes
/// with the number of its sequence's new tokens.
pub fn step(inputs: GatedDeltaInputs<'_>, network: GatedDelta<'_>, sequences: &mut [(&mut DeltaState, usize)]) -> Result<Tensor> {
    let p = GatedDeltaParameters::new(network, inputs)?;
    let (h, n, d, width) = (p.heads, matrix_dims(inputs[0]).0, p.taps.d, p.heads.value_width());
    let fits =
        |(state, _): &(&mut DeltaState, usize)| state.convolution.fits(&p.taps) && state.states.len() == h.values * h.state();
    if !sequences.iter().all(fits) || sequences.iter().map(|(_, count)| count).sum::<usize>() != n {
        return Err(Error::shape("gated delta", format!("{n} rows for {} states", sequences.len())));
    }
    let [rows, gates, b, a] = inputs;
    let (rows, gates, b, a) = (read(rows)?, read(gates)?, read(b)?, read(a)?);
    let (decays, betas) = p.decays_and_betas(&b, &a);
    let (mut mixed, mut tasks, mut row) = (vec![0f32; n * d], Vec::new(), 0);
    for (state, count) in sequences {
        for row in row..row + *count {
            let own = &mut mixed[row * d..][..d];
            state.convolution.step(&p.taps, &rows[row * d..][..d], own);
            wide!(own.iter_mut().for_each(|x| *x = silu(*x).0));
        }
        let states = SharedPointer::new(&mut state.states);
        tasks.extend((0..h.values).map(|head| (states, row..row + *count, head)));
        row += *count;
    }
    let rule = DeltaRuleInputs { heads: h, rows: &mixed, decays: &decays, betas: &betas };
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
    for (row, gates) in out.chunks_exact_mut(width).zip(gates.chunks_exact(width)) {
        p.finish(row, gates);
    }
    tensor(out, (n, width))
}

#[cfg(test)]
mod tests {
    use super::super::delta_rule::tests::{HEADS, defined as rule, forest, near, texts, values};
    use super::*;
    use crate::testing::random;
    use candle_core::{D, Device, Var};

    /// Returns the parameters: kernel, `dt`, `A` and the norm.
    fn parameters(k: usize) -> [Var; 4] {
        [&[HEADS.row_width(), 1, k][..], &[HEADS.values], &[HEADS.values], &[HEADS.value_dim]]
            .map(|shape| Var::from_tensor(&random(shape).affine(0.7, 0.2).unwrap()).unwrap())
    }

    fn network(parameters: &[Var; 4]) -> GatedDelta<'_> {
        let [kernel, dt, a_log, norm] = parameters.each_ref().map(|var| var.as_tensor());
        // The norm divides by the size of few values. The larger epsilon keeps it from multiplying the rounding errors of a nearly zero
        // head by hundreds.
        GatedDelta { heads: HEADS, kernel, dt, a_log, norm, eps: 1e-3 }
    }

    fn inputs(n: usize) -> [Var; 4] {
        [HEADS.row_width(), HEADS.value_width(), HEADS.values, HEADS.values]
            .map(|width| Var::from_tensor(&random(&[n, width])).unwrap())
    }

    fn borrowed(vars: &[Var; 4]) -> GatedDeltaInputs<'_> {
        vars.each_ref().map(|var| var.as_tensor())
    }

    fn wide(t: &Tensor) -> Tensor {
        t.to_dtype(DType::F64).unwrap()
    }

    fn silu(x: &Tensor) -> candle_core::Result<Tensor> {
        x / (x.neg()?.exp()? + 1.0)?
    }

    /// Computes the definition for a complete text, by candle's operations in f64.
    fn defined(inputs: [&Tensor; 4], network: GatedDelta<'_>) -> candle_core::Result<Tensor> {
        let [rows, gates, b, a] = inputs.map(wide);
        let [kernel, dt, a_log, norm] = [network.kernel, network.dt, network.a_log, network.norm].map(wide);
        let (t, k, h) = (rows.dim(0)?, kernel.dim(2)?, HEADS);
        let padded = Tensor::cat(&[Tensor::zeros((k - 1, h.row_width()), DType::F64, &Device::Cpu)?, rows], 0)?;
        let mut sum = Tensor::zeros((t, h.row_width()), DType::F64, &Device::Cpu)?;
        for i in 0..k {
            sum = (sum + padded.narrow(0, i, t)?.broadcast_mul(&kernel.narrow(2, i, 1)?.reshape((1, h.row_width()))?)?)?;
        }
        let softplus = (a.broadcast_add(&dt)?.exp()? + 1.0)?.log()?;
        let decays = softplus.broadcast_mul(&a_log.exp()?)?.neg()?;
        let betas = ((b.neg()?.exp()? + 1.0)?).recip()?;
        let heads = rule(&silu(&sum)?, &decays, &betas)?.reshape((t, h.values, h.value_dim))?;
        let size = (heads.sqr()?.mean_keepdim(D::Minus1)? + network.eps)?.sqrt()?;
        let normed = heads.broadcast_div(&size)?.broadcast_mul(&norm)?.reshape((t, h.value_width()))?;
        normed * silu(&gates)?
    }

    fn rows_of(all: GatedDeltaInputs<'_>, rows: &[u32]) -> [Tensor; 4] {
        let index = Tensor::from_vec(rows.to_vec(), rows.len(), &Device::Cpu).unwrap();
        all.map(|t| t.index_select(&index, 0).unwrap())
    }

    #[test]
    fn values_and_gradients_are_those_of_the_definition_for_each_whole_text() {
        let (forest, parameters) = (forest(), parameters(4));
        let (n, network) = (forest.len(), network(&parameters));
        let given = inputs(n);
        let mut places = vec![None; n];
        for (text, own) in texts() {
            let result = defined(rows_of(borrowed(&given), &text).each_ref(), network).unwrap();
            for (at, row) in text.iter().enumerate().skip(text.len() - own) {
                places[*row as usize] = Some(result.narrow(0, at, 1).unwrap());
            }
        }
        let want = Tensor::cat(&places.into_iter().map(Option::unwrap).collect::<Vec<_>>(), 0).unwrap();
        let dy = random(&[n, HEADS.value_width()]);
        let autograd = (&want * wide(&dy)).unwrap().sum_all().unwrap().backward().unwrap();
        near("outputs", &values(&forward(borrowed(&given), network, &forest, None).unwrap()), &values(&want));
        let some = forward(borrowed(&given), network, &forest, Some(&[4, 1])).unwrap();
        let own = Tensor::cat(&[want.narrow(0, 230, 1).unwrap(), want.narrow(0, 150, 70).unwrap()], 0).unwrap();
        near("outputs of some", &values(&some), &values(&own));

        let sums = parameters.each_ref().map(|var| random(var.dims()));
        let before = sums.each_ref().map(values);
        let [kernel, dt, a_log, norm] = sums.each_ref().map(Some);
        let gradient = GatedDeltaGradient { kernel, dt, a_log, norm };
        let got = backward(borrowed(&given), network, &dy, &forest, gradient).unwrap();
        for (i, (got, var)) in got.iter().zip(&given).enumerate() {
            near(&format!("input {i}"), &values(got), &values(autograd.get(var).unwrap()));
        }
        for (i, ((got, before), var)) in sums.iter().zip(before).zip(&parameters).enumerate() {
            let added: Vec<f32> = values(got).iter().zip(before).map(|(a, b)| a - b).collect();
            near(&format!("parameter {i}"), &added, &values(autograd.get(var).unwrap()));
        }
        let rounded = given.each_ref().map(|t| t.to_dtype(DType::BF16).unwrap());
        let same = rounded.each_ref().map(|t| t.to_dtype(DType::F32).unwrap());
        let of = |inputs: GatedDeltaInputs<'_>| {
            backward(inputs, network, &dy, &forest, GatedDeltaGradient::default()).unwrap().map(|t| values(&t))
        };
        assert_eq!(of(rounded.each_ref()), of(same.each_ref()));
        assert!(forward(borrowed(&inputs(n - 1)), network, &forest, None).is_err());
    }

    #[test]
    fn tokens_that_come_later_have_the_same_results_and_a_state_forks() {
        let parameters = parameters(3);
        let (network, given) = (network(&parameters), inputs(90));
        let whole = |text: &[u32], last: usize| {
            let all = values(&defined(rows_of(borrowed(&given), text).each_ref(), network).unwrap());
            all[all.len() - last * HEADS.value_width()..].to_vec()
        };
        let mut prompts = Forest::new();
        prompts.push(&[1; 70], None);
        prompts.push(&[1], None);
        let of_prompts = rows_of(borrowed(&given), &(0..70).chain([80]).collect::<Vec<u32>>());
        let states = states(of_prompts.each_ref(), network, &prompts).unwrap();
        let (mut first, mut second, mut other) = (states[0].clone(), states[0].clone(), states[1].clone());
        let mut read: [Vec<u32>; 3] = [(0..70).collect(), (0..70).collect(), vec![80]];
        // Sequences that read one token or several at a time.
        for new in [[vec![71], vec![72, 73], vec![74]], [vec![75, 76, 77], vec![71], vec![70, 71]]] {
            let rows = rows_of(borrowed(&given), &new.concat());
            let counts = new.each_ref().map(Vec::len);
            let mut all = [(&mut first, counts[0]), (&mut second, counts[1]), (&mut other, counts[2])];
            let got = values(&step(rows.each_ref(), network, &mut all).unwrap());
            let mut want = Vec::new();
            for (text, new) in read.iter_mut().zip(&new) {
                text.extend(new);
                want.extend(whole(text, new.len()));
            }
            near("steps", &got, &want);
        }
        assert!(step(of_prompts.each_ref(), network, &mut []).is_err());
    }
}
