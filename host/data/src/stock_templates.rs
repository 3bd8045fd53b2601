//! Stock chat templates that TRL replaces for `assistant_only_loss`: TRL's variants write the reasoning of every turn, where the originals
//! drop that of earlier turns, and mark the assistant's text.
//!
//! Templates are recognized by their hash, so the edits below apply exactly. Other stock templates need no edits: the search for turns
//! ([`super::turns`]) finds the text that TRL's variant marks.

use crate::config::hex;
use sha2::{Digest, Sha256};

/// Stock template, and the edits that turn it into TRL's variant.
struct StockTemplate {
    name: &'static str,
    /// SHA-256 of the template.
    hash: &'static str,
    edits: &'static [TemplateEdit],
}

/// Replacement of all occurrences of a text.
type TemplateEdit = (&'static str, &'static str);

/// Qwen's header followed by the mark, before the choice between a turn with reasoning and one without.
macro_rules! opened {
    () => {
        "{{- '<|im_start|>' + message.role + '\\n' }}{%- generation %}{%- if true %}"
    };
}

/// The end of Qwen's assistant turns.
const CLOSED: TemplateEdit = (
    "{{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\" %}",
    "{{- '<|im_end|>\\n' }}{%- endgeneration %}\n    {%- elif message.role == \"tool\" %}",
);

/// Qwen's header before reasoning, which is now written before the choice.
const REASONED: TemplateEdit = ("'<|im_start|>' + message.role + '\\n<think>\\n' +", "'<think>\\n' +");

const QWEN_3_5: &[TemplateEdit] = &[("{%- if loop.index0 > ns.last_query_index %}", opened!()), REASONED, CLOSED];

const STOCKS: [StockTemplate; 7] = [
    StockTemplate {
        name: "DeepSeek-R1-Distill",
        hash: "56a1447ad31926fdc21fb07e56e5642bd9c850c4f52d8c8af7bbe5f079a84f5f",
        edits: &[
            ("{%- for tool in message['tool_calls']%}", "{%- generation %}{%- for tool in message['tool_calls']%}"),
            (
                "{%- endfor %}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}",
                "{%- endfor %}{%- endgeneration %}{%- endif %}{%- if message['role'] == 'assistant' and message['content'] is not none %}",
            ),
            (
                "{%- if ns.is_tool %}{{'<｜tool▁outputs▁end｜>' + ",
                "{%- generation %}{%- if ns.is_tool %}{{'<｜tool▁outputs▁end｜>' + ",
            ),
            ("{% if '</think>' in content %}", "{% if false %}"),
            (
                "{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}",
                "{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endgeneration %}",
            ),
        ],
    },
    StockTemplate {
        name: "Qwen2.5",
        hash: "cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f",
        edits: &[
            // The branch for tool calls writes all turns of the assistant.
            (" or (message.role == \"assistant\" and not message.tool_calls) %}", " %}"),
            ("{{- '<|im_start|>' + message.role }}", "{{- '<|im_start|>' + message.role }}{%- generation %}"),
            ("{%- if message.content %}", "{%- if message.content or not message.tool_calls %}"),
            CLOSED,
        ],
    },
    StockTemplate {
        name: "Qwen3",
        hash: "a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8",
        edits: &[
            ("{%- if loop.index0 > ns.last_query_index %}", opened!()),
            ("{%- if loop.last or (not loop.last and reasoning_content) %}", "{%- if true %}"),
            REASONED,
            CLOSED,
        ],
    },
    StockTemplate { name: "Qwen3.5", hash: "a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715", edits: QWEN_3_5 },
    StockTemplate {
        name: "Qwen3.5 without thinking",
        hash: "273d8e0e683b885071fb17e08d71e5f2a5ddfb5309756181681de4f5a1822d80",
        edits: QWEN_3_5,
    },
    StockTemplate {
        name: "Qwen3.6",
        hash: "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259",
        edits: &[
            (
                "{%- if (preserve_thinking is defined and preserve_thinking is true) or (loop.index0 > ns.last_query_index) %}",
                opened!(),
            ),
            REASONED,
            CLOSED,
        ],
    },
    StockTemplate {
        name: "Qwen3.8",
        hash: "c3cf9e34abf4f9e36c2d72165aa9c132d3e2a725b6c2586aaa3a8af9d7a81041",
        edits: &[
            (
                "{%- if preserve_thinking is undefined or preserve_thinking is true or loop.index0 > ns.last_query_index %}",
                opened!(),
            ),
            REASONED,
            CLOSED,
        ],
    },
];

/// Returns TRL's variant of a stock template, and the template's name; `None` if there is no variant, or the template is unknown.
pub(super) fn variant(source: &str) -> Option<(&'static str, String)> {
    let hash = hex(&Sha256::digest(source));
    let stock = STOCKS.iter().find(|stock| stock.hash == hash)?;
    Some((stock.name, edited(source, stock.edits)))
}

fn edited(source: &str, edits: &[TemplateEdit]) -> String {
    edits.iter().fold(source.to_owned(), |source, (part, other)| source.replace(part, other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChatMessage, ChatTemplate, TemplateVariables};
    use serde_json::{Value, json};

    /// Returns the output of a template's variant, with brackets around the marked text.
    fn marked(name: &str, source: &str, messages: &Value) -> String {
        let stock = STOCKS.iter().find(|stock| stock.name == name).unwrap();
        for (part, _) in stock.edits {
            assert!(source.contains(part), "{part}");
        }
        let messages: Vec<ChatMessage> = serde_json::from_value(messages.clone()).unwrap();
        let chat = ChatTemplate::new(edited(source, stock.edits), String::new(), String::new()).unwrap();
        let spoken = chat.assistant_spans(&messages, &TemplateVariables::default()).unwrap();
        assert!(spoken.marked);
        let mut text = spoken.text;
        for span in spoken.spans.into_iter().rev() {
            text.insert(span.end, ']');
            text.insert(span.start, '[');
        }
        text
    }

    fn talk() -> Value {
        let call = json!([{"function": {"name": "f", "arguments": {"x": 1}}}]);
        json!([
            {"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>\nx\n</think>\n\na"},
            {"role": "user", "content": "r"}, {"role": "assistant", "content": "b", "tool_calls": call},
            {"role": "tool", "content": "1"}, {"role": "assistant", "content": ""},
        ])
    }

    /// Parts of a template like Qwen3's that the edits apply to.
    const QWEN_3: &str = r#"
{%- set ns = namespace(last_query_index=2) %}
{%- for message in messages %}
    {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
    {%- set reasoning_content = message.content.split('</think>')[0].split('<think>')[-1].strip('\n') if '</think>' in message.content else '' %}
    {%- if message.role == "user" %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content + '\n</think>\n\n' + content }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {{- '(' + tool_call.function.name + ')' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>tool\n' + content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}"#;

    const QWEN_3_MARKED: &str = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n[<think>\nx\n</think>\n\na<|im_end|>\n]\
        <|im_start|>user\nr<|im_end|>\n<|im_start|>assistant\n[<think>\n\n</think>\n\nb(f)<|im_end|>\n]\
        <|im_start|>tool\n1<|im_end|>\n<|im_start|>assistant\n[<think>\n\n</think>\n\n<|im_end|>\n]";

    #[test]
    fn qwens_variants_keep_the_reasoning_of_every_turn() {
        assert_eq!(marked("Qwen3", QWEN_3, &talk()), QWEN_3_MARKED);
        // Later templates differ in when a turn has reasoning.
        let chosen = "            {%- if loop.last or (not loop.last and reasoning_content) %}\n";
        let flat = QWEN_3.replace(chosen, "").replacen("            {%- else %}\n    ", "{#-", 1).replacen(
            "            {%- endif %}\n",
            "-#}",
            1,
        );
        assert_eq!(marked("Qwen3.5", &flat, &talk()), QWEN_3_MARKED);
        for name in ["Qwen3.6", "Qwen3.8"] {
            let stock = STOCKS.iter().find(|stock| stock.name == name).unwrap();
            let source = flat.replace(QWEN_3_5[0].0, stock.edits[0].0);
            assert_eq!(marked(name, &source, &talk()), QWEN_3_MARKED);
        }
    }

    #[test]
    fn qwen_2_5s_variant_marks_the_line_break_behind_the_header_too() {
        let source = r#"
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}
            {{- '\n' + message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {{- '\n(' + tool_call.function.name + ')' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>tool\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}"#;
        let wanted = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant[\n<think>\nx\n</think>\n\na<|im_end|>\n]\
            <|im_start|>user\nr<|im_end|>\n<|im_start|>assistant[\nb\n(f)<|im_end|>\n]\
            <|im_start|>tool\n1<|im_end|>\n<|im_start|>assistant[\n<|im_end|>\n]";
        assert_eq!(marked("Qwen2.5", source, &talk()), wanted);
    }

    #[test]
    fn deepseeks_variant_keeps_the_reasoning_and_marks_the_header() {
        let source = "{% set ns = namespace(is_tool=false) %}{%- for message in messages %}\
            {%- if message['role'] == 'user' %}{{'<｜User｜>' + message['content']}}{%- endif %}\
            {%- if message['role'] == 'assistant' and message['content'] is none %}{%- for tool in message['tool_calls']%}{{ tool }}{%- endfor %}{%- endif %}\
            {%- if message['role'] == 'assistant' and message['content'] is not none %}\
            {%- if ns.is_tool %}{{'<｜tool▁outputs▁end｜>' + message['content'] + '<｜end▁of▁sentence｜>'}}{%- set ns.is_tool = false -%}{%- else %}\
            {% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}\
            {{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endif %}\
            {%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{{'(' + message['content'] + ')'}}{%- endif %}{%- endfor -%}";
        let wanted = "<｜User｜>q[<｜Assistant｜><think>\nx\n</think>\n\na<｜end▁of▁sentence｜>]\
            <｜User｜>r[<｜Assistant｜>b<｜end▁of▁sentence｜>](1)[<｜tool▁outputs▁end｜><｜end▁of▁sentence｜>]";
        assert_eq!(marked("DeepSeek-R1-Distill", source, &talk()), wanted);
    }

    #[test]
    fn other_templates_have_no_variant() {
        assert!(variant(QWEN_3).is_none());
        assert!(STOCKS.iter().all(|stock| stock.hash.len() == 64 && stock.hash.chars().all(|c| c.is_ascii_hexdigit())));
    }
}
