//! Chat templates: the tokenizer's own Jinja, run with Python's string methods.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, ErrorKind, Value, context};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::ser::{Formatter, PrettyFormatter};
use serde_json::{Map, Serializer, Value as Json};
use std::io::{self, Write};

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

/// A model's chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles the template; the error is Jinja's.
    pub fn new(source: String, bos: String, eos: String) -> Result<Self, String> {
        let mut environment = Environment::new();
        // As transformers sets Jinja up.
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(|e| e.to_string())?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |text: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.add_filter("tojson", to_json);
        environment.add_template_owned("chat", without_markers(&source)).map_err(|e| e.to_string())?;
        Ok(Self { environment, bos, eos })
    }

    /// The text of a conversation; with `generate`, up to where the assistant's answer begins.
    pub fn render(&self, messages: &[Message], generate: bool) -> Result<String, String> {
        let template = self.environment.get_template("chat").map_err(|e| e.to_string())?;
        template
            .render(context! { messages => Value::from(Serde(messages)), add_generation_prompt => generate, bos_token => self.bos.as_str(), eos_token => self.eos.as_str(), tools => (), documents => () })
            .map_err(|e| e.to_string())
    }
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
    fn a_template_that_never_ends_is_stopped() {
        let source = "{% for a in range(10000) %}{% for b in range(10000) %}{{ b }}{% endfor %}{% endfor %}";
        let chat = ChatTemplate::new(source.into(), String::new(), String::new()).unwrap();
        assert!(chat.render(&[], false).is_err());
    }
}
