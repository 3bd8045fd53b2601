//! JSON API of the page.

mod app;
mod comparison;
mod completions;
mod control;
mod fork;
mod live_stream;
mod plugins;
mod query;
mod refusal;
mod routes;
mod run;
mod runs;
mod series;
mod story;
mod text;
mod tokens;

pub(crate) use app::PageApi;
pub(crate) use live_stream::LiveUpdateStream;
pub(crate) use refusal::ApiRefusal;
pub(crate) use routes::PageRoute;
