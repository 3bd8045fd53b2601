//! The naive form of recurrent layers: gated short convolutions, gated delta networks and state spaces, token by token.

use super::naive::NaiveDecoder;
use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::ops::sigmoid;
use rlhost::model::{Family, RecurrenceKind};
use rlhost::ops::{DeltaHeads, NormPlace};

impl NaiveDecoder<'_> {
    /// Computes attention, or what a layer has in its place or beside it, given the layer's normalised input.
    pub(super) fn mixed(&self, x: &Tensor, layer: &str, l: usize) -> Result<Tensor> {
        let Some(recurrence) = self.a.recurrence.as_ref().filter(|recurrence| recurrence.layers[l]) else {
            return self.attention(x, layer, l);
        };
        match (recurrence.kind, recurrence.beside) {
            (RecurrenceKind::Convolution { .. }, _) => self.convolution(x, layer),
            (RecurrenceKind::GatedDelta { heads, grouped }, _) => self.network(x, layer, heads, grouped),
            (RecurrenceKind::StateSpace { heads, limits, norm, .. }, None) => {
                self.state_space(x, layer, (heads, limits, norm), [1.0; 5])
            }
            (RecurrenceKind::StateSpace { heads, limits, norm, .. }, Some(by)) => {
                let attended = self.attention(&(x * f64::from(by.attention_in))?, layer, l)?;
                let read = (x * f64::from(by.states_in))?;
                let run = self.state_space(&read, layer, (heads, limits, norm), by.projected)?;
                (attended * f64::from(by.attention_out))? + (run * f64::from(by.states_out))?
            }
        }
    }

    /// Computes a gated delta network, token by token, in f64 between its projections: small heads are normalised, and sums over decays
    /// cancel.
    pub(super) fn network(&self, x: &Tensor, layer: &str, h: DeltaHeads, grouped: bool) -> Result<Tensor> {
        let ((b, t, _), name) = (x.dims3()?, |part: &str| format!("{layer}.linear_attn.{part}"));
        let wide = |t: &Tensor| t.to_dtype(DType::F64);
        let [rows, gates, rates, steps] = if grouped {
            self.grouped(x, &name(""), h)?
        } else {
            ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"].map(|part| self.linear(x, &name(part)).unwrap())
        };
        let mixed = self.convolved(&wide(&rows)?, &name("conv1d"))?.silu()?;
        let each = h.values / h.keys;
        let unit = |first: usize| -> Result<Tensor> {
            let heads = mixed.narrow(2, first, h.key_width())?.reshape((b, t, h.keys, h.key_dim))?;
            let heads = heads.broadcast_div(&(heads.sqr()?.sum_keepdim(D::Minus1)? + 1e-6)?.sqrt()?)?;
            heads.unsqueeze(3)?.broadcast_as((b, t, h.keys, each, h.key_dim))?.reshape((b, t, h.values, h.key_dim))
        };
        let (q, k) = ((unit(0)? / (h.key_dim as f64).sqrt())?, unit(h.key_width())?);
        let v = mixed.narrow(2, 2 * h.key_width(), h.value_width())?.reshape((b, t, h.values, h.value_dim))?;
        let steps = wide(&steps)?.broadcast_add(&wide(self.var(&name("dt_bias")))?)?;
        let kept = (steps.exp()? + 1.0)?.log()?.broadcast_mul(&wide(self.var(&name("A_log")))?.exp()?)?.neg()?.exp()?;
        let betas = sigmoid(&wide(&rates)?)?;
        let mut state = Tensor::zeros((b, h.values, h.key_dim, h.value_dim), DType::F64, &Device::Cpu)?;
        let mut outputs = Vec::new();
        for i in 0..t {
            let at = |x: &Tensor| x.narrow(1, i, 1)?.squeeze(1);
            let column = |x: &Tensor| at(x)?.unsqueeze(3);
            state = state.broadcast_mul(&at(&kept)?.reshape((b, h.values, 1, 1))?)?;
            let read = state.broadcast_mul(&column(&k)?)?.sum(2)?;
            let write = (at(&v)? - read)?.broadcast_mul(&at(&betas)?.unsqueeze(2)?)?;
            state = (state + column(&k)?.broadcast_mul(&write.unsqueeze(2)?)?)?;
            outputs.push(state.broadcast_mul(&column(&q)?)?.sum(2)?.unsqueeze(1)?);
        }
        let heads = Tensor::cat(&outputs, 1)?;
        let size = (heads.sqr()?.mean_keepdim(D::Minus1)? + self.a.norm_eps)?.sqrt()?;
        let y = heads.broadcast_div(&size)?.broadcast_mul(&wide(self.var(&name("norm.weight")))?)?.reshape((
            b,
            t,
            h.value_width(),
        ))?;
        let gated = (y * wide(&gates)?.silu()?)?;
        self.linear(&gated.to_dtype(DType::F32)?, &name("out_proj"))
    }

    /// Computes the inputs of a gated delta network whose two projections group them by key head.
    fn grouped(&self, x: &Tensor, layer: &str, h: DeltaHeads) -> Result<[Tensor; 4]> {
        let ((b, t, _), each) = (x.dims3()?, h.values / h.keys);
        let heads = |part: &str| self.linear(x, &format!("{layer}{part}"))?.reshape((b, t, h.keys, ()));
        let (joined, rates) = (heads("in_proj_qkvz")?, heads("in_proj_ba")?);
        let part = |from: &Tensor, first: usize, width: usize| from.narrow(3, first, width)?.reshape((b, t, ()));
        let (k, v) = (h.key_dim, each * h.value_dim);
        let rows = [part(&joined, 0, k)?, part(&joined, k, k)?, part(&joined, 2 * k, v)?];
        Ok([Tensor::cat(&rows, 2)?, part(&joined, 2 * k + v, v)?, part(&rates, 0, each)?, part(&rates, each, each)?])
    }

    /// Computes a convolution over the last few tokens, `[B, T, D]`, in f64.
    fn convolved(&self, rows: &Tensor, name: &str) -> Result<Tensor> {
        let (b, t, d) = rows.dims3()?;
        let kernel = self.var(&format!("{name}.weight")).to_dtype(DType::F64)?;
        let width = kernel.dim(2)?;
        let padded = Tensor::cat(&[Tensor::zeros((b, width - 1, d), DType::F64, &Device::Cpu)?, rows.clone()], 1)?;
        let mut sum = rows.zeros_like()?;
        for i in 0..width {
            sum = (sum + padded.narrow(1, i, t)?.broadcast_mul(&kernel.narrow(2, i, 1)?.reshape(d)?)?)?;
        }
        match self.vars.get(&format!("{name}.bias")) {
            Some(bias) => sum.broadcast_add(&bias.to_dtype(DType::F64)?),
            None => Ok(sum),
        }
    }

    /// Computes a state space, token by token, in f64 between its projections.
    pub(super) fn state_space(
        &self,
        x: &Tensor,
        layer: &str,
        (h, limits, norm): (DeltaHeads, [f32; 2], NormPlace),
        factors: [f32; 5],
    ) -> Result<Tensor> {
        let folder = if self.a.family == Family::NemotronH { "mixer" } else { "mamba" };
        let ((b, t, _), name) = (x.dims3()?, |part: &str| format!("{layer}.{folder}.{part}"));
        let wide = |t: &Tensor| t.to_dtype(DType::F64);
        let (inner, row, each) = (h.value_width(), h.row_width(), h.values / h.keys);
        let widths = [inner, inner, h.key_width(), h.key_width(), h.values];
        let by = factors.into_iter().zip(widths).flat_map(|(factor, width)| vec![f64::from(factor); width]).collect::<Vec<_>>();
        let joined = wide(&self.linear(x, &name("in_proj"))?)?.broadcast_mul(&Tensor::new(by, &Device::Cpu)?)?;
        let mixed = self.convolved(&joined.narrow(2, inner, row)?, &name("conv1d"))?.silu()?;
        let values = mixed.narrow(2, 0, inner)?.reshape((b, t, h.values, h.value_dim))?;
        let of_groups = |first: usize| -> Result<Tensor> {
            let groups = mixed.narrow(2, inner + first, h.key_width())?.reshape((b, t, h.keys, 1, h.key_dim))?;
            groups.broadcast_as((b, t, h.keys, each, h.key_dim))?.reshape((b, t, h.values, h.key_dim))
        };
        let (keys, queries) = (of_groups(0)?, of_groups(h.key_width())?);
        let steps = joined.narrow(2, inner + row, h.values)?.broadcast_add(&wide(self.var(&name("dt_bias")))?)?;
        let steps = (steps.exp()? + 1.0)?.log()?.clamp(f64::from(limits[0]), f64::from(limits[1]))?;
        let kept = steps.broadcast_mul(&wide(self.var(&name("A_log")))?.exp()?)?.neg()?.exp()?;
        let skip = wide(self.var(&name("D")))?.unsqueeze(1)?;
        let mut state = Tensor::zeros((b, h.values, h.key_dim, h.value_dim), DType::F64, &Device::Cpu)?;
        let mut outputs = Vec::new();
        for i in 0..t {
            let at = |x: &Tensor| x.narrow(1, i, 1)?.squeeze(1);
            let written = at(&values)?.broadcast_mul(&at(&steps)?.unsqueeze(2)?)?.unsqueeze(2)?;
            state = state.broadcast_mul(&at(&kept)?.reshape((b, h.values, 1, 1))?)?;
            state = (state + at(&keys)?.unsqueeze(3)?.broadcast_mul(&written)?)?;
            let read = state.broadcast_mul(&at(&queries)?.unsqueeze(3)?)?.sum(2)?;
            outputs.push((read + at(&values)?.broadcast_mul(&skip)?)?.unsqueeze(1)?);
        }
        let (outputs, gates) = (Tensor::cat(&outputs, 1)?.reshape((b, t, inner))?, joined.narrow(2, 0, inner)?.silu()?);
        let normed = |x: &Tensor| {
            let groups = x.reshape((b, t, h.keys, inner / h.keys))?;
            let size = (groups.sqr()?.mean_keepdim(D::Minus1)? + self.a.norm_eps)?.sqrt()?;
            groups.broadcast_div(&size)?.reshape((b, t, inner))?.broadcast_mul(&wide(self.var(&name("norm.weight")))?)
        };
        let y = match norm {
            NormPlace::AfterGates => normed(&(outputs * gates)?)?,
            NormPlace::BeforeGates => (normed(&outputs)? * gates)?,
            NormPlace::Absent => (outputs * gates)?,
        };
        self.linear(&y.to_dtype(DType::F32)?, &name("out_proj"))
    }

    /// Computes a gated short convolution: a sum of shifted copies.
    pub(super) fn convolution(&self, x: &Tensor, layer: &str) -> Result<Tensor> {
        let ((b, t, d), name) = (x.dims3()?, |part: &str| format!("{layer}.conv.{part}"));
        let joined = self.linear(x, &name("in_proj"))?;
        let u = (joined.narrow(2, 0, d)? * joined.narrow(2, 2 * d, d)?)?;
        let kernel = self.var(&name("conv.weight"));
        let width = kernel.dim(2)?;
        let padded = Tensor::cat(&[Tensor::zeros((b, width - 1, d), DType::F32, &Device::Cpu)?, u], 1)?;
        let mut sum = Tensor::zeros((b, t, d), DType::F32, &Device::Cpu)?;
        for i in 0..width {
            sum = (sum + padded.narrow(1, i, t)?.broadcast_mul(&kernel.narrow(2, i, 1)?.reshape(d)?)?)?;
        }
        if let Some(bias) = self.vars.get(&name("conv.bias")) {
            sum = sum.broadcast_add(bias)?;
        }
        self.linear(&(joined.narrow(2, d, d)? * sum)?, &name("out_proj"))
    }
}
