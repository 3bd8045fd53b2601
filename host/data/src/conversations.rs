//! Tokenizer methods for conversations: parse the calls in a turn, and tokenize what follows it.

use super::Error;
use super::calls::TAIL;
use super::calls::probe::{ToolSupport, tools};
use super::chat::TemplateVariables;
use super::message::ChatMessage;
use super::tokenizer::LoadedChatTemplate;
use super::{Result, Tokenizer};
use crate::config::printable;
use serde_json::Value;

/// Maximum length of a printed call, in bytes.
const SHOWN: usize = 200;

impl Tokenizer {
    /// Returns the tokens that follow a turn of the model, given the messages before the turn, the messages that reply to it, and the
    /// turn's tokens. The turn's end token is not repeated. Without a chat template, each message is a line.
    ///
    /// # Errors
    /// If the chat template rejects the conversation, or what follows a turn can't be found.
    pub fn encode_following(
        &self,
        before: &[ChatMessage],
        turn: &[u32],
        replies: &[ChatMessage],
        extras: &TemplateVariables,
    ) -> Result<Vec<u32>> {
        if !self.has_chat() {
            let broken = self.decode(turn)?.ends_with('\n');
            let lines = lines(replies);
            return self.encode(&if broken { lines } else { format!("\n{lines}") }, false);
        }
        let text = self.render_following(before, replies, extras)?;
        let mut tokens = self.encode(&text, false)?;
        if tokens.first().is_some_and(|first| turn.last() == Some(first)) {
            tokens.remove(0);
        }
        Ok(tokens)
    }

    /// Returns the text and tokens of a conversation up to the model's turn.
    ///
    /// # Errors
    /// If the chat template rejects the conversation.
    pub fn encode_opening(&self, messages: &[ChatMessage], extras: &TemplateVariables) -> Result<(String, Vec<u32>)> {
        let chat = self.has_chat();
        let text = if chat { self.render_chat(messages, true, extras)? } else { lines(messages) };
        let tokens = self.encode(&text, !chat)?;
        Ok((text, tokens))
    }

    /// Returns the name and arguments of each tool call in a turn that follows `before`, given the tools' JSON schemas. Malformed calls,
    /// and calls within a thought, remain text.
    ///
    /// # Errors
    /// If the tokens can't be decoded.
    pub fn calls(&self, before: &[u32], turn: &[u32], tools: &Value) -> Result<Vec<(String, String)>> {
        let prompt = self.decode_marked(&before[before.len().saturating_sub(TAIL)..])?;
        Ok(self.call_format(tools).found(&prompt, &self.decode_marked(turn)?, tools))
    }

    /// Returns the text of a turn before its calls, including thoughts but without special tokens.
    ///
    /// # Errors
    /// If the tokens can't be decoded.
    pub fn before_calls(&self, turn: &[u32], tools: &Value) -> Result<String> {
        let marked = self.decode_marked(turn)?;
        let Some(begin) = self.call_format(tools).begin(&marked) else { return self.decode(turn) };
        // Searches for the largest number of tokens that end before the calls; the length of the text grows with it.
        let (mut fitting, mut beyond) = (0, turn.len() + 1);
        while fitting + 1 < beyond {
            let middle = fitting.midpoint(beyond);
            match self.decode_marked(&turn[..middle])?.len() <= begin {
                true => fitting = middle,
                false => beyond = middle,
            }
        }
        let rest = marked.get(self.decode_marked(&turn[..fitting])?.len()..begin).unwrap_or_default();
        Ok(self.decode(&turn[..fitting])? + rest)
    }

    /// Rejects tools if the calls that the chat template writes can't be parsed. Warns if the template leaves tools out.
    ///
    /// # Errors
    /// If calls can't be parsed, or the template takes too much time or memory.
    pub fn check_tools(&self) -> Result<()> {
        let Some(chat) = self.template() else { return Ok(()) };
        if *self.tool_support(chat)? == ToolSupport::LeftOut {
            chat.mentioned.get_or_init(|| {
                tracing::warn!("the chat template does not write tools, so the model does not see what it may call");
            });
        }
        self.check_calls()
    }

    /// Rejects a chat template that writes calls of tools which can't be parsed.
    ///
    /// # Errors
    /// If calls can't be parsed, or the template takes too much time or memory.
    pub fn check_calls(&self) -> Result<()> {
        let Some(chat) = self.template() else { return Ok(()) };
        match self.tool_support(chat)? {
            ToolSupport::Written | ToolSupport::LeftOut => Ok(()),
            ToolSupport::Unreadable(call) => {
                let detail = format!(
                    "chat template: it writes calls of tools in a format that can't be read: {}; see \"Tools\" in docs/episodes.md for \
                     those that can, and name a template with one of them (chat_template_path)",
                    printable(call.trim(), SHOWN)
                );
                Err(Error::Tokenizer { path: chat.path.clone(), detail })
            }
        }
    }

    /// Determines a chat template's support for tools, once.
    fn tool_support<'a>(&self, chat: &'a LoadedChatTemplate) -> Result<&'a ToolSupport> {
        if let Some(found) = chat.tools.get() {
            return Ok(found);
        }
        let found = tools(&chat.template).map_err(|e| self.unrendered(e))?;
        Ok(chat.tools.get_or_init(|| found))
    }
}

/// Renders a conversation for a model without a chat template: one message per line, without roles.
fn lines(messages: &[ChatMessage]) -> String {
    messages.iter().map(|message| format!("{}\n", message.content.trim_end_matches('\n'))).collect()
}
