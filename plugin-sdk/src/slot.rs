//! Storage of an exported plugin between calls.

use crate::Error;
use std::sync::Mutex;

/// Holds one plugin; empty until it is configured.
pub struct ExportSlot<T>(Mutex<Option<T>>);

impl<T> ExportSlot<T> {
    /// Creates an empty slot.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Stores a configured plugin.
    pub fn set(&self, value: T) {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(value);
    }

    /// Calls `f` with the plugin, if there is one.
    pub fn read<R>(&self, f: impl FnOnce(Option<&T>) -> R) -> R {
        f(self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).as_ref())
    }

    /// Calls `f` with the plugin, which must have been configured.
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> Result<R, Error>) -> Result<R, Error> {
        match self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).as_mut() {
            Some(plugin) => f(plugin),
            None => Err(Error::Internal("called before configure".into())),
        }
    }
}

impl<T> Default for ExportSlot<T> {
    fn default() -> Self {
        Self::new()
    }
}
