//! Chat templates: the tokenizer's own Jinja, with Python's string methods.
//!
//! A template is an untrusted program from whoever made the model. The engine counts instructions, but a single one can create a
//! string of any size (`indent`, repeated `x + x`) or loop over an endless list, and the engine can't interrupt it. So all of it
//! runs with bounded memory, stack and time ([`Pace`]), and what a template nests is bounded before it is compiled ([`source`]).

mod arguments;
mod filters;
mod json;
mod methods;
mod namespace;
mod pieces;
mod printf;
mod source;
mod text;

use self::source::{Rewritten, rewritten};
use super::calls::Calls;
use super::message::Message;
use super::pace::Pace;
use super::turns::Spoken;
use super::{continuing, marks, turns, unwritten};
use crate::config::printable;
use crate::ops::bounded::in_use;
use jiff::civil::DateTime;
use jiff::fmt::strtime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, merge_maps};
use minijinja::{Environment, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of instructions of a template.
const FUEL: u64 = 5_000_000;

/// Maximum number of scopes within each other; a macro that calls itself needs four each time.
const RECURSION: usize = 256;

/// Maximum size of a template in bytes; real ones have up to 20 thousand.
const LARGEST: usize = 1 << 20;

/// Maximum length of a printed error, in bytes.
const SHOWN: usize = 1024;

/// Maximum number of bytes that all renderings together may leave behind.
const MOST_LEAKED: usize = 64 << 20;

/// Names under which messages have their reasoning.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Bytes that a message counts besides its text.
const MESSAGE: usize = 256;

/// A model's chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    template: Arc<Template>,
    /// The one for conversations with tools, if it is another, and how its models write calls.
    tool_use: Option<(Arc<Template>, Calls)>,
    pace: Arc<Pace>,
    /// How its models write tool calls.
    calls: Calls,
}

/// A compiled template with the tokenizer's tokens.
#[derive(Clone, Debug)]
pub(super) struct Template {
    environment: Environment<'static>,
    /// Whether it marks the assistant's text.
    marked: bool,
    /// The tokenizer's named tokens, which are variables.
    tokens: Map<String, Json>,
    /// Variables for every conversation; a conversation's own override them.
    kwargs: Map<String, Json>,
    now: Option<DateTime>,
    /// Whether it uses the time.
    dated: bool,
    /// Bytes that renderings have not freed.
    leaked: Arc<AtomicUsize>,
}

/// The template's variables besides the messages.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Extras {
    /// Descriptions of the tools that the model may call; null for none.
    pub tools: Json,
    /// Further variables.
    pub kwargs: Map<String, Json>,
}

impl Extras {
    /// Reads the columns `tools`, a list of JSON schemas, and `chat_template_kwargs`; either may be JSON text.
    ///
    /// # Errors
    /// If one is something else.
    pub fn of(columns: &Map<String, Json>) -> Result<Self, String> {
        let read = |name: &str| match columns.get(name) {
            None => Ok(Json::Null),
            Some(Json::String(text)) if text.trim().is_empty() => Ok(Json::Null),
            Some(Json::String(text)) => serde_json::from_str(text).map_err(|e| format!("column {name:?} is not JSON: {e}")),
            Some(value) => Ok(value.clone()),
        };
        let tools = match read("tools")? {
            Json::Array(tools) if tools.is_empty() => Json::Null,
            Json::Array(tools) => tools.into_iter().map(schema).collect::<Result<Json, String>>()?,
            Json::Null => Json::Null,
            _ => return Err("column \"tools\" is not a list of JSON schemas".into()),
        };
        match read("chat_template_kwargs")? {
            Json::Null => Ok(Self { tools, kwargs: Map::new() }),
            Json::Object(kwargs) => Ok(Self { tools, kwargs }),
            _ => Err("column \"chat_template_kwargs\" is not an object".into()),
        }
    }
}

/// Returns a tool's schema, which may be JSON text.
fn schema(tool: Json) -> Result<Json, String> {
    match tool {
        Json::String(text) => {
            let read = serde_json::from_str(&text).ok().filter(Json::is_object);
            read.ok_or_else(|| "column \"tools\" has a text that is not a JSON schema".to_owned())
        }
        tool => Ok(tool),
    }
}

/// Why a template failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RenderError {
    /// It refuses the conversation, or fails on it.
    #[error("{0}")]
    Refused(String),
    /// It takes too much time or memory.
    #[error("{0}")]
    Unbounded(String),
}

impl ChatTemplate {
    /// Compiles the template.
    ///
    /// # Errors
    /// Says what is wrong with it, mostly in Jinja's words.
    pub fn new(source: String, bos: String, eos: String) -> Result<Self, String> {
        let tokens = [("bos_token", bos), ("eos_token", eos)].map(|(name, text)| (name.to_owned(), text.into()));
        let (calls, pace) = (Calls::of(&source), Arc::new(Pace::default()));
        let template = Arc::new(Template::compile(source, Map::from_iter(tokens), &pace)?);
        Ok(Self { template, tool_use: None, pace, calls })
    }

    /// Returns the same template with another for conversations with tools.
    ///
    /// # Errors
    /// Says what is wrong with the other.
    pub(super) fn with_tool_use(mut self, source: Option<String>) -> Result<Self, String> {
        if let Some(source) = source {
            let (calls, tokens) = (Calls::of(&source), self.template.tokens.clone());
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
    pub(super) fn calls(&self, with_tools: bool) -> Calls {
        self.tool_use.as_ref().filter(|_| with_tools).map_or(self.calls, |(_, calls)| *calls)
    }

    /// Returns the same template with more variables, and with the time that `strftime_now` returns. Without a time, the function
    /// does not exist, and templates with a built-in date use that.
    #[must_use]
    pub fn told(mut self, kwargs: Map<String, Json>, now: Option<DateTime>) -> Self {
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
    pub fn render(&self, messages: &[Message], generate: bool, extras: &Extras) -> Result<String, RenderError> {
        self.within(messages, 1, extras, move |template, messages, extras| template.render(messages, generate, extras, None))
    }

    /// Renders a conversation, and finds the assistant's text in it.
    pub(super) fn spoken(&self, messages: &[Message], extras: &Extras) -> Result<Spoken, RenderError> {
        self.within(messages, 2 + 10 * messages.len(), extras, turns::spoken)
    }

    /// Returns what follows a turn of the assistant after these messages, given the `replies`; see [`continuing`].
    pub(super) fn following(&self, before: &[Message], replies: &[Message], extras: &Extras) -> Result<String, RenderError> {
        let (all, count) = ([before, replies].concat(), before.len());
        self.within(&all, 1, extras, move |template, all, extras| continuing::following(template, all, count, extras))
    }

    /// Describes what the template leaves out of a conversation, whose text this is; see [`unwritten`]. Short contents are tried only if
    /// `thorough`.
    pub(super) fn left_out(
        &self,
        (messages, generate): (&[Message], bool),
        text: &str,
        thorough: bool,
        extras: &Extras,
    ) -> Result<Option<String>, RenderError> {
        let suspects = unwritten::suspects(messages, text, thorough);
        if suspects.is_empty() && (!thorough || extras.tools.is_null()) {
            return Ok(None);
        }
        let times = 2 + 2 * suspects.len();
        let first = move |template: &Template, messages: &[Message], extras: &Extras| {
            unwritten::first(template, messages, generate, &suspects, extras)
        };
        self.within(messages, times, extras, first)
    }

    /// Runs work that renders a conversation up to this many times.
    fn within<T: Send + 'static>(
        &self,
        messages: &[Message],
        times: usize,
        extras: &Extras,
        work: impl FnOnce(&Template, &[Message], &Extras) -> Result<T, RenderError> + Send + 'static,
    ) -> Result<T, RenderError> {
        let with_tools = self.tool_use.as_ref().filter(|_| !extras.tools.is_null());
        let template = Arc::clone(with_tools.map_or(&self.template, |(template, _)| template));
        let extras = extras.clone();
        let messages: Vec<Message> = messages.iter().map(with_reasoning).collect();
        let bytes = messages.iter().map(size).sum::<usize>() + length(&extras.kwargs) + length(&extras.tools);
        let done = self.pace.run(bytes.saturating_mul(times), move || work(&template, &messages, &extras));
        done.map_err(|e| RenderError::Unbounded(e.to_string()))?
    }
}

/// Adds a message's reasoning under the names that templates use, as transformers does.
fn with_reasoning(message: &Message) -> Message {
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
fn size(message: &Message) -> usize {
    let rest = if message.rest.is_empty() { 0 } else { length(&message.rest) };
    MESSAGE + message.role.len() + message.content.len() + rest
}

/// Returns the bytes of a value as JSON.
fn length(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(0, |text| text.len())
}

impl Template {
    /// Compiles a template of a tokenizer with these tokens.
    fn compile(source: String, tokens: Map<String, Json>, pace: &Pace) -> Result<Self, String> {
        if source.len() > LARGEST {
            return Err(format!("it has {} bytes; the maximum is {LARGEST}", source.len()));
        }
        let dated = source.contains("strftime_now");
        let compiled = pace.run(source.len(), move || environment(&source)).map_err(|e| e.to_string())?;
        let (environment, marked) = compiled.map_err(|e| printable(&e, SHOWN))?;
        Ok(Self { environment, marked, tokens, kwargs: Map::new(), now: None, dated, leaked: Arc::default() })
    }

    /// Returns whether it marks the assistant's text.
    pub(super) fn marked(&self) -> bool {
        self.marked
    }

    /// Renders a conversation. Puts the assistant's text between `marks`, if the template marks it.
    pub(super) fn render(
        &self,
        messages: &[Message],
        generate: bool,
        extras: &Extras,
        marks: Option<[char; 2]>,
    ) -> Result<String, RenderError> {
        let refused = |e: minijinja::Error| {
            let mut text = printable(&e.to_string(), SHOWN);
            if self.dated && self.now.is_none() && ["undefined", "strftime_now"].iter().any(|part| text.contains(part)) {
                text += "; the template needs a date; set strftime_now, as in --strftime-now 2024-07-26";
            }
            if e.kind() == ErrorKind::OutOfFuel { RenderError::Unbounded(text) } else { RenderError::Refused(text) }
        };
        let own = Value::from(Serde(&self.tokens));
        let fixed = context! {
            messages => Value::from(Serde(messages)),
            add_generation_prompt => generate,
            tools => Value::from(Serde(&extras.tools)),
            documents => (),
            generation_marks => marks.map(String::from_iter),
        };
        let now = self.now.map_or_else(|| context! {}, |now| context! { strftime_now => Value::from_function(clock(now)) });
        let [general, special] = [&self.kwargs, &extras.kwargs].map(|kwargs| Value::from(Serde(kwargs)));
        // What comes later wins.
        let variables = merge_maps([own, now, general, special, fixed]);
        let before = in_use();
        let text = self.environment.get_template("chat").and_then(|template| template.render(variables)).map_err(refused)?;
        self.count_leak(before, text.capacity())?;
        Ok(text)
    }
}

impl Template {
    /// Counts the memory that a rendering has not freed besides its text. What `loop.changed` remembers may hold the loop itself.
    fn count_leak(&self, before: Option<usize>, text: usize) -> Result<(), RenderError> {
        let (Some(before), Some(after)) = (before, in_use()) else { return Ok(()) };
        let leaked = after.saturating_sub(before + text);
        let all = self.leaked.fetch_add(leaked, Ordering::Relaxed) + leaked;
        if all > MOST_LEAKED {
            let detail = format!("it never frees what it makes ({} MiB so far)", all >> 20);
            return Err(RenderError::Unbounded(detail));
        }
        Ok(())
    }
}

/// Creates the engine, set up like transformers' Jinja, with the template in it. Also returns whether the template marks the
/// assistant's text.
fn environment(source: &str) -> Result<(Environment<'static>, bool), String> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(|e| e.to_string())?);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION);
    filters::add(&mut environment);
    environment.add_function("raise_exception", |text: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
    });
    marks::add_function(&mut environment);
    let Rewritten { source, marked } = rewritten(source)?;
    environment.add_template_owned("chat", source).map_err(|e| e.to_string())?;
    Ok((environment, marked))
}

/// Python's `strftime` of a fixed time.
fn clock(now: DateTime) -> impl Fn(String) -> Result<String, minijinja::Error> + Send + Sync {
    move |format| {
        let wrong = |e: jiff::Error| minijinja::Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {e}"));
        strtime::format(&format, now).map_err(wrong)
    }
}

#[cfg(test)]
mod tests;
