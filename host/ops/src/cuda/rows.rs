//! Gathers and scatters rows of matrices.

use super::super::{Error, Result, matrix_dims};
use super::array::{DeviceArray, DeviceBuffer, ElementKind, unset};
use super::launch::KernelLaunch;
use candle_core::Tensor;

fn threads(d: usize) -> u32 {
    d.next_multiple_of(32).clamp(32, 256) as u32
}

/// Returns rows `rows` of `t: [N, D]`. The caller has checked the indices.
pub(crate) fn gather(t: &Tensor, rows: &[u32]) -> Result<Tensor> {
    let (_, d) = matrix_dims(t);
    let from = DeviceArray::from_tensor(t)?;
    let out = unset(from.device, (rows.len(), d), from.kind)?;
    let index = DeviceBuffer::new(from.device, rows)?;
    let launch = KernelLaunch::with_kind(from.device, "rows", "gather_rows", from.kind).blocks(rows.len()).threads(threads(d));
    launch.array(DeviceArray::from_tensor(&out)?).array(from).address(index.at()).int(d).run()?;
    Ok(out)
}

/// Groups source rows by target row: sources `sources[starts[i]..starts[i + 1]]` are added to row `rows[i]`, in order.
struct SourceGroups {
    rows: Vec<u32>,
    starts: Vec<u32>,
    sources: Vec<u32>,
}

impl SourceGroups {
    /// Groups sources; source `i` goes to row `rows[i]`.
    fn new(rows: &[u32]) -> Self {
        let mut sources: Vec<u32> = (0..rows.len() as u32).collect();
        sources.sort_by_key(|&source| rows[source as usize]);
        let (mut distinct, mut starts) = (Vec::new(), Vec::new());
        for (i, &source) in sources.iter().enumerate() {
            let row = rows[source as usize];
            if distinct.last() != Some(&row) {
                distinct.push(row);
                starts.push(i as u32);
            }
        }
        starts.push(sources.len() as u32);
        Self { rows: distinct, starts, sources }
    }
}

/// Adds row `i` of `from: [M, D]` to row `rows[i]` of `into: [N, D]`, which may be f32 even if `from` is not. Several sources of a row are
/// added in order.
pub(crate) fn scatter_add(into: &Tensor, from: &Tensor, rows: &[u32]) -> Result<()> {
    let (_, d) = matrix_dims(into);
    let (into, from) = (DeviceArray::from_tensor(into)?, DeviceArray::from_tensor(from)?);
    if from.len != rows.len() * d {
        return Err(Error::Shape {
            op: "scatter_add_rows",
            detail: format!("{} values for {} rows of {d}", from.len, rows.len()),
        });
    }
    let kernel = match (into.kind, from.kind) {
        (a, b) if a == b => "scatter_add_rows",
        (ElementKind::F32, ElementKind::Bf16) => "scatter_add_rows_f32_from",
        _ => return Err(Error::Shape { op: "scatter_add_rows", detail: format!("{:?} += {:?}", into.kind, from.kind) }),
    };
    let grouped = SourceGroups::new(rows);
    let (to, starts) = (DeviceBuffer::new(into.device, &grouped.rows)?, DeviceBuffer::new(into.device, &grouped.starts)?);
    let sources = DeviceBuffer::new(into.device, &grouped.sources)?;
    let across = d.div_ceil(threads(d) as usize);
    let launch =
        KernelLaunch::with_kind(into.device, "rows", kernel, from.kind).grid(grouped.rows.len(), across, 1).threads(threads(d));
    launch.array(into).array(from).address(to.at()).address(starts.at()).address(sources.at()).int(d).run()
}
