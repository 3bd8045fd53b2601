//! What the page asks, answered in JSON.

mod app;
mod comparison;
mod completions;
mod control;
mod fork;
mod live;
mod plugins;
mod query;
mod refused;
mod routes;
mod run;
mod runs;
mod series;
mod story;
mod text;
mod tokens;

pub(crate) use app::Api;
pub(crate) use live::Live;
pub(crate) use refused::Refused;
pub(crate) use routes::Route;
