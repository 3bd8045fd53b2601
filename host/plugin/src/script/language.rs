//! The languages of scripts, and their built-in interpreters.

use std::io;

/// Maximum size of an interpreter, in bytes.
const LARGEST: usize = 64 << 20;

/// A language of scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Language {
    /// Python, run by CPython.
    Python,
    /// JavaScript and TypeScript, run by QuickJS.
    JavaScript,
}

impl Language {
    /// Returns the language of a script's file, by its extension.
    pub(super) fn from_file_name(name: &str) -> Self {
        let is_python = name.rsplit_once('.').is_some_and(|(_, extension)| extension.eq_ignore_ascii_case("py"));
        if is_python { Self::Python } else { Self::JavaScript }
    }

    /// Returns the name of the language.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "Python",
            Self::JavaScript => "JavaScript",
        }
    }

    /// Returns the interpreter's bytes, compressed.
    pub(crate) fn compressed(self) -> &'static [u8] {
        match self {
            Self::Python => include_bytes!("../../../interpreters/built/python.wasm.zst"),
            Self::JavaScript => include_bytes!("../../../interpreters/built/javascript.wasm.zst"),
        }
    }

    /// Returns the interpreter, which is a component.
    ///
    /// # Errors
    /// If the interpreter is damaged, which means that the program's file is.
    pub(crate) fn interpreter(self) -> io::Result<Vec<u8>> {
        zstd::bulk::decompress(self.compressed(), LARGEST)
    }
}
