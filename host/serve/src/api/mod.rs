//! Routes of the server: requests and responses in JSON.

mod anthropic;
mod app;
mod chat;
mod choice;
mod completions;
mod drivers;
mod error;
mod events;
mod fields;
mod final_message;
mod generate;
mod logprobs;
mod messages;
mod metrics;
mod reply;
mod responses;
mod routes;
mod sampling;
mod scores;
mod served_weights;
mod tokens;
mod typed_events;
mod weights;

pub use app::{App, ModelCard};
pub(crate) use error::ApiError;
pub use reply::EventSource;
pub(crate) use reply::{Reply, ReplyContent};
pub(crate) use routes::InferenceRoute;
pub use served_weights::ServedWeights;

/// Returns the seconds since 1970.
fn unix_time() -> i64 {
    jiff::Timestamp::now().as_second()
}

#[cfg(test)]
mod mutation_tests;
#[cfg(test)]
pub(crate) mod tests;
