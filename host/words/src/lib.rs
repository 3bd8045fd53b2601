//! Bounds the number of tokens of a text by adding up those of its words, without tokenizing it.
//!
//! A text is cut before each space that follows a visible ASCII character and precedes an ASCII letter. For most byte-level
//! tokenizers, no token and no pattern reaches across such a cut; the caller must know that.

use std::ops::Range;

/// Maximum length of a remembered word in bytes.
const LONGEST: usize = 26;

/// Number of remembered words; a power of two. A new word replaces another with the same place.
const PLACES: usize = 1 << 17;

/// A word and its number of tokens; the length is 0 if there is none.
#[derive(Clone, Copy)]
struct KnownWord {
    text: [u8; LONGEST],
    length: u8,
    tokens: u8,
}

/// Words whose number of tokens is known. Takes four megabytes.
pub struct Words {
    known: Box<[KnownWord]>,
}

impl Default for Words {
    fn default() -> Self {
        Self { known: vec![KnownWord { text: [0; LONGEST], length: 0, tokens: 0 }; PLACES].into() }
    }
}

fn place(word: &[u8]) -> usize {
    let mut hash = word.len() as u64;
    for part in word.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..part.len()].copy_from_slice(part);
        hash = (hash.rotate_left(23) ^ u64::from_le_bytes(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    (hash >> 40) as usize % PLACES
}

/// Returns whether a text can be cut before this byte.
fn is_cut(text: &[u8], at: usize) -> bool {
    text[at] == b' ' && text[at - 1].is_ascii_graphic() && text.get(at + 1).is_some_and(u8::is_ascii_alphabetic)
}

/// Returns the first place where a text can be cut.
pub fn first_cut(text: &[u8]) -> Option<usize> {
    (1..text.len()).find(|&at| is_cut(text, at))
}

impl Words {
    /// Returns at least the number of tokens of a text, of which each byte is at most `wide` tokens where a word is not ASCII, and
    /// one where it is. Adds the words whose number of tokens is not known to `unknown`.
    pub fn upper_bound(&self, text: &str, wide: usize, unknown: &mut Vec<Range<usize>>) -> usize {
        let bytes = text.as_bytes();
        let (mut begin, mut tokens) = (0, 0);
        for at in 1..=bytes.len() {
            if at < bytes.len() && !is_cut(bytes, at) {
                continue;
            }
            match self.tokens(&bytes[begin..at]) {
                Some(known) => tokens += known,
                None => {
                    tokens += max_tokens(&bytes[begin..at], wide);
                    unknown.push(begin..at);
                }
            }
            begin = at;
        }
        tokens
    }

    fn tokens(&self, word: &[u8]) -> Option<usize> {
        let known = &self.known[place(word)];
        (&known.text[..usize::from(known.length)] == word).then_some(usize::from(known.tokens))
    }

    /// Remembers a word's number of tokens.
    pub fn learn(&mut self, word: &str, tokens: usize) {
        if let (1..=LONGEST, Ok(tokens)) = (word.len(), u8::try_from(tokens)) {
            let mut text = [0; LONGEST];
            text[..word.len()].copy_from_slice(word.as_bytes());
            self.known[place(word.as_bytes())] = KnownWord { text, length: word.len() as u8, tokens };
        }
    }
}

/// Returns at least the number of tokens of a text: one for each byte, or `wide` if it is not ASCII.
pub fn max_tokens(text: &[u8], wide: usize) -> usize {
    text.len() * if text.is_ascii() { 1 } else { wide }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cut_where_nothing_reaches_across_and_known_ones_count_their_tokens() {
        let mut words = Words::default();
        let text = "An é of, x  y 12 zz\n w";
        let mut unknown = Vec::new();
        // Neither two spaces nor a digit or a line break beside a space make a cut, nor a letter that is not ASCII.
        let count = words.upper_bound(text, 3, &mut unknown);
        let cut: Vec<&str> = unknown.iter().map(|at| &text[at.clone()]).collect();
        assert_eq!(cut, ["An é of,", " x  y 12", " zz\n w"]);
        assert_eq!(count, 27 + 8 + 6);
        words.learn(" x  y 12", 2);
        unknown.clear();
        assert_eq!((words.upper_bound(text, 3, &mut unknown), unknown.len()), (27 + 2 + 6, 2));
        assert_eq!((first_cut(b"a b"), first_cut(b" b"), first_cut(b"a "), first_cut(b"")), (Some(1), None, None, None));
    }
}
