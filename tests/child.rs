//! Processes that end with the test that started them.

use std::ops::{Deref, DerefMut};
use std::process::{Child, Command};

/// A process that is killed when it is dropped, also when an assertion failed.
pub struct KilledOnDrop(pub Child);

impl KilledOnDrop {
    /// Sends it a signal, as in `STOP`.
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
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
