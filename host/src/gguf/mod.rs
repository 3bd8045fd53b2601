//! Exports models as GGUF files, for llama.cpp and programs that build on it.
//!
//! `targets.rs` lists what llama.cpp supports of each family; other models are refused. `keys.rs` converts a model's sizes to metadata,
//! `vocabulary.rs` its tokenizer; `tensors.rs` has its weights under llama.cpp's names and in its order; `file.rs` writes the file. Names
//! and orders follow llama.cpp's `convert_hf_to_gguf.py`; its `src/models/` defines what a family's graph loads.

mod encode;
mod error;
mod file;
mod gguf_tensor;
mod keys;
mod precision;
mod targets;
mod tensors;
mod vocabulary;

pub use error::{Error, Result};
pub use precision::GgufPrecision;
#[cfg(any(test, fuzzing))]
pub(crate) use vocabulary::read_tokenizer;

use crate::data::{Tokenizer, TokenizerOverrides};
use crate::model::{Architecture, ModelFolder, WeightStorage};
use file::GgufValue;
use std::io::Write;

/// Writes a model with its tokenizer and chat template, with an adapter merged in. Returns notes for the user.
///
/// # Errors
/// If llama.cpp does not support such a model or tokenizer, a weight is out of range, or something can't be read or written.
pub fn export(source: &ModelFolder, precision: GgufPrecision, to: &mut impl Write) -> Result<Vec<String>> {
    let config = || source.base().join("config.json");
    let target_of = |a: &Architecture| targets::for_architecture(a).map_err(|detail| Error::Unknown { path: config(), detail });
    target_of(source.architecture())?;
    // With an adapter, weights are merged in f32; without one, they are rounded once, when they are written.
    let held = if source.lora().is_some() { WeightStorage::default() } else { WeightStorage::AS_STORED };
    let weights = source.clone().with_weight_storage(held).decoder()?.weights().merged()?;
    // An adapter may have untied the output head from the embedding.
    let a = &Architecture { tied: source.architecture().tied && weights.head.is_none(), ..source.architecture().clone() };
    let target = target_of(a)?;
    let mut notes = target.notes(a);
    let tokenizer = Tokenizer::open(source.tokenizer())?;
    let vocabulary = vocabulary::metadata(source.tokenizer(), &tokenizer, a, &mut notes)?;
    let ropes = keys::RopeDivisors::read(source).map_err(|detail| Error::Unknown { path: config(), detail })?;
    let parts = tensors::parts(&weights, a, &target, &ropes, precision)?;
    notes.extend(tensors::fallen_back(&parts, precision));
    let text = |key: &str, text: &str| (format!("general.{key}"), GgufValue::Text(text.to_owned()));
    let mut metadata = vec![text("architecture", target.name), text("type", "model")];
    metadata.extend(source.path().file_name().map(|name| text("name", &name.to_string_lossy())));
    metadata.push(("general.file_type".into(), GgufValue::Count(precision.file_type())));
    // `GGML_QNT_VERSION`
    metadata.push(("general.quantization_version".into(), GgufValue::Count(2)));
    metadata.extend(keys::metadata(a, &target, &ropes));
    metadata.extend(vocabulary);
    let template = TokenizerOverrides::template_of(source.tokenizer())?;
    metadata.extend(template.map(|template| ("tokenizer.chat_template".to_owned(), GgufValue::Text(template))));
    file::write(to, &metadata, &parts)?;
    Ok(notes)
}
