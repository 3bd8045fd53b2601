//! The folder of a run as all know it ([`run`]), what is written there ([`metrics`], [`checkpoint`]), and what is made of it
//! ([`diagnosis`], [`report`], [`trackers`]).

pub mod checkpoint;
pub mod diagnosis;
pub mod metrics;
pub mod report;
pub mod run;
pub mod trackers;

use rlhost_config as config;
use rlhost_config::activity;
