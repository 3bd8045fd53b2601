//! Plugins that run code which a model wrote.

#![allow(clippy::print_stdout)]

mod rewards;
mod tools;
