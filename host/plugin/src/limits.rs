//! Limits on the memory of an instance, over all its memories and tables, and of all instances of a plugin.

use super::census::{MOST_INSTANCES, MOST_MEMORIES, MOST_TABLES};
use crate::config::PluginLimits;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use wasmtime::ResourceLimiter;

/// Size of a table element, in bytes.
const ELEMENT: usize = size_of::<usize>();

/// The last request for memory that an instance was denied: the likely cause of the trap that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryRefusal {
    /// Memory beyond the limit of one instance.
    InstanceMemory,
    /// Memory beyond the limit of all the plugin's instances.
    TotalMemory,
    /// Too many table elements.
    Elements,
}

/// The memory that an instance and its cells may take together, out of the memory of all the plugin's instances. The host sets it before a
/// call, so whether the instance gets memory does not depend on the other instances. Clones share the count.
#[derive(Clone)]
pub(super) struct MemoryShare(Arc<MemoryShareState>);

struct MemoryShareState {
    used: AtomicUsize,
    most: AtomicUsize,
    /// Whether memory was refused only because of this share.
    refused: AtomicBool,
}

impl MemoryShare {
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(MemoryShareState {
            used: AtomicUsize::new(0),
            most: AtomicUsize::new(most),
            refused: AtomicBool::new(false),
        }))
    }

    /// Sets the limit for the following calls. Memory in use stays.
    pub(super) fn set_most(&self, most: usize) {
        self.0.most.store(most, Ordering::Relaxed);
        self.0.refused.store(false, Ordering::Relaxed);
    }

    /// Returns the bytes in use.
    pub(super) fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Returns whether memory was refused, since the limit was set, that a larger share would have allowed.
    pub(super) fn was_too_small(&self) -> bool {
        self.0.refused.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let most = self.0.most.load(Ordering::Relaxed);
        let more = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= most);
        let taken = self.0.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if !taken {
            self.0.refused.store(true, Ordering::Relaxed);
        }
        taken
    }

    fn give_back(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

pub(super) struct MemoryLimiter {
    bytes: usize,
    table_elements: usize,
    used: usize,
    share: MemoryShare,
    pub(super) refused: Option<MemoryRefusal>,
}

impl MemoryLimiter {
    pub(super) fn new(limits: &PluginLimits, share: MemoryShare) -> Self {
        Self { bytes: limits.memory(), table_elements: limits.table_elements as usize, used: 0, share, refused: None }
    }

    /// Returns the bytes in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Returns the share of the instance and its cells.
    pub(super) fn share(&self) -> &MemoryShare {
        &self.share
    }

    /// Counts memory that the instance takes besides its memories and tables. Returns whether it fits.
    pub(super) fn take(&mut self, bytes: usize) -> bool {
        self.grow(0, bytes)
    }

    fn grow(&mut self, current: usize, desired: usize) -> bool {
        let growth = desired.saturating_sub(current);
        if self.used.saturating_add(growth) > self.bytes {
            self.refused = Some(MemoryRefusal::InstanceMemory);
            return false;
        }
        if !self.share.take(growth) {
            self.refused = Some(MemoryRefusal::TotalMemory);
            return false;
        }
        self.used += growth;
        true
    }
}

impl Drop for MemoryLimiter {
    fn drop(&mut self) {
        self.share.give_back(self.used);
    }
}

impl ResourceLimiter for MemoryLimiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.grow(current, desired))
    }

    fn table_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        if desired > self.table_elements {
            self.refused = Some(MemoryRefusal::Elements);
            return Ok(false);
        }
        Ok(self.grow(current.saturating_mul(ELEMENT), desired.saturating_mul(ELEMENT)))
    }

    fn instances(&self) -> usize {
        MOST_INSTANCES as usize
    }

    fn tables(&self) -> usize {
        MOST_TABLES as usize
    }

    fn memories(&self) -> usize {
        MOST_MEMORIES as usize
    }
}

/// Maximum number of resource handles in an instance: streams, pollables and the plugin's own.
pub(super) const MOST_HANDLES: usize = 100_000;

/// Maximum host memory for the values of one call, in bytes.
pub(super) const CARRIED: usize = 128 << 20;

/// Minimum host memory for the values of each of several parallel calls, in bytes.
const LEAST_CARRIED: usize = 8 << 20;

/// Returns the maximum host memory for the values of each of this many parallel calls, in bytes.
pub(super) fn carried_by_each(calls: usize) -> usize {
    (CARRIED / calls.max(1)).max(LEAST_CARRIED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_bounded_by_itself_and_with_its_cells() {
        let limits = PluginLimits { memory_mb: 2, table_elements: 10, ..PluginLimits::default() };
        let share = MemoryShare::new(3 << 20);
        let new = || MemoryLimiter::new(&limits, share.clone());
        let (mut one, mut cell) = (new(), new());
        assert!(one.take(1 << 20) && one.memory_growing(0, 1 << 20, None).unwrap());
        assert!(!one.memory_growing(1 << 20, (1 << 20) + 1, None).unwrap());
        assert_eq!((one.refused, share.was_too_small()), (Some(MemoryRefusal::InstanceMemory), false));
        assert!(!cell.memory_growing(0, 2 << 20, None).unwrap());
        assert_eq!((cell.refused, share.was_too_small()), (Some(MemoryRefusal::TotalMemory), true));
        assert!(!cell.table_growing(0, 11, None).unwrap());
        assert_eq!(cell.refused, Some(MemoryRefusal::Elements));
        drop(one);
        share.set_most(4 << 20);
        assert!(cell.memory_growing(0, 2 << 20, None).unwrap());
        assert_eq!((share.used(), share.was_too_small()), (2 << 20, false));
    }

    #[test]
    fn neighbours_take_nothing_from_a_share() {
        let limits = PluginLimits { memory_mb: 4, ..PluginLimits::default() };
        let [mut one, mut other] = [(); 2].map(|()| MemoryLimiter::new(&limits, MemoryShare::new(2 << 20)));
        assert!(!one.memory_growing(0, 3 << 20, None).unwrap());
        assert!(one.memory_growing(0, 2 << 20, None).unwrap() && other.memory_growing(0, 2 << 20, None).unwrap());
    }
}
