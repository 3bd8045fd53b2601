//! Removes thoughts (reasoning) from a turn, since they contain no calls.

/// Markers around thoughts in the templates of the model families.
const MARKS: [(&str, &str); 8] = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
];

/// Markers between two turns. A thought marker before one of them belongs to an earlier turn, such as a question about `<think>`.
const BETWEEN_TURNS: [&str; 6] = ["<|", "[/INST]", "</s>", "<start_of_turn>", "assistant", "ASSISTANT"];

/// Returns the closing marker of the thought that is open at the end of a prompt, if there is one: a template may open the thought and
/// write its beginning.
fn open_at_the_end(prompt: &str) -> Option<&'static str> {
    let prompt = prompt.trim_end();
    let opened = MARKS.into_iter().filter_map(|(open, close)| Some((prompt.rfind(open.trim_end())?, open.trim_end(), close)));
    let (at, open, close) = opened.max_by_key(|(at, open, _)| (*at, open.len()))?;
    let begun = &prompt[at + open.len()..];
    let is_over = begun.contains(close) || BETWEEN_TURNS.iter().any(|mark| begun.contains(mark));
    (!is_over).then_some(close)
}

/// Returns where the last thought of a text ends; 0 if there is none.
pub(super) fn end(text: &str) -> usize {
    MARKS.into_iter().filter_map(|(_, close)| Some(text.rfind(close)? + close.len())).max().unwrap_or(0)
}

/// Returns a turn's text without its thoughts. An unclosed thought extends to the end of the turn. Between the markers `call`, thought
/// markers belong to a call's arguments and are kept.
pub(super) fn left_out(prompt: &str, turn: &str, call: Option<(&str, &str)>) -> String {
    let (mut text, mut rest) = (String::new(), turn);
    let mut closing = open_at_the_end(prompt);
    loop {
        if let Some(close) = closing.take() {
            let Some((_, after)) = rest.split_once(close) else { return text };
            rest = after;
        }
        let opened = MARKS.into_iter().filter_map(|(open, close)| Some((rest.find(open)?, open, close)));
        let opened = opened.min_by_key(|(at, open, _)| (*at, std::cmp::Reverse(open.len())));
        let calls = call.and_then(|(open, close)| Some((rest.find(open)?, open, close)));
        match (opened, calls) {
            (Some((thought, ..)), Some((at, open, close))) if at < thought => {
                let begun = at + open.len();
                let Some(length) = rest[begun..].find(close) else { return text + rest };
                let (whole, after) = rest.split_at(begun + length + close.len());
                text += whole;
                rest = after;
            }
            (Some((at, open, close)), _) => {
                text += &rest[..at];
                rest = &rest[at + open.len()..];
                closing = Some(close);
            }
            (None, _) => return text + rest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_are_left_out_wherever_they_begin_and_end() {
        let call = Some(("<tool_call>", "</tool_call>"));
        for (prompt, turn, left) in [
            ("", "<think>maybe <tool_call>{1+1}</tool_call></think>42", "42"),
            ("user\nq\nassistant\n<think>\n", "maybe <tool_call>x</tool_call></think>\n42", "\n42"),
            ("<think>\n", "never ends <tool_call>x</tool_call>", ""),
            ("<think>\n\n</think>\n\n", "<tool_call>x</tool_call>", "<tool_call>x</tool_call>"),
            ("<|im_start|>assistant\n<think>\nOkay, ", "so <tool_call>x</tool_call></think>42", "42"),
            ("<think>a</think><think>b", "c</think>d", "d"),
            ("<|start|>assistant<|channel|>analysis<|message|>We", "b<|end|>c", "c"),
            // The marker belongs to an earlier turn.
            ("What is <think>?<|im_end|>\n<|im_start|>assistant\n", "a<tool_call>x</tool_call>", "a<tool_call>x</tool_call>"),
            ("user: <think>\nassistant:", "a</think>b", "a</think>b"),
            ("", "a<think>never ends", "a"),
            ("", "no</think> thought", "no</think> thought"),
            ("", "<think>a</think>b<think>c</think>d", "bd"),
            ("", "<tool_call><think></tool_call>a<think>b</think>", "<tool_call><think></tool_call>a"),
            ("", "<tool_call><think>", "<tool_call><think>"),
            ("", "[THINK]a[/THINK]b", "b"),
            ("", "<|channel|>analysis<|message|>a<|end|>b", "b"),
            ("", "<thinking>a</thinking>b", "b"),
        ] {
            assert_eq!(left_out(prompt, turn, call), left, "{prompt:?} {turn:?}");
        }
    }
}
