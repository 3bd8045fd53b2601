//! Events of a streamed response.

use super::super::chat::AssistantTurn;
use super::super::choice::CompletionChoice;
use super::super::error::ApiError;
use super::super::typed_events::EventWriter;
use super::object::{ResponseHead, function_call, part, status, writes_message};
use serde_json::{Value, json};

/// Writes the events of a response.
pub(super) struct ResponsesEventWriter {
    head: ResponseHead,
    /// Text so far; `None` before it begins.
    text: Option<String>,
    /// Sequence number of the next event.
    sequence: u64,
}

impl ResponsesEventWriter {
    pub(super) fn new(head: ResponseHead) -> Self {
        Self { head, text: None, sequence: 0 }
    }

    /// Adds sequence numbers to events.
    fn numbered(&mut self, mut events: Vec<Value>) -> Vec<Value> {
        for event in &mut events {
            event["sequence_number"] = self.sequence.into();
            self.sequence += 1;
        }
        events
    }

    /// Returns the events that begin the text, unless it has begun.
    fn start_text(&mut self) -> Vec<Value> {
        if self.text.is_some() {
            return Vec::new();
        }
        self.text = Some(String::new());
        let id = self.head.message_id();
        vec![
            json!({"type": "response.output_item.added", "output_index": 0, "item": self.head.message("", "in_progress")}),
            json!({"type": "response.content_part.added", "item_id": id, "output_index": 0, "content_index": 0, "part": part("")}),
        ]
    }

    /// Returns the events that end the text.
    fn end_text(&self, turn: &AssistantTurn) -> Vec<Value> {
        let (id, text) = (self.head.message_id(), self.text.as_deref().unwrap_or_default());
        let place = |kind: &str| json!({"type": kind, "item_id": id, "output_index": 0, "content_index": 0});
        let (mut text_done, mut part_done) = (place("response.output_text.done"), place("response.content_part.done"));
        (text_done["text"], text_done["logprobs"]) = (text.into(), json!([]));
        part_done["part"] = part(text);
        let item = self.head.message(text, status(turn));
        vec![text_done, part_done, json!({"type": "response.output_item.done", "output_index": 0, "item": item})]
    }
}

/// Returns the events of a tool call.
fn call_events(call: &Value, index: usize) -> Vec<Value> {
    let (done, mut begun) = (function_call(call, "completed"), function_call(call, "in_progress"));
    begun["arguments"] = "".into();
    let (id, arguments) = (&done["id"], &done["arguments"]);
    vec![
        json!({"type": "response.output_item.added", "output_index": index, "item": begun}),
        json!({"type": "response.function_call_arguments.delta", "item_id": id, "output_index": index, "delta": arguments}),
        json!({
            "type": "response.function_call_arguments.done", "item_id": id, "output_index": index, "name": done["name"],
            "arguments": arguments,
        }),
        json!({"type": "response.output_item.done", "output_index": index, "item": done}),
    ]
}

impl EventWriter for ResponsesEventWriter {
    fn begin(&mut self, _: &CompletionChoice) -> Vec<Value> {
        let response = self.head.begun();
        let events = ["response.created", "response.in_progress"].map(|kind| json!({"type": kind, "response": response}));
        self.numbered(events.into())
    }

    fn text(&mut self, text: &str) -> Vec<Value> {
        let mut events = self.start_text();
        self.text.get_or_insert_default().push_str(text);
        events.push(json!({
            "type": "response.output_text.delta", "item_id": self.head.message_id(), "output_index": 0, "content_index": 0,
            "delta": text, "logprobs": [],
        }));
        self.numbered(events)
    }

    fn end(&mut self, choice: &CompletionChoice, turn: AssistantTurn) -> Vec<Value> {
        let mut events = if writes_message(&turn) { self.start_text() } else { Vec::new() };
        let first_call = usize::from(self.text.is_some());
        if self.text.is_some() {
            events.extend(self.end_text(&turn));
        }
        events.extend(turn.calls.iter().zip(first_call..).flat_map(|(call, index)| call_events(call, index)));
        let kind = format!("response.{}", status(&turn));
        events.push(json!({"type": kind, "response": self.head.ended(&turn, choice)}));
        self.numbered(events)
    }

    fn fail(&mut self, error: &ApiError) -> Value {
        let event = json!({"type": "error", "code": "server_error", "message": error.message(), "param": null});
        self.numbered(vec![event]).remove(0)
    }
}
