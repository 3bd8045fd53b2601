//! Events of a streamed message.

use super::super::chat::AssistantTurn;
use super::super::choice::CompletionChoice;
use super::super::error::ApiError;
use super::super::typed_events::EventWriter;
use super::blocks::{stop_reason, tool_use, usage};
use serde_json::{Value, json};

/// Writes the events of a message.
pub(super) struct MessagesEventWriter {
    id: String,
    model: String,
    prompt_tokens: usize,
    /// Number of blocks that have been opened.
    blocks: usize,
    /// Whether the last block is a text block that is still open.
    in_text: bool,
}

impl MessagesEventWriter {
    pub(super) fn new(id: String, model: String, prompt_tokens: usize) -> Self {
        Self { id, model, prompt_tokens, blocks: 0, in_text: false }
    }

    fn start(&mut self, block: &Value) -> Value {
        self.blocks += 1;
        json!({"type": "content_block_start", "index": self.blocks - 1, "content_block": block})
    }

    fn delta(&self, delta: &Value) -> Value {
        json!({"type": "content_block_delta", "index": self.blocks - 1, "delta": delta})
    }

    fn stop(&self) -> Value {
        json!({"type": "content_block_stop", "index": self.blocks - 1})
    }
}

impl EventWriter for MessagesEventWriter {
    fn begin(&mut self, choice: &CompletionChoice) -> Vec<Value> {
        vec![json!({"type": "message_start", "message": {
            "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [], "stop_reason": null,
            "stop_sequence": null, "usage": usage(self.prompt_tokens, choice),
        }})]
    }

    fn text(&mut self, text: &str) -> Vec<Value> {
        let mut all = Vec::new();
        if !std::mem::replace(&mut self.in_text, true) {
            all.push(self.start(&json!({"type": "text", "text": ""})));
        }
        all.push(self.delta(&json!({"type": "text_delta", "text": text})));
        all
    }

    fn end(&mut self, choice: &CompletionChoice, turn: AssistantTurn) -> Vec<Value> {
        let mut all = Vec::new();
        if self.in_text {
            all.push(self.stop());
        }
        for call in &turn.calls {
            let mut block = tool_use(call);
            let input = std::mem::replace(&mut block["input"], json!({}));
            all.push(self.start(&block));
            all.push(self.delta(&json!({"type": "input_json_delta", "partial_json": input.to_string()})));
            all.push(self.stop());
        }
        let (reason, sequence) = stop_reason(&turn, choice);
        all.push(json!({
            "type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": usage(self.prompt_tokens, choice), "weight_versions": choice.weight_versions(),
        }));
        all.push(json!({"type": "message_stop"}));
        all
    }

    fn fail(&mut self, error: &ApiError) -> Value {
        error.to_anthropic()
    }
}
