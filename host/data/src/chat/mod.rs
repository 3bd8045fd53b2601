//! Chat templates: the tokenizer's own Jinja, with Python's string methods.
//!
//! A template is an untrusted program by the author of the model. The engine counts instructions, but a single instruction can create a
//! string of any size (`indent`, repeated `x + x`) or loop over an endless list, and the engine can't interrupt it. So everything runs with
//! bounded memory, stack and time ([`TextWorkLimiter`]), and the nesting of a template is limited before it is compiled ([`source`]).

mod arguments;
mod depth;
mod error;
mod expression;
mod filters;
mod format;
mod html;
mod item_group;
mod json;
mod layout;
mod letters;
mod macros;
mod methods;
mod namespace;
mod operators;
mod pieces;
mod pretty;
mod printf;
mod sequences;
mod sorting;
mod source;
mod template;
mod text;
mod views;

pub use error::RenderError;
pub use template::TemplateVariables;

use super::calls::ToolCallFormat;
use super::message::{ChatMessage, REASONING};
use super::turns::AssistantSpans;
use super::work_limiter::TextWorkLimiter;
use super::{omissions, turn_suffix, turns};
use jiff::civil::DateTime;
use serde::Serialize;
use serde_json::{Map, Value as Json};
use std::sync::Arc;
pub(super) use template::Template;

/// Overhead of a message in addition to its text, in bytes.
const MESSAGE: usize = 256;

/// Chat template of a model.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    template: Arc<Template>,
    /// Template for conversations with tools, if it is a separate one, and its format of tool calls.
    tool_use: Option<(Arc<Template>, ToolCallFormat)>,
    pace: Arc<TextWorkLimiter>,
    /// Format of tool calls.
    calls: ToolCallFormat,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// Describes the error, mostly in Jinja's words.
    pub fn new(source: String, bos: String, eos: String) -> Result<Self, String> {
        let tokens = [("bos_token", bos), ("eos_token", eos)].map(|(name, text)| (name.to_owned(), text.into()));
        let (calls, pace) = (ToolCallFormat::from_template(&source), Arc::new(TextWorkLimiter::default()));
        let template = Arc::new(Template::compile(source, Map::from_iter(tokens), &pace)?);
        Ok(Self { template, tool_use: None, pace, calls })
    }

    /// Returns this template with a separate one for conversations with tools.
    ///
    /// # Errors
    /// Describes the error in the other template.
    pub(super) fn with_tool_use(mut self, source: Option<String>) -> Result<Self, String> {
        if let Some(source) = source {
            let (calls, tokens) = (ToolCallFormat::from_template(&source), self.template.tokens.clone());
            let template = Template::compile(source, tokens, &self.pace).map_err(|e| format!("tool_use: {e}"))?;
            self.tool_use = Some((Arc::new(template), calls));
        }
        Ok(self)
    }

    /// Returns this template with all of the tokenizer's named tokens.
    #[must_use]
    pub(super) fn with_tokens(mut self, tokens: Map<String, Json>) -> Self {
        self.each(|template| template.tokens.clone_from(&tokens));
        self
    }

    /// Applies a change to both templates.
    fn each(&mut self, change: impl Fn(&mut Template)) {
        change(Arc::make_mut(&mut self.template));
        if let Some((template, _)) = &mut self.tool_use {
            change(Arc::make_mut(template));
        }
    }

    /// Returns the format of tool calls, for conversations with or without tools.
    pub(super) fn calls(&self, with_tools: bool) -> ToolCallFormat {
        self.tool_use.as_ref().filter(|_| with_tools).map_or(self.calls, |(_, calls)| *calls)
    }

    /// Returns this template with more variables, and with the time that `strftime_now` returns. Without a time, the function is undefined,
    /// and templates fall back on the date that they contain.
    #[must_use]
    pub fn with_variables(mut self, kwargs: Map<String, Json>, now: Option<DateTime>) -> Self {
        self.each(|template| {
            template.kwargs.clone_from(&kwargs);
            template.now = now;
        });
        self
    }

    /// Renders a conversation; with `generate`, up to the start of the assistant's answer.
    ///
    /// # Errors
    /// If the template raises an error, or takes too much time or memory.
    pub fn render(&self, messages: &[ChatMessage], generate: bool, extras: &TemplateVariables) -> Result<String, RenderError> {
        self.within(messages, 1, extras, move |template, messages, extras| template.render(messages, generate, extras, None))
    }

    /// Renders a conversation, and locates the assistant's text.
    pub(super) fn assistant_spans(
        &self,
        messages: &[ChatMessage],
        extras: &TemplateVariables,
    ) -> Result<AssistantSpans, RenderError> {
        self.within(messages, 2 + 10 * messages.len(), extras, turns::find_assistant_spans)
    }

    /// Returns the text between a turn of the assistant after these messages and the next turn, given the `replies`; see [`turn_suffix`].
    pub(super) fn following(
        &self,
        before: &[ChatMessage],
        replies: &[ChatMessage],
        extras: &TemplateVariables,
    ) -> Result<String, RenderError> {
        let (all, count) = ([before, replies].concat(), before.len());
        self.within(&all, 1, extras, move |template, all, extras| turn_suffix::following(template, all, count, extras))
    }

    /// Describes what the template omits from a conversation, where `text` is the rendered conversation; see [`omissions`]. Short contents
    /// are checked only if `thorough`.
    pub(super) fn find_omission(
        &self,
        (messages, generate): (&[ChatMessage], bool),
        text: &str,
        thorough: bool,
        extras: &TemplateVariables,
    ) -> Result<Option<String>, RenderError> {
        let suspects = omissions::suspects(messages, text, thorough);
        if suspects.is_empty() && (!thorough || !extras.has_tools()) {
            return Ok(None);
        }
        let times = 2 + 2 * suspects.len();
        let first = move |template: &Template, messages: &[ChatMessage], extras: &TemplateVariables| {
            omissions::first(template, messages, generate, &suspects, extras)
        };
        self.within(messages, times, extras, first)
    }

    /// Runs work that renders a conversation up to `times` times.
    fn within<T: Send + 'static>(
        &self,
        messages: &[ChatMessage],
        times: usize,
        extras: &TemplateVariables,
        work: impl FnOnce(&Template, &[ChatMessage], &TemplateVariables) -> Result<T, RenderError> + Send + 'static,
    ) -> Result<T, RenderError> {
        let with_tools = self.tool_use.as_ref().filter(|_| !extras.tools.is_null());
        let template = Arc::clone(with_tools.map_or(&self.template, |(template, _)| template));
        let extras = extras.clone();
        let messages: Vec<ChatMessage> = messages.iter().map(with_reasoning).collect();
        let bytes = messages.iter().map(size).sum::<usize>() + length(&extras.kwargs) + length(&extras.tools);
        let done = self.pace.run(bytes.saturating_mul(times), move || work(&template, &messages, &extras));
        done.map_err(|e| RenderError::Unbounded(e.to_string()))?
    }
}

/// Adds a message's reasoning under all names that templates use, as transformers does.
fn with_reasoning(message: &ChatMessage) -> ChatMessage {
    let mut message = message.clone();
    let rest = &message.rest;
    let given = REASONING.into_iter().find_map(|name| rest.get(name).filter(|value| !value.is_null())).cloned();
    if let Some(reasoning) = given {
        message.rest.entry("thinking").or_insert_with(|| reasoning.clone());
        message.rest.insert("reasoning_content".into(), reasoning);
    }
    message
}

/// Returns the size of a message.
fn size(message: &ChatMessage) -> usize {
    let rest = if message.rest.is_empty() { 0 } else { length(&message.rest) };
    MESSAGE + message.role.len() + message.content.len() + rest
}

/// Returns the length of a value as JSON, in bytes.
fn length(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |text| text.len())
}

#[cfg(test)]
mod tests;
