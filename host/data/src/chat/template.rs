//! Compiles and renders chat templates.

use super::super::marks;
use super::super::message::ChatMessage;
use super::super::work_limiter::TextWorkLimiter;
use super::error::RenderError;
use super::filters;
use super::source::{RewrittenTemplate, rewritten};
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

/// Maximum number of instructions per rendering.
const FUEL: u64 = 5_000_000;

/// Maximum nesting of scopes; each recursion of a macro needs four.
const RECURSION: usize = 256;

/// Maximum size of a template in bytes; real ones have up to 20,000.
pub(super) const LARGEST: usize = 1 << 20;

/// Maximum length of a printed error, in bytes.
pub(super) const SHOWN: usize = 1024;

/// Maximum number of bytes that all renderings together may leak.
const MOST_LEAKED: usize = 64 << 20;

/// Compiled template with the tokenizer's tokens.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    environment: Environment<'static>,
    /// Whether the template marks the assistant's text.
    marked: bool,
    /// Named tokens of the tokenizer, which are variables.
    pub(super) tokens: Map<String, Json>,
    /// Variables for every conversation; those of a conversation override them.
    pub(super) kwargs: Map<String, Json>,
    pub(super) now: Option<DateTime>,
    /// Whether the template uses the time.
    dated: bool,
    /// Bytes that renderings have leaked.
    leaked: Arc<AtomicUsize>,
}

/// Variables of the template other than the messages.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct TemplateVariables {
    /// Schemas of the tools that the model may call; null for none.
    pub tools: Json,
    /// Further variables.
    pub kwargs: Map<String, Json>,
}

impl TemplateVariables {
    /// Reads the columns `tools`, a list of JSON schemas, and `chat_template_kwargs`; either may be JSON text.
    ///
    /// # Errors
    /// If a column has another type.
    pub fn from_columns(columns: &Map<String, Json>) -> Result<Self, String> {
        let read = |name: &str| match columns.get(name) {
            None => Ok(Json::Null),
            Some(Json::String(text)) if text.trim().is_empty() => Ok(Json::Null),
            Some(Json::String(text)) => serde_json::from_str(text).map_err(|e| format!("column {name:?} is not JSON: {e}")),
            Some(value) => Ok(value.clone()),
        };
        let tools = match read("tools")? {
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

    /// Returns whether there is a tool that the model may call. An empty list has none, but the template gets it, as transformers does it.
    #[must_use]
    pub fn has_tools(&self) -> bool {
        self.tools.as_array().is_some_and(|tools| !tools.is_empty())
    }
}

/// Returns a tool's schema, which may be given as JSON text.
pub(super) fn schema(tool: Json) -> Result<Json, String> {
    match tool {
        Json::String(text) => {
            let read = serde_json::from_str(&text).ok().filter(Json::is_object);
            read.ok_or_else(|| "column \"tools\" has a text that is not a JSON schema".to_owned())
        }
        tool => Ok(tool),
    }
}

impl Template {
    /// Compiles a template of a tokenizer with these tokens.
    pub(super) fn compile(source: String, tokens: Map<String, Json>, pace: &TextWorkLimiter) -> Result<Self, String> {
        if source.len() > LARGEST {
            return Err(format!("it has {} bytes; the maximum is {LARGEST}", source.len()));
        }
        let dated = source.contains("strftime_now");
        let compiled = pace.run(source.len(), move || environment(&source)).map_err(|e| e.to_string())?;
        let (environment, marked) = compiled.map_err(|e| printable(&e, SHOWN))?;
        Ok(Self { environment, marked, tokens, kwargs: Map::new(), now: None, dated, leaked: Arc::default() })
    }

    /// Returns whether the template marks the assistant's text.
    pub(crate) fn marked(&self) -> bool {
        self.marked
    }

    /// Renders a conversation. Puts the assistant's text between `marks` if the template marks it.
    pub(crate) fn render(
        &self,
        messages: &[ChatMessage],
        generate: bool,
        extras: &TemplateVariables,
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
        // Later maps take precedence.
        let variables = merge_maps([own, now, general, special, fixed]);
        let before = in_use();
        let text = self.environment.get_template("chat").and_then(|template| template.render(variables)).map_err(refused)?;
        self.count_leak(before, text.capacity())?;
        Ok(text)
    }
}

impl Template {
    /// Counts memory that a rendering has leaked: what `loop.changed` remembers may contain the loop itself.
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

/// Creates an engine configured like transformers' Jinja, with the template in it. Also returns whether the template marks the assistant's
/// text.
pub(super) fn environment(source: &str) -> Result<(Environment<'static>, bool), String> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(|e| e.to_string())?);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION);
    filters::add(&mut environment);
    environment.add_function("raise_exception", |text: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
    });
    marks::add_function(&mut environment);
    let RewrittenTemplate { source, marked } = rewritten(source)?;
    environment.add_template_owned("chat", source).map_err(|e| e.to_string())?;
    Ok((environment, marked))
}

/// Returns Python's `strftime` for a fixed time.
fn clock(now: DateTime) -> impl Fn(String) -> Result<String, minijinja::Error> + Send + Sync {
    move |format| {
        let wrong = |e: jiff::Error| minijinja::Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {e}"));
        strtime::format(&format, now).map_err(wrong)
    }
}
