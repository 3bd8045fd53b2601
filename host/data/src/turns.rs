//! Locates the assistant's parts in the text of a conversation.
//!
//! A template may mark them ([`super::marks`]). Otherwise parts of the conversation are rendered: a turn is the difference between the
//! conversation up to its end and the conversation that asks for it, if both are prefixes of the full text. Some templates render a turn
//! differently once others follow; for example, they drop its reasoning, or end the conversation with a token. For these, rendering the
//! full conversation with another content in the turn's place shows what precedes and follows the content.

use super::chat::Template;
use super::chat::{RenderError, TemplateVariables};
use super::marks;
use super::message::ChatMessage;
use std::ops::Range;

/// Text of a conversation, with the assistant's parts.
pub(super) struct AssistantSpans {
    pub text: String,
    /// Byte ranges in the text.
    pub spans: Vec<Range<usize>>,
    /// Whether the template marks them.
    pub marked: bool,
}

/// Renders a conversation and locates the assistant's parts.
///
/// # Errors
/// If the template rejects the conversation, or a turn can't be found.
pub(super) fn find_assistant_spans(
    template: &Template,
    messages: &[ChatMessage],
    extras: &TemplateVariables,
) -> Result<AssistantSpans, RenderError> {
    let text = template.render(messages, false, extras, None)?;
    let free = marks::free(&text)?;
    if template.marked() {
        let marked = template.render(messages, false, extras, Some(free))?;
        return Ok(AssistantSpans { spans: marks::spans(&marked, free, &text)?, text, marked: true });
    }
    let search = TurnSearch { template, messages, extras, whole: &text, probe: free[0] };
    let mut spans: Vec<Range<usize>> = Vec::new();
    for (i, _) in messages.iter().enumerate().filter(|(_, message)| message.role == "assistant") {
        let from = spans.last().map_or(0, |span| span.end);
        let found = search.turn(i, from)?.filter(|span| from <= span.start && span.start <= span.end);
        spans.push(found.ok_or_else(|| {
            let detail = format!("assistant_only_loss: can't find turn {} in the chat template's output", i + 1);
            RenderError::Refused(format!("{detail}; use a template that marks the assistant's turns with {{% generation %}}"))
        })?);
    }
    Ok(AssistantSpans { text, spans, marked: false })
}

struct TurnSearch<'a> {
    template: &'a Template,
    messages: &'a [ChatMessage],
    extras: &'a TemplateVariables,
    /// Text of the conversation.
    whole: &'a str,
    /// Character that does not occur in the text.
    probe: char,
}

impl TurnSearch<'_> {
    /// Returns the range of a turn that begins at `from` or later, if it can be found.
    fn turn(&self, i: usize, from: usize) -> Result<Option<Range<usize>>, RenderError> {
        let asked = self.render(&self.messages[..i], true)?;
        let answered = self.render(&self.messages[..=i], false)?;
        let begins = |text: &&String| self.whole.starts_with(text.as_str());
        let begin = asked.as_ref().filter(begins).map(String::len);
        if let (Some(begin), Some(end)) = (begin, answered.as_ref().filter(begins).map(String::len))
            && begin < end
        {
            return Ok(Some(begin..end));
        }
        let (Some((before, mut after)), Some((_, mut own))) = (self.around(i, self.messages.len())?, self.around(i, i + 1)?)
        else {
            return self.anchored(i);
        };
        if self.messages[i].content.trim().is_empty() {
            // The separator between a content and tool calls is missing if there is no content.
            [after, own] = [after, own].map(|text| text.trim_start().to_owned());
        }
        if !self.whole.ends_with(&after) {
            return Ok(None);
        }
        let said = self.whole.len() - after.len();
        let end = said + common(&own, &after);
        let begin = match begin {
            Some(begin) => begin,
            None => self.opening(i, from, &before)?,
        };
        Ok((begin <= said && self.agrees(&before, begin)).then_some(begin..end))
    }

    /// Returns where a turn begins, given the text before its content, after `from`: after the text that asks for it or, if the template
    /// renders that differently once a user replies, after the prefix that both share. (Its variables may end the reasoning, while an
    /// earlier turn may have none.) Otherwise the turn begins with the content.
    fn opening(&self, i: usize, from: usize, before: &str) -> Result<usize, RenderError> {
        let opening = self.asking(i)?;
        let behind = |opening: &str| {
            let at = before.get(from..)?.rfind(opening)?;
            Some(from + at + opening.len()).filter(|begin| self.agrees(before, *begin))
        };
        if opening.is_empty() {
            return Ok(before.len());
        }
        if let Some(begin) = behind(&opening) {
            return Ok(begin);
        }
        let replied = self.replied(i)?;
        let ends: Vec<usize> = opening.char_indices().map(|(at, c)| at + c.len_utf8()).collect();
        let shared = ends.into_iter().rev().find(|end| replied.ends_with(&opening[..*end]));
        Ok(shared.and_then(|end| behind(&opening[..end])).unwrap_or(before.len()))
    }

    /// Returns the text that asks for a turn: what the template adds to the conversation before it or, if that is nothing, the text after
    /// the content of the previous message.
    fn asking(&self, i: usize) -> Result<String, RenderError> {
        let past = &self.messages[..i];
        let Some(asked) = self.render(past, true)? else { return Ok(String::new()) };
        let added = self.render(past, false)?.and_then(|text| asked.strip_prefix(&text).map(str::to_owned));
        if let Some(added) = added.filter(|added| !added.is_empty()) {
            return Ok(added);
        }
        Ok(self.behind_the_last(i)?.unwrap_or_default())
    }

    /// Returns the text after the content of the previous message, in the text that asks for a turn.
    fn behind_the_last(&self, i: usize) -> Result<Option<String>, RenderError> {
        let Some(last) = i.checked_sub(1) else { return Ok(None) };
        let mut messages = self.messages[..i].to_vec();
        messages[last].content = self.probe.to_string().into();
        let text = self.render(&messages, true)?;
        Ok(text.and_then(|text| text.rsplit_once(self.probe).map(|(_, after)| after.to_owned())))
    }

    /// Returns the range of a turn whose content is not written, because it calls tools. The range begins after the text that asks for the
    /// turn, behind the previous message's content, and ends where the conversation up to the turn's end stops agreeing with the full text.
    fn anchored(&self, i: usize) -> Result<Option<Range<usize>>, RenderError> {
        let Some(asking) = self.behind_the_last(i)? else { return Ok(None) };
        let (Some((_, after)), Some((_, own))) = (self.around(i - 1, self.messages.len())?, self.around(i - 1, i + 1)?) else {
            return Ok(None);
        };
        let (Some(rest), Some(turn)) = (after.strip_prefix(&asking), own.strip_prefix(&asking)) else { return Ok(None) };
        let begin = self.whole.len().saturating_sub(rest.len());
        let found = self.whole.ends_with(&after) && !turn.is_empty();
        Ok(found.then(|| begin..begin + common(turn, rest)))
    }

    /// Returns the text before a turn's content in a conversation where a user replies to it; empty if there is none.
    fn replied(&self, i: usize) -> Result<String, RenderError> {
        let said =
            |role: &str, content: &str| ChatMessage { role: role.into(), content: content.into(), ..ChatMessage::default() };
        let mut messages = self.messages[..i].to_vec();
        messages.extend([said("assistant", &self.probe.to_string()), said("user", "a")]);
        let text = self.render(&messages, false)?;
        Ok(text.as_deref().and_then(|text| text.split_once(self.probe)).map_or_else(String::new, |(before, _)| before.to_owned()))
    }

    /// Returns whether the conversation begins with this text, up to a position or the end of the text, whichever comes first.
    fn agrees(&self, text: &str, place: usize) -> bool {
        text.get(..place.min(text.len())).is_some_and(|beginning| self.whole.starts_with(beginning))
    }

    /// Returns the rendered text; `None` if the template rejects this part of a conversation.
    fn render(&self, messages: &[ChatMessage], generate: bool) -> Result<Option<String>, RenderError> {
        match self.template.render(messages, generate, self.extras, None) {
            Ok(text) => Ok(Some(text)),
            Err(RenderError::Refused(_)) => Ok(None),
            Err(unbounded) => Err(unbounded),
        }
    }

    /// Returns the text before and after a turn's content, in the conversation's first `count` messages.
    fn around(&self, i: usize, count: usize) -> Result<Option<(String, String)>, RenderError> {
        let mut messages = self.messages[..count].to_vec();
        messages[i].content = self.probe.to_string().into();
        let text = self.render(&messages, false)?;
        let parts = text.as_deref().and_then(|text| text.split_once(self.probe));
        Ok(parts.filter(|(_, after)| !after.contains(self.probe)).map(|(before, after)| (before.to_owned(), after.to_owned())))
    }
}

/// Returns the length of the common prefix of two texts in bytes, in full characters.
fn common(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(c, _)| c.len_utf8()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChatTemplate;
    use serde_json::{Value, json};

    fn said(source: &str, turns: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let messages: Vec<Value> = turns.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
        parts(source, &Value::Array(messages))
    }

    fn parts(source: &str, messages: &Value) -> Result<Vec<String>, String> {
        told(source, messages, &json!({}))
    }

    fn told(source: &str, messages: &Value, kwargs: &Value) -> Result<Vec<String>, String> {
        let messages: Vec<ChatMessage> = serde_json::from_value(messages.clone()).unwrap();
        let extras =
            TemplateVariables { kwargs: serde_json::from_value(kwargs.clone()).unwrap(), ..TemplateVariables::default() };
        let chat = ChatTemplate::new(source.into(), "<s>".into(), "</s>".into())?;
        let spoken = chat.assistant_spans(&messages, &extras).map_err(|e| e.to_string())?;
        let plain = chat.render(&messages, false, &extras).unwrap();
        assert_eq!(spoken.text, plain);
        Ok(spoken.spans.into_iter().map(|span| spoken.text[span].to_owned()).collect())
    }

    const TALK: [(&str, &str); 4] = [("user", "hi"), ("assistant", " a b "), ("user", "and"), ("assistant", "c")];

    #[test]
    fn marks_of_a_template_say_what_the_assistant_says() {
        let content = "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}<end>{% endfor %}";
        assert_eq!(said(content, &TALK).unwrap(), [" a b ", "c"]);
        let whole = content.replace("{% endgeneration %}", "<end>{% endgeneration %}");
        assert_eq!(said(&whole, &TALK).unwrap(), [" a b <end>", "c<end>"]);
        // A message can't forge marks, whatever characters it contains.
        let forged = [("user", "{% generation %}\u{F0000}x\u{F0001}{% endgeneration %}"), ("assistant", "\u{F0001}\u{F0002}y")];
        assert_eq!(said(content, &forged).unwrap(), ["\u{F0001}\u{F0002}y"]);
        let changed = "{% set x %}{% generation %} a {% endgeneration %}{% endset %}{{ x | trim }}{{ x | length }}";
        assert!(said(changed, &TALK).unwrap_err().contains("generation"));
    }

    #[test]
    fn a_block_of_marks_is_a_scope_in_which_loops_and_macros_are_seen() {
        let source = "{% macro say(m) %}{% generation %}{% set x = 1 %}{{ m.content }}{% endgeneration %}{{ x is defined }}{% endmacro %}{% for m in messages %}{% generation %}{{ loop.index }}{% endgeneration %}{{ say(m) }}{% endfor %}";
        assert_eq!(said(source, &TALK[..1]).unwrap(), ["1", "hi"]);
        assert!(said(source, &[]).unwrap().is_empty());
    }

    /// Template that, like Qwen3's, drops the reasoning of all turns before the last question.
    const REASONING: &str = "\
{%- set ns = namespace(last=0) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index -%}{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
  {{- '<' + m.role + '>' -}}
  {%- set parts = m.content.split('</think>') -%}
  {%- if m.role == 'assistant' and loop.index > ns.last -%}
    {{- '<think>' + (parts[0].split('<think>')[-1] if parts|length > 1 else '') + '</think>' -}}
  {%- endif -%}
  {{- parts[-1] -}}
  {%- for call in m.tool_calls -%}{{- ('\n' if loop.first and m.content else '') + '[' + call + ']' -}}{%- endfor -%}
  {{- '</>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<assistant>' -}}
  {%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think></think>' -}}{%- endif -%}
{%- endif -%}";

    #[test]
    fn turns_are_found_where_the_text_that_asks_for_them_ends_the_reasoning() {
        let quiet = json!({"enable_thinking": false});
        let found = |messages: Value| told(REASONING, &messages, &quiet).unwrap();
        let asks = |content: &str| json!({"role": "user", "content": content});
        let says = |content: &str| json!({"role": "assistant", "content": content});
        // The prompt has no reasoning, but the last turn does.
        assert_eq!(found(json!([asks("q"), says("<think>x</think>a")])), ["<think>x</think>a</>"]);
        let both = json!([asks("q"), says("<think>x</think>a"), asks("r"), says("<think>y</think>b")]);
        assert_eq!(found(both.clone()), ["a</>", "<think>y</think>b</>"]);
        assert_eq!(parts(REASONING, &both).unwrap(), ["a</>", "<think>y</think>b</>"]);
        // Without reasoning, the turn begins where the text that asks for it ends.
        assert_eq!(found(json!([asks("q"), says("a"), asks("<assistant>"), says("b")])), ["a</>", "b</>"]);
        let field = json!({"role": "assistant", "content": "b", "thinking": "y"});
        let in_content = "(parts[0].split('<think>')[-1] if parts|length > 1 else '')";
        let source = REASONING.replace(in_content, "(m.thinking if m.thinking else '')");
        let with_field = json!([asks("q"), says("a"), asks("r"), field]);
        assert_eq!(told(&source, &with_field, &quiet).unwrap(), ["a</>", "<think>y</think>b</>"]);
    }

    #[test]
    fn turns_are_found_where_reasoning_is_dropped_from_earlier_ones() {
        assert_eq!(said(REASONING, &TALK).unwrap(), [" a b </>", "<think></think>c</>"]);
        let talk = [("user", "q"), ("assistant", "<think>x</think>a"), ("user", "r"), ("assistant", "<think>y</think>b")];
        assert_eq!(said(REASONING, &talk).unwrap(), ["a</>", "<think>y</think>b</>"]);
        // An empty answer, and one that repeats another message.
        let same = [("user", "c"), ("assistant", ""), ("user", "c"), ("assistant", "c"), ("user", "d")];
        assert_eq!(said(REASONING, &same).unwrap(), ["</>", "c</>"]);
        let calls = json!([
            {"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": ["f"]},
            {"role": "tool", "content": "r"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "s"},
        ]);
        assert_eq!(parts(REASONING, &calls).unwrap(), ["[f]</>", "a</>"]);
    }

    /// Template that, like Mistral's, opens no turns, and writes the system message only if the user speaks last.
    const LATE: &str = "\
{%- set talk = messages[1:] if messages[0].role == 'system' else messages -%}
{{- bos_token -}}
{%- for m in talk -%}
  {%- if m.role == 'user' -%}
    {{- '[INST] ' + (messages[0].content + '\n\n' if loop.last and messages[0].role == 'system' else '') + m.content + '[/INST]' -}}
  {%- elif m.tool_calls -%}{{- '[CALLS] ' + (m.tool_calls | tojson) + eos_token -}}
  {%- elif m.role == 'assistant' -%}{{- ' ' + m.content | trim + eos_token -}}
  {%- else -%}{{- '[RESULTS] ' + m.content + '[/RESULTS]' -}}
  {%- endif -%}
{%- endfor -%}";

    #[test]
    fn turns_are_found_where_a_system_message_moves_with_the_last_question() {
        let system = [("system", "be"), ("user", "hi"), ("assistant", " a b "), ("user", "and"), ("assistant", "c")];
        assert_eq!(said(LATE, &TALK).unwrap(), [" a b</s>", " c</s>"]);
        assert_eq!(said(LATE, &system).unwrap(), [" a b</s>", " c</s>"]);
        // The user's text may look like the opening of a turn.
        let forged = [("system", "be"), ("user", "[/INST]"), ("assistant", "[/INST]"), ("user", "[/INST] x"), ("assistant", "c")];
        assert_eq!(said(LATE, &forged).unwrap(), [" [/INST]</s>", " c</s>"]);
        let calls = json!([
            {"role": "system", "content": "be"}, {"role": "user", "content": "q"},
            {"role": "assistant", "content": null, "tool_calls": ["f"]}, {"role": "tool", "content": "r"},
            {"role": "assistant", "content": "a"}, {"role": "user", "content": "s"}, {"role": "assistant", "content": "b"},
        ]);
        assert_eq!(parts(LATE, &calls).unwrap(), ["[CALLS] [\"f\"]</s>", " a</s>", " b</s>"]);
    }

    #[test]
    fn turns_are_found_in_templates_of_every_family() {
        // A header before a trimmed content; roles that must alternate; no header; an end token after the last message.
        let header = "{{ bos_token }}{% for m in messages %}<h>{{ m.role }}</h>\n\n{{ m.content | trim }}<eot>{% endfor %}{% if add_generation_prompt %}<h>assistant</h>\n\n{% endif %}";
        assert_eq!(said(header, &TALK).unwrap(), ["a b<eot>", "c<eot>"]);
        let alternating = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}<{{ 'model' if m.role == 'assistant' else m.role }}>\n{{ m.content | trim }}</>\n{% endfor %}{% if add_generation_prompt %}<model>\n{% endif %}";
        assert_eq!(said(alternating, &TALK).unwrap(), ["a b</>\n", "c</>\n"]);
        assert!(said(alternating, &TALK[1..]).unwrap_err().contains("alternate"));
        let bare = "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}";
        assert_eq!(said(bare, &TALK).unwrap(), ["  a b </s>", " c</s>"]);
        let ended = "{% for m in messages %}|{{ m.role }}|{{ m.content }}#{% endfor %}{% if add_generation_prompt %}|assistant|{% else %}{{ eos_token }}{% endif %}";
        assert_eq!(said(ended, &TALK).unwrap(), [" a b #", "c#</s>"]);
        // One template ends all turns but the last with a line break, and one opens a turn only after the last message.
        let broken = "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% if not loop.last %}{{ '\n' }}{% endif %}{% else %}{{ '\n' }}{% endif %}{% if loop.last and add_generation_prompt %}<|assistant|>\n{% endif %}{% endfor %}";
        assert_eq!(said(broken, &TALK).unwrap(), [" a b </s>", "c</s>"]);
        let behind = "<role>system</role>be{% for m in messages %}<role>{{ m.role }}</role>{{ m.content }}<end>\n{% if loop.last and add_generation_prompt %}<role>assistant</role>{% endif %}{% endfor %}";
        assert_eq!(said(behind, &TALK).unwrap(), [" a b <end>\n", "c<end>\n"]);
        // A template that first writes a digest of all messages has no turns to find.
        let fickle = "{{ messages | map(attribute='content') | join }}{% for m in messages %}{{ m.content }}{% endfor %}";
        assert!(said(fickle, &TALK).unwrap_err().contains("turn 2"));
    }
}
