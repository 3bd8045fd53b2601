//! Processes that are killed when their test ends.

use std::ops::{Deref, DerefMut};
use std::process::{Child, Command};

/// A process that is killed when this is dropped, even after a failed assertion.
pub struct KilledOnDrop(pub Child);

impl KilledOnDrop {
    /// Sends the process a signal, such as `STOP`.
    ///
    /// # Panics
    /// If it can't be sent.
    pub fn signal(&self, name: &str) {
        let done = Command::new("kill").args([&format!("-{name}"), &self.0.id().to_string()]).status();
        assert!(done.expect("kill runs").success());
    }
}

impl Deref for KilledOnDrop {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for KilledOnDrop {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
