//! Texts and tokens of a dataset's rows.

use crate::data::{
    self, ChatMessage, CompletionRow, Location, PreferenceRow, ScorableRow, TemplateVariables, TextOrChat, Tokenizer,
};

/// Returns whether the tokenizer adds special tokens around a text; a chat template writes them itself.
pub(super) fn is_special(prompt: &TextOrChat) -> bool {
    matches!(prompt, TextOrChat::Text(_))
}

/// Returns a prompt's text.
pub(super) fn asked_text(prompt: &TextOrChat, extras: &TemplateVariables, tokenizer: &Tokenizer) -> data::Result<String> {
    match prompt {
        TextOrChat::Text(text) => Ok(text.clone()),
        // Nothing has to be rendered, and many templates fail without messages.
        TextOrChat::Chat(messages) if messages.is_empty() => Ok(String::new()),
        TextOrChat::Chat(messages) => tokenizer.render_chat(messages, true, extras),
    }
}

/// Returns a prompt's text and tokens.
pub(super) fn tokenize_prompt(
    prompt: &TextOrChat,
    extras: &TemplateVariables,
    tokenizer: &Tokenizer,
) -> data::Result<(String, Vec<u32>)> {
    let text = asked_text(prompt, extras, tokenizer)?;
    let tokens = tokenizer.encode(&text, is_special(prompt))?;
    Ok((text, tokens))
}

/// A prompt with `N` answers, as token ids.
pub(super) struct TokenizedAnswers<const N: usize> {
    pub(super) text: String,
    pub(super) tokens: Vec<u32>,
    pub(super) answers: [Vec<u32>; N],
    /// Whether the answers begin before the end of the prompt's own tokens.
    pub(super) cut: bool,
}

/// Tokenizes each answer together with its prompt. The answer begins at the first token that differs from the prompt alone, as in TRL.
pub(super) fn answered<const N: usize>(
    prompt: &TextOrChat,
    given: [&TextOrChat; N],
    extras: &TemplateVariables,
    tokenizer: &Tokenizer,
) -> data::Result<TokenizedAnswers<N>> {
    let (text, mut tokens) = tokenize_prompt(prompt, extras, tokenizer)?;
    let mut answers = [const { Vec::new() }; N];
    for (answer, given) in answers.iter_mut().zip(given) {
        *answer = tokenize_whole(Some(prompt), given, true, extras, tokenizer)?;
    }
    let same = |answer: &Vec<u32>| tokens.iter().zip(answer).take_while(|(a, b)| a == b).count();
    let begin = answers.iter().map(same).min().unwrap_or(0);
    answers.iter_mut().for_each(|answer| drop(answer.drain(..begin)));
    let cut = begin < tokens.len();
    tokens.truncate(begin);
    Ok(TokenizedAnswers { text, tokens, answers, cut })
}

/// Returns the position of the last non-padding token of a prompt with an answer, where a reward model's value is read, as in transformers.
pub(crate) fn valued_at(prompt: &[u32], answer: &[u32], pad: Option<u32>) -> usize {
    let all = prompt.iter().chain(answer);
    all.enumerate().filter(|(_, token)| Some(**token) != pad).last().map_or(0, |(place, _)| place)
}

/// Returns the mask of a row's learned tokens, or none if all are learned.
pub(super) fn learned_of(
    row: &CompletionRow,
    asked: &[u32],
    answered: &[u32],
    tokenizer: &Tokenizer,
    what: LearnedParts,
) -> data::Result<Option<Vec<u8>>> {
    match (&row.prompt, &row.completion) {
        _ if !what.turns => Ok(None),
        (None, TextOrChat::Chat(messages)) => assistant_turns(row, messages, answered, tokenizer).map(Some),
        (Some(TextOrChat::Chat(prompt)), TextOrChat::Chat(completion)) => {
            let (messages, all) = ([&prompt[..], completion].concat(), [asked, answered].concat());
            let mut mask = assistant_turns(row, &messages, &all, tokenizer)?;
            if !what.includes_prompts {
                mask.drain(..asked.len());
            }
            Ok(Some(mask))
        }
        _ => Err(row.place.row_error("assistant_only_loss needs messages, which say who speaks; this is a plain string")),
    }
}

/// Returns the mask of the assistant's tokens in a row's conversation with the tokens `all`.
fn assistant_turns(row: &CompletionRow, messages: &[ChatMessage], all: &[u32], tokenizer: &Tokenizer) -> data::Result<Vec<u8>> {
    let (tokens, said) = tokenizer.encode_with_assistant_mask(messages, &row.extras)?;
    if tokens != all {
        let detail = "the chat template or the tokenizer gives different tokens the second time";
        return Err(row.place.row_error(format!("assistant_only_loss: {detail}")));
    }
    Ok(said)
}

/// Returns a whole text with its prompt, if there is one, and the end token if it `ended`; or a whole conversation.
pub(super) fn whole_text(
    prompt: Option<&TextOrChat>,
    text: &TextOrChat,
    ended: bool,
    extras: &TemplateVariables,
    tokenizer: &Tokenizer,
) -> data::Result<String> {
    match (prompt, text) {
        (prompt, TextOrChat::Text(text)) => {
            // The readers in `data` reject mixtures.
            let before = if let Some(TextOrChat::Text(before)) = prompt { before } else { "" };
            let end = tokenizer.eos_text().filter(|eos| ended && !text.ends_with(eos)).unwrap_or_default();
            Ok(format!("{before}{text}{end}"))
        }
        (prompt, TextOrChat::Chat(messages)) => {
            let before = if let Some(TextOrChat::Chat(before)) = prompt { &before[..] } else { &[] };
            tokenizer.render_chat(&[before, messages].concat(), false, extras)
        }
    }
}

/// Renders a text as [`whole_text`] does, and tokenizes it.
pub(crate) fn tokenize_whole(
    prompt: Option<&TextOrChat>,
    text: &TextOrChat,
    ended: bool,
    extras: &TemplateVariables,
    tokenizer: &Tokenizer,
) -> data::Result<Vec<u32>> {
    tokenizer.encode(&whole_text(prompt, text, ended, extras, tokenizer)?, is_special(text))
}

/// Returns the number of a row to score, and the tokens of its texts: one, or those of a pair.
pub(crate) fn scored_texts(row: ScorableRow, tokenizer: &Tokenizer, longest: usize) -> (usize, data::Result<Vec<Vec<u32>>>) {
    let (number, place, prompt, texts, extras) = match row {
        ScorableRow::One(CompletionRow { row, place, prompt, completion, extras, .. }) => {
            (row, place, prompt, vec![completion], extras)
        }
        ScorableRow::Pair(PreferenceRow { row, place, prompt, chosen, rejected, extras, .. }) => {
            (row, place, Some(prompt), vec![chosen, rejected], extras)
        }
    };
    let tokens = texts.iter().map(|text| tokenize_whole(prompt.as_ref(), text, true, &extras, tokenizer));
    let tokens = tokens.collect::<data::Result<Vec<_>>>().map_err(|e| place.failed(e));
    let fit = |texts: Vec<Vec<u32>>| {
        let all = texts.iter().try_for_each(|tokens| check_fits(&place, tokens.len(), longest));
        all.map(|()| texts)
    };
    (number, tokens.and_then(fit))
}

/// Refuses a row with a text of this many tokens if it exceeds a reward model's context.
pub(crate) fn check_fits(place: &Location, tokens: usize, longest: usize) -> data::Result<()> {
    if tokens > longest {
        return Err(place.row_error(format!("a text of {tokens} tokens exceeds the model's context of {longest}")));
    }
    Ok(())
}

/// The parts of a given text that are learned.
#[derive(Clone, Copy, Debug, Default)]
pub struct LearnedParts {
    /// Whether prompts are learned too, if both prompt and completion are given.
    pub includes_prompts: bool,
    /// Whether only the assistant's turns of a conversation are learned.
    pub turns: bool,
}
