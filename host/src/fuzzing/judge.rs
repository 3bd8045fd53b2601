//! Responses of a judge, and responses in a run's record.

use super::server::{self, FuzzAnswers};
use super::{choice, put, refused};
use crate::config::{Grants, HttpLimits};
use crate::plugin::{PluginHttpClient, RequestPolicy};
use std::cell::RefCell;

/// Fuzzes a server's response as sent over the network, or a record of responses.
pub fn judge(input: &[u8]) {
    let Some((which, input)) = choice(input, 2) else { return };
    if which == 0 { answered(input) } else { recorded(input) }
}

fn answered(input: &[u8]) {
    thread_local! {
        static ASKED: RefCell<Option<(PluginHttpClient, String, FuzzAnswers)>> = const { RefCell::new(None) };
    }
    ASKED.with_borrow_mut(|asked| {
        let (asker, url, answers) = asked.get_or_insert_with(|| {
            let (url, answers) = server::start().unwrap_or_else(|e| panic!("no server: {e}"));
            let http = HttpLimits { retries: 0, timeout_s: 5.0, call_timeout_s: 5.0, ..HttpLimits::default() };
            let grants = Grants { hosts: vec![url.clone()], http, ..Grants::default() };
            (PluginHttpClient::new(grants, RequestPolicy::Allowed).unwrap_or_else(|e| panic!("{e}")), url, answers)
        });
        // A redirect gets the same response.
        answers.set(vec![input.to_vec(); 4]);
        match asker.get(&format!("{url}/v1")) {
            Ok((status, bytes)) => assert!((100..1000).contains(&status) && bytes <= 2 << 20, "{status}, {bytes} bytes"),
            Err(reason) => refused(&reason),
        }
    });
}

fn recorded(input: &[u8]) {
    let file = put("answers/judge.jsonl", input);
    let grants = || Grants { http: HttpLimits { max_record_mb: 1, ..HttpLimits::default() }, ..Grants::default() };
    for adopted in [false, true] {
        let asker = PluginHttpClient::new(grants(), RequestPolicy::ReplayOnly).unwrap_or_else(|e| panic!("{e}"));
        let read = if adopted { asker.adopt(&file) } else { asker.read(&file) };
        if let Err(reason) = read {
            refused(&reason);
        }
        // The record has no response to this request, and no server is contacted.
        let _ = asker.get("http://127.0.0.1:1/v1").map(|_| panic!("an answer to a request that nobody made"));
    }
}
