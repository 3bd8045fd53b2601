//! Token embedding: rows of a table.

#[cfg(feature = "cuda")]
use super::cuda;
use super::slices::{filled, read, tensor, write};
use super::weight_storage::WeightValues;
use super::{Error, Result, matrix_dims, on_device};
use candle_core::Tensor;

/// Returns rows `tokens` of `table: [V, D]` as `[N, D]`, on the CPU in f32.
pub fn forward(table: &Tensor, tokens: &[u32]) -> Result<Tensor> {
    let (vocab, d) = matrix_dims(table);
    if let Some(&bad) = tokens.iter().find(|&&t| t as usize >= vocab) {
        return Err(Error::Shape { op: "embedding", detail: format!("token id {bad} in a vocabulary of {vocab}") });
    }
    on_device!(table, cuda::rows::gather(table, tokens));
    let rows = WeightValues::open(table.into())?;
    // SAFETY: each token's row is set.
    let out = unsafe {
        filled(tokens.len() * d, |out| {
            for (&t, row) in tokens.iter().zip(out.chunks_mut(d.max(1))) {
                rows.widen(t as usize * d, row);
            }
        })
    };
    tensor(out, (tokens.len(), d))
}

/// Adds row `i` of `dy: [N, D]` to row `tokens[i]` of the f32 `d_table`. The tokens are those of a [`forward`] over the same table.
pub fn backward(tokens: &[u32], dy: &Tensor, d_table: &Tensor) -> Result<()> {
    on_device!(dy, cuda::rows::scatter_add(d_table, dy, tokens));
    let (_, d) = matrix_dims(d_table);
    let dys = read(dy)?;
    write(d_table, |table| {
        for (&t, dy) in tokens.iter().zip(dys.chunks(d)) {
            for (o, g) in table[t as usize * d..(t as usize + 1) * d].iter_mut().zip(dy) {
                *o += g;
            }
        }
    })
}
