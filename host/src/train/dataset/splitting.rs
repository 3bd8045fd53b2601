//! Cuts given texts into sequences, for packing without losing tokens: TRL's `bfd_split` and `wrapped`.

use super::{Answers, Prompt, Prompts};
use crate::train::Result;
use serde_json::Map;
use std::sync::Arc;

/// Tokens, each with whether it is learned.
type Text = Vec<(u32, u8)>;

/// Cuts texts longer than `length` into parts that don't attend to each other; the first token of a part is not learned.
pub(in crate::train) fn split(prompts: &Prompts, length: usize, whole: bool) -> Result<Prompts> {
    let mut parts = Vec::with_capacity(prompts.len());
    prompts.each(0..prompts.len(), |prompt| {
        if prompt.length() <= length {
            parts.push(Arc::unwrap_or_clone(prompt));
        } else {
            parts.extend(text(&prompt, whole).chunks(length).filter_map(|part| sequence(prompt.row, part)));
        }
        Ok(())
    })?;
    Ok(numbered(parts))
}

/// Concatenates the texts of prompts in this order and cuts them into sequences of `length`, in which each text attends to those
/// before it.
pub(in crate::train) fn wrap(
    prompts: &Prompts,
    order: impl IntoIterator<Item = usize>,
    length: usize,
    whole: bool,
) -> Result<Prompts> {
    let (mut left, mut sequences, mut begun) = (Text::new(), Vec::new(), 0);
    prompts.each(order, |prompt| {
        left.extend(text(&prompt, whole));
        let full = left.len() / length;
        let cut = left.chunks_exact(length).zip(begun..).filter_map(|(part, row)| sequence(row, part));
        sequences.extend(cut);
        left.drain(..full * length);
        begun += full;
        Ok(())
    })?;
    sequences.extend(sequence(begun, &left));
    Ok(numbered(sequences))
}

fn numbered(prompts: Vec<Prompt>) -> Prompts {
    prompts.into_iter().enumerate().map(|(index, prompt)| Arc::new(Prompt { index, ..prompt })).collect::<Vec<_>>().into()
}

/// Returns all of a row's tokens. If anything comes before it, its first token is learned like the others, unless it belongs to a
/// prompt or is masked.
fn text(prompt: &Prompt, whole: bool) -> Text {
    let Some(answers) = &prompt.answers else { return Text::new() };
    let asked = answers.learned.is_none() && (whole || prompt.text.is_empty());
    let learned = |i: usize| answers.learned.as_ref().map_or(1, |mask| mask[i]);
    let chosen = answers.chosen.iter().enumerate().map(|(i, &token)| (token, learned(i)));
    prompt.tokens.iter().map(|&token| (token, u8::from(asked))).chain(chosen).collect()
}

/// Returns a part as a separate row; none if nothing of it is learned.
fn sequence(row: usize, part: &[(u32, u8)]) -> Option<Prompt> {
    let (first, rest) = part.split_first()?;
    let (chosen, mask): (Vec<u32>, Vec<u8>) = rest.iter().copied().unzip();
    let learned = mask.contains(&0).then_some(mask);
    if chosen.is_empty() || learned.as_ref().is_some_and(|mask| !mask.contains(&1)) {
        return None;
    }
    let answers = Some(Answers::new(chosen, learned, Vec::new()));
    let prompt = Prompt::new(row, &crate::data::TextOrChat::Text(String::new()), String::new(), Map::new());
    Some(Prompt { tokens: vec![first.0], answers, ..prompt })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(asked: &str, tokens: &[u32], chosen: &[u32], learned: Option<&[u8]>) -> Arc<Prompt> {
        let answers = Some(Answers::new(chosen.to_vec(), learned.map(<[u8]>::to_vec), Vec::new()));
        let new = Prompt::new(0, &crate::data::TextOrChat::Text(asked.into()), asked.into(), Map::new());
        Arc::new(Prompt { tokens: tokens.to_vec(), answers, ..new })
    }

    type Shown = (Vec<u32>, Vec<u32>, Option<Vec<u8>>);

    fn shown(prompts: &Prompts) -> Vec<Shown> {
        let one = |prompt: &Arc<Prompt>| {
            let answers = prompt.answers.as_ref().unwrap();
            (prompt.tokens.clone(), answers.chosen.clone(), answers.learned.clone())
        };
        prompts.all().unwrap().iter().map(one).collect()
    }

    #[test]
    fn a_long_text_is_split_and_others_stay() {
        let rows = vec![prompt("", &[1], &[2, 3, 4, 5], None), prompt("ab", &[6, 7], &[8, 9, 10, 11], None)];
        let got = split(&rows.into(), 4, false).unwrap();
        let want = [(vec![1], vec![2, 3, 4], None), (vec![6], vec![7, 8, 9], Some(vec![0, 1, 1])), (vec![10], vec![11], None)];
        assert_eq!(shown(&got), want, "the token 5 alone has nothing before it");
        assert_eq!(got.all().unwrap().iter().map(|p| p.index).collect::<Vec<_>>(), [0, 1, 2]);
        let short = vec![prompt("ab", &[6, 7], &[8], None)];
        assert_eq!(shown(&split(&short.into(), 4, false).unwrap()), [(vec![6, 7], vec![8], None)]);
    }

    #[test]
    fn wrapped_texts_follow_each_other_and_only_prompts_are_not_learned() {
        let rows = [prompt("", &[1], &[2, 3], None), prompt("ab", &[4, 5], &[6, 7], None), prompt("", &[8], &[9], Some(&[1]))];
        let want = [(vec![1], vec![2, 3, 4], Some(vec![1, 1, 0])), (vec![5], vec![6, 7, 8], Some(vec![1, 1, 0]))];
        let rows = Prompts::from(rows.to_vec());
        assert_eq!(shown(&wrap(&rows, 0..3, 4, false).unwrap()), want);
        assert_eq!(shown(&wrap(&rows, 0..2, 8, true).unwrap()), [(vec![1], vec![2, 3, 4, 5, 6, 7], None)]);
        assert_eq!(shown(&wrap(&rows, [1, 0], 2, true).unwrap()).len(), 3, "a last token alone learns nothing");
        assert_eq!(shown(&wrap(&rows, [1, 0], 7, true).unwrap()), [(vec![4], vec![5, 6, 7, 1, 2, 3], None)]);
    }
}
