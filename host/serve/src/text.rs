//! Converts tokens to text as they arrive: text is returned as soon as it is certain, and stop texts are cut off.
//!
//! The text of a token depends on its neighbours: several tokens may form one character, and some tokenizers write spaces between tokens.
//! So each token is decoded together with a few tokens before it (at first, of the prompt), and these are also decoded without it, as in
//! vLLM.

use crate::data::{Error, Tokenizer};

/// Number of prompt tokens that the first tokens are decoded with.
const CONTEXT: usize = 5;

/// Maximum number of undecided tokens. A character has at most four bytes; more tokens that don't complete one are not text.
const LONGEST_CHARACTER: usize = 16;

/// Character that decoders write for bytes that are not text, or not yet.
const INCOMPLETE: char = '\u{fffd}';

/// Rules by which tokens become text.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextStreamRules {
    /// Texts that end the completion.
    pub stops: Vec<String>,
    /// Whether the stop text is part of the text.
    pub includes_stop: bool,
    /// Whether special tokens are written.
    pub special: bool,
    /// Tokens that are not written.
    pub silent: Vec<u32>,
}

/// Text of a completion.
pub(crate) struct TextStream {
    tokenizer: Tokenizer,
    rules: TextStreamRules,
    /// Newest tokens; the first `read` of them have been written.
    tokens: Vec<u32>,
    read: usize,
    /// Text that may be the beginning of a stop text.
    pending_text: String,
    /// Stop text that was found.
    stopped: Option<String>,
}

impl TextStream {
    /// Creates the text stream of a completion that follows a prompt.
    pub(crate) fn new(tokenizer: Tokenizer, rules: TextStreamRules, prompt: &[u32]) -> Self {
        let tokens = prompt[prompt.len().saturating_sub(CONTEXT)..].to_vec();
        let read = tokens.len();
        Self { tokenizer, rules, tokens, read, pending_text: String::new(), stopped: None }
    }

    /// Returns the stop text that has ended the text, if one has.
    pub(crate) fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    fn decode(&self, tokens: &[u32]) -> Result<String, Error> {
        if self.rules.special { self.tokenizer.decode_marked(tokens) } else { self.tokenizer.decode(tokens) }
    }

    /// Adds a token; returns the text that has become certain.
    pub(crate) fn push(&mut self, token: u32) -> Result<String, Error> {
        if self.stopped.is_some() || self.rules.silent.contains(&token) {
            return Ok(String::new());
        }
        self.tokens.push(token);
        let (before, whole) = (self.decode(&self.tokens[..self.read])?, self.decode(&self.tokens)?);
        let new = whole.get(before.len()..).unwrap_or_default();
        if new.ends_with(INCOMPLETE) && self.tokens.len() - self.read < LONGEST_CHARACTER {
            return Ok(String::new());
        }
        if new.is_empty() {
            // For special tokens, a few are enough context.
            self.read = self.tokens.len();
            self.tokens.drain(..self.read.saturating_sub(2 * CONTEXT));
            self.read = self.tokens.len();
            return Ok(String::new());
        }
        let new = new.to_owned();
        // The tokens written last are the context for decoding the next ones.
        self.tokens.drain(..self.read);
        self.read = self.tokens.len();
        Ok(self.cut(&new))
    }

    /// Returns the rest of the text at the end.
    pub(crate) fn finish(&mut self) -> Result<String, Error> {
        if self.stopped.is_some() {
            return Ok(String::new());
        }
        let (before, whole) = (self.decode(&self.tokens[..self.read])?, self.decode(&self.tokens)?);
        let rest = whole.get(before.len()..).unwrap_or_default().to_owned();
        self.read = self.tokens.len();
        Ok(self.cut(&rest) + &std::mem::take(&mut self.pending_text))
    }

    /// Appends new text; returns the part that can't belong to a stop text.
    fn cut(&mut self, new: &str) -> String {
        let mut text = std::mem::take(&mut self.pending_text) + new;
        let found = self.rules.stops.iter().filter_map(|stop| Some((text.find(stop.as_str())?, stop))).min_by_key(|(at, _)| *at);
        if let Some((at, stop)) = found {
            self.stopped = Some(stop.clone());
            text.truncate(if self.rules.includes_stop { at + stop.len() } else { at });
            return text;
        }
        let is_beginning = |at: &usize| self.rules.stops.iter().any(|stop| stop.starts_with(&text[*at..]));
        let begins = text.char_indices().map(|(at, _)| at).find(is_beginning).unwrap_or(text.len());
        self.pending_text = text.split_off(begins);
        text
    }
}
