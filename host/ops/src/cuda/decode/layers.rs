//! The stages of a decoding step, one method each. Rows are the `R` newest tokens.

use super::super::super::rope::Rotation;
use super::super::super::{Error, Result, matrix_dims};
use super::super::array::{Array, Kind, unset};
use super::super::elementwise::copy_to;
use super::super::gemm::{Mat, product};
use super::super::launch::Launch;
use super::Session;
use candle_core::Tensor;

/// Most threads per block.
const THREADS: u32 = 256;

/// Returns the address of an f32 vector, or 0.
fn optional(t: Option<&Tensor>) -> Result<u64> {
    t.map_or(Ok(0), |t| Ok(Array::of_kind(t, Kind::F32)?.at))
}

impl Session {
    fn launch(&self, kernel: &str) -> Launch<'_> {
        Launch::of_kind(&self.device, "decode", kernel, self.kind).blocks(self.rows).threads(THREADS)
    }

    /// Returns the threads of a block that processes a hidden state.
    fn threads(&self) -> u32 {
        (self.sizes.hidden.next_multiple_of(32) as u32).min(THREADS)
    }

    /// Returns the first `rows` rows of a buffer.
    fn mat<'a>(&self, t: &'a Tensor) -> Result<(Array<'a>, Mat)> {
        let (rows, cols) = matrix_dims(t);
        let array = Array::of(t)?;
        Ok((array, Mat::new(array, rows, cols).rows(0, self.rows)))
    }

    /// Computes `y = x w^T + keep * y`.
    fn product(&self, y: &Tensor, keep: f32, x: &Tensor, w: &Tensor) -> Result<()> {
        let ((array, y), (_, x)) = (self.mat(y)?, self.mat(x)?);
        let (rows, cols) = matrix_dims(w);
        product(array, y, keep, x, Mat::new(Array::of_kind(w, self.kind)?, rows, cols).t(), 1.0)
    }

    /// Sets the rows to those of the embedding table `[V, D]` for each sequence's newest token.
    pub fn embed(&self, table: &Tensor) -> Result<()> {
        let d = self.sizes.hidden;
        if matrix_dims(table) != (self.sizes.vocabulary, d) {
            return Err(Error::Shape { op: "decode", detail: format!("an embedding of {:?}", table.shape()) });
        }
        let [sequences, slots, step] = self.tables();
        let launch = self
            .launch("decode_embed")
            .threads(self.threads())
            .array(Array::of(&self.values.x)?)
            .array(Array::of_kind(table, self.kind)?);
        launch.address(sequences).address(slots).address(step).int(d).run()
    }

    /// Adds a bias that the last product into the rows lacks, and normalises them with `weight: [D]`.
    pub fn norm(&self, bias: Option<&Tensor>, weight: &Tensor, eps: f64) -> Result<()> {
        let [_, _, step] = self.tables();
        let launch = self
            .launch("decode_norm")
            .threads(self.threads())
            .array(Array::of(&self.values.h)?)
            .array(Array::of(&self.values.x)?);
        let launch = launch.address(optional(bias)?).array(Array::of_kind(weight, Kind::F32)?).address(step);
        launch.float(eps as f32).int(self.sizes.hidden).run()
    }

    /// Computes queries, keys and values of normalised rows with `weight: [(H + 2 K) C, D]`.
    pub fn project(&self, weight: &Tensor) -> Result<()> {
        self.product(&self.values.qkv, 0.0, &self.values.h, weight)
    }

    /// Adds their biases `[(H + 2 K) C]`, normalises the heads of queries and keys if the model family does, rotates these, and
    /// appends keys and values to the sequences' own in layer `layer`.
    pub fn rotate_and_keep(
        &self,
        layer: usize,
        bias: Option<&Tensor>,
        head_norms: Option<&(Tensor, Tensor)>,
        rotation: &Rotation,
        eps: f64,
    ) -> Result<()> {
        // The same for all steps, so that recorded steps find them at the same addresses.
        let (h, reach) = (self.sizes.heads, self.sizes.longest_prompt + self.sizes.room);
        let tables = rotation.tables_on(&self.device, reach)?;
        let (own_k, own_v) = self.own(layer)?;
        let [sequences, slots, step] = self.tables();
        let heads = h.heads + 2 * h.kv_heads;
        let launch = self.launch("decode_rotate_and_keep").grid(self.rows, heads.div_ceil(THREADS as usize / 32), 1);
        let launch = launch.array(Array::of(&self.values.q)?).address(own_k).address(own_v);
        let launch = launch.array(Array::of(&self.values.qkv)?).address(optional(bias)?);
        let launch = launch.address(optional(head_norms.map(|n| &n.0))?).address(optional(head_norms.map(|n| &n.1))?);
        let launch = launch.address(tables.cosines()).address(tables.sines());
        let launch = launch.address(sequences).address(slots).address(step).float(eps as f32);
        launch.int(h.heads).int(h.kv_heads).int(h.head_dim).int(self.sizes.room).run()
    }

    /// Adds the attention's output, multiplied by `weight: [D, H C]`, to the rows.
    pub fn add_attended(&self, weight: &Tensor) -> Result<()> {
        self.product(&self.values.x, 1.0, &self.values.attended, weight)
    }

    /// Computes the gated unit of normalised rows with `weight: [2 I, D]`, gate first.
    pub fn gate(&self, weight: &Tensor, gate_bias: Option<&Tensor>, up_bias: Option<&Tensor>) -> Result<()> {
        self.product(&self.values.gate_up, 0.0, &self.values.h, weight)?;
        let (width, [_, _, step]) = (self.sizes.intermediate, self.tables());
        let launch = self.launch("decode_gated").grid(width.div_ceil(THREADS as usize), self.rows, 1);
        let launch = launch.array(Array::of(&self.values.gated)?).array(Array::of(&self.values.gate_up)?);
        launch.address(optional(gate_bias)?).address(optional(up_bias)?).address(step).int(width).run()
    }

    /// Adds the gated unit's output, multiplied by `weight: [D, I]`, to the rows.
    pub fn add_gated(&self, weight: &Tensor) -> Result<()> {
        self.product(&self.values.x, 1.0, &self.values.gated, weight)
    }

    /// Computes the logits of normalised rows with the output matrix `[V, D]`.
    pub fn logits(&self, output: &Tensor) -> Result<()> {
        self.product(&self.values.logits, 0.0, &self.values.h, output)
    }
}

/// Concatenates rows: `[n1 + n2 + .., D]`, or `[n1 + n2 + ..]` for vectors.
pub fn joined(parts: &[&Tensor]) -> Result<Tensor> {
    let first = Array::of(parts[0])?;
    let (rows, cols) = match parts[0].rank() {
        1 => (parts.iter().map(|p| p.elem_count()).sum(), None),
        _ => (parts.iter().map(|p| matrix_dims(p).0).sum(), Some(matrix_dims(parts[0]).1)),
    };
    let out = match cols {
        None => unset(first.device, rows, first.kind)?,
        Some(cols) => unset(first.device, (rows, cols), first.kind)?,
    };
    let mut at = Array::of(&out)?.at;
    for part in parts {
        let from = Array::of_kind(part, first.kind)?;
        copy_to(from, at)?;
        at += (from.len * from.kind.size()) as u64;
    }
    Ok(out)
}
