//! The stages of a decoding step, one method each. Rows are the `R` newest tokens.

use super::super::super::activation::Activation;
use super::super::super::rope::Rotation;
use super::super::super::tiles::LogitScale;
use super::super::super::{Error, Result, matrix_dims};
use super::super::array::{DeviceArray, ElementKind, unset};
use super::super::elementwise::copy_to;
use super::super::gemm::{DeviceMatrix, product};
use super::super::launch::KernelLaunch;
use super::session::DecodeSession;
use candle_core::Tensor;

/// Maximum number of threads per block.
const THREADS: u32 = 256;

/// Returns the address of an f32 vector, or 0.
fn optional(t: Option<&Tensor>) -> Result<u64> {
    t.map_or(Ok(0), |t| Ok(DeviceArray::from_tensor_with_kind(t, ElementKind::F32)?.at))
}

impl DecodeSession {
    fn launch(&self, kernel: &str) -> KernelLaunch<'_> {
        KernelLaunch::with_kind(&self.device, "decode", kernel, self.kind).blocks(self.rows).threads(THREADS)
    }

    /// Returns the number of threads of a block that processes a hidden state. Each thread reads sixteen bytes at a time.
    fn threads(&self) -> u32 {
        let wide = 16 / self.kind.size();
        let reads = if self.sizes.hidden.is_multiple_of(wide) { self.sizes.hidden / wide } else { self.sizes.hidden };
        (reads.next_multiple_of(32) as u32).min(THREADS)
    }

    /// Returns the first `rows` rows of a buffer.
    fn mat<'a>(&self, t: &'a Tensor) -> Result<(DeviceArray<'a>, DeviceMatrix)> {
        let (rows, cols) = matrix_dims(t);
        let array = DeviceArray::from_tensor(t)?;
        Ok((array, DeviceMatrix::new(array, rows, cols).rows(0, self.rows)))
    }

    /// Computes `y = x w^T + keep * y`.
    fn product(&self, y: &Tensor, keep: f32, x: &Tensor, w: &Tensor) -> Result<()> {
        let ((array, y), (_, x)) = (self.mat(y)?, self.mat(x)?);
        let (rows, cols) = matrix_dims(w);
        product(array, y, keep, x, DeviceMatrix::new(DeviceArray::from_tensor_with_kind(w, self.kind)?, rows, cols).t(), 1.0)
    }

    /// Sets the rows to those of the embedding table `[V, D]` for each sequence's newest token, times `factor`, and adds those of learned
    /// positions `[P, D]`, if there are any.
    pub fn embed(&self, table: &Tensor, factor: f32, positions: Option<&Tensor>) -> Result<()> {
        let d = self.sizes.hidden;
        if matrix_dims(table) != (self.sizes.vocabulary, d) || positions.is_some_and(|table| matrix_dims(table).1 != d) {
            return Err(Error::Shape { op: "decode", detail: format!("an embedding of {:?}", table.shape()) });
        }
        let [sequences, slots, step] = self.tables();
        let positions = positions.map(|table| DeviceArray::from_tensor_with_kind(table, self.kind)).transpose()?;
        let launch = self.launch("decode_embed").array(DeviceArray::from_tensor(&self.values.x)?);
        let launch =
            launch.array(DeviceArray::from_tensor_with_kind(table, self.kind)?).address(positions.map_or(0, |table| table.at));
        launch.float(factor).address(sequences).address(slots).address(step).int(d).run()
    }

    /// Adds a bias that the last product into the rows lacks, and normalises the sums.
    pub fn norm(&self, bias: Option<&Tensor>, norm: DecodeNorm<'_>) -> Result<()> {
        let [_, _, step] = self.tables();
        let launch = self.launch("decode_norm").threads(self.threads()).array(DeviceArray::from_tensor(&self.values.h)?);
        let launch = launch.array(DeviceArray::from_tensor(&self.values.x)?).address(optional(bias)?).structure(&norm.words()?);
        launch.address(step).int(self.sizes.hidden).run()
    }

    /// Computes queries, keys and values of normalised rows with `weight: [(H + 2 K) C, D]`.
    pub fn project(&self, weight: &Tensor) -> Result<()> {
        self.product(&self.values.qkv, 0.0, &self.values.h, weight)
    }

    /// Adds the biases `[(H + 2 K) C]` of queries, keys and values. Normalises all query heads of a row together, and all key heads, with
    /// weights `[H C]` and `[K C]`.
    pub fn norm_heads(&self, (q, k): (&Tensor, &Tensor), bias: Option<&Tensor>, eps: f64) -> Result<()> {
        let (h, [_, _, step]) = (self.sizes.heads, self.tables());
        let launch = self.launch("decode_norm_heads").grid(self.rows, 3, 1).array(DeviceArray::from_tensor(&self.values.qkv)?);
        let launch = launch
            .address(optional(bias)?)
            .address(optional(Some(q))?)
            .address(optional(Some(k))?)
            .address(step)
            .float(eps as f32);
        launch.int(h.heads).int(h.kv_heads).int(h.head_dim).run()
    }

    /// Adds the biases `[(H + 2 K) C]` of queries, keys and values, normalises each head of queries and keys if there are norms, rotates
    /// these if there is a rotation, and appends keys and values to the sequences' own in layer `layer`.
    pub fn rotate_and_keep(
        &self,
        layer: usize,
        bias: Option<&Tensor>,
        head_norms: Option<&(Tensor, Tensor)>,
        rotation: Option<&Rotation>,
        eps: f64,
    ) -> Result<()> {
        // The size is the same for all steps, so that recorded steps find the tables at the same addresses.
        let (h, reach) = (self.sizes.heads, self.sizes.longest_prompt + self.sizes.max_own_positions);
        let tables = rotation.map(|rotation| rotation.tables_on(&self.device, reach)).transpose()?;
        let (cosines, sines) = tables.as_ref().map_or((0, 0), |tables| (tables.cosines(), tables.sines()));
        let (own_k, own_v) = self.own_cache(layer)?;
        let [sequences, slots, step] = self.tables();
        let heads = h.heads + 2 * h.kv_heads;
        let launch = self.launch("decode_rotate_and_keep").grid(self.rows, heads.div_ceil(THREADS as usize / 32), 1);
        let launch = launch.array(DeviceArray::from_tensor(&self.values.q)?).address(own_k).address(own_v);
        let launch = launch.array(DeviceArray::from_tensor(&self.values.qkv)?).address(optional(bias)?);
        let launch = launch.address(optional(head_norms.map(|n| &n.0))?).address(optional(head_norms.map(|n| &n.1))?);
        let launch = launch.address(cosines).address(sines);
        let launch = launch.address(sequences).address(slots).address(step).float(eps as f32);
        let launch = launch.int(h.heads).int(h.kv_heads).int(h.head_dim);
        launch.int(rotation.map_or(0, Rotation::half)).int(self.sizes.max_own_positions).run()
    }

    /// Adds the attention's output, multiplied by `weight: [D, H C]`, to the rows.
    pub fn add_attended(&self, weight: &Tensor) -> Result<()> {
        self.product(&self.values.x, 1.0, &self.values.attended, weight)
    }

    /// Multiplies the attention's output by `weight: [D, H C]`, for [`DecodeSession::add`].
    pub fn multiply_attended(&self, weight: &Tensor) -> Result<()> {
        self.product(&self.values.out, 0.0, &self.values.attended, weight)
    }

    /// Computes the MLP of normalised rows up to its down projection, with `weight: [2 I, D]`, gate first, or `[I, D]` without a gate.
    pub fn activate(&self, weight: &Tensor, f: Activation, bias: [Option<&Tensor>; 2]) -> Result<()> {
        self.product(&self.values.wide, 0.0, &self.values.h, weight)?;
        let ((_, width), (_, columns)) = (matrix_dims(&self.values.active), matrix_dims(&self.values.wide));
        let [_, _, step] = self.tables();
        let kernel = format!("decode_{}", f.kernel());
        let launch = self.launch(&kernel).grid(width.div_ceil(THREADS as usize), self.rows, 1);
        let launch =
            launch.array(DeviceArray::from_tensor(&self.values.active)?).array(DeviceArray::from_tensor(&self.values.wide)?);
        let [gate, up] = bias;
        launch.address(optional(gate)?).address(optional(up)?).address(step).int(width).int(columns).run()
    }

    /// Adds the MLP's output, multiplied by `weight: [D, I]`, to the rows.
    pub fn add_active(&self, weight: &Tensor) -> Result<()> {
        self.product(&self.values.x, 1.0, &self.values.active, weight)
    }

    /// Multiplies the result of [`DecodeSession::activate`] by `weight: [D, I]`, for [`DecodeSession::add`].
    pub fn multiply_active(&self, weight: &Tensor) -> Result<()> {
        self.product(&self.values.out, 0.0, &self.values.active, weight)
    }

    /// Adds the last result of a `multiply` method to the rows, plus a bias, normalised, and times `factor`.
    pub fn add(&self, bias: Option<&Tensor>, norm: DecodeNorm<'_>, factor: f32) -> Result<()> {
        let [_, _, step] = self.tables();
        let launch = self.launch("decode_add").threads(self.threads()).array(DeviceArray::from_tensor(&self.values.x)?);
        let launch = launch.array(DeviceArray::from_tensor(&self.values.out)?).address(optional(bias)?).structure(&norm.words()?);
        launch.float(factor).address(step).int(self.sizes.hidden).run()
    }

    /// Returns the normalised rows, `[R, D]`.
    pub fn normalised(&self) -> Result<Tensor> {
        Ok(self.values.h.narrow(0, 0, self.rows)?)
    }

    /// Sets the rows that [`DecodeSession::add`] adds, `[R, D]`.
    pub fn put_out(&self, rows: &Tensor) -> Result<()> {
        let (from, to) = (DeviceArray::from_tensor_with_kind(rows, self.kind)?, DeviceArray::from_tensor(&self.values.out)?);
        if from.len != self.rows * self.sizes.hidden {
            return Err(Error::Shape { op: "decode", detail: format!("{:?} for {} rows", rows.shape(), self.rows) });
        }
        copy_to(from, to.at)
    }

    /// Computes the logits of normalised rows with the output matrix `[V, D]`, at temperature one.
    pub fn logits(&self, output: &Tensor, scale: LogitScale) -> Result<()> {
        self.product(&self.values.logits, 0.0, &self.values.h, output)?;
        let scale = LogitScale { temperature: 1.0, ..scale };
        if scale.factor() == 1.0 && scale.cap.is_none() {
            return Ok(());
        }
        let (vocabulary, [_, _, step]) = (self.sizes.vocabulary, self.tables());
        let launch = KernelLaunch::new(&self.device, "decode", "decode_logits");
        let launch = launch.grid(vocabulary.div_ceil(THREADS as usize), self.rows, 1).threads(THREADS);
        let launch =
            launch.array(DeviceArray::from_tensor(&self.values.logits)?).float(scale.factor()).float(scale.cap.unwrap_or(0.0));
        launch.address(step).int(vocabulary).run()
    }
}

/// Normalisation of rows, with f32 vectors: none without a weight, by mean and deviation with a bias, and otherwise by the root mean
/// square.
#[derive(Clone, Copy, Default)]
pub struct DecodeNorm<'a> {
    /// Weight, `[D]`.
    pub weight: Option<&'a Tensor>,
    /// Bias, `[D]`.
    pub bias: Option<&'a Tensor>,
    /// Epsilon added to the mean square.
    pub eps: f64,
}

impl DecodeNorm<'_> {
    /// Returns the contents of the kernels' `struct Norm`.
    fn words(&self) -> Result<[u64; 3]> {
        Ok([optional(self.weight)?, optional(self.bias)?, u64::from((self.eps as f32).to_bits())])
    }
}

/// Concatenates rows: `[n1 + n2 + .., D]`, or `[n1 + n2 + ..]` for vectors.
pub fn joined(parts: &[&Tensor]) -> Result<Tensor> {
    let first = DeviceArray::from_tensor(parts[0])?;
    let (rows, cols) = match parts[0].rank() {
        1 => (parts.iter().map(|p| p.elem_count()).sum(), None),
        _ => (parts.iter().map(|p| matrix_dims(p).0).sum(), Some(matrix_dims(parts[0]).1)),
    };
    let out = match cols {
        None => unset(first.device, rows, first.kind)?,
        Some(cols) => unset(first.device, (rows, cols), first.kind)?,
    };
    let mut at = DeviceArray::from_tensor(&out)?.at;
    for part in parts {
        let from = DeviceArray::from_tensor_with_kind(part, first.kind)?;
        copy_to(from, at)?;
        at += (from.len * from.kind.size()) as u64;
    }
    Ok(out)
}
