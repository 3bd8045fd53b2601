//! The decoder: reads a model folder, computes hidden states and gradients.
//!
//! [`Policy`] is the trainable view, and [`Frozen`] is the read-only view for generation and reference log-probabilities. A
//! frozen view shares the policy's storage, so an optimizer step needs no weight transfer, and it has no method that changes a
//! weight.

mod adapted;
mod adapter_reader;
mod architecture;
mod backend;
mod backward;
mod bounds;
pub mod builtin;
mod cache;
mod companions;
mod critic;
mod decoder;
mod decoding;
mod delta_network;
#[cfg(feature = "cuda")]
mod device_decoding;
#[cfg(feature = "cuda")]
mod device_steps;
mod dropped;
mod dtype;
mod error;
mod experts;
mod families;
mod frozen;
mod harmless;
mod held;
mod how;
mod joins;
mod json;
mod layer;
mod layer_kinds;
mod load;
mod lora;
mod magnitudes;
mod maps;
mod masked;
mod mixed;
mod mixed_backward;
mod mixture;
mod names;
mod noised;
mod over_forest;
mod patterns;
mod peft;
mod policy;
mod prompt_pass;
mod query_scale;
mod random;
mod recurrence;
mod rope_scaling;
mod save;
mod selected;
mod shapes;
mod shards;
mod short_convolution;
mod stacked;
mod stacks;
mod step_model;
mod stored;
mod switches;
mod tables;
mod text_part;
mod trained_rows;
mod value_model;
mod weights;
mod whole;
mod work;
mod write;
mod write_config;

pub use architecture::{Architecture, Projections};
pub use backend::{Backend, Chosen};
pub use cache::{Cache, Prefix};
pub use companions::copy_companions;
pub use decoder::Decoder;
pub use decoding::{Decode, Decoding};
pub use delta_network::{DeltaNetwork, Recurrent};
#[cfg(feature = "cuda")]
pub use device_decoding::{DeviceDecoding, DevicePrefix, Room};
pub use dtype::Dtype;
pub use error::{Error, Result};
pub use families::{Described, FAMILIES, Family};
pub use frozen::Frozen;
pub use held::Held;
pub use load::ModelFolder;
pub use lora::{Biases, Lora};
pub use mixture::Mixture;
pub use policy::{Pass, Policy};
pub use prompt_pass::PromptPass;
pub use query_scale::QueryScale;
pub use random::write_random;
pub use recurrence::{Recurrence, RecurrenceKind};
pub use rope_scaling::{Rope, RopeScaling};
pub use save::{export, merge, save};
pub use selected::Selected;
pub use short_convolution::ShortConvolution;
pub use stacks::Stacks;
pub use switches::{Factors, HeadNorms, NormKind};
pub use value_model::{NewHead, ValuePass};
pub use weights::{Gradients, Linear, Norm, Weights, of_critic};
pub use whole::Whole;
pub use work::{Generated, Passed};
pub use write::{write_critic, write_tensors, write_weights};
