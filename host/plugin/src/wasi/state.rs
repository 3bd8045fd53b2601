//! The state of an instance's WASI.

use super::super::capture::OutputCapture;
use super::super::folders::Folders;
use super::open_files::OpenFiles;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::sync::Arc;
use wasmtime::component::Val;

/// Nanoseconds by which each read advances a clock.
pub(super) const TICK: u64 = 1_000;

/// State of an instance's WASI.
pub(crate) struct Wasi {
    /// Time on the wall clock and on the monotonic clock since the instance started, in nanoseconds.
    pub(super) wall: u64,
    pub(super) monotonic: u64,
    secure: ChaCha8Rng,
    insecure: ChaCha8Rng,
    pub(super) seed: u64,
    pub(super) output: OutputCapture,
    pub(super) files: OpenFiles,
}

impl Wasi {
    pub(crate) fn new(seed: u64, output: OutputCapture) -> Self {
        let random = |stream: u64| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(stream);
            rng
        };
        Self { wall: 0, monotonic: 0, secure: random(1), insecure: random(2), seed, output, files: OpenFiles::default() }
    }

    /// Lets the instance read folders.
    pub(crate) fn grant(&mut self, folders: Arc<Folders>) {
        self.files = OpenFiles::with_folders(folders);
    }

    /// Takes the output printed since the last call.
    pub(crate) fn printed(&mut self) -> String {
        self.output.take()
    }

    /// Advances the clocks: a sleep returns immediately.
    pub(super) fn sleep(&mut self, nanoseconds: u64) {
        self.wall = self.wall.saturating_add(nanoseconds);
        self.monotonic = self.monotonic.saturating_add(nanoseconds);
    }

    pub(super) fn random(&mut self, interface: &str) -> &mut ChaCha8Rng {
        if interface == "wasi:random/random" { &mut self.secure } else { &mut self.insecure }
    }
}

/// Reads and advances a clock.
pub(super) fn read(clock: &mut u64) -> u64 {
    let now = *clock;
    *clock = clock.saturating_add(TICK);
    now
}

pub(super) fn datetime(nanoseconds: u64) -> Val {
    const SECOND: u64 = 1_000_000_000;
    Val::Record(vec![
        ("seconds".to_owned(), Val::U64(nanoseconds / SECOND)),
        ("nanoseconds".to_owned(), Val::U32((nanoseconds % SECOND) as u32)),
    ])
}
