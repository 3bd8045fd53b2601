//! Cuts given texts into sequences, for packing without losing tokens: TRL's `bfd_split` and `wrapped`. The cuts depend only on the texts'
//! lengths; the texts are tokenized on demand.

use super::prompts::{PromptSet, ROWS_PREFIX};
use super::{Prompt, PromptAnswers, hex};
use crate::dist::World;
use crate::{Error, Result};
use serde_json::Map;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Mean number of sequences per text, weighted by length, above which all sequences are made at once: getting one requires tokenizing its
/// whole text.
const MOST_PARTS: u128 = 16;

/// Tokens with their mask: 1 if a token is learned.
type MaskedTokens = Vec<(u32, u8)>;

/// The facts about a text that determine its cuts.
pub(super) enum TextOutline {
    /// Number of tokens, and number of unlearned tokens at the beginning.
    Plain(usize, usize),
    /// For each token, whether it is learned.
    Masked(Vec<u8>),
}

impl TextOutline {
    /// Returns the outline of a prepared row.
    pub(super) fn from_prompt(prompt: &Prompt, whole: bool) -> Self {
        let learned = prompt.answers.as_ref().and_then(|answers| answers.learned.as_ref());
        match learned {
            Some(mask) => Self::Masked(std::iter::repeat_n(0, prompt.tokens.len()).chain(mask.iter().copied()).collect()),
            None => Self::Plain(prompt.length(), if whole || prompt.text.is_empty() { 0 } else { prompt.tokens.len() }),
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Plain(length, _) => *length,
            Self::Masked(mask) => mask.len(),
        }
    }

    /// Returns whether any token at these places is learned.
    fn learns(&self, mut places: Range<usize>) -> bool {
        match self {
            Self::Plain(_, unlearned) => places.end > places.start.max(*unlearned),
            Self::Masked(mask) => places.any(|place| mask[place] == 1),
        }
    }
}

/// A sequence: the texts that it consists of, in order, with the places of their tokens.
struct SplitSequence {
    row: SplitRow,
    pieces: Vec<(usize, Range<usize>)>,
    /// Number of the sequence's tokens.
    length: usize,
    /// Whether a token after the first is learned.
    learned: bool,
}

/// Row number of a sequence.
#[derive(Clone, Copy)]
enum SplitRow {
    /// The row of its text, which was not cut.
    Whole,
    /// The row of the text that it is part of.
    OfText,
    /// A new number.
    Numbered(usize),
}

impl SplitSequence {
    fn new(row: SplitRow) -> Self {
        Self { row, pieces: Vec::new(), length: 0, learned: false }
    }

    /// Appends tokens of a text.
    fn push(&mut self, text: usize, outline: &TextOutline, places: Range<usize>) {
        let first = if self.pieces.is_empty() { places.start + 1 } else { places.start };
        self.learned |= outline.learns(first..places.end);
        self.length += places.len();
        self.pieces.push((text, places));
    }
}

/// Statistics of texts' lengths.
#[derive(Default)]
struct TextSizes {
    total: u128,
    /// Sum of the squared lengths.
    squares: u128,
}

impl TextSizes {
    fn add(&mut self, length: usize) {
        self.total += length as u128;
        self.squares += (length as u128).pow(2);
    }

    /// Returns whether texts are so long that their sequences are made at once.
    fn are_long(&self, sequence: usize) -> bool {
        self.squares > MOST_PARTS * sequence as u128 * self.total
    }
}

/// Texts cut into sequences.
pub(super) struct SplitTexts {
    texts: PromptSet,
    parts: Vec<SplitSequence>,
    /// Whether prompts are learned.
    whole: bool,
    /// Description of the rule and settings that determine the cuts.
    rule: String,
}

impl SplitTexts {
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    pub(super) fn texts(&self) -> &PromptSet {
        &self.texts
    }

    /// Returns the length of each sequence.
    pub(super) fn lengths(&self) -> Vec<usize> {
        self.parts.iter().map(|part| part.length).collect()
    }

    /// Returns a hash of everything that determines the sequences.
    pub(super) fn fingerprint(&self) -> Result<String> {
        let hash = Sha256::new_with_prefix(self.texts.fingerprint()?).chain_update(&self.rule).finalize();
        Ok(format!("{}{}", ROWS_PREFIX, hex(&hash)))
    }

    /// Returns the sequences at these positions.
    pub(super) fn get(&self, indices: &[usize]) -> Result<Vec<Arc<Prompt>>> {
        let mut needed: Vec<usize> =
            indices.iter().flat_map(|index| self.parts[*index].pieces.iter().map(|(text, _)| *text)).collect();
        needed.sort_unstable();
        needed.dedup();
        let prompts: HashMap<usize, Arc<Prompt>> = needed.iter().copied().zip(self.texts.get(&needed)?).collect();
        indices
            .iter()
            .map(|index| Ok(Arc::new(Prompt { index: *index, ..self.sequence(&self.parts[*index], &prompts)? })))
            .collect()
    }

    fn sequence(&self, part: &SplitSequence, prompts: &HashMap<usize, Arc<Prompt>>) -> Result<Prompt> {
        let changed = || Error::Bug("a text is shorter than it was");
        let found = part.pieces.iter().map(|(index, places)| Some((prompts.get(index)?, places.clone())));
        let pieces: Vec<(&Arc<Prompt>, Range<usize>)> = found.collect::<Option<_>>().ok_or_else(changed)?;
        let row = match (part.row, pieces.first()) {
            (SplitRow::Whole, Some((prompt, _))) => return Ok(Prompt::clone(prompt)),
            (SplitRow::OfText, Some((prompt, _))) => prompt.row,
            (SplitRow::Numbered(row), _) => row,
            (_, None) => return Err(changed()),
        };
        let tokens: MaskedTokens = pieces.into_iter().flat_map(|(prompt, places)| text(prompt, places, self.whole)).collect();
        sequence(row, &tokens).filter(|prompt| prompt.length() == part.length).ok_or_else(changed)
    }
}

/// Cuts texts longer than `length` into parts that don't attend to each other; the first token of each part is not learned.
pub(crate) fn split(texts: PromptSet, length: usize, whole: bool, world: &World) -> Result<PromptSet> {
    let (mut parts, mut sizes) = (Vec::with_capacity(texts.len()), TextSizes::default());
    texts.outlines(0..texts.len(), (whole, world), |text, outline| {
        let total = outline.length();
        sizes.add(total);
        if total <= length {
            parts.push(SplitSequence { row: SplitRow::Whole, pieces: vec![(text, 0..total)], length: total, learned: true });
            return;
        }
        for first in (0..total).step_by(length) {
            let mut part = SplitSequence::new(SplitRow::OfText);
            part.push(text, outline, first..total.min(first + length));
            parts.push(part);
        }
    })?;
    cut(texts, parts, whole, format!("split {length} {whole}"), sizes.are_long(length))
}

/// Concatenates texts in this order and cuts them into sequences of `length`, in which each text attends to those before it.
pub(crate) fn wrap(
    texts: PromptSet,
    order: impl IntoIterator<Item = usize>,
    length: usize,
    whole: bool,
    world: &World,
) -> Result<PromptSet> {
    let (mut parts, mut part, mut begun) = (Vec::new(), SplitSequence::new(SplitRow::Numbered(0)), 0);
    let (mut ordered, mut sizes) = (Sha256::new(), TextSizes::default());
    let order = order.into_iter().inspect(|text| ordered.update(text.to_le_bytes()));
    texts.outlines(order, (whole, world), |text, outline| {
        let (mut first, total) = (0, outline.length());
        sizes.add(total);
        while first < total {
            let end = total.min(first + length - part.length);
            part.push(text, outline, first..end);
            first = end;
            if part.length == length {
                begun += 1;
                parts.push(std::mem::replace(&mut part, SplitSequence::new(SplitRow::Numbered(begun))));
            }
        }
    })?;
    parts.push(part);
    let rule = format!("wrapped {length} {whole} {}", hex(&ordered.finalize()));
    cut(texts, parts, whole, rule, sizes.are_long(length))
}

/// Drops parts without learned tokens, and makes the tokens of the others now or on demand.
fn cut(texts: PromptSet, mut parts: Vec<SplitSequence>, whole: bool, rule: String, now: bool) -> Result<PromptSet> {
    parts.retain(|part| part.learned);
    let cut = PromptSet::from(SplitTexts { texts, parts, whole, rule });
    if now {
        cut.all()?;
    }
    Ok(cut)
}

/// Returns the row's tokens at these places with their mask. A first token that follows another text is learned, unless it belongs to a
/// prompt or is masked.
fn text(prompt: &Prompt, places: Range<usize>, whole: bool) -> impl Iterator<Item = (u32, u8)> {
    let answers = prompt.answers.as_ref();
    let mask = answers.and_then(|answers| answers.learned.as_ref());
    let asked = u8::from(mask.is_none() && (whole || prompt.text.is_empty()));
    let before = prompt.tokens.len();
    places.filter_map(move |place| match place.checked_sub(before) {
        None => Some((prompt.tokens[place], asked)),
        Some(i) => Some((*answers?.chosen.get(i)?, mask.map_or(1, |mask| mask[i]))),
    })
}

/// Returns a part as a separate row; none if nothing in it is learned.
fn sequence(row: usize, part: &[(u32, u8)]) -> Option<Prompt> {
    let (first, rest) = part.split_first()?;
    let (chosen, mask): (Vec<u32>, Vec<u8>) = rest.iter().copied().unzip();
    let learned = mask.contains(&0).then_some(mask);
    if chosen.is_empty() || learned.as_ref().is_some_and(|mask| !mask.contains(&1)) {
        return None;
    }
    let answers = Some(PromptAnswers::new(chosen, learned, Vec::new()));
    let prompt = Prompt::new(row, &crate::data::TextOrChat::Text(String::new()), String::new(), Map::new());
    Some(Prompt { tokens: vec![first.0], answers, ..prompt })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(asked: &str, tokens: &[u32], chosen: &[u32], learned: Option<&[u8]>) -> Arc<Prompt> {
        let answers = Some(PromptAnswers::new(chosen.to_vec(), learned.map(<[u8]>::to_vec), Vec::new()));
        let new = Prompt::new(0, &crate::data::TextOrChat::Text(asked.into()), asked.into(), Map::new());
        Arc::new(Prompt { tokens: tokens.to_vec(), answers, ..new })
    }

    type ShownSequence = (Vec<u32>, Vec<u32>, Option<Vec<u8>>);

    fn shown(prompts: &PromptSet) -> Vec<ShownSequence> {
        let one = |prompt: &Arc<Prompt>| {
            let answers = prompt.answers.as_ref().unwrap();
            (prompt.tokens.clone(), answers.chosen.clone(), answers.learned.clone())
        };
        prompts.all().unwrap().iter().map(one).collect()
    }

    #[test]
    fn a_long_text_is_split_and_others_stay() {
        let rows = vec![prompt("", &[1], &[2, 3, 4, 5], None), prompt("ab", &[6, 7], &[8, 9, 10, 11], None)];
        let got = split(rows.into(), 4, false, &World::single_process()).unwrap();
        let want = [(vec![1], vec![2, 3, 4], None), (vec![6], vec![7, 8, 9], Some(vec![0, 1, 1])), (vec![10], vec![11], None)];
        assert_eq!(shown(&got), want, "the token 5 alone has nothing before it");
        assert_eq!(got.all().unwrap().iter().map(|p| p.index).collect::<Vec<_>>(), [0, 1, 2]);
        let short = vec![prompt("ab", &[6, 7], &[8], None)];
        assert_eq!(shown(&split(short.into(), 4, false, &World::single_process()).unwrap()), [(vec![6, 7], vec![8], None)]);
    }

    #[test]
    fn wrapped_texts_follow_each_other_and_only_prompts_are_not_learned() {
        let rows = [prompt("", &[1], &[2, 3], None), prompt("ab", &[4, 5], &[6, 7], None), prompt("", &[8], &[9], Some(&[1]))];
        let want = [(vec![1], vec![2, 3, 4], Some(vec![1, 1, 0])), (vec![5], vec![6, 7, 8], Some(vec![1, 1, 0]))];
        let wrap = |order: Vec<usize>, length, whole| {
            super::wrap(PromptSet::from(rows.to_vec()), order, length, whole, &World::single_process())
        };
        assert_eq!(shown(&wrap(vec![0, 1, 2], 4, false).unwrap()), want);
        assert_eq!(shown(&wrap(vec![0, 1], 8, true).unwrap()), [(vec![1], vec![2, 3, 4, 5, 6, 7], None)]);
        assert_eq!(shown(&wrap(vec![1, 0], 2, true).unwrap()).len(), 3, "a last token alone learns nothing");
        assert_eq!(shown(&wrap(vec![1, 0], 7, true).unwrap()), [(vec![4], vec![5, 6, 7, 1, 2, 3], None)]);
    }
}
