//! Chat templates: the tokenizer's own Jinja, with Python's string methods.
//!
//! A template is an untrusted program from whoever made the model. The engine counts instructions, but a single one can create a
//! string of any size (`indent`, repeated `x + x`) or loop over an endless list, and the engine can't interrupt it. So all of it
//! runs with bounded memory and time ([`Pace`]).

use super::calls::Calls;
use super::message::Message;
use super::pace::Pace;
use super::turns::Spoken;
use super::{continuing, marks, percent, turns, unwritten};
use crate::config::printable;
use jiff::civil::DateTime;
use jiff::fmt::strtime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, merge_maps};
use minijinja::{Environment, ErrorKind, Value, context};
use serde::{Deserialize, Serialize};
use serde_json::ser::{Formatter, PrettyFormatter};
use serde_json::{Map, Serializer, Value as Json};
use std::io::{self, Write};
use std::sync::Arc;

/// Maximum number of instructions of a template.
const FUEL: u64 = 5_000_000;

/// Maximum size of a template in bytes; real ones have up to 20 thousand.
const LARGEST: usize = 1 << 20;

/// Maximum length of a printed error, in bytes.
const SHOWN: usize = 1024;

/// Names under which messages have their reasoning.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Bytes that a message counts besides its text.
const MESSAGE: usize = 256;

/// A model's chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    template: Arc<Template>,
    pace: Arc<Pace>,
    /// How its models write tool calls.
    pub(super) calls: Calls,
}

/// A compiled template with the tokenizer's tokens.
#[derive(Clone, Debug)]
pub(super) struct Template {
    environment: Environment<'static>,
    /// Whether it marks the assistant's text.
    marked: bool,
    bos: String,
    eos: String,
    /// Variables for every conversation; a conversation's own override them.
    kwargs: Map<String, Json>,
    now: Option<DateTime>,
    /// Whether it uses the time.
    dated: bool,
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
        if source.len() > LARGEST {
            return Err(format!("it has {} bytes; the maximum is {LARGEST}", source.len()));
        }
        let pace = Arc::new(Pace::default());
        let dated = source.contains("strftime_now");
        let calls = Calls::of(&source);
        let compiled = pace.run(source.len(), move || environment(&source)).map_err(|e| e.to_string())?;
        let (environment, marked) = compiled.map_err(|e| printable(&e, SHOWN))?;
        let template = Template { environment, marked, bos, eos, kwargs: Map::new(), now: None, dated };
        Ok(Self { template: Arc::new(template), pace, calls })
    }

    /// Returns the same template with more variables, and with the time that `strftime_now` returns. Without a time, the function
    /// does not exist, and templates with a built-in date use that.
    #[must_use]
    pub fn told(mut self, kwargs: Map<String, Json>, now: Option<DateTime>) -> Self {
        let template = Arc::make_mut(&mut self.template);
        (template.kwargs, template.now) = (kwargs, now);
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
        let (template, extras) = (Arc::clone(&self.template), extras.clone());
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
            if text.contains("use % operator") {
                text += "; write x % y as x | format(y) in a copy of the template (chat_template_path)";
            }
            if e.kind() == ErrorKind::OutOfFuel { RenderError::Unbounded(text) } else { RenderError::Refused(text) }
        };
        let own = context! { bos_token => self.bos.as_str(), eos_token => self.eos.as_str() };
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
        self.environment.get_template("chat").and_then(|template| template.render(variables)).map_err(refused)
    }
}

/// Creates the engine, set up like transformers' Jinja, with the template in it. Also returns whether the template marks the
/// assistant's text.
fn environment(source: &str) -> Result<(Environment<'static>, bool), String> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(|e| e.to_string())?);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |text: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
    });
    environment.add_filter("tojson", to_json);
    // As in Python, nothing is not iterable.
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    marks::add_function(&mut environment);
    let (source, marked) = marks::rewritten(&percent::rewritten(source));
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

/// Python's `json.dumps` with `ensure_ascii=False`, as transformers' templates have it.
fn to_json(value: Value, indent: Option<Value>, options: Kwargs) -> Result<String, minijinja::Error> {
    /// Python's separators.
    struct Spaced;
    impl Formatter for Spaced {
        fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
            if first { Ok(()) } else { writer.write_all(b", ") }
        }
        fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
            if first { Ok(()) } else { writer.write_all(b", ") }
        }
        fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
            writer.write_all(b": ")
        }
    }

    let failed = |e: &dyn std::fmt::Display| minijinja::Error::new(ErrorKind::InvalidOperation, e.to_string());
    let given = options.get::<Option<Value>>("indent")?;
    let spaces = indent.or(given).and_then(|n| n.as_usize());
    let mut text = Vec::new();
    let written = match spaces {
        None => value.serialize(&mut Serializer::with_formatter(&mut text, Spaced)),
        Some(n) => {
            let indent = " ".repeat(n.min(16));
            value.serialize(&mut Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(indent.as_bytes())))
        }
    };
    written.map_err(|e| failed(&e))?;
    String::from_utf8(text).map_err(|e| failed(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_chatml_with_and_without_the_assistants_opening() {
        let source = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m['content'].strip() + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
        let chat = ChatTemplate::new(source.into(), String::new(), String::new()).unwrap();
        let messages = [Message { role: "user".into(), content: " hi ".into(), ..Message::default() }];
        assert_eq!(chat.render(&messages, false, &Extras::default()).unwrap(), "<|im_start|>user\nhi<|im_end|>\n");
        assert!(chat.render(&messages, true, &Extras::default()).unwrap().ends_with("<|im_start|>assistant\n"));
    }

    fn told(source: &str, kwargs: Json, columns: Json) -> Result<String, String> {
        let (Json::Object(kwargs), Json::Object(columns)) = (kwargs, columns) else { panic!("a test gives objects") };
        let chat = ChatTemplate::new(source.into(), "<s>".into(), String::new())?.told(kwargs, "2024-07-06".parse().ok());
        chat.render(&[Message::default()], false, &Extras::of(&columns)?).map_err(|e| e.to_string())
    }

    #[test]
    fn a_template_is_told_tools_variables_and_a_date() {
        use serde_json::json;
        let source =
            "{{ enable_thinking }}{{ x }}{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{{ messages | length }}";
        let of_row = json!({"chat_template_kwargs": {"x": 2, "messages": []}, "tools": [{"name": "f"}], "other": 1});
        assert_eq!(told(source, json!({"x": 1, "enable_thinking": false}), of_row).unwrap(), r#"False2<s>[{"name": "f"}]1"#);
        let in_text = json!({"chat_template_kwargs": r#"{"bos_token": ""}"#, "tools": ""});
        assert_eq!(told(source, json!({"x": 1, "enable_thinking": true}), in_text).unwrap(), "True11");
        let date = "{{ strftime_now('%d %b %Y') if strftime_now is defined }}";
        assert_eq!(told(date, json!({}), json!({})).unwrap(), "06 Jul 2024");
        assert_eq!(rendered(date, json!([])), "");
        let chat = ChatTemplate::new("{{ strftime_now('%Y') }}".into(), String::new(), String::new()).unwrap();
        let error = chat.render(&[], false, &Extras::default()).unwrap_err().to_string();
        assert!(error.contains("as in --strftime-now 2024-07-26"), "{error}");
        assert!(told("{{ strftime_now('%!') }}", json!({}), json!({})).unwrap_err().contains("strftime_now"));
        assert!(told("", json!({}), json!({"tools": 3})).unwrap_err().contains("list of JSON schemas"));
        assert!(told("", json!({}), json!({"chat_template_kwargs": "{"})).unwrap_err().contains("not JSON"));
    }

    #[test]
    fn what_python_does_with_strings_and_with_nothing_is_done_here() {
        let one = |source: &str| rendered(source, serde_json::json!([{"role": "user", "content": "hi"}]));
        assert_eq!(one("{% for m in messages %}{{ '%s says %s%d' % (m.role, m.content, 3) }}{% endfor %}"), "user says hi3");
        assert_eq!(one("{{ tools is iterable }}{{ messages is iterable }}{{ 'x' is iterable }}"), "FalseTrueTrue");
        let reasoned = |name: &str| {
            let message = serde_json::json!({"role": "assistant", "content": "a", name: "hm"});
            rendered(
                "{% for m in messages %}{{ m.reasoning_content }} {{ m.thinking }}{% endfor %}",
                serde_json::json!([message]),
            )
        };
        assert!(REASONING.into_iter().all(|name| reasoned(name) == "hm hm"));
        // A namespace that a block of marks or a macro only assigns to.
        let assigned = "{% set ns = namespace(x=1) %}{% generation %}{% set ns.x = 2 if ns is defined else 3 %}{% endgeneration %}{{ ns.x }}";
        assert_eq!(one(assigned), "2");
        assert_eq!(one("{% set ns = namespace(x=1) %}{% macro f() %}{% set ns.x = 2 %}{% endmacro %}{{ f() }}{{ ns.x }}"), "2");
        // A format in a variable, and arithmetic.
        assert_eq!(one("{% set x = 'a%s' %}{% set y = 5 %}{% set z = 3 %}{{ x % 'b' }}{{ y % z }}{{ 2 * y % z }}"), "ab21");
        assert_eq!(one("{% set x = '%s-%d' %}{{ x % (messages[0].content, 3) + '!' }}"), "hi-3!");
        let chat = ChatTemplate::new("{% set x = 'a%s' %}{{ x % 'b' % 'c' }}".into(), String::new(), String::new()).unwrap();
        let error = chat.render(&[], false, &Extras::default()).unwrap_err().to_string();
        assert!(error.contains("| format("), "{error}");
    }

    fn rendered(source: &str, messages: Json) -> String {
        let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
        ChatTemplate::new(source.into(), String::new(), String::new())
            .unwrap()
            .render(&messages, false, &Extras::default())
            .unwrap()
    }

    #[test]
    fn a_message_brings_what_else_it_has_and_json_is_written_as_python_does() {
        let source = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c | tojson }}{% endfor %}{% endfor %}";
        let call = serde_json::json!({"name": "w", "arguments": {"b": ["<é>", 1], "a": null}});
        let messages = serde_json::json!([{"role": "assistant", "content": null, "tool_calls": [call]}]);
        assert_eq!(rendered(source, messages), r#"None{"name": "w", "arguments": {"b": ["<é>", 1], "a": null}}"#);
        // As DeepSeek's template has it: a content that is null is none, another one is not.
        let calling = "{% for m in messages %}{{ 'calls ' ~ m.tool_calls[0] if m['content'] is none else m['content'] }};{% endfor %}{{ messages[0].content | trim }}";
        let turn = |content: Json| serde_json::json!({"role": "assistant", "content": content, "tool_calls": ["f"]});
        let messages = serde_json::json!([turn(Json::Null), turn("".into()), {"role": "assistant", "tool_calls": ["g"]}]);
        assert_eq!(rendered(calling, messages), "calls f;;calls g;None");
    }

    #[test]
    fn markers_of_what_the_assistant_says_write_nothing_and_there_are_no_tools() {
        let source = "{% for m in messages %}a {%- generation -%} {{ m.content }}{% endgeneration %}b{% endfor %}{% if tools is not none %}t{% endif %}";
        assert_eq!(rendered(source, serde_json::json!([{"role": "user", "content": "x"}])), "axb");
    }

    #[test]
    fn a_template_that_never_ends_or_makes_too_much_is_stopped_with_one_line() {
        let doubled = |more: &str| {
            format!(
                "{{% set ns = namespace(x='0123456789') %}}{{% for i in range(40) %}}{{% set ns.x = {more} %}}{{% endfor %}}{{{{ ns.x }}}}"
            )
        };
        let seen = "{% set ns = namespace(x=[1, 2]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}";
        for source in [
            "{% for a in range(10000) %}{% for b in range(10000) %}{{ b }}{% endfor %}{% endfor %}",
            "{{ 'a\nb' | indent(99999999999) }}",
            "{{ 'x' * 10000000000 }}",
            "{{ range(1000000000000) | join(',') }}",
            "{{ '%99999999999d' | format(1) }}",
            "{{ messages | tojson(indent=99999999999) }}{{ 'x' | center(99999999999) }}",
            "{{ ' ' * 1000000 | replace(' ', ' ' * 1000000) }}",
            "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns = namespace(x='0123456789') %}{% for i in range(40) %}{% set ns.x = m(ns.x) %}{% endfor %}",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            &doubled("ns.x + ns.x"),
            &doubled("ns.x ~ ns.x"),
            &doubled("ns.x * 2"),
            &doubled("[ns.x, ns.x] | join"),
            &doubled("[ns.x, ns.x] | string"),
            &doubled("ns.x | replace('0', ns.x)"),
            &(seen.to_owned() + "{{ ns.x | join }}"),
            &format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)),
            &format!("{{{{ {}1{} }}}}", "[".repeat(100_000), "]".repeat(100_000)),
            &format!("{{{{ x{} }}}}", ".x".repeat(100_000)),
            &format!("{{{{ 1{} }}}}", " + 1".repeat(200_000)),
            &"{% if true %}".repeat(50_000),
            &"x".repeat(LARGEST + 1),
        ] {
            let message = Message { role: "user".into(), content: "hi".into(), ..Message::default() };
            let made = ChatTemplate::new(source.to_owned(), String::new(), String::new());
            match made.and_then(|chat| chat.render(&[message], false, &Extras::default()).map_err(|e| e.to_string())) {
                Ok(text) => assert!(text.len() < 1 << 20, "{source:.100}: {} bytes", text.len()),
                Err(error) => assert!(!error.contains('\n') && error.len() < 2 * SHOWN, "{source:.100}: {error}"),
            }
        }
    }

    #[test]
    fn what_is_nested_deeply_is_dropped_without_harm() {
        let source =
            "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [[[[[[[[ns.x]]]]]]]] %}{% endfor %}done";
        let _ = ChatTemplate::new(source.into(), String::new(), String::new()).unwrap().render(&[], false, &Extras::default());
    }
}
