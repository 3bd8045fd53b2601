//! How a chat template ends the assistant's turns, and whether a completion ends with it.

use super::{ChatMessage, Result, TemplateVariables, Tokenizer};

/// End of a turn in a chat template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnEnd {
    /// Text that the template writes after the assistant's message.
    pub text: String,
    /// Whether the first token of the text ends a completion.
    pub ends: bool,
}

impl Tokenizer {
    /// Returns how the chat template ends a turn, for completions that end with one of these tokens; `None` without a template, or if it
    /// can't render a plain conversation.
    ///
    /// # Errors
    /// If the text can't be tokenized.
    pub fn turn_end(&self, ends: &[u32]) -> Result<Option<TurnEnd>> {
        const SAID: &str = "Yes.";
        let message = |role: &str, text: &str| ChatMessage { role: role.into(), content: text.into(), ..ChatMessage::default() };
        let turns = [message("user", "Is it?"), message("assistant", SAID)];
        let rendered = if self.has_chat() { self.render_chat(&turns, false, &TemplateVariables::default()).ok() } else { None };
        let Some((_, text)) = rendered.as_deref().and_then(|rendered| rendered.rsplit_once(SAID)) else { return Ok(None) };
        let first = self.encode(text, false)?.first().copied();
        Ok(Some(TurnEnd { text: text.to_owned(), ends: first.is_some_and(|first| ends.contains(&first)) }))
    }

    /// Returns the text of each token.
    ///
    /// # Errors
    /// If a token can't be decoded.
    pub fn token_texts(&self, tokens: &[u32]) -> Result<Vec<String>> {
        tokens.iter().map(|token| self.decode_marked(&[*token])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::TokenizerOverrides;
    use super::*;
    use std::path::Path;

    fn end_of(template: &str) -> Option<TurnEnd> {
        let wording = TokenizerOverrides { template: Some(("t".into(), template.into())), ..TokenizerOverrides::default() };
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/builtin-model/model");
        let tokenizer = Tokenizer::open_with(&model, &wording).unwrap();
        let ends = tokenizer.eos_ids(&[]);
        assert_eq!(tokenizer.token_texts(&ends).unwrap(), ["<|endoftext|>"]);
        tokenizer.turn_end(&ends).unwrap()
    }

    #[test]
    fn a_turn_ends_a_completion_if_the_end_token_follows() {
        let ended = end_of("{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}").unwrap();
        assert_eq!((ended.text.as_str(), ended.ends), ("<|endoftext|>\n", true));
        let open = end_of("{% for m in messages %}{{ m.role }}: {{ m.content }}</turn>{% endfor %}{{ eos_token }}").unwrap();
        assert_eq!((open.text.as_str(), open.ends), ("</turn><|endoftext|>", false));
        assert_eq!(end_of("{{ raise_exception('no') }}"), None);
        assert_eq!(end_of("{% for m in messages %}{{ m.role }}{% endfor %}"), None);
    }
}
