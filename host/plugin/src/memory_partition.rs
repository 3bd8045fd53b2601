//! Divides the memory of an environment's instances.

use crate::config::PluginLimits;

/// Number of instances of an environment that sends requests. Waiting costs no processor time, and an environment that sends its episodes'
/// requests one after the other is that much faster.
pub(super) const WAITING: usize = 64;

/// Minimum share of an instance and its cells, in bytes. A share is also at least twice the memory of the first instance.
pub(super) const LEAST_SHARE: usize = 16 << 20;

/// Number of parts that the memory of all instances is divided into: for environments that open cells, and for those that neither open
/// cells nor send requests.
const PARTS_WITH_CELLS: usize = 4;
const PARTS: usize = 16;

/// The division of the memory of all instances. It depends only on the limits and on the plugin as loaded, not on anything that happens in
/// a run: otherwise a call could run out of memory in a run and succeed when that run is resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryPartition {
    /// Memory that an instance that plays episodes may take, including its cells, in bytes.
    pub share: usize,
    /// Number of such instances that fit.
    pub instances: usize,
}

impl MemoryPartition {
    /// Divides the memory of a plugin whose first instance took `loaded` bytes. That instance stays, and may take `kept` bytes.
    pub(super) fn new(limits: &PluginLimits, (loaded, kept): (usize, usize), asks: bool, opens_cells: bool) -> Self {
        let left = limits.total_memory().saturating_sub(kept);
        let parts = match (opens_cells, asks) {
            (true, _) => PARTS_WITH_CELLS,
            (false, true) => WAITING,
            (false, false) => PARTS,
        };
        // An instance can't use more than this.
        let own = limits.memory().saturating_mul(if opens_cells { 2 } else { 1 });
        let share = (limits.total_memory() / parts).max(LEAST_SHARE).max(loaded.saturating_mul(2)).min(own).min(left);
        Self { share, instances: (left / share.max(1)).max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_divided_by_the_limits_and_what_was_loaded() {
        let mebibytes = |memory_mb, total_memory_mb, loaded: usize, cells| {
            let limits = PluginLimits { memory_mb, total_memory_mb, ..PluginLimits::default() };
            let MemoryPartition { share, instances } = MemoryPartition::new(&limits, (loaded << 20, loaded << 20), false, cells);
            assert!(share * instances + (loaded << 20) <= (total_memory_mb as usize) << 20);
            (share >> 20, instances)
        };
        assert_eq!(mebibytes(512, 768, 2, false), (48, 15));
        assert_eq!(
            MemoryPartition::new(&PluginLimits::default(), (2 << 20, 2 << 20), true, false),
            MemoryPartition { share: 16 << 20, instances: 47 }
        );
        assert_eq!(mebibytes(512, 768, 2, true), (192, 3));
        assert_eq!(mebibytes(32, 768, 2, true), (64, 11));
        assert_eq!(mebibytes(8, 768, 2, false), (8, 95));
        assert_eq!(mebibytes(512, 768, 100, false), (200, 3));
        assert_eq!(mebibytes(512, 100, 1, false), (16, 6));
        assert_eq!(mebibytes(512, 2, 1, false), (1, 1));
    }
}
