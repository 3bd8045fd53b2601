//! Attention of the newest tokens; see `host/kernels/decode_attention.cu`.

use super::super::super::Result;
use super::super::super::heads::AttentionConfig;
use super::super::array::{DeviceArray, ElementKind, at};
use super::super::attention::scores;
use super::super::launch::KernelLaunch;
use super::session::DecodeSession;
use super::state::QUERIES;

/// Number of positions that a block processes at once.
const TILE: usize = 64;

/// Maximum number of threads of a block that combines runs.
const COMBINING: usize = 256;

impl DecodeSession {
    /// Returns the addresses of the sequences' own keys and values in a layer.
    pub(super) fn own_cache(&self, layer: usize) -> Result<(u64, u64)> {
        let (k, v) = (DeviceArray::from_tensor(&self.own_k)?, DeviceArray::from_tensor(&self.own_v)?);
        let offset = (layer * (k.len / self.sizes.layers) * self.kind.size()) as u64;
        Ok((k.at + offset, v.at + offset))
    }

    /// Computes attention of the rows' queries over their prompts and their own positions in a layer, including the newest.
    pub fn attend(&self, layer: usize, how: AttentionConfig) -> Result<()> {
        let (sizes, h, dim) = (&self.sizes, self.sizes.heads, self.sizes.kernel_dim()?);
        let (own_k, own_v) = self.own_cache(layer)?;
        let [sequences, slots, step] = self.tables();
        let (split, own_runs, runs) = (sizes.split(), sizes.own_runs(), sizes.runs());
        let parts = at(&self.parts);
        // Rows are read in units of sixteen bytes.
        let tensor_cores = self.kind == ElementKind::Bf16 && h.head_dim.is_multiple_of(8);
        // Size of `struct Shared` of both kernels.
        let launch = if tensor_cores {
            let stages = if dim > 128 { 1 } else { 2 };
            let shared = (1 + 2 * stages) * TILE * (dim + 8) * 2 + 4 * QUERIES;
            let kernel = format!("decode_attention_mma_{dim}");
            KernelLaunch::new(&self.device, "decode_attention_bf16", &kernel).threads(128).shared(shared)
        } else {
            let shared = 4 * (QUERIES * (dim + 1) + TILE * (dim + 1) + QUERIES * (TILE + 1) + 4 * QUERIES);
            let kernel = format!("decode_attention_{dim}");
            KernelLaunch::with_kind(&self.device, "decode_attention", &kernel, self.kind).threads(256).shared(shared)
        };
        let launch = launch.grid(self.shares + self.rows * own_runs, h.kv_heads, 1);
        let launch = launch.address(parts).array(DeviceArray::from_tensor(&self.values.q)?);
        let launch = launch.address(at(&self.state.prompts) + 16 * layer as u64).address(at(&self.state.prompt_lengths));
        let launch = launch.address(own_k).address(own_v).address(sequences).address(slots).address(step);
        let launch = launch.address(at(&self.state.shares)).int(sizes.layers).int(self.shares).int(own_runs);
        let launch = launch.int(split).int(sizes.max_own_positions).int(runs).structure(&scores(how));
        launch.int(h.heads).int(h.kv_heads).int(h.head_dim).run()?;

        let launch = KernelLaunch::with_kind(&self.device, "decode_attention", "decode_combine", self.kind)
            .threads(COMBINING as u32)
            .grid(self.rows, (h.heads * h.head_dim).div_ceil(COMBINING), 1);
        let launch = launch.array(DeviceArray::from_tensor(&self.values.attended)?).address(parts);
        let launch = launch.address(sequences).address(slots).address(step).int(split).int(runs);
        launch.int(h.heads).int(h.kv_heads).int(h.head_dim).run()
    }
}
