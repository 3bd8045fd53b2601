//! Text to tokens and back, by the tokenizer that the model folder brings.

use super::{ChatTemplate, Error, Message, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A model's tokenizer and, where it has one, its chat template.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    path: PathBuf,
    inner: tokenizers::Tokenizer,
    chat: Option<ChatTemplate>,
    eos: Option<u32>,
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|source| Error::Io { path: path.to_owned(), source })
}

/// A special token's text, written as a string or as an object with its content.
fn token_text(config: &Value, key: &str) -> String {
    let value = &config[key];
    value.as_str().or_else(|| value["content"].as_str()).unwrap_or_default().to_owned()
}

impl Tokenizer {
    /// Reads `tokenizer.json` and the chat template of a model folder.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        if !path.exists() {
            return Err(Error::Tokenizer { path, detail: "no such file; a model folder brings its tokenizer".into() });
        }
        let mut inner = tokenizers::Tokenizer::from_file(&path)
            .map_err(|e| Error::Tokenizer { path: path.clone(), detail: format!("not a tokenizer: {e}") })?;
        // What somebody once cut and filled texts to is no part of the tokenizer, for transformers neither.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| Error::Tokenizer { path: path.clone(), detail: e.to_string() })?;
        let config_path = folder.join("tokenizer_config.json");
        let config: Value = if config_path.exists() {
            serde_json::from_str(&read(&config_path)?)
                .map_err(|e| Error::Tokenizer { path: config_path.clone(), detail: e.to_string() })?
        } else {
            Value::Null
        };
        let template_path = folder.join("chat_template.jinja");
        let source = if template_path.exists() {
            Some(read(&template_path)?)
        } else {
            let default = |named: &Value| named["name"] == "default";
            let named = config["chat_template"].as_array().and_then(|all| all.iter().find(|named| default(named)));
            named.map_or(&config["chat_template"], |named| &named["template"]).as_str().map(str::to_owned)
        };
        let chat = source
            .map(|s| ChatTemplate::new(s, token_text(&config, "bos_token"), token_text(&config, "eos_token")))
            .transpose()
            .map_err(|detail| Error::Tokenizer { path: config_path, detail: format!("chat template: {detail}") })?;
        let eos = inner.token_to_id(&token_text(&config, "eos_token"));
        Ok(Self { path, inner, chat, eos })
    }

    /// Number of ids up to the greatest, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab(true).values().max().map_or(0, |&greatest| greatest as usize + 1)
    }

    /// The ids that end a text: the model's own, and the tokenizer's, which a fine-tuned model may
    /// have without saying so in its configuration.
    pub fn eos_ids(&self, model: &[u32]) -> Vec<u32> {
        let own = self.eos.filter(|eos| !model.contains(eos));
        model.iter().copied().chain(own).collect()
    }

    /// The text of the ending token, if there is one.
    pub fn eos_text(&self) -> Option<String> {
        self.eos.and_then(|id| self.inner.id_to_token(id))
    }

    /// Token ids of a text; `special` adds what the tokenizer puts around a text (a beginning
    /// token, say).
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, special);
        encoding.map(|e| e.get_ids().to_vec()).map_err(|e| Error::Tokenizer { path: self.path.clone(), detail: e.to_string() })
    }

    /// Text of token ids, special tokens left out.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.inner.decode(ids, true).map_err(|e| Error::Tokenizer { path: self.path.clone(), detail: e.to_string() })
    }

    /// Text of a conversation; see [`ChatTemplate::render`].
    pub fn render_chat(&self, messages: &[Message], generate: bool) -> Result<String> {
        let fail = |detail: String| Error::Tokenizer { path: self.path.clone(), detail };
        let chat = self.chat.as_ref().ok_or_else(|| {
            fail(
                "the prompt is a conversation, and this model's tokenizer has no chat template; give prompts as plain strings"
                    .into(),
            )
        })?;
        chat.render(messages, generate).map_err(|e| fail(format!("chat template: {e}")))
    }
}

/// Strings that end a completion.
#[derive(Clone, Debug)]
pub struct StopStrings {
    strings: Vec<String>,
    window: usize,
}

impl StopStrings {
    /// Strings as the user gave them.
    pub fn new(strings: Vec<String>) -> Self {
        // A token stands for at least one byte, so that a string of n bytes lies in the last
        // n tokens; the few more keep decoders that treat a text's beginning apart from it.
        let window = strings.iter().map(String::len).max().unwrap_or(0) + 4;
        Self { strings, window }
    }

    /// Whether the newest token of a completion brought one of the strings to its end.
    pub fn end(&self, tokens: &[u32], tokenizer: &Tokenizer) -> bool {
        if self.strings.is_empty() {
            return false;
        }
        let tail = &tokens[tokens.len().saturating_sub(self.window)..];
        tokenizer.decode(tail).is_ok_and(|text| self.strings.iter().any(|s| text.contains(s)))
    }
}
