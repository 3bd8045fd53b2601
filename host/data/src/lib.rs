//! Datasets and text: reads rows, renders chat templates, tokenizes, and determines the order of prompts.

mod calls;
mod chat;
mod completions;
mod conversations;
mod dataset;
mod decoder;
mod error;
pub mod error_serde;
mod labelled_rows;
mod loader;
mod marks;
mod message;
mod omissions;
mod packing;
mod preferences;
mod prompt;
mod prompt_form;
mod prompts;
mod rows;
mod scorable_rows;
mod slices;
mod special_tokens;
mod stock_templates;
mod teacher_prompts;
mod teacher_tokens;
mod token_count_bounds;
mod tokenized_rows;
mod tokenizer;
mod tokenizer_overrides;
mod train_tokenizer;
mod turn_end;
mod turn_suffix;
mod turns;
mod unusable_rows;
mod work_limiter;

use rlhost_config as config;
use rlhost_config::activity;
use rlhost_ops as ops;

pub use calls::calls_in;
pub use chat::{ChatTemplate, RenderError, TemplateVariables};
pub use completions::{CompletionRow, read_completions};
pub use dataset::{Dataset, FilePart};
pub use error::{Error, Result};
pub use labelled_rows::{LabelledRow, PairOrdering};
pub use loader::{Cursor, Loader, shuffle};
pub use message::ChatMessage;
pub use packing::pack;
pub use preferences::PreferenceRow;
pub use prompt::{PromptRow, TextOrChat};
pub use prompt_form::PromptForm;
pub use prompts::{parse_prompts, read_prompts, read_prompts_as};
pub use rows::SingleRank;
pub use rows::{DatasetRanks, DatasetTable, Location, RowColumns, size_on_disk};
pub use scorable_rows::{ScorableRow, read_scorable_rows};
pub use slices::{Slice, SplitPart};
pub use teacher_prompts::TeacherPrompts;
pub use teacher_tokens::{TEACHER_LOGPROBS, TEACHER_TOKEN_IDS, TaughtTokens, read_teacher_tokens};
pub use token_count_bounds::TokenCountBounds;
pub use tokenized_rows::TokenizedRow;
pub use tokenizer::{StopStrings, Tokenizer};
pub use tokenizer_overrides::{TemplateTokens, TokenizerOverrides};
pub use train_tokenizer::{TrainedTokenizer, train_tokenizer};
pub use turn_end::TurnEnd;
pub use unusable_rows::UnusableRows;

/// Allocator of the program, so that tests check that untrusted inputs stay within their memory limits.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: ops::bounded::LimitedAllocator<mimalloc::MiMalloc> = ops::bounded::LimitedAllocator(mimalloc::MiMalloc);
