//! Conversations whose last message the model continues (`continue_final_message`).

use super::error::{ApiError, Result};
use crate::data::{ChatMessage, TemplateVariables, Tokenizer};

/// Marker of the end of the last message while it is rendered. Its space shows whether the template trims messages, as in transformers.
const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Renders a conversation up to the end of its last message's text.
///
/// # Errors
/// If that message has no text or contains calls, or the template does not write its end.
pub(super) fn render(tokenizer: &Tokenizer, messages: &mut [ChatMessage], extras: &TemplateVariables) -> Result<String> {
    let wrong = |detail: &str| ApiError::field("continue_final_message", detail);
    let last = messages.last_mut().ok_or_else(|| wrong("there is no message"))?;
    if last.rest.get("tool_calls").is_some_and(|calls| !calls.is_null()) {
        return Err(wrong("the last message makes calls, and can't be continued"));
    }
    let text = last.content.to_string();
    last.content = format!("{text}{MARK}").into();
    let mut rendered = tokenizer.render_chat(messages, false, extras)?;
    let unwritten = || wrong("the chat template does not write the last message as it is");
    let at = rendered.rfind(MARK.trim_end()).ok_or_else(unwritten)?;
    let keeps_space = rendered[at..].starts_with(MARK);
    rendered.truncate(at);
    if !keeps_space {
        rendered.truncate(rendered.trim_end().len());
    }
    if !rendered.contains(text.trim()) {
        return Err(unwritten());
    }
    Ok(rendered)
}
