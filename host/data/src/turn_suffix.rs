//! Determines what follows a turn of the model in a conversation: the template's end of that turn, the messages that reply to it, and the
//! opening of the next turn.
//!
//! The conversation is rendered with an unused character in place of the turn; the text after that character follows the turn, however the
//! template renders the rest. So the model's own text is never rendered, and its tokens stay as they were sampled.

use super::chat::Template;
use super::chat::{RenderError, TemplateVariables};
use super::marks;
use super::message::ChatMessage;

/// Returns what follows a turn between the first `count` messages and the rest, which reply to it.
///
/// # Errors
/// If the template rejects the conversation, or does not write the turn's content exactly once and unchanged.
pub(super) fn following(
    template: &Template,
    messages: &[ChatMessage],
    count: usize,
    extras: &TemplateVariables,
) -> std::result::Result<String, RenderError> {
    let contents: String = messages.iter().map(|message| &*message.content).collect();
    let [probe, _] = marks::free(&contents)?;
    let (before, replies) = messages.split_at(count);
    let turn = ChatMessage { role: "assistant".into(), content: probe.to_string().into(), ..ChatMessage::default() };
    let all: Vec<ChatMessage> = before.iter().cloned().chain([turn]).chain(replies.iter().cloned()).collect();
    let text = template.render(&all, true, extras, None)?;
    let mut parts = text.split(probe);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(_), Some(after), None) => Ok(after.to_owned()),
        (_, found, _) => {
            let times = if found.is_none() { "does not write" } else { "writes more than once" };
            let detail =
                format!("it {times} the content of an assistant's turn before a reply, so the end of a turn can't be found");
            Err(RenderError::Refused(format!("{detail}; set another template with chat_template_path")))
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{ChatMessage, ChatTemplate, TemplateVariables};

    fn message(role: &str, content: &str) -> ChatMessage {
        ChatMessage { role: role.into(), content: content.into(), ..ChatMessage::default() }
    }

    fn after(source: &str, replies: &[(&str, &str)]) -> Result<String, String> {
        let before = [message("system", "s"), message("user", "hi")];
        let replies: Vec<ChatMessage> = replies.iter().map(|(role, content)| message(role, content)).collect();
        let chat = ChatTemplate::new(source.into(), "<s>".into(), "</s>".into())?;
        chat.following(&before, &replies, &TemplateVariables::default()).map_err(|e| e.to_string())
    }

    const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    #[test]
    fn what_follows_a_turn_is_its_end_the_replies_and_the_next_opening() {
        assert_eq!(
            after(CHATML, &[("user", "more")]).unwrap(),
            "<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
        );
        let header = "{{ bos_token }}{% for m in messages %}<h>{{ m.role }}</h>\n\n{{ m.content | trim }}<eot>{% endfor %}{% if add_generation_prompt %}<h>assistant</h>\n\n{% endif %}";
        assert_eq!(after(header, &[("tool", " 3 ")]).unwrap(), "<eot><h>tool</h>\n\n3<eot><h>assistant</h>\n\n");
        let gemma = "{{ bos_token }}{% for m in messages if m.role != 'system' %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}";
        assert_eq!(
            after(gemma, &[("user", "b")]).unwrap(),
            "<end_of_turn>\n<start_of_turn>user\nb<end_of_turn>\n<start_of_turn>model\n"
        );
    }

    #[test]
    fn templates_without_an_opening_or_with_one_behind_the_last_message_show_what_follows_too() {
        // Like the templates of Mistral, which writes the system message with the last question, OLMo 2, and Granite.
        let late = "{% set talk = messages[1:] %}{{ bos_token }}{% for m in talk %}{% if m.role == 'user' %}[INST] {{ messages[0].content + '|' if loop.last }}{{ m.content }}[/INST]{% elif m.role == 'assistant' %} {{ m.content | trim }}{{ eos_token }}{% else %}[RESULTS] {{ m.content }}[/RESULTS]{% endif %}{% endfor %}";
        assert_eq!(after(late, &[("user", "b")]).unwrap(), "</s>[INST] s|b[/INST]");
        assert_eq!(after(late, &[("tool", "b")]).unwrap(), "</s>[RESULTS] b[/RESULTS]");
        let broken = "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% if loop.last and add_generation_prompt %}<|assistant|>\n{% endif %}{% endfor %}";
        assert_eq!(after(broken, &[("user", "b")]).unwrap(), "</s>\n<|user|>\nb\n<|assistant|>\n");
        let marked = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}<|im_start|>assistant\n{{ m.content.lstrip('\n') }}<|im_end|>\n{% endgeneration %}{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
        assert_eq!(
            after(marked, &[("user", "b")]).unwrap(),
            "<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
        );
    }

    #[test]
    fn a_template_that_strips_thinking_from_earlier_turns_still_shows_what_follows_one() {
        let source = "\
{%- set ns = namespace(last=0) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
  {{- '<' + m.role + '>' -}}
  {%- if m.role == 'assistant' and loop.index > ns.last -%}{{- '<think></think>' -}}{%- endif -%}
  {{- m.content.split('</think>')[-1] + '</>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<assistant>' -}}{%- endif -%}";
        assert_eq!(after(source, &[("user", "b")]).unwrap(), "</><user>b</><assistant>");
        assert_eq!(after(source, &[("tool", "b")]).unwrap(), "</><tool>b</><assistant>");
    }

    #[test]
    fn templates_that_hide_or_repeat_a_turn_are_refused_with_the_reason() {
        let hiding = "{% for m in messages %}{% if m.role != 'assistant' %}{{ m.content }}{% endif %}{% endfor %}";
        assert!(after(hiding, &[("user", "b")]).unwrap_err().contains("does not write"));
        let twice = "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}";
        assert!(after(twice, &[("user", "b")]).unwrap_err().contains("more than once"));
        let strict = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{{ m.content }}{% endfor %}";
        assert!(after(strict, &[("tool", "b")]).unwrap_err().contains("no tools"));
        // Other messages can't be mistaken for the turn.
        assert_eq!(
            after("{% for m in messages %}[{{ m.content }}]{% endfor %}", &[("user", "\u{F0000}")]).unwrap(),
            "][\u{F0000}]"
        );
    }
}
