//! Products of a weight with few rows, as for each generated token.
//!
//! For few rows, a general product would spend most of its time rearranging its operands. A weight in f32 is rearranged once. A weight in
//! fewer bits is stored only once, unchanged, and is rearranged in the L1 cache whenever it is read. A tile of rows and outputs is summed
//! in vector registers, each output's terms in the order of the inputs. So a row's result depends neither on the other rows nor on how the
//! weight is stored. In bf16 and in 8 bits, kernels that also round the rows read the weight in place (`bf16/few_rows.rs`, `int8.rs`).

#[cfg(target_arch = "x86_64")]
use super::bf16;
use super::codes::{QuantizationScheme, QuantizedWeight};
use super::elementwise::cast;
use super::gemm::WriteMode;
use super::int8;
use super::lines::{OutputTile, ROWS, WeightLines, sums};
use super::slices::{SharedPointer, filled_all, read, tensor};
use super::team::share;
use super::unpack::{INPUTS, UnpackScratch, WIDTH};
use super::weight_storage::{WeightMatrix, WeightValues};
use super::{Error, Precision, Result, matrix_dims, team};
use candle_core::{DType, Tensor};
use rayon::prelude::*;
use std::cell::RefCell;
use std::ops::Range;

/// Minimum number of multiplications for which a second thread pays off.
const WORTH_WAKING: usize = 1 << 23;

/// Minimum number of multiplications for which a second, spinning thread ([`team::with_team`]) pays off.
const WORTH_SHARING: usize = 1 << 16;

/// Number of parts of a product per thread, so that a thread that starts late leaves some to the others.
const PARTS_PER_THREAD: usize = 4;

/// Number of inputs whose weights are transposed together, within the L1 cache.
const TURNED: usize = 16;

thread_local! {
    /// Buffer of each thread. A part of a product is often a single group, too small for clearing new memory.
    static ROOM: RefCell<UnpackScratch> = RefCell::new(UnpackScratch::new());
}

/// A weight `[out, in]` with its bias, for few rows.
#[derive(Clone, Debug)]
pub struct Panels {
    weight: PanelWeight,
    /// Number of bytes copied for the weight.
    copied: usize,
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "only x86-64 has kernels that round rows"))]
    precision: Precision,
    /// Whether rows are rounded to 8 bits.
    in_integers: bool,
    /// Bias of each output, padded to complete groups.
    bias: Vec<f32>,
    d_in: usize,
    d_out: usize,
}

#[derive(Clone, Debug)]
enum PanelWeight {
    /// Outputs in groups of [`WIDTH`], each group as `[in, WIDTH]`.
    LaidOut(Vec<f32>),
    /// Weight in bf16 or f16.
    Half(Tensor),
    /// Codes and scales.
    Quantized(Tensor, Tensor, QuantizationScheme),
}

/// Rearranges a weight `[out, in]` in f32.
fn laid_out(w: &Tensor) -> Result<Vec<f32>> {
    let (d_out, d_in) = matrix_dims(w);
    let ws = read(w)?;
    let mut data = vec![0f32; d_out.div_ceil(WIDTH) * WIDTH * d_in];
    data.par_chunks_mut(WIDTH * d_in).zip(ws.par_chunks(WIDTH * d_in)).for_each(|(panel, rows)| {
        for (i, lines) in panel.as_chunks_mut::<WIDTH>().0.chunks_mut(TURNED).enumerate() {
            for (column, row) in rows.chunks_exact(d_in).enumerate() {
                for (line, x) in lines.iter_mut().zip(&row[i * TURNED..]) {
                    line[column] = *x;
                }
            }
        }
    });
    Ok(data)
}

impl Panels {
    /// Creates panels from `w: [out, in]` and `b: [out]`. In bf16, an f32 weight is rounded, and so are rows if that is faster on the
    /// processor.
    pub fn new<'a>(w: impl Into<WeightMatrix<'a>>, b: Option<&Tensor>, precision: Precision) -> Result<Self> {
        let w = w.into();
        let (d_out, d_in) = w.dims();
        let (weight, copied) = match w {
            WeightMatrix::Plain(plain) if w.is_f32() && precision == Precision::Bf16 => {
                (PanelWeight::Half(cast(plain, DType::BF16)?), d_out * d_in * size_of::<half::bf16>())
            }
            WeightMatrix::Plain(plain) if w.is_f32() => {
                let data = laid_out(plain)?;
                let copied = data.len() * size_of::<f32>();
                (PanelWeight::LaidOut(data), copied)
            }
            WeightMatrix::Plain(w) => (PanelWeight::Half(w.clone()), 0),
            WeightMatrix::Quantized(q) => (PanelWeight::Quantized(q.codes.clone(), q.scales.clone(), q.scheme), 0),
        };
        let mut bias = match b {
            None => Vec::new(),
            Some(b) if b.elem_count() == d_out => read(b)?.to_vec(),
            Some(b) => {
                let detail = format!("a bias of {:?} for {d_out} outputs", b.shape());
                return Err(Error::Shape { op: "panels", detail });
            }
        };
        bias.resize(d_out.next_multiple_of(WIDTH), 0.0);
        Ok(Self { weight, copied, precision, in_integers: false, bias, d_in, d_out })
    }

    /// Creates panels with a copy of the weight in 8 bits; a quantized weight is not copied. With weights in 8 bits, rows are rounded to 8
    /// bits too.
    pub fn with_int8_weight<'a>(w: impl Into<WeightMatrix<'a>>, b: Option<&Tensor>, precision: Precision) -> Result<Self> {
        let w = w.into();
        let panels = match w {
            WeightMatrix::Plain(plain) => {
                let (codes, scales) = QuantizationScheme::Int8.quantize(plain)?;
                let copy = QuantizedWeight { codes: &codes, scales: &scales, scheme: QuantizationScheme::Int8 };
                let panels = Self::new(WeightMatrix::Quantized(copy), b, precision)?;
                Self { copied: codes.elem_count() + scales.elem_count() * size_of::<f32>(), ..panels }
            }
            WeightMatrix::Quantized(_) => Self::new(w, b, precision)?,
        };
        let in_integers = matches!(panels.weight, PanelWeight::Quantized(_, _, QuantizationScheme::Int8)) && panels.d_in > 0;
        Ok(Self { in_integers, ..panels })
    }

    /// Returns the number of bytes copied for the weight.
    pub fn copied_bytes(&self) -> usize {
        self.copied + self.bias.len() * size_of::<f32>()
    }

    /// Computes `[N, out]` from `x: [N, in]`.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let all = forward_all(x, &[AdaptedPanels { weight: self, low_rank: None }])?;
        all.into_iter().next().ok_or_else(|| self.shape_error(x))
    }

    fn shape_error(&self, x: &Tensor) -> Error {
        let detail = format!("{:?} does not fit a weight [{}, {}]", x.shape(), self.d_out, self.d_in);
        Error::Shape { op: "panels", detail }
    }

    fn is_laid_out(&self) -> bool {
        matches!(self.weight, PanelWeight::LaidOut(_))
    }

    /// Returns the addresses of the stored weights of some groups.
    fn addresses(&self, groups: Range<usize>) -> Result<Range<usize>> {
        let (first, bits) = match (&self.weight, self.stored()?) {
            (PanelWeight::LaidOut(data), _) => (data.as_ptr().addr(), 32),
            (_, Some(WeightValues::Bf16(w))) => (w.as_ptr().addr(), 16),
            (_, Some(WeightValues::F16(w))) => (w.as_ptr().addr(), 16),
            (_, Some(WeightValues::Quantized { codes, scheme: QuantizationScheme::Int8, .. })) => (codes.as_ptr().addr(), 8),
            (_, Some(WeightValues::Quantized { codes, scheme: QuantizationScheme::Nf4, .. })) => (codes.as_ptr().addr(), 4),
            (_, _) => (0, 0),
        };
        let at = |output: usize| first + output.min(self.d_out) * self.d_in * bits / 8;
        Ok(at(groups.start * WIDTH)..at(groups.end * WIDTH))
    }

    /// Returns the number of groups of outputs.
    fn groups(&self) -> usize {
        self.d_out.div_ceil(WIDTH)
    }

    /// Opens the weight for reading, unless it is laid out.
    fn stored(&self) -> Result<Option<WeightValues<'_>>> {
        Ok(match &self.weight {
            PanelWeight::LaidOut(_) => None,
            PanelWeight::Half(w) => Some(WeightValues::open(w.into())?),
            PanelWeight::Quantized(codes, scales, scheme) => {
                Some(WeightValues::open(WeightMatrix::Quantized(QuantizedWeight { codes, scales, scheme: *scheme }))?)
            }
        })
    }

    /// Returns the processor's bf16 kernel, if it has one and the rows are to be rounded.
    #[cfg(target_arch = "x86_64")]
    fn kernel(&self) -> Option<bf16::Bf16Kernel> {
        bf16::kernel().filter(|_| self.precision == Precision::Bf16 && bf16::FewRows::supports(self.d_in))
    }

    /// Returns the rows in the form that the kernel reads.
    #[cfg(target_arch = "x86_64")]
    fn few(&self, xs: &[f32], n: usize) -> Option<bf16::FewRows> {
        // SAFETY: the processor has the kernel.
        self.kernel().map(|kernel| unsafe { bf16::FewRows::new(kernel, xs, n, self.d_in) })
    }

    /// Computes some groups' outputs for rounded rows.
    #[cfg(target_arch = "x86_64")]
    fn rounded_products(&self, groups: Range<usize>, few: &bf16::FewRows, w: &WeightValues<'_>, out: SharedPointer) {
        let write = |first, row, sums: &_, count| self.write(first, row, sums, count, out);
        few.products(w, &self.bias, self.outputs(groups), write);
    }

    /// Computes some groups' outputs for rows in 8 bits.
    fn int8_products(&self, groups: Range<usize>, rows: &Int8Operand, w: &WeightValues<'_>, n: usize, out: SharedPointer) {
        match (rows, w) {
            #[cfg(target_arch = "x86_64")]
            (Int8Operand::Codes(rows), WeightValues::Quantized { codes, scales, .. }) => {
                let write = |first, row, sums: &_, count| self.write(first, row, sums, count, out);
                rows.products(int8::Int8Weight { codes, scales, bias: &self.bias }, self.outputs(groups), write);
            }
            (Int8Operand::Codes(rows), _) => self.unpacked(groups, w, &rows.values(), n, out),
            (Int8Operand::Values(xs), _) => self.unpacked(groups, w, xs, n, out),
        }
    }

    /// Returns the range of outputs of some groups.
    #[cfg(target_arch = "x86_64")]
    fn outputs(&self, groups: Range<usize>) -> Range<usize> {
        groups.start * WIDTH..self.d_out.min(groups.end * WIDTH)
    }

    /// Writes some outputs' sums of a row.
    #[cfg(target_arch = "x86_64")]
    fn write(&self, first: usize, row: usize, sums: &[f32; WIDTH], count: usize, out: SharedPointer) {
        // SAFETY: only this part writes these outputs.
        unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), out.at(row * self.d_out + first), count) };
    }

    /// Computes or adds one group's outputs for all rows.
    fn panel(&self, i: usize, xs: &[f32], n: usize, dst: WriteMode, out: SharedPointer) {
        let PanelWeight::LaidOut(data) = &self.weight else { return };
        let panel = &data[i * WIDTH * self.d_in..][..WIDTH * self.d_in];
        for row in (0..n).step_by(ROWS) {
            let mut tile = [[0f32; WIDTH]; ROWS];
            let rows = ROWS.min(n - row);
            sums(&xs[row * self.d_in..(row + rows) * self.d_in], self.d_in, 0, WeightLines::from_contiguous(panel), &mut tile);
            self.finish(i, row, &tile[..rows], dst, out);
        }
    }

    /// Computes some groups' outputs for all rows, rearranging the weights while reading them.
    fn unpacked(&self, groups: Range<usize>, stored: &WeightValues<'_>, xs: &[f32], n: usize, out: SharedPointer) {
        let mut tiles: Vec<OutputTile> = vec![[[0.0; WIDTH]; ROWS]; n.div_ceil(ROWS)];
        ROOM.with_borrow_mut(|room| {
            for i in groups {
                let outputs = i * WIDTH..self.d_out.min((i + 1) * WIDTH);
                tiles.fill([[0.0; WIDTH]; ROWS]);
                for first in (0..self.d_in).step_by(INPUTS) {
                    let lines = room.lines(stored, self.d_in, &outputs, &(first..self.d_in.min(first + INPUTS)));
                    for (xs, tile) in xs.chunks(ROWS * self.d_in).zip(&mut tiles) {
                        sums(xs, self.d_in, first, WeightLines::from_contiguous(lines), tile);
                    }
                }
                for (t, tile) in tiles.iter().enumerate() {
                    self.finish(i, t * ROWS, &tile[..ROWS.min(n - t * ROWS)], WriteMode::Replace, out);
                }
            }
        });
    }

    /// Writes or adds the sums of a group's outputs, with the bias, for some rows from `row` on.
    fn finish(&self, i: usize, row: usize, tile: &[[f32; WIDTH]], dst: WriteMode, out: SharedPointer) {
        let (first, count) = (i * WIDTH, WIDTH.min(self.d_out - i * WIDTH));
        let bias = &self.bias[first..first + WIDTH];
        for (r, sums) in tile.iter().enumerate() {
            let mut sums: [f32; WIDTH] = std::array::from_fn(|o| sums[o] + bias[o]);
            // SAFETY: only this group's part uses these outputs, which it has written before it adds to them.
            unsafe {
                let at = out.at((row + r) * self.d_out + first);
                if dst == WriteMode::Add {
                    let before = std::slice::from_raw_parts(at, count);
                    sums.iter_mut().zip(before).for_each(|(sum, before)| *sum += before);
                }
                std::ptr::copy_nonoverlapping(sums.as_ptr(), at, count);
            }
        }
    }
}

/// A map for few rows: a weight and an optional low-rank adapter.
#[derive(Clone, Copy)]
pub struct AdaptedPanels<'a> {
    /// Weight, `[out, in]`.
    pub weight: &'a Panels,
    /// Adapter matrices `A: [r, in]` and `B: [out, r]`; `B` was created in f32 for products in f32. `B A x` is added.
    pub low_rank: Option<[&'a Panels; 2]>,
}

/// Computes `[N, out]` of each map for `x: [N, in]`. Threads share all maps as if they were one, and rows are rounded once for all.
pub fn forward_all(x: &Tensor, maps: &[AdaptedPanels<'_>]) -> Result<Vec<Tensor>> {
    let (n, d_in) = matrix_dims(x);
    for AdaptedPanels { weight, low_rank } in maps {
        if weight.d_in != d_in {
            return Err(weight.shape_error(x));
        }
        let fits = |[a, b]: [&Panels; 2]| (a.d_in, b.d_in, b.d_out) == (d_in, a.d_out, weight.d_out) && b.is_laid_out();
        if let Some([a, b]) = low_rank.filter(|low_rank| !fits(*low_rank)) {
            let detail = format!(
                "an adapter of [{}, {}] and [{}, {}], in f32 or not, for a weight [{}, {}]",
                a.d_out, a.d_in, b.d_out, b.d_in, weight.d_out, weight.d_in
            );
            return Err(Error::Shape { op: "panels", detail });
        }
    }
    let xs = read(x)?;
    let low = maps.iter().filter_map(|map| map.low_rank).map(|[a, _]| PanelProduct::new(a, None));
    let mut low = products(&xs, n, &low.collect::<Result<Vec<_>>>()?).into_iter();
    let opened = maps.iter().map(|map| PanelProduct::new(map.weight, map.low_rank.and_then(|[_, b]| Some((b, low.next()?)))));
    let results = products(&xs, n, &opened.collect::<Result<Vec<_>>>()?);
    results.into_iter().zip(maps).map(|(out, map)| tensor(out, (n, map.weight.d_out))).collect()
}

/// Rows in 8 bits.
enum Int8Operand {
    /// Codes for a processor that multiplies them.
    Codes(int8::Int8Rows),
    /// Decoded values for other processors.
    Values(Vec<f32>),
}

impl Int8Operand {
    fn new(xs: &[f32], n: usize, d_in: usize) -> Self {
        let rows = int8::Int8Rows::new(xs, n, d_in);
        if int8::supported() { Self::Codes(rows) } else { Self::Values(rows.values()) }
    }
}

/// A product whose weight is open for reading.
struct PanelProduct<'a> {
    panels: &'a Panels,
    stored: Option<WeightValues<'a>>,
    /// Panels and rows whose product is added.
    added: Option<(&'a Panels, Vec<f32>)>,
}

impl<'a> PanelProduct<'a> {
    fn new(panels: &'a Panels, added: Option<(&'a Panels, Vec<f32>)>) -> Result<Self> {
        Ok(Self { panels, stored: panels.stored()?, added })
    }
}

/// Divides the groups of weights into parts, each of a single weight, for products with `n` rows. Also returns whether threads share them.
fn parts(all: &[&Panels], n: usize) -> (Vec<(usize, Range<usize>)>, bool) {
    let groups: usize = all.iter().map(|panels| panels.groups()).sum();
    let worth = if team::is_leader() { WORTH_SHARING } else { WORTH_WAKING };
    let shared = n * all.first().map_or(0, |panels| panels.d_in) * groups * WIDTH >= worth;
    let most = if shared { PARTS_PER_THREAD * rayon::current_num_threads() } else { 1 };
    let of_each = |(i, panels): (usize, &&Panels)| {
        let own = panels.groups();
        let parts = own.min((most * own).div_ceil(groups.max(1)));
        (0..parts).map(move |part| (i, share(own, part, parts)))
    };
    (all.iter().enumerate().flat_map(of_each).collect(), shared)
}

/// Announces to the threads of a team which weights the next products read, with `n` rows each. While they wait, the threads prefetch the
/// memory of their own part first, then of the next thread's, which may be busy until then.
pub fn prefetch(all: &[&Panels], n: usize) -> Result<()> {
    let threads = team::threads();
    if threads == 1 {
        return Ok(());
    }
    let (parts, shared) = parts(all, n);
    if !shared {
        return Ok(());
    }
    let addresses = |of_one: &[(usize, Range<usize>)]| match of_one {
        [] => Ok(0..0),
        [(i, first), .., (_, last)] => all[*i].addresses(first.start..last.end),
        [(i, only)] => all[*i].addresses(only.clone()),
    };
    let of = |thread: usize| parts[share(parts.len(), thread, threads)].chunk_by(|a, b| a.0 == b.0).map(addresses);
    let spans: Vec<Vec<Range<usize>>> = (0..threads).map(|thread| of(thread).collect()).collect::<Result<_>>()?;
    for (thread, own) in spans.iter().enumerate() {
        team::set_prefetch(thread, own.iter().chain(&spans[(thread + 1) % threads]));
    }
    Ok(())
}

/// Computes the products of `xs: [n, in]` with all weights.
fn products(xs: &[f32], n: usize, all: &[PanelProduct<'_>]) -> Vec<Vec<f32>> {
    let (parts, shared) = parts(&all.iter().map(|open| open.panels).collect::<Vec<_>>(), n);
    let in_integers = all.iter().find(|open| open.panels.in_integers).map(|open| Int8Operand::new(xs, n, open.panels.d_in));
    #[cfg(target_arch = "x86_64")]
    let few = all.iter().filter(|open| open.stored.is_some() && !open.panels.in_integers).find_map(|open| open.panels.few(xs, n));
    let run = |part: usize, outs: &[SharedPointer]| {
        let (i, groups) = (parts[part].0, parts[part].1.clone());
        let (PanelProduct { panels, stored, added }, out) = (&all[i], outs[i]);
        match stored {
            None => groups.clone().for_each(|i| panels.panel(i, xs, n, WriteMode::Replace, out)),
            Some(stored) if let Some(rows) = in_integers.as_ref().filter(|_| panels.in_integers) => {
                panels.int8_products(groups.clone(), rows, stored, n, out);
            }
            #[cfg(target_arch = "x86_64")]
            Some(stored) if let Some(few) = few.as_ref().filter(|_| panels.kernel().is_some()) => {
                panels.rounded_products(groups.clone(), few, stored, out);
            }
            Some(stored) => panels.unpacked(groups.clone(), stored, xs, n, out),
        }
        if let Some((panels, rows)) = added {
            groups.for_each(|i| panels.panel(i, rows, n, WriteMode::Add, out));
        }
    };
    // SAFETY: the parts cover all outputs of all rows.
    unsafe {
        filled_all(all.iter().map(|open| n * open.panels.d_out), |outs| {
            if shared {
                team::for_each_part(parts.len(), |part| run(part, outs));
            } else {
                (0..parts.len()).for_each(|part| run(part, outs));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear;
    use crate::testing::random;
    use candle_core::{DType, Device, Tensor};

    #[test]
    fn any_number_of_rows_and_outputs_gives_the_general_product() {
        for (d_in, d_out) in [(1, 1), (7, 31), (64, 33), (96, 257), (300, 64)] {
            let (w, b) = (random(&[d_out, d_in]), random(&[d_out]));
            for n in [0, 1, 2, 3, 5, 8, 13, 40] {
                let x = random(&[n, d_in]);
                for bias in [None, Some(&b)] {
                    let got = Panels::new(&w, bias, Precision::F32).unwrap().forward(&x).unwrap();
                    let want = linear::forward(&x, &w, bias, Precision::F32).unwrap();
                    let far = (got - want).unwrap().abs().unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
                    assert!(far.iter().all(|d| *d < 1e-4), "{n} rows of {d_in} to {d_out}: {far:?}");
                }
            }
        }
    }

    #[test]
    fn a_weight_in_fewer_bits_gives_the_bits_of_its_values_in_f32() {
        for (d_in, d_out) in [(2, 1), (8, 31), (64, 33), (128, 40), (300, 257)] {
            let (w, b) = (random(&[d_out, d_in]), random(&[d_out]));
            for n in [1, 3, 8, 21] {
                let x = random(&[n, d_in]);
                let bits = |panels: Panels| crate::to_vec(&panels.forward(&x).unwrap()).unwrap();
                for dtype in [DType::BF16, DType::F16] {
                    let half = w.to_dtype(dtype).unwrap();
                    let wide = half.to_dtype(DType::F32).unwrap();
                    let (half, wide) = (
                        Panels::new(&half, Some(&b), Precision::F32).unwrap(),
                        Panels::new(&wide, Some(&b), Precision::F32).unwrap(),
                    );
                    assert!(half.copied_bytes() <= 4 * d_out.next_multiple_of(WIDTH));
                    assert_eq!(bits(half), bits(wide), "{dtype:?}: {n} rows of {d_in} to {d_out}");
                }
                for scheme in [QuantizationScheme::Int8, QuantizationScheme::Nf4] {
                    let (codes, scales) = scheme.quantize(&w).unwrap();
                    let matrix = WeightMatrix::Quantized(QuantizedWeight { codes: &codes, scales: &scales, scheme });
                    let wide = matrix.in_f32().unwrap();
                    let (few, wide) = (
                        Panels::new(matrix, Some(&b), Precision::F32).unwrap(),
                        Panels::new(&wide, Some(&b), Precision::F32).unwrap(),
                    );
                    assert_eq!(bits(few), bits(wide), "{scheme:?}: {n} rows of {d_in} to {d_out}");
                }
            }
        }
    }

    #[test]
    fn a_copy_in_8_bits_takes_memory_and_gives_the_bits_of_a_quantized_weight_which_stays() {
        let (w, b, x) = (random(&[70, 96]), random(&[70]), random(&[5, 96]));
        let (codes, scales) = QuantizationScheme::Int8.quantize(&w).unwrap();
        let quantized =
            WeightMatrix::Quantized(QuantizedWeight { codes: &codes, scales: &scales, scheme: QuantizationScheme::Int8 });
        for precision in [Precision::F32, Precision::Bf16] {
            let bits = |panels: &Panels| crate::to_vec(&panels.forward(&x).unwrap()).unwrap();
            let copy = Panels::with_int8_weight(&w, Some(&b), precision).unwrap();
            let own = Panels::with_int8_weight(quantized, Some(&b), precision).unwrap();
            assert_eq!(bits(&copy), bits(&own));
            assert_eq!(copy.copied_bytes() - own.copied_bytes(), 70 * 96 + 4 * 70);
            let exact = Panels::new(quantized, Some(&b), precision).unwrap();
            assert!(bits(&exact) != bits(&own) && exact.copied_bytes() == own.copied_bytes());
        }
    }

    #[test]
    fn rows_are_rounded_to_8_bits_beside_weights_in_8_bits() {
        let values = |t: &Tensor| crate::to_vec(t).unwrap();
        for (d_in, d_out) in [(64, 1), (320, 70), (1024, 257), (75, 33)] {
            let (w, b) = (random(&[d_out, d_in]), random(&[d_out]));
            let (codes, scales) = QuantizationScheme::Int8.quantize(&w).unwrap();
            let quantized =
                WeightMatrix::Quantized(QuantizedWeight { codes: &codes, scales: &scales, scheme: QuantizationScheme::Int8 });
            let copy = Panels::with_int8_weight(&w, Some(&b), Precision::Bf16).unwrap();
            for n in [0, 1, 8, 13, 40] {
                let x = random(&[n, d_in]);
                let got = values(&copy.forward(&x).unwrap());
                let own = Panels::with_int8_weight(quantized, Some(&b), Precision::Bf16).unwrap();
                assert_eq!(got, values(&own.forward(&x).unwrap()), "a weight that is in 8 bits already");
                let codes = int8::Int8Rows::new(&values(&x), n, d_in);
                let rounded = Tensor::from_vec(codes.values(), (n, d_in), &Device::Cpu).unwrap();
                let want = values(&linear::forward(&rounded, quantized, Some(&b), Precision::F32).unwrap());
                // The result of processors without the instruction.
                let mut elsewhere = vec![0f32; n * d_out];
                let rows = Int8Operand::Values(codes.values());
                let to = SharedPointer::new(&mut elsewhere);
                copy.int8_products(0..copy.groups(), &rows, &copy.stored().unwrap().unwrap(), n, to);
                let largest = want.iter().fold(1f32, |most, x| most.max(x.abs()));
                let far = |a: &[f32]| a.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(far(&got) < 4e-6 * largest && far(&elsewhere) < 4e-6 * largest, "{n} rows of {d_in} to {d_out}");
                assert!(got.len() == want.len());
            }
        }
    }

    #[test]
    fn panels_in_bf16_give_the_general_product_in_bf16() {
        // The rows of the last one are not rounded.
        for (d_in, d_out) in [(32, 1), (64, 33), (1024, 257), (320, 64), (40, 50)] {
            let (w, b) = (random(&[d_out, d_in]), random(&[d_out]));
            for n in [0, 1, 8, 13, 40] {
                let x = random(&[n, d_in]);
                let values = |t: &Tensor| crate::to_vec(t).unwrap();
                let codes =
                    [QuantizationScheme::Int8, QuantizationScheme::Nf4].map(|scheme| (scheme, scheme.quantize(&w).unwrap()));
                let quantized = codes.iter().map(|(scheme, (codes, scales))| QuantizedWeight { codes, scales, scheme: *scheme });
                for w in quantized.map(WeightMatrix::Quantized).chain([WeightMatrix::Plain(&w)]) {
                    let got = values(&Panels::new(w, Some(&b), Precision::Bf16).unwrap().forward(&x).unwrap());
                    let int8 = matches!(w, WeightMatrix::Quantized(QuantizedWeight { scheme: QuantizationScheme::Int8, .. }));
                    let rounded = |t: &Tensor| t.to_dtype(DType::BF16).unwrap().to_dtype(DType::F32).unwrap();
                    let general = |x, w, precision| values(&linear::forward(x, w, Some(&b), precision).unwrap());
                    let want = match w {
                        // A processor without the kernels rounds only a copied weight, not rows or codes.
                        WeightMatrix::Plain(w) if !crate::bf16::supported() => general(&x, (&rounded(w)).into(), Precision::F32),
                        _ if !crate::bf16::supported() => general(&x, w, Precision::F32),
                        // 8-bit codes are not rounded again, as they are in the general product.
                        _ if int8 => general(&rounded(&x), w, Precision::F32),
                        _ => general(&x, w, Precision::Bf16),
                    };
                    // Both sum the same products in a different order, so they differ by the rounding of the largest sums.
                    let largest = want.iter().fold(1f32, |most, x| most.max(x.abs()));
                    let tolerance = if d_in % 32 == 0 { 4e-6 * largest } else { 0.2 };
                    let far = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(far < tolerance && got.len() == want.len(), "{n} rows of {d_in} to {d_out}: {far}");
                }
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_those_beside_it() {
        let (panels, x) = (Panels::new(&random(&[70, 50]), None, Precision::F32).unwrap(), random(&[11, 50]));
        let together = panels.forward(&x).unwrap().to_vec2::<f32>().unwrap();
        for (row, want) in together.iter().enumerate() {
            let alone = panels.forward(&x.narrow(0, row, 1).unwrap().contiguous().unwrap().copy().unwrap()).unwrap();
            assert_eq!(&alone.to_vec2::<f32>().unwrap()[0], want);
        }
    }
}
