//! Rows of a dataset, texts and tokens: reading, chat templates, tokenizers, and the order of prompts.

mod calls;
mod chat;
mod completions;
mod continuing;
mod conversing;
mod dataset;
mod decoder;
mod error;
mod labelled;
mod lengths;
mod loader;
mod marks;
mod message;
mod pace;
mod packing;
mod preferences;
mod prompt;
mod prompt_form;
mod prompts;
mod refused;
mod rows;
mod scored;
mod slices;
mod special_tokens;
mod tokenized;
mod tokenizer;
pub mod told;
mod train_tokenizer;
mod training;
mod turn_end;
mod turns;
mod unwritten;
mod wording;

use rlhost_config as config;
use rlhost_config::activity;
use rlhost_ops as ops;

pub use calls::calls_in;
pub use chat::{ChatTemplate, Extras, RenderError};
pub use completions::{CompletionRow, read_completions};
pub use dataset::{Dataset, FilePart};
pub use error::{Error, Result};
pub use labelled::{LabelledRow, Order};
pub use lengths::Lengths;
pub use loader::{Cursor, Loader, shuffle};
pub use message::Message;
pub use packing::pack;
pub use preferences::PreferenceRow;
pub use prompt::{PromptRow, TextOrChat};
pub use prompt_form::PromptForm;
pub use prompts::{parse_prompts, read_prompts, read_prompts_as};
pub use refused::Refused;
pub use rows::Alone;
pub use rows::{Columns, Location, Peers, Table, size_on_disk};
pub use scored::{Scored, read_scored};
pub use slices::{Slice, SplitPart};
pub use tokenized::Tokenized;
pub use tokenizer::{StopStrings, Tokenizer};
pub use train_tokenizer::{TrainedTokenizer, train_tokenizer};
pub use turn_end::TurnEnd;
pub use wording::{TemplateTokens, Wording};

/// As in the program: tests must find that what is untrusted stays within its bounds.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: ops::bounded::Limited<mimalloc::MiMalloc> = ops::bounded::Limited(mimalloc::MiMalloc);
