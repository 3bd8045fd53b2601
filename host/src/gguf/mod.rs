//! Exports models as GGUF files, for llama.cpp and programs that build on it.
//!
//! `targets.rs` lists what llama.cpp supports of each family; other models are refused. `keys.rs` turns a model's sizes into
//! metadata, `vocabulary.rs` its tokenizer; `tensors.rs` has its weights under llama.cpp's names and in its order; `file.rs`
//! writes the file. Names and orders follow llama.cpp's `convert_hf_to_gguf.py`; what a family's graph loads is in its
//! `src/models/`.

mod encode;
mod file;
mod keys;
mod targets;
mod tensors;
mod vocabulary;

#[cfg(any(test, fuzzing))]
pub(crate) use vocabulary::read_tokenizer;

use crate::data::{self, Tokenizer, Wording};
use crate::model::{self, Architecture, Held, ModelFolder};
use file::Value;
use serde::Deserialize;
use std::io::{self, Write};
use std::path::PathBuf;

/// A precision of tensors in a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits.
    F32,
    /// 16 bits.
    F16,
    /// 16 bits with the range of 32.
    Bf16,
    /// 8 bits, in blocks of 32 with a scale.
    #[serde(rename = "q8_0")]
    Q8,
}

impl Precision {
    /// Returns its name in ggml and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8 => "q8_0",
        }
    }

    /// Returns its number among the tensor types (`ggml_type`).
    fn number(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8 => 8,
            Self::Bf16 => 30,
        }
    }

    /// Returns the number of a file that mostly uses it (`llama_ftype`).
    fn of_file(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8 => 7,
            Self::Bf16 => 32,
        }
    }

    /// Returns the bytes of this many values.
    fn bytes(self, values: u64) -> u64 {
        match self {
            Self::F32 => 4 * values,
            Self::F16 | Self::Bf16 => 2 * values,
            Self::Q8 => values / encode::BLOCK as u64 * (encode::BLOCK as u64 + 2),
        }
    }
}

/// Why a model can't be exported as a GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// llama.cpp does not support such a model.
    #[error("{}: {detail}", path.display())]
    Unknown {
        /// The file that describes the model.
        path: PathBuf,
        /// What llama.cpp lacks.
        detail: String,
    },
    /// A weight can't be written in the requested precision.
    #[error("{tensor} has values that are not finite or too large for {}; bf16 and f32 go up to 3e38", precision.name())]
    OutOfRange {
        /// The first such tensor, by its name in the file.
        tensor: String,
        /// The precision.
        precision: Precision,
    },
    /// The file can't be written.
    #[error("can't write the file: {0}")]
    Write(#[source] io::Error),
    /// The model can't be read.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// The tokenizer can't be read.
    #[error(transparent)]
    Data(#[from] data::Error),
}

impl Error {
    /// Returns whether something that the user gave is at fault, rather than the machine or the program.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Unknown { .. } | Self::OutOfRange { .. } => true,
            Self::Write(source) => crate::config::files::is_of_the_path(source),
            Self::Model(error) => error.is_mistake(),
            Self::Data(error) => error.is_mistake(),
        }
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Model(error.into())
    }
}

impl From<crate::ops::Error> for Error {
    fn from(error: crate::ops::Error) -> Self {
        Self::Model(error.into())
    }
}

/// Result of writing a GGUF file.
pub type Result<T> = std::result::Result<T, Error>;

/// Writes a model with its tokenizer and chat template, with an adapter merged in. Returns notes for the user.
///
/// # Errors
/// If llama.cpp does not support such a model or tokenizer, a weight does not fit, or something can't be read or written.
pub fn export(source: &ModelFolder, precision: Precision, to: &mut impl Write) -> Result<Vec<String>> {
    let config = || source.base().join("config.json");
    let target_of = |a: &Architecture| targets::of(a).map_err(|detail| Error::Unknown { path: config(), detail });
    target_of(source.architecture())?;
    // An adapter is merged in f32; anything else is rounded once, as it is written.
    let held = if source.lora().is_some() { Held::default() } else { Held::AS_STORED };
    let weights = source.clone().holding(held).decoder()?.weights().merged()?;
    // An adapter may have changed the embedding alone.
    let a = &Architecture { tied: source.architecture().tied && weights.head.is_none(), ..source.architecture().clone() };
    let target = target_of(a)?;
    let mut notes = target.notes(a);
    let tokenizer = Tokenizer::open(source.tokenizer())?;
    let vocabulary = vocabulary::metadata(source.tokenizer(), &tokenizer, a, &mut notes)?;
    let ropes = keys::Ropes::read(source).map_err(|detail| Error::Unknown { path: config(), detail })?;
    let parts = tensors::parts(&weights, a, &target, &ropes, precision)?;
    notes.extend(tensors::fallen_back(&parts, precision));
    let text = |key: &str, text: &str| (format!("general.{key}"), Value::Text(text.to_owned()));
    let mut metadata = vec![text("architecture", target.name), text("type", "model")];
    metadata.extend(source.path().file_name().map(|name| text("name", &name.to_string_lossy())));
    metadata.push(("general.file_type".into(), Value::Count(precision.of_file())));
    // `GGML_QNT_VERSION`
    metadata.push(("general.quantization_version".into(), Value::Count(2)));
    metadata.extend(keys::metadata(a, &target, &ropes));
    metadata.extend(vocabulary);
    let template = Wording::template_of(source.tokenizer())?;
    metadata.extend(template.map(|template| ("tokenizer.chat_template".to_owned(), Value::Text(template))));
    file::write(to, &metadata, &parts)?;
    Ok(notes)
}
