//! Chat templates: the tokenizer's own Jinja, run with Python's string methods.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value, context};
use serde::{Deserialize, Deserializer, Serialize};

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Message {
    /// Who speaks: system, user or assistant.
    #[serde(alias = "from", deserialize_with = "role")]
    pub role: String,
    /// What is said.
    #[serde(alias = "value")]
    pub content: String,
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
        environment.add_template_owned("chat", source).map_err(|e| e.to_string())?;
        Ok(Self { environment, bos, eos })
    }

    /// The text of a conversation; with `generate`, up to where the assistant's answer begins.
    pub fn render(&self, messages: &[Message], generate: bool) -> Result<String, String> {
        let template = self.environment.get_template("chat").map_err(|e| e.to_string())?;
        template
            .render(context! { messages => Value::from(Serde(messages)), add_generation_prompt => generate, bos_token => self.bos.as_str(), eos_token => self.eos.as_str() })
            .map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_chatml_with_and_without_the_assistants_opening() {
        let source = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m['content'].strip() + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
        let chat = ChatTemplate::new(source.into(), String::new(), String::new()).unwrap();
        let messages = [Message { role: "user".into(), content: " hi ".into() }];
        assert_eq!(chat.render(&messages, false).unwrap(), "<|im_start|>user\nhi<|im_end|>\n");
        assert!(chat.render(&messages, true).unwrap().ends_with("<|im_start|>assistant\n"));
    }

    #[test]
    fn a_template_that_never_ends_is_stopped() {
        let source = "{% for a in range(10000) %}{% for b in range(10000) %}{{ b }}{% endfor %}{% endfor %}";
        let chat = ChatTemplate::new(source.into(), String::new(), String::new()).unwrap();
        assert!(chat.render(&[], false).is_err());
    }
}
