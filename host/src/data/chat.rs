//! Chat templates: the tokenizer's own Jinja, run with Python's string methods.
//!
//! A template is a program by whoever made the model. Instructions are counted by the engine; but one instruction may make a
//! string of any size (`indent`, `x + x` again and again) or go through a list without an end, and the engine has no place where
//! each could be stopped. So all of it runs where memory and time are bounded ([`Pace`]).

use super::pace::Pace;
use crate::config::printable;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, ErrorKind, Value, context};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::ser::{Formatter, PrettyFormatter};
use serde_json::{Map, Serializer, Value as Json};
use std::io::{self, Write};
use std::sync::Arc;

/// One turn of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Message {
    /// Who speaks: system, user or assistant.
    #[serde(alias = "from", deserialize_with = "role")]
    pub role: String,
    /// What is said.
    #[serde(alias = "value", deserialize_with = "content")]
    pub content: String,
    /// What else the template may look for: tool calls, reasoning.
    #[serde(flatten)]
    pub rest: Map<String, Json>,
}

/// A turn of tool calls alone says nothing.
fn content<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.unwrap_or_default())
}

/// ShareGPT's names of those who speak are understood too.
fn role<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    Ok(match name.as_str() {
        "human" => "user".to_owned(),
        "gpt" => "assistant".to_owned(),
        _ => name,
    })
}

/// Instructions that a template may take before it is stopped.
const FUEL: u64 = 5_000_000;

/// Bytes of a template; those of models have up to 20 thousand.
const LARGEST: usize = 1 << 20;

/// Bytes of an error that are shown.
const SHOWN: usize = 1024;

/// Bytes for which a message counts beside its text.
const MESSAGE: usize = 256;

/// A model's chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    template: Arc<Template>,
    pace: Arc<Pace>,
}

#[derive(Debug)]
struct Template {
    environment: Environment<'static>,
    bos: String,
    eos: String,
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
        let compiled = pace.run(source.len(), move || environment(&source)).map_err(|e| e.to_string())?;
        let environment = compiled.map_err(|e| printable(&e, SHOWN))?;
        Ok(Self { template: Arc::new(Template { environment, bos, eos }), pace })
    }

    /// The text of a conversation; with `generate`, up to where the assistant's answer begins.
    ///
    /// # Errors
    /// What the template itself raises, and if it takes too much time or memory.
    pub fn render(&self, messages: &[Message], generate: bool) -> Result<String, String> {
        let (template, messages) = (Arc::clone(&self.template), messages.to_vec());
        let bytes = messages.iter().map(size).sum();
        let rendered = self.pace.run(bytes, move || template.render(&messages, generate)).map_err(|e| e.to_string())?;
        rendered.map_err(|e| printable(&e, SHOWN))
    }
}

/// How much a message is.
fn size(message: &Message) -> usize {
    let rest = if message.rest.is_empty() { 0 } else { serde_json::to_vec(&message.rest).map_or(0, |text| text.len()) };
    MESSAGE + message.role.len() + message.content.len() + rest
}

impl Template {
    fn render(&self, messages: &[Message], generate: bool) -> Result<String, String> {
        let template = self.environment.get_template("chat").map_err(|e| e.to_string())?;
        template
            .render(context! { messages => Value::from(Serde(messages)), add_generation_prompt => generate, bos_token => self.bos.as_str(), eos_token => self.eos.as_str(), tools => (), documents => () })
            .map_err(|e| e.to_string())
    }
}

/// The engine as transformers sets Jinja up, with the template in it.
fn environment(source: &str) -> Result<Environment<'static>, String> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(|e| e.to_string())?);
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |text: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
    });
    environment.add_filter("tojson", to_json);
    environment.add_template_owned("chat", without_markers(source)).map_err(|e| e.to_string())?;
    Ok(environment)
}

/// The template without transformers' markers of what the assistant says, `{% generation %}`, which write nothing. What
/// stands in their place treats the space around it alike.
fn without_markers(source: &str) -> String {
    let (mut text, mut rest) = (String::with_capacity(source.len()), source);
    while let Some((before, tag)) = rest.split_once("{%") {
        let Some((inside, after)) = tag.split_once("%}") else { break };
        let own = inside.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']);
        let inside = match own.trim() {
            "generation" => inside.replace("generation", "if true"),
            "endgeneration" => inside.replace("endgeneration", "endif"),
            _ => inside.to_owned(),
        };
        text.extend([before, "{%", &inside, "%}"]);
        rest = after;
    }
    text + rest
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
        assert_eq!(chat.render(&messages, false).unwrap(), "<|im_start|>user\nhi<|im_end|>\n");
        assert!(chat.render(&messages, true).unwrap().ends_with("<|im_start|>assistant\n"));
    }

    fn rendered(source: &str, messages: Json) -> String {
        let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
        ChatTemplate::new(source.into(), String::new(), String::new()).unwrap().render(&messages, false).unwrap()
    }

    #[test]
    fn a_message_brings_what_else_it_has_and_json_is_written_as_python_does() {
        let source = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c | tojson }}{% endfor %}{% endfor %}";
        let call = serde_json::json!({"name": "w", "arguments": {"b": ["<é>", 1], "a": null}});
        let messages = serde_json::json!([{"role": "assistant", "content": null, "tool_calls": [call]}]);
        assert_eq!(rendered(source, messages), r#"{"name": "w", "arguments": {"b": ["<é>", 1], "a": null}}"#);
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
            match made.and_then(|chat| chat.render(&[message], false)) {
                Ok(text) => assert!(text.len() < 1 << 20, "{source:.100}: {} bytes", text.len()),
                Err(error) => assert!(!error.contains('\n') && error.len() < 2 * SHOWN, "{source:.100}: {error}"),
            }
        }
    }

    #[test]
    fn what_is_nested_deeply_is_dropped_without_harm() {
        let source =
            "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [[[[[[[[ns.x]]]]]]]] %}{% endfor %}done";
        let _ = ChatTemplate::new(source.into(), String::new(), String::new()).unwrap().render(&[], false);
    }
}
