//! Chat templates: the tokenizer's own Jinja, with Python's string methods.
//!
//! A template is an untrusted program from whoever made the model. The engine counts instructions, but a single one can create a
//! string of any size (`indent`, repeated `x + x`) or loop over an endless list, and the engine can't interrupt it. So all of it
//! runs with bounded memory, stack and time ([`TextWorkLimiter`]), and what a template nests is bounded before it is compiled ([`source`]).

mod arguments;
mod error;
mod filters;
mod json;
mod methods;
mod namespace;
mod pieces;
mod printf;
mod source;
mod template;
mod text;

pub use error::RenderError;
pub use template::TemplateVariables;

use super::calls::ToolCallFormat;
use super::message::ChatMessage;
use super::turns::AssistantSpans;
use super::work_limiter::TextWorkLimiter;
use super::{omissions, turn_suffix, turns};
use jiff::civil::DateTime;
use serde::Serialize;
use serde_json::{Map, Value as Json};
use std::sync::Arc;
pub(super) use template::Template;

/// Names under which messages have their reasoning.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Bytes that a message counts besides its text.
const MESSAGE: usize = 256;

/// A model's chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    template: Arc<Template>,
    /// The one for conversations with tools, if it is another, and how its models write calls.
    tool_use: Option<(Arc<Template>, ToolCallFormat)>,
    pace: Arc<TextWorkLimiter>,
    /// How its models write tool calls.
    calls: ToolCallFormat,
}

impl ChatTemplate {
    /// Compiles the template.
    ///
    /// # Errors
    /// Says what is wrong with it, mostly in Jinja's words.
    pub fn new(source: String, bos: String, eos: String) -> Result<Self, String> {
        let tokens = [("bos_token", bos), ("eos_token", eos)].map(|(name, text)| (name.to_owned(), text.into()));
        let (calls, pace) = (ToolCallFormat::from_template(&source), Arc::new(TextWorkLimiter::default()));
        let template = Arc::new(Template::compile(source, Map::from_iter(tokens), &pace)?);
        Ok(Self { template, tool_use: None, pace, calls })
    }

    /// Returns the same template with another for conversations with tools.
    ///
    /// # Errors
    /// Says what is wrong with the other.
    pub(super) fn with_tool_use(mut self, source: Option<String>) -> Result<Self, String> {
        if let Some(source) = source {
            let (calls, tokens) = (ToolCallFormat::from_template(&source), self.template.tokens.clone());
            let template = Template::compile(source, tokens, &self.pace).map_err(|e| format!("tool_use: {e}"))?;
            self.tool_use = Some((Arc::new(template), calls));
        }
        Ok(self)
    }

    /// Returns the same template with all of the tokenizer's named tokens.
    #[must_use]
    pub(super) fn with_tokens(mut self, tokens: Map<String, Json>) -> Self {
        self.each(|template| template.tokens.clone_from(&tokens));
        self
    }

    /// Changes each of the templates.
    fn each(&mut self, change: impl Fn(&mut Template)) {
        change(Arc::make_mut(&mut self.template));
        if let Some((template, _)) = &mut self.tool_use {
            change(Arc::make_mut(template));
        }
    }

    /// How its models write calls in conversations with tools or without.
    pub(super) fn calls(&self, with_tools: bool) -> ToolCallFormat {
        self.tool_use.as_ref().filter(|_| with_tools).map_or(self.calls, |(_, calls)| *calls)
    }

    /// Returns the same template with more variables, and with the time that `strftime_now` returns. Without a time, the function
    /// does not exist, and templates with a built-in date use that.
    #[must_use]
    pub fn with_variables(mut self, kwargs: Map<String, Json>, now: Option<DateTime>) -> Self {
        self.each(|template| {
            template.kwargs.clone_from(&kwargs);
            template.now = now;
        });
        self
    }

    /// Renders a conversation; with `generate`, up to the beginning of the assistant's answer.
    ///
    /// # Errors
    /// What the template itself raises, and if it takes too much time or memory.
    pub fn render(&self, messages: &[ChatMessage], generate: bool, extras: &TemplateVariables) -> Result<String, RenderError> {
        self.within(messages, 1, extras, move |template, messages, extras| template.render(messages, generate, extras, None))
    }

    /// Renders a conversation, and finds the assistant's text in it.
    pub(super) fn assistant_spans(
        &self,
        messages: &[ChatMessage],
        extras: &TemplateVariables,
    ) -> Result<AssistantSpans, RenderError> {
        self.within(messages, 2 + 10 * messages.len(), extras, turns::find_assistant_spans)
    }

    /// Returns what follows a turn of the assistant after these messages, given the `replies`; see [`turn_suffix`].
    pub(super) fn following(
        &self,
        before: &[ChatMessage],
        replies: &[ChatMessage],
        extras: &TemplateVariables,
    ) -> Result<String, RenderError> {
        let (all, count) = ([before, replies].concat(), before.len());
        self.within(&all, 1, extras, move |template, all, extras| turn_suffix::following(template, all, count, extras))
    }

    /// Describes what the template leaves out of a conversation, whose text this is; see [`omissions`]. Short contents are tried only if
    /// `thorough`.
    pub(super) fn find_omission(
        &self,
        (messages, generate): (&[ChatMessage], bool),
        text: &str,
        thorough: bool,
        extras: &TemplateVariables,
    ) -> Result<Option<String>, RenderError> {
        let suspects = omissions::suspects(messages, text, thorough);
        if suspects.is_empty() && (!thorough || extras.tools.is_null()) {
            return Ok(None);
        }
        let times = 2 + 2 * suspects.len();
        let first = move |template: &Template, messages: &[ChatMessage], extras: &TemplateVariables| {
            omissions::first(template, messages, generate, &suspects, extras)
        };
        self.within(messages, times, extras, first)
    }

    /// Runs work that renders a conversation up to this many times.
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

/// Adds a message's reasoning under the names that templates use, as transformers does.
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

/// Returns the bytes of a value as JSON.
fn length(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |text| text.len())
}

#[cfg(test)]
mod tests;
