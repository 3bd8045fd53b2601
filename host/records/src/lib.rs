//! The folder of a run: its files and formats ([`run`]), the code that writes it ([`metrics`], [`checkpoint`]), and the code that evaluates
//! it ([`diagnosis`], [`report`], [`trackers`]).

pub mod checkpoint;
pub mod diagnosis;
pub mod metrics;
pub mod report;
pub mod run;
pub mod trackers;

use rlhost_config as config;
use rlhost_config::activity;
