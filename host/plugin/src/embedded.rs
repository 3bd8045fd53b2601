//! Built-in plugins, compiled by `build.rs`.

/// File names and bytes of the built-in plugins.
pub static EMBEDDED: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/embedded.rs"));
