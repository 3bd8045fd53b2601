//! Untrusted text of an episode, written by the model and by an environment.

use super::{parts, refused};
use crate::data::calls_in;
use crate::plugin::{Message, Tool, check_answers, tool_calls};
use serde_json::Value;

/// Fuzzes an episode: a turn of the model; a reward; roles, names and contents of an environment's messages in turn; `=`, and a tool's name
/// and parameters.
pub fn episode(input: &[u8]) {
    let mut all = parts(input).map(|part| String::from_utf8_lossy(part).into_owned());
    let found = calls_in(&all.next().unwrap_or_default());
    assert!(found.len() <= 3 * 64, "{} calls", found.len());
    let ids: Vec<String> = tool_calls(usize::MAX / 200, &found).into_iter().map(|call| call.id).collect();
    assert!(ids.iter().all(|id| id.len() == 9), "{ids:?}");
    let reward = all.next().and_then(|text| text.parse().ok());
    let texts: Vec<String> = all.by_ref().take_while(|text| text != "=").collect();
    let message = |part: &[String]| Message {
        role: part[0].clone(),
        content: part.get(2).cloned().unwrap_or_default(),
        name: part.get(1).cloned().filter(|name| !name.is_empty()),
        tool_call_id: None,
    };
    let tools = match (all.next(), all.next()) {
        (Some(name), Some(parameters)) => vec![Tool { name, description: String::new(), parameters }],
        _ => Vec::new(),
    };
    let parameters = tools.first().map(|tool| tool.parameters.clone());
    let [reply, opening] = check_answers(texts.chunks(3).map(message).collect(), tools, reward);
    if let (Ok(()), Some(parameters)) = (&opening, parameters) {
        assert!(serde_json::from_str::<Value>(&parameters).is_ok_and(|schema| schema.is_object()), "{parameters}");
    }
    for error in [reply, opening].into_iter().filter_map(Result::err) {
        // Sessions shorten and escape the error in this way.
        refused(&crate::config::printable(&error, 2048));
    }
}
