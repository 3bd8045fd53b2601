//! A server with SGLang's routes, strict about the fields of requests, in front of `rlhost serve`, which computes.
//!
//! Fields and forms are those of SGLang 0.5.23: `GenerateReqInput`, `SamplingParams`, `UpdateWeightFromDiskReqInput` and
//! `LoadLoRAAdapterReqInput` in `sglang/srt`, and the answers that `entrypoints/http_server.py` and `managers/tokenizer_manager.py` make.

use crate::server::{ServerProcess, TestHttpRequest};
use serde_json::{Value, json};
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Fields of a request for completions that are used, of those that SGLang has.
const GENERATE: [&str; 6] = ["input_ids", "sampling_params", "return_logprob", "extra_key", "stream", "lora_path"];

/// Sampling parameters that are used, of those that SGLang has.
const SAMPLING: [&str; 12] = [
    "max_new_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "ignore_eos",
    "stop_token_ids",
    "stop",
    "no_stop_trim",
    "skip_special_tokens",
    "sampling_seed",
];

/// A server that speaks SGLang's protocol.
pub struct SglangFacade {
    inner: ServerProcess,
    /// SGLang's name of the weights, which a client sets.
    version: Mutex<String>,
    /// Paths of requests, in order.
    requested: Mutex<Vec<String>>,
}

impl SglangFacade {
    /// Starts the server in front of another, and returns it with its URL.
    ///
    /// # Panics
    /// If it can't listen.
    #[must_use]
    pub fn start(inner: ServerProcess) -> (Arc<Self>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let facade = Arc::new(Self { inner, version: Mutex::new("default".to_owned()), requested: Mutex::default() });
        let served = Arc::clone(&facade);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let served = Arc::clone(&served);
                std::thread::spawn(move || served.answer(stream));
            }
        });
        (facade, url)
    }

    /// The server that computes.
    #[must_use]
    pub fn inner(&self) -> &ServerProcess {
        &self.inner
    }

    /// Returns how many requests a path got.
    ///
    /// # Panics
    /// If a request panicked.
    #[must_use]
    pub fn requests(&self, path: &str) -> usize {
        self.requested.lock().expect("no panic").iter().filter(|requested| *requested == path).count()
    }

    fn answer(&self, mut stream: TcpStream) {
        let Ok(clone) = stream.try_clone() else { return };
        let mut reader = BufReader::new(clone);
        while let Some(TestHttpRequest { path, body, .. }) = TestHttpRequest::read(&mut reader) {
            self.requested.lock().expect("no panic").push(path.clone());
            let (status, answer) = self.route(&path, &serde_json::from_slice(&body).unwrap_or_default());
            let text = answer.to_string();
            let head = format!("HTTP/1.1 {status} .\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", text.len());
            if stream.write_all((head + &text).as_bytes()).is_err() {
                return;
            }
        }
    }

    fn route(&self, path: &str, body: &Value) -> (u16, Value) {
        match path {
            "/health" => (self.inner.get("/health").status, Value::Null),
            "/v1/models" => {
                let mut models = self.inner.get("/v1/models").json();
                for model in models["data"].as_array_mut().expect("models") {
                    model["owned_by"] = "sglang".into();
                }
                (200, models)
            }
            "/model_info" => (200, json!({"weight_version": *self.version.lock().expect("no panic")})),
            "/generate" => self.generate(body),
            "/load_lora_adapter" => self.adapter("/v1/load_lora_adapter", body, &["lora_name", "lora_path"]),
            "/unload_lora_adapter" => self.adapter("/v1/unload_lora_adapter", body, &["lora_name"]),
            "/update_weights_from_disk" => self.update(body),
            _ => (404, json!({"detail": "Not Found"})),
        }
    }

    fn adapter(&self, path: &str, body: &Value, fields: &[&str]) -> (u16, Value) {
        if let Some(refusal) = foreign_field(body, fields) {
            return refusal;
        }
        let answer = self.inner.post(path, body);
        let success = answer.status == 200;
        (if success { 200 } else { 400 }, json!({"success": success, "error_message": answer.body}))
    }

    fn update(&self, body: &Value) -> (u16, Value) {
        if let Some(refusal) = foreign_field(body, &["model_path", "weight_version", "flush_cache"]) {
            return refusal;
        }
        let _ = self.inner.post("/pause?mode=wait", &json!({}));
        let reload = json!({"method": "reload_weights", "kwargs": {"weights_path": body["model_path"]}});
        let success = self.inner.post("/collective_rpc", &reload).status == 200;
        let _ = self.inner.post("/reset_prefix_cache", &json!({}));
        let _ = self.inner.post("/resume", &json!({}));
        if success && let Some(version) = body["weight_version"].as_str() {
            version.clone_into(&mut self.version.lock().expect("no panic"));
        }
        (if success { 200 } else { 400 }, json!({"success": success, "message": "", "num_paused_requests": 0}))
    }

    fn generate(&self, body: &Value) -> (u16, Value) {
        if let Some(refusal) = foreign_field(body, &GENERATE) {
            return refusal;
        }
        let (prompts, sampling) = (body["input_ids"].as_array(), body["sampling_params"].as_array());
        let (Some(prompts), Some(sampling)) = (prompts, sampling) else {
            return (400, json!({"error": {"message": "a batch has lists"}}));
        };
        let mut all = Vec::new();
        for (prompt, parameters) in prompts.iter().zip(sampling) {
            if let Some(refusal) = foreign_field(parameters, &SAMPLING) {
                return refusal;
            }
            let mut request = parameters.clone();
            let fields = request.as_object_mut().expect("an object");
            let seed = fields.remove("sampling_seed");
            fields.remove("no_stop_trim");
            let most = fields.remove("max_new_tokens");
            for (name, value) in [("max_tokens", most), ("seed", seed), ("prompt", Some(prompt.clone()))] {
                fields.insert(name.to_owned(), value.unwrap_or_default());
            }
            let more = json!({"model": body.get("lora_path").unwrap_or(&Value::Null), "logprobs": 0, "return_token_ids": true,
                "include_stop_str_in_output": true, "cache_salt": body["extra_key"], "logp_temperature": parameters["temperature"]});
            fields.extend(more.as_object().expect("an object").clone().into_iter().filter(|(_, value)| !value.is_null()));
            let answer = self.inner.post("/v1/completions", &request);
            if answer.status != 200 {
                return (answer.status, serde_json::from_str(&answer.body).unwrap_or_default());
            }
            all.push(self.completion(&answer.json()["choices"][0]));
        }
        (200, all.into())
    }

    /// Returns a completion as SGLang has it: `output_ids` without the token that ended it, and log-probabilities with it.
    fn completion(&self, choice: &Value) -> Value {
        let ids = choice["token_ids"].as_array().expect("ids");
        let logps = choice["logprobs"]["token_logprobs"].as_array().expect("log-probabilities");
        let pairs: Vec<Value> = ids.iter().zip(logps).map(|(id, logp)| json!([logp, id, null])).collect();
        let version = self.version.lock().expect("no panic").clone();
        json!({
            "text": choice["text"], "output_ids": ids[..ids.len() - 1],
            "meta_info": {
                "id": "x", "finish_reason": {"type": choice["finish_reason"], "length": ids.len()}, "prompt_tokens": 1,
                "completion_tokens": ids.len(), "output_token_logprobs": pairs, "weight_version": version,
                "weight_versions": [{"version": version, "start": 0, "end": ids.len()}],
            },
        })
    }
}

/// Returns SGLang's answer to a request with a field that it does not have, or that is not expected here.
fn foreign_field(body: &Value, known: &[&str]) -> Option<(u16, Value)> {
    let fields = body.as_object().map(|fields| fields.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    let foreign = fields.into_iter().find(|field| !known.contains(&field.as_str()))?;
    Some((422, json!({"detail": format!("Object contains unknown field `{foreign}`")})))
}
