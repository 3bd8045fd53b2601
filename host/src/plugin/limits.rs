//! Limits the memory of an instance, over all its memories and tables, and of all instances of a plugin.

use super::census::{MOST_INSTANCES, MOST_MEMORIES, MOST_TABLES};
use crate::config::Limits;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use wasmtime::ResourceLimiter;

/// Size of a table element, in bytes.
const ELEMENT: usize = size_of::<usize>();

/// What an instance was last denied: the likely cause of the trap that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Memory beyond the limit of one instance.
    ToOne,
    /// Memory beyond the limit of all the plugin's instances.
    ToAll,
    /// Too many table elements.
    Elements,
}

/// The memory of all instances of a plugin. Clones share the count.
#[derive(Clone)]
pub(super) struct Together {
    used: Arc<AtomicUsize>,
    most: usize,
}

impl Together {
    pub(super) fn new(limits: &Limits) -> Self {
        Self { used: Arc::default(), most: limits.total_memory() }
    }

    fn take(&self, bytes: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.most);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns how many instances of this size fit, at least one.
    pub(super) fn room_for(&self, bytes: usize) -> usize {
        (self.most / bytes.max(1)).max(1)
    }
}

pub(super) struct Ceiling {
    bytes: usize,
    table_elements: usize,
    used: usize,
    together: Together,
    pub(super) refused: Option<Refused>,
}

impl Ceiling {
    pub(super) fn new(limits: &Limits, together: Together) -> Self {
        Self { bytes: limits.memory(), table_elements: limits.table_elements as usize, used: 0, together, refused: None }
    }

    /// Returns the bytes in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    fn grow(&mut self, current: usize, desired: usize) -> bool {
        let growth = desired.saturating_sub(current);
        if self.used.saturating_add(growth) > self.bytes {
            self.refused = Some(Refused::ToOne);
            return false;
        }
        if !self.together.take(growth) {
            self.refused = Some(Refused::ToAll);
            return false;
        }
        self.used += growth;
        true
    }
}

impl Drop for Ceiling {
    fn drop(&mut self) {
        self.together.give_back(self.used);
    }
}

impl ResourceLimiter for Ceiling {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.grow(current, desired))
    }

    fn table_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        if desired > self.table_elements {
            self.refused = Some(Refused::Elements);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_bounded_each_and_together() {
        let limits = Limits { memory_mb: 2, total_memory_mb: 3, table_elements: 10, ..Limits::default() };
        let together = Together::new(&limits);
        let new = || Ceiling::new(&limits, together.clone());
        let (mut one, mut other) = (new(), new());
        assert!(one.memory_growing(0, 2 << 20, None).unwrap());
        assert!(!one.memory_growing(2 << 20, (2 << 20) + 1, None).unwrap());
        assert_eq!(one.refused, Some(Refused::ToOne));
        assert!(!other.memory_growing(0, 2 << 20, None).unwrap());
        assert_eq!(other.refused, Some(Refused::ToAll));
        assert!(!other.table_growing(0, 11, None).unwrap());
        assert_eq!(other.refused, Some(Refused::Elements));
        drop(one);
        assert!(other.memory_growing(0, 2 << 20, None).unwrap());
        assert_eq!((together.room_for(1 << 20), together.room_for(9 << 20), together.room_for(0)), (3, 1, 3 << 20));
    }
}
