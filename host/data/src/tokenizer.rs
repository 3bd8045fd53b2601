//! Tokenizer of a model's folder.

use super::calls::ToolCallFormat;
use super::calls::probe::ToolSupport;
use super::decoder;
use super::special_tokens::{self, ConfiguredTokens};
use super::tokenizer_overrides::{self, FolderTemplates, TokenizerOverrides, token_text};
use super::turns::AssistantSpans;
use super::work_limiter::TextWorkLimiter;
use super::{ChatMessage, ChatTemplate, Error, RenderError, Result, TemplateVariables, stock_templates};
use crate::activity::{Activity, ProgressTask};
use crate::config::{files, printable, printable_path};
use crate::ops::bounded::{WorkBounds, quietly, within};
use sha2::{Digest, Sha256};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokenizers::ModelWrapper;

/// Maximum size of `tokenizer.json` in bytes; the largest known has 35 million.
const LARGEST: u64 = 64 << 20;

/// Maximum length of a token in bytes, which bounds the length of a completion.
const LONGEST_TOKEN: usize = 4096;

/// Maximum length of a text to tokenize in bytes; tokenizing needs some hundred times as much memory.
const LONGEST_TEXT: usize = 4 << 20;

/// Number of tokens that a decoder is tried on: the first of the vocabulary.
const TRIED: u32 = 256;

/// Maximum length of a printed error, in bytes.
const SHOWN: usize = 500;

/// Tokenizer of a model, with its chat template if there is one.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    path: PathBuf,
    /// Hash of the tokenizer's file.
    hash: [u8; 32],
    inner: Arc<tokenizers::Tokenizer>,
    pace: Arc<TextWorkLimiter>,
    /// Whether the decoder may take long or produce much more text than it reads.
    decodes_freely: bool,
    chat: Option<LoadedChatTemplate>,
    bos: Option<u32>,
    eos: Option<u32>,
    /// Whether the tokenizer's settings, or the run, name the end token.
    names_end: bool,
    pad: Option<u32>,
    /// Texts of the special tokens.
    specials: Arc<[String]>,
}

/// Chat template of a tokenizer.
#[derive(Clone, Debug)]
pub(super) struct LoadedChatTemplate {
    /// File of the template.
    pub path: PathBuf,
    pub template: ChatTemplate,
    /// Name of the stock template, if this is its variant for training.
    stock: Option<&'static str>,
    /// Support for tools, once it has been determined.
    pub tools: Arc<OnceLock<ToolSupport>>,
    /// Set once a warning has said that the template leaves tools out.
    pub mentioned: Arc<OnceLock<()>>,
}

/// Disables the random splitting of words (BPE dropout); returns whether it was enabled.
fn without_dropout(inner: &mut tokenizers::Tokenizer) -> bool {
    let ModelWrapper::BPE(model) = inner.get_model() else { return false };
    if model.dropout.is_none_or(|share| share == 0.0) {
        return false;
    }
    let mut model = model.clone();
    model.dropout = None;
    inner.with_model(ModelWrapper::BPE(model));
    true
}

/// Reads `tokenizer.json`, and adds tokens. The tokenizers library panics on some damaged files, and compiles any pattern that it finds.
fn load(path: &Path, added: ConfiguredTokens) -> Result<(tokenizers::Tokenizer, [u8; 32])> {
    let wrong = |detail: String| Error::Tokenizer { path: path.to_owned(), detail: printable(&detail, SHOWN) };
    let bytes = files::read(path, LARGEST).map_err(|source| match source.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => wrong("no such file; a model folder must contain its tokenizer".into()),
        _ => Error::Io { path: path.to_owned(), source },
    })?;
    let hash = Sha256::digest(&bytes);
    let bounds = WorkBounds { memory: (256 << 20) + 32 * bytes.len(), time: Duration::from_secs(120) };
    let read = move || -> tokenizers::Result<(tokenizers::Tokenizer, usize, bool, bool)> {
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes))?;
        // Truncation and padding settings are not part of the tokenizer, as in transformers.
        inner.with_padding(None);
        inner.with_truncation(None)?;
        let drops = without_dropout(&mut inner);
        let changed = added.add_to(&mut inner)?;
        let longest = inner.get_vocab(true).keys().map(String::len).max().unwrap_or(0);
        // Some normalizers and patterns fail on any text. It is no error if the tokenizer has no tokens for this one.
        let tried = inner.encode_fast("A text, to try it: \u{e9}\u{4e16}\n", true);
        let some: Vec<u32> = tried.iter().flat_map(|text| text.get_ids()).copied().chain(0..TRIED).collect();
        // A decoder may produce a lot from any token. It is no error if it can't decode some of them.
        let _ = quietly(|| inner.decode(&some, false));
        Ok((inner, longest, drops, changed))
    };
    let (read, _) = within(bounds, read).map_err(|e| wrong(format!("not a tokenizer: reading it {e}")))?;
    let (inner, longest, drops, changed) = read.map_err(|e| wrong(format!("not a tokenizer: {e}")))?;
    if drops {
        let path = printable_path(path);
        tracing::warn!(
            "{path}: its dropout is left out: texts would have other tokens each time, and runs could not be repeated"
        );
    }
    if longest > LONGEST_TOKEN {
        return Err(wrong(format!("it has a token of {longest} bytes; the maximum is {LONGEST_TOKEN}")));
    }
    let hash = if changed { hash_with_tokens(&hash, &inner) } else { hash.into() };
    Ok((inner, hash))
}

/// Returns the hash of a tokenizer whose added tokens differ from those in its file.
fn hash_with_tokens(file: &[u8], inner: &tokenizers::Tokenizer) -> [u8; 32] {
    let mut tokens: Vec<_> = inner.get_added_tokens_decoder().into_iter().collect();
    tokens.sort_by_key(|(id, _)| *id);
    let mut hash = Sha256::new_with_prefix(file);
    for (id, token) in tokens {
        hash.update(format!("{id} {token:?}\n"));
    }
    hash.finalize().into()
}

impl Tokenizer {
    /// Reads `tokenizer.json` and the chat template of a model folder.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::open_with(folder, &TokenizerOverrides::default())
    }

    /// Reads `tokenizer.json` and the chat template of a model folder, with overrides.
    ///
    /// # Errors
    /// If the tokenizer can't be read, or lacks the tokens that the overrides name.
    pub fn open_with(folder: &Path, wording: &TokenizerOverrides) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        let _task = ProgressTask::new(Activity::ReadingTokenizer);
        let config = tokenizer_overrides::config_in(folder)?;
        let (inner, hash) = load(&path, tokenizer_overrides::added_in(folder, &config)?)?;
        let inner = Arc::new(inner);
        let own = wording.eos.clone();
        let names_end = own.is_some() || inner.token_to_id(&tokenizer_overrides::own_end(folder)?).is_some();
        for (key, text) in [("eos_token", &own), ("pad_token", &wording.pad)] {
            if let Some(missing) = text.as_ref().filter(|text| inner.token_to_id(text).is_none()) {
                let detail = format!("{key}: there is no token {missing:?}");
                return Err(Error::Tokenizer { path, detail: printable(&detail, SHOWN) });
            }
        }
        let bos_text = token_text(&config, "bos_token");
        let eos_text = own.unwrap_or_else(|| token_text(&config, "eos_token"));
        let pad_text = wording.pad.clone().unwrap_or_else(|| token_text(&config, "pad_token"));
        let [bos, eos, pad] = [&bos_text, &eos_text, &pad_text].map(|text| inner.token_to_id(text));
        let given = wording.template.clone().map(|template| FolderTemplates { default: Some(template), tool_use: None });
        let found = given.map_or_else(|| tokenizer_overrides::templates_in(folder, &config), |given| Ok(Some(given)))?;
        let mut tokens = special_tokens::named(&config);
        for (key, text) in [("bos_token", &bos_text), ("eos_token", &eos_text), ("pad_token", &pad_text)] {
            tokens.insert(key.to_owned(), text.as_str().into());
        }
        let compiled = |templates: FolderTemplates| {
            let (path, source, tool_use) = templates.into_parts(folder);
            let variant = if wording.training { stock_templates::variant(&source) } else { None };
            let (stock, source) = variant.map_or((None, source), |(name, variant)| (Some(name), variant));
            let chat = ChatTemplate::new(source, bos_text, eos_text).and_then(|chat| chat.with_tool_use(tool_use));
            match chat {
                Ok(chat) => {
                    let template = chat.with_tokens(tokens).with_variables(wording.kwargs.clone(), wording.now);
                    let (tools, mentioned) = (Arc::default(), Arc::default());
                    Ok(LoadedChatTemplate { path, template, stock, tools, mentioned })
                }
                Err(detail) => Err(Error::Tokenizer { path, detail: format!("chat template: {detail}") }),
            }
        };
        let chat = found.map(compiled).transpose()?;
        let added = inner.get_added_tokens_decoder().into_values().filter(|token| token.special).map(|token| token.content);
        let framing = [bos, eos, pad].into_iter().flatten().filter_map(|id| inner.id_to_token(id));
        let mut specials: Vec<String> = added.chain(framing).filter(|text| !text.trim().is_empty()).collect();
        specials.sort_unstable();
        specials.dedup();
        let decodes_freely = serde_json::to_value(inner.get_decoder()).map_or(true, |decoder| decoder::is_free(&decoder));
        let (pace, specials) = (Arc::default(), specials.into());
        Ok(Self { path, hash, inner, pace, decodes_freely, chat, bos, eos, names_end, pad, specials })
    }

    /// Returns the files, with their text, in which a checkpoint of a model with these end tokens differs from the folder that was opened
    /// with these overrides.
    pub fn changed_files(&self, wording: &TokenizerOverrides, model: &[u32]) -> Result<Vec<(&'static str, String)>> {
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let mut ends = self.eos_ids(model);
        ends.sort_by_key(|&id| Some(id) != self.eos);
        tokenizer_overrides::changed_files(wording, folder, &ends)
    }

    /// Returns whether another tokenizer yields the same tokens for every text.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.hash == other.hash
    }

    /// Returns a special token that occurs in a text, and so would be tokenized as such.
    pub fn special_in(&self, text: &str) -> Option<&str> {
        self.specials.iter().map(String::as_str).find(|special| text.contains(special))
    }

    /// Returns whether there is a chat template.
    pub fn has_chat(&self) -> bool {
        self.chat.is_some()
    }

    /// Returns the name of the stock template whose training variant is in use, if one is.
    pub fn stock_template(&self) -> Option<&'static str> {
        self.chat.as_ref().and_then(|chat| chat.stock)
    }

    /// Returns the number of ids up to the greatest, including added tokens.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab(true).values().max().map_or(0, |&greatest| greatest as usize + 1)
    }

    /// Returns the ids of tokens that end a text: the model's own, and the tokenizer's, which the configuration of a fine-tuned model may
    /// lack.
    pub fn eos_ids(&self, model: &[u32]) -> Vec<u32> {
        let own = self.eos.filter(|eos| !model.contains(eos));
        model.iter().copied().chain(own).collect()
    }

    /// Returns whether there is a token with this id.
    pub fn has_token_id(&self, id: u32) -> bool {
        self.inner.id_to_token(id).is_some()
    }

    /// Returns whether there is a token with this text.
    pub fn has_token(&self, text: &str) -> bool {
        self.inner.token_to_id(text).is_some()
    }

    /// Returns the text of the end token, if there is one.
    pub fn eos_text(&self) -> Option<String> {
        self.eos.and_then(|id| self.inner.id_to_token(id))
    }

    /// Returns whether the tokenizer's settings, or the run, name the end token.
    pub fn has_named_end(&self) -> bool {
        self.names_end
    }

    /// Returns the text of the end token named in `special_tokens_map.json`, or of the first of the `model`'s, if neither the tokenizer's
    /// settings nor the run name one.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn unnamed_end(&self, model: &[u32]) -> Result<Option<String>> {
        let own = tokenizer_overrides::mapped_end(self.path.parent().unwrap_or(Path::new(".")))?;
        let own = own.filter(|text| self.inner.token_to_id(text).is_some());
        Ok(own.or_else(|| model.iter().find_map(|&id| self.inner.id_to_token(id))).filter(|_| !self.names_end))
    }

    /// Returns the ids of the tokens that begin and end a text, if they exist.
    pub fn bos_and_eos_ids(&self) -> (Option<u32>, Option<u32>) {
        (self.bos, self.eos)
    }

    /// Returns the id of the padding token, or else of the end token.
    pub fn pad_id(&self) -> Option<u32> {
        self.pad.or(self.eos)
    }

    /// Returns the token ids of a text; `special` adds the tokenizer's special tokens around it (such as a beginning token).
    ///
    /// # Errors
    /// If the text is too long, or tokenizing it takes too much time or memory.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        if text.len() > LONGEST_TEXT {
            let most = LONGEST_TEXT >> 20;
            return Err(self.wrong(&format!("a text of {} bytes is too long to tokenize; the maximum is {most} MiB", text.len())));
        }
        let owned = text.to_owned();
        self.paced(text.len(), move |inner| inner.encode_fast(owned, special).map(|e| e.get_ids().to_vec()))
    }

    /// Runs work on a text of this many bytes within its limits.
    fn paced<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&tokenizers::Tokenizer) -> tokenizers::Result<T> + Send + 'static,
    ) -> Result<T> {
        let inner = Arc::clone(&self.inner);
        let done = self.pace.run(bytes, move || work(&inner).map_err(|e| e.to_string()));
        let done = done.map_err(|e| self.unbounded(&format!("a text of {bytes} bytes: {e}")))?;
        done.map_err(|e| self.wrong(&format!("a text of {bytes} bytes: {e}")))
    }

    /// Returns the number of tokens of each text, without special tokens.
    pub(super) fn count_each(&self, texts: &[&str]) -> Result<Vec<usize>> {
        let owned: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        let count = move |inner: &tokenizers::Tokenizer| {
            owned.into_iter().map(|text| inner.encode_fast(text, false).map(|encoding| encoding.len())).collect()
        };
        self.paced(texts.iter().map(|text| text.len()).sum(), count)
    }

    /// Returns the library's tokenizer.
    pub(super) fn inner(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// Returns the hash of the tokenizer.
    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// Returns the text of token ids, without special tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.decoded(ids, true)
    }

    /// Returns the text of token ids, including special tokens.
    pub fn decode_marked(&self, ids: &[u32]) -> Result<String> {
        self.decoded(ids, false)
    }

    /// Returns the text that each token adds, including special tokens. A token that ends within a character adds nothing; the token that
    /// completes it adds the character. What is left of an incomplete one is added as U+FFFD by the token that follows it, or by the last.
    ///
    /// # Errors
    /// If the tokens can't be decoded.
    pub fn texts_of(&self, ids: &[u32]) -> Result<Vec<String>> {
        let owned = ids.to_vec();
        let texts = self.decode_with(2 * ids.len(), move |inner| decoder::texts_of(inner, &owned).map_err(|e| e.to_string()));
        texts.map_err(|e| self.undecodable(ids, &e))
    }

    fn decoded(&self, ids: &[u32], plain: bool) -> Result<String> {
        let owned = ids.to_vec();
        let text = self.decode_with(ids.len(), move |inner| inner.decode(&owned, plain).map_err(|e| e.to_string()));
        text.map_err(|e| self.undecodable(ids, &e))
    }

    /// Decodes `count` tokens, within limits if the tokenizer's decoder needs them.
    fn decode_with<T: Send + 'static>(
        &self,
        tokens: usize,
        decode: impl FnOnce(&tokenizers::Tokenizer) -> std::result::Result<T, String> + Send + 'static,
    ) -> std::result::Result<T, String> {
        if self.decodes_freely {
            let inner = Arc::clone(&self.inner);
            self.pace.run(tokens, move || decode(&inner)).map_err(|e| e.to_string()).flatten()
        } else {
            quietly(|| decode(&self.inner)).flatten()
        }
    }

    fn undecodable(&self, ids: &[u32], detail: &str) -> Error {
        self.wrong(&format!("{} tokens can't be decoded: {detail}", ids.len()))
    }

    fn wrong(&self, detail: &str) -> Error {
        Error::Tokenizer { path: self.path.clone(), detail: printable(detail, SHOWN) }
    }

    fn unbounded(&self, detail: &str) -> Error {
        Error::Unbounded { place: printable_path(&self.path), detail: printable(detail, SHOWN) }
    }

    pub(super) fn unrendered(&self, error: RenderError) -> Error {
        let path = self.chat.as_ref().map_or(&self.path, |chat| &chat.path).clone();
        match error {
            RenderError::Refused(detail) => Error::Tokenizer { path, detail: format!("chat template: {detail}") },
            RenderError::Unbounded(detail) => {
                let detail = printable(&format!("chat template: {detail}"), SHOWN);
                Error::Unbounded { place: printable_path(&path), detail }
            }
        }
    }

    fn chat(&self) -> Result<&ChatTemplate> {
        let missing =
            "the prompt is a conversation, but this model's tokenizer has no chat template; use plain strings as prompts";
        let chat = self.chat.as_ref().map(|chat| &chat.template);
        chat.ok_or_else(|| Error::Tokenizer { path: self.path.clone(), detail: missing.into() })
    }

    /// Renders a conversation; see [`ChatTemplate::render`].
    pub fn render_chat(&self, messages: &[ChatMessage], generate: bool, extras: &TemplateVariables) -> Result<String> {
        self.chat()?.render(messages, generate, extras).map_err(|e| self.unrendered(e))
    }

    /// Describes what the chat template omits from a conversation, given its rendered text: a turn, its calls, or tools. With `thorough`,
    /// turns with few letters are checked, too.
    ///
    /// # Errors
    /// If the check takes too much time or memory.
    pub fn find_omission(
        &self,
        conversation: (&[ChatMessage], bool),
        text: &str,
        thorough: bool,
        extras: &TemplateVariables,
    ) -> Result<Option<String>> {
        self.chat()?.find_omission(conversation, text, thorough, extras).map_err(|e| self.unrendered(e))
    }

    /// Returns the text that follows a turn of the model; see [`ChatTemplate::following`].
    pub(super) fn render_following(
        &self,
        before: &[ChatMessage],
        replies: &[ChatMessage],
        extras: &TemplateVariables,
    ) -> Result<String> {
        self.chat()?.following(before, replies, extras).map_err(|e| self.unrendered(e))
    }

    /// Returns the format in which the model writes calls of these tools.
    pub(super) fn call_format(&self, tools: &serde_json::Value) -> ToolCallFormat {
        self.chat.as_ref().map(|chat| chat.template.calls(!tools.is_null())).unwrap_or_default()
    }

    /// Returns the chat template.
    pub(super) fn template(&self) -> Option<&LoadedChatTemplate> {
        self.chat.as_ref()
    }

    /// Returns the tokens of a conversation, and a mask of the assistant's: tokens that the template marks at least in part or, for a
    /// template without marks, tokens within a turn.
    pub fn encode_with_assistant_mask(
        &self,
        messages: &[ChatMessage],
        extras: &TemplateVariables,
    ) -> Result<(Vec<u32>, Vec<u8>)> {
        let AssistantSpans { text, spans, marked } =
            self.chat()?.assistant_spans(messages, extras).map_err(|e| self.unrendered(e))?;
        let bytes = text.len();
        let encode = move |inner: &tokenizers::Tokenizer| {
            let encoding = inner.encode(text, false)?;
            let mut before = 0;
            let said = |&(begin, end): &(usize, usize)| {
                // Offsets may exclude spaces that belong to a token.
                let (begin, end) = (begin.min(before), end);
                before = end;
                let spoken = |span: &Range<usize>| begin < span.end && span.start < end && (marked || end <= span.end);
                u8::from(spans.iter().any(spoken))
            };
            let said = encoding.get_offsets().iter().map(said).collect();
            Ok((encoding.get_ids().to_vec(), said))
        };
        self.paced(bytes, encode)
    }
}

/// Strings that end a completion.
#[derive(Clone, Debug)]
pub struct StopStrings {
    strings: Vec<String>,
    window: usize,
}

impl StopStrings {
    /// Creates the set of stop strings.
    pub fn new(strings: Vec<String>) -> Self {
        // A token stands for at least one byte, so a string of n bytes is within the last n tokens. The extra tokens allow for decoders
        // that treat the beginning of a text differently.
        let window = strings.iter().map(String::len).max().unwrap_or(0) + 4;
        Self { strings, window }
    }

    /// Returns whether the newest token of a completion completes one of the strings.
    pub fn end(&self, tokens: &[u32], tokenizer: &Tokenizer) -> bool {
        if self.strings.is_empty() {
            return false;
        }
        let tail = &tokens[tokens.len().saturating_sub(self.window)..];
        tokenizer.decode(tail).is_ok_and(|text| self.strings.iter().any(|s| text.contains(s)))
    }
}
