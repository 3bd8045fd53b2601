//! Memory of an instance as a whole, whatever number of memories and tables it has.

use crate::config::Limits;
use wasmtime::ResourceLimiter;

/// Bytes that a table element takes.
const ELEMENT: usize = size_of::<usize>();

pub(super) struct Ceiling {
    bytes: usize,
    table_elements: usize,
    used: usize,
    /// Whether growth was refused: the likely cause of a trap that follows.
    pub(super) refused: bool,
}

impl Ceiling {
    pub(super) fn new(limits: &Limits) -> Self {
        let bytes = usize::try_from(limits.memory_mb).unwrap_or(usize::MAX).saturating_mul(1 << 20);
        Self { bytes, table_elements: limits.table_elements as usize, used: 0, refused: false }
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    fn grow(&mut self, current: usize, desired: usize) -> bool {
        let growth = desired.saturating_sub(current);
        let fits = self.used.saturating_add(growth) <= self.bytes;
        if fits {
            self.used += growth;
        } else {
            self.refused = true;
        }
        fits
    }
}

impl ResourceLimiter for Ceiling {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(self.grow(current, desired))
    }

    fn table_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let fits = desired <= self.table_elements && self.grow(current * ELEMENT, desired * ELEMENT);
        self.refused |= !fits;
        Ok(fits)
    }
}
