//! Bounds the number of tokens of a text without tokenizing it, for byte-level tokenizers. For other tokenizers there is no proof, and
//! texts must be tokenized.

use super::Tokenizer;
use rlhost_words::{Words, first_cut, max_tokens};
use serde_json::Value;
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use tokenizers::models::ModelWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// Maximum length of a text with a proven bound. Tokenizing a longer text could also take too much time or memory.
const LONGEST: usize = 64 << 10;

/// Maximum number of words that are tokenized to bound a text; if there are more, the text itself is tokenized.
const LEARNED: usize = 48;

/// Maximum length in bytes of a word that is tokenized to bound a text.
const LONGEST_WORD: usize = 256;

/// Maximum factor by which NFC lengthens UTF-8 (Unicode Standard Annex 15).
const NFC: usize = 3;

/// Patterns that match every character, match a space only in a run of whitespace or before what follows it, and have no lookbehind. So
/// [`Words`] splits texts only between matches, and each part has the same matches as in the full text.
const PATTERNS: [&str; 3] = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
];

/// Proven bounds for a tokenizer. Every text except the empty one has a token.
pub struct TokenCountBounds {
    tokenizer: Tokenizer,
    /// Maximum number of tokens of a byte in a text that is not ASCII.
    wide: usize,
    /// Number of special tokens around a text.
    added: usize,
    /// Text of the end token, if it always becomes that token and no other text does.
    end: Option<String>,
    /// Known token counts of words; one table per working thread.
    words: Mutex<Vec<Words>>,
}

impl fmt::Debug for TokenCountBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenCountBounds").field("wide", &self.wide).field("added", &self.added).finish_non_exhaustive()
    }
}

impl TokenCountBounds {
    /// Returns the bounds for a tokenizer; `None` if nothing can be proved.
    pub fn from_tokenizer(tokenizer: &Tokenizer) -> Option<Self> {
        let inner = tokenizer.inner();
        let ModelWrapper::BPE(model) = inner.get_model() else { return None };
        let affixed = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
        if model.dropout.is_some_and(|share| share > 0.0) || affixed.into_iter().flatten().any(|affix| !affix.is_empty()) {
            return None;
        }
        if !ByteLevel::alphabet().iter().all(|letter| inner.token_to_id(&letter.to_string()).is_some()) {
            return None;
        }
        let json = |part: serde_json::Result<Value>| part.ok();
        let wide = match json(serde_json::to_value(inner.get_normalizer()))? {
            Value::Null => 1,
            nfc if nfc["type"] == "NFC" => NFC,
            _ => return None,
        };
        if !cuts_alike(&json(serde_json::to_value(inner.get_pre_tokenizer()))?) {
            return None;
        }
        if !surrounds(&json(serde_json::to_value(inner.get_post_processor()))?) {
            return None;
        }
        let marks: Vec<_> = inner.get_added_tokens_decoder().into_values().collect();
        let plain = |mark: &tokenizers::AddedToken| {
            let matched_as_given = !mark.normalized || wide == 1;
            let alone = !mark.single_word && !mark.lstrip && !mark.rstrip && matched_as_given;
            alone && !mark.content.is_empty() && !mark.content.contains(' ')
        };
        if !marks.iter().all(plain) {
            return None;
        }
        let added = tokenizer.encode("a", true).ok()?.len().checked_sub(tokenizer.encode("a", false).ok()?.len())?;
        let end = tokenizer.eos_text().filter(|end| {
            let others = || marks.iter().map(|mark| mark.content.as_str()).filter(|other| *other != end.as_str());
            marks.iter().any(|mark| mark.content == *end)
                && !overlap(end, end)
                && others()
                    .all(|other| !overlap(end, other) && !overlap(other, end) && !other.contains(end) && !end.contains(other))
        });
        Some(Self { tokenizer: tokenizer.clone(), wide, added, end, words: Mutex::default() })
    }

    /// Returns an upper bound on the number of tokens of a text. The bound depends only on the text.
    pub fn at_most(&self, text: &str, special: bool) -> usize {
        max_tokens(text.as_bytes(), self.wide) + if special { self.added } else { 0 }
    }

    /// Returns whether a text provably has at least one and fewer than `below` tokens, and can be tokenized at all.
    pub fn fits(&self, text: &str, special: bool, below: usize) -> bool {
        if text.is_empty() || text.len() > LONGEST {
            return false;
        }
        if self.at_most(text, special) < below {
            return true;
        }
        self.with_words(|words| self.words_fit(text, below.saturating_sub(if special { self.added } else { 0 }), words))
    }

    /// Returns the number of tokens of a text, summed over its words; `None` if the text must be tokenized to know.
    pub fn count(&self, text: &str, special: bool) -> Option<usize> {
        if text.is_empty() || text.len() > LONGEST {
            return None;
        }
        let counted = self.with_words(|words| {
            let mut unknown = Vec::new();
            let most = words.upper_bound(text, self.wide, &mut unknown);
            Some(most - self.learn(text, &unknown, words)?)
        });
        Some(counted? + if special { self.added } else { 0 })
    }

    fn with_words<T>(&self, use_them: impl FnOnce(&mut Words) -> T) -> T {
        let lock = || self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let mut words = lock().pop().unwrap_or_default();
        let used = use_them(&mut words);
        lock().push(words);
        used
    }

    fn words_fit(&self, text: &str, below: usize, words: &mut Words) -> bool {
        let mut unknown = Vec::new();
        let tokens = words.upper_bound(text, self.wide, &mut unknown);
        if tokens < below {
            return true;
        }
        unknown.retain(|word| word.len() <= LONGEST_WORD);
        unknown.truncate(LEARNED);
        self.learn(text, &unknown, words).is_some_and(|fewer| tokens - fewer < below)
    }

    /// Tokenizes words of a text and stores their token counts; returns by how much these are below the bounds.
    fn learn(&self, text: &str, unknown: &[Range<usize>], words: &mut Words) -> Option<usize> {
        let some: Vec<&str> = unknown.iter().map(|word| &text[word.clone()]).collect();
        let counts = self.tokenizer.count_each(&some).ok()?;
        let mut fewer = 0;
        for (word, count) in some.into_iter().zip(counts) {
            fewer += max_tokens(word.as_bytes(), self.wide).saturating_sub(count);
            words.learn(word, count);
        }
        Some(fewer)
    }

    /// Returns whether `whole` provably has more end tokens than `asked`. If so, the tokens of `whole` are not a prefix of those of
    /// `asked`, and `whole` also has another token.
    pub fn ends_beyond(&self, asked: &str, whole: &str) -> bool {
        let Some(end) = &self.end else { return false };
        let sound = whole.len() <= LONGEST && whole.len() > end.len();
        let goes_on = whole.starts_with(asked) && whole.len() > asked.len() && whole.ends_with(end.as_str());
        sound && (goes_on || whole.matches(end.as_str()).count() > asked.matches(end.as_str()).count())
    }

    /// Returns whether two texts provably begin with the same token.
    pub fn begin_alike(&self, a: &str, b: &str) -> bool {
        // Includes the space and the letter that allow the cut.
        first_cut(a.as_bytes()).is_some_and(|cut| b.as_bytes().starts_with(&a.as_bytes()[..cut + 2]))
    }
}

/// Returns whether a proper suffix of one text is a proper prefix of the other.
fn overlap(one: &str, other: &str) -> bool {
    (1..one.len().min(other.len())).any(|n| one.as_bytes().ends_with(&other.as_bytes()[..n]))
}

/// Returns whether a pre-tokenizer loses and adds nothing, and splits a text as [`PATTERNS`] do.
fn cuts_alike(pre: &Value) -> bool {
    let bytes = |part: &Value, matches: bool| {
        part["type"] == "ByteLevel" && part["add_prefix_space"] == false && part["use_regex"].as_bool().unwrap_or(true) == matches
    };
    let first = |part: &Value| match part["type"].as_str() {
        Some("Split") => {
            let known = part["pattern"]["Regex"].as_str().is_some_and(|pattern| PATTERNS.contains(&pattern));
            known && part["behavior"] == "Isolated" && part["invert"] == false
        }
        _ => false,
    };
    match pre["pretokenizers"].as_array().map(Vec::as_slice) {
        None => bytes(pre, true),
        Some([one]) => bytes(one, true),
        Some([split, level]) if split["type"] == "Digits" => bytes(level, true),
        Some([split, level]) => first(split) && bytes(level, false),
        Some(_) => false,
    }
}

/// Returns whether a post-processor keeps a text's tokens, once, and adds the same tokens around any text.
fn surrounds(post: &Value) -> bool {
    match post["type"].as_str() {
        None => post.is_null(),
        Some("ByteLevel") => true,
        Some("TemplateProcessing") => {
            let whole = |part: &&Value| part["Sequence"]["id"] == "A";
            let parts = post["single"].as_array().map(Vec::as_slice).unwrap_or_default();
            parts.iter().filter(whole).count() == 1 && !parts.iter().any(|part| part["Sequence"]["id"] == "B")
        }
        Some("Sequence") => post["processors"].as_array().is_some_and(|all| all.iter().all(surrounds)),
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;
    use std::sync::LazyLock;

    static KNOWN: LazyLock<(Tokenizer, TokenCountBounds)> = LazyLock::new(|| {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/builtin-model/model");
        let tokenizer = Tokenizer::open(&model).unwrap();
        let lengths = TokenCountBounds::from_tokenizer(&tokenizer).unwrap();
        (tokenizer, lengths)
    });

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn counted_tokens_are_those_of_the_whole_text(
            parts in prop::collection::vec("( ?[a-zA-Z']{1,12}[.,!]?|<\\|endoftext\\|>|[ \\n\\t]{1,3}|[0-9]{1,4}|\\PC{1,6})", 1..40),
            special in any::<bool>(),
        ) {
            let (tokenizer, lengths) = &*KNOWN;
            let text = parts.concat();
            // The second time, the words are known.
            for _ in 0..2 {
                prop_assert_eq!(lengths.count(&text, special), Some(tokenizer.encode(&text, special).unwrap().len()), "{:?}", text);
            }
        }
    }

    #[test]
    fn what_is_empty_or_very_long_is_not_counted() {
        let (_, lengths) = &*KNOWN;
        assert_eq!(lengths.count("", false), None);
        assert_eq!(lengths.count(&"a ".repeat(LONGEST), false), None);
    }
}
