//! A running `rlhost serve`, and clients that send it requests.

use crate::{KilledOnDrop, TestFolder};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Maximum time to wait for a response.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running server. Dropping it kills it.
pub struct ServerProcess {
    child: KilledOnDrop,
    /// Address of the server, such as `127.0.0.1:8000`.
    pub address: String,
}

/// A request to a server of these tests.
#[derive(Debug)]
pub struct TestHttpRequest {
    /// Path with its query.
    pub path: String,
    /// Headers, by names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body.
    pub body: Vec<u8>,
}

impl TestHttpRequest {
    /// Reads a request; `None` if the connection ends before it does.
    pub fn read(reader: &mut impl BufRead) -> Option<Self> {
        let mut lines = reader.by_ref().lines().map_while(Result::ok);
        let path = lines.next()?.split(' ').nth(1)?.to_owned();
        let pair = |line: String| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()));
        let headers: BTreeMap<String, String> = lines.take_while(|line| !line.is_empty()).filter_map(pair).collect();
        let length = headers.get("content-length").map_or(Some(0), |length| length.trim().parse().ok())?;
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        Some(Self { path, headers, body })
    }
}

/// A response of the server.
#[derive(Debug)]
pub struct TestHttpResponse {
    /// The HTTP status.
    pub status: u16,
    /// Status line and headers, in lower case.
    pub head: String,
    /// The body, without chunk headers.
    pub body: String,
}

impl TestHttpResponse {
    /// Reads a response until the connection is closed.
    ///
    /// # Panics
    /// If it is not HTTP.
    #[must_use]
    pub fn read(mut stream: impl Read) -> Self {
        let mut bytes = Vec::new();
        // A server may reset the connection after its response.
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).expect("an answer in UTF-8");
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer, but {text:?}"));
        let head = head.to_lowercase();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let body = if head.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_owned() };
        Self { status, head, body }
    }

    /// Parses the body as JSON.
    ///
    /// # Panics
    /// If it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// Returns the events of a streamed body, without the last one, which must be `[DONE]`.
    ///
    /// # Panics
    /// If it is not, or an event is not JSON.
    #[must_use]
    pub fn events(&self) -> Vec<Value> {
        let events: Vec<&str> = self.body.split_terminator("\n\n").collect();
        assert_eq!(events.last(), Some(&"data: [DONE]"), "{}", self.body);
        let event = |text: &&str| text.strip_prefix("data: ").and_then(|text| serde_json::from_str(text).ok()).expect("JSON");
        events[..events.len() - 1].iter().map(event).collect()
    }
}

fn unchunked(mut rest: &str) -> String {
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("the size of a chunk");
        body += &after[..size];
        rest = after[size..].strip_prefix("\r\n").unwrap_or_default();
    }
    body
}

impl ServerProcess {
    /// Starts a server in a folder and waits until it listens.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start(place: &TestFolder, arguments: &[&str]) -> Self {
        Self::start_at(place, "0", arguments)
    }

    /// Starts a server in a folder at this port and waits until it listens.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start_at(place: &TestFolder, port: &str, arguments: &[&str]) -> Self {
        Self::listening(place, &[&["serve", "--port", port], arguments].concat()).0
    }

    /// Starts `rlhost ui` and waits until it listens. Also returns the page's token.
    ///
    /// # Panics
    /// If it does not.
    #[must_use]
    pub fn start_ui(place: &TestFolder, arguments: &[&str]) -> (Self, String) {
        let (served, rest) = Self::listening(place, &[&["ui"], arguments].concat());
        let token = rest.split('/').next().expect("a token").to_owned();
        (served, token)
    }

    /// Starts a server. Also returns the text that it prints after its address.
    fn listening(place: &TestFolder, arguments: &[&str]) -> (Self, String) {
        let mut child = place.start_piped(arguments);
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let line = lines.next().and_then(Result::ok);
        let address = line.as_deref().and_then(|line| line.split_once("http://")?.1.split_once('/'));
        let Some((address, rest)) = address.map(|(address, rest)| (address.to_owned(), rest.to_owned())) else {
            let mut said = String::new();
            let _ = child.stderr.take().expect("its messages").read_to_string(&mut said);
            panic!("{line:?} {said}");
        };
        (Self { child: KilledOnDrop(child), address }, rest)
    }

    /// Connects to the server.
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        stream
    }

    /// Sends a request, and returns the connection.
    ///
    /// # Panics
    /// If it can't be sent.
    #[must_use]
    pub fn send(&self, request: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = self.connect();
        let host = if headers.to_lowercase().contains("host:") { String::new() } else { format!("Host: {}\r\n", self.address) };
        let head = format!("{request} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
        // A server may reject a request without reading all of it.
        let _ = stream.write_all((head + body).as_bytes());
        stream
    }

    /// Sends a GET request.
    #[must_use]
    pub fn get(&self, path: &str) -> TestHttpResponse {
        TestHttpResponse::read(self.send(&format!("GET {path}"), "", ""))
    }

    /// Sends a POST request with a JSON body.
    #[must_use]
    pub fn post(&self, path: &str, body: &Value) -> TestHttpResponse {
        TestHttpResponse::read(self.begin(path, body))
    }

    /// Sends a POST request with a JSON body, and returns the connection.
    #[must_use]
    pub fn begin(&self, path: &str, body: &Value) -> TcpStream {
        self.send(&format!("POST {path}"), "Content-Type: application/json\r\n", &body.to_string())
    }

    /// Returns a metric.
    ///
    /// # Panics
    /// If there is none with this name.
    #[must_use]
    pub fn metric(&self, name: &str) -> u64 {
        let text = self.get("/metrics").body;
        let value = text.lines().find_map(|line| line.strip_prefix(&format!("rlhost_serve_{name} "))?.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    /// Sends the server a signal to stop.
    ///
    /// # Panics
    /// If the signal can't be sent.
    pub fn terminate(&self) {
        self.signal("TERM");
    }

    /// Sends the server a signal, such as `STOP`.
    ///
    /// # Panics
    /// If it can't be sent.
    pub fn signal(&self, name: &str) {
        self.child.signal(name);
    }

    /// Waits for the server to exit, and returns its exit code.
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    pub fn wait(mut self) -> Option<i32> {
        self.child.wait().expect("a child ends").code()
    }
}
