//! Serves the newest metrics over HTTP in Prometheus' text format.
//!
//! Metrics get their names during the run, some from plugins, so a registry of metrics declared beforehand (prometheus-client) would have
//! to be bypassed for all of them, and the format is only a few lines. The server is hyper: tiny_http, which is smaller, had its last
//! release in 2022, and its request thread waits without limit for a client that does not send what it announced.

use super::hosts::AllowedHosts;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::{self, Display, Formatter};
use std::io;
use std::net::{self, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Maximum number of open connections. A run needs its file descriptors itself.
const MAX_CONNECTIONS: usize = 16;
/// Maximum time from the connection to the end of the response.
const MAX_DURATION: Duration = Duration::from_secs(10);
/// Maximum size of a request line with headers, in bytes; hyper's minimum. The body is not read.
const MAX_REQUEST: usize = 8 << 10;
/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 64;

const GLOBAL_STEP: &str = "rlhost_global_step";
const MAX_STEPS: &str = "rlhost_max_steps";
const PLUGIN_SWAPS: &str = "rlhost_plugin_swaps_total";

#[derive(Debug)]
struct ExposedMetrics {
    run: String,
    max_steps: u64,
    global_step: u64,
    plugin_swaps: u64,
    figures: BTreeMap<String, f64>,
}

/// Returns a metric's name in Prometheus. Two metrics may map to the same name.
fn metric(figure: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    let mut name = format!("rlhost_{}", figure.replace(|c| !allowed(c), "_"));
    if [GLOBAL_STEP, MAX_STEPS, PLUGIN_SWAPS].contains(&name.as_str()) {
        name.push('_');
    }
    name
}

fn label(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}

fn head(f: &mut Formatter<'_>, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(f, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

impl Display for ExposedMetrics {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let run = label(&self.run);
        for (name, kind, help, value) in [
            (GLOBAL_STEP, "gauge", "Optimizer updates so far.", self.global_step),
            (MAX_STEPS, "gauge", "Optimizer updates in the whole run.", self.max_steps),
            (PLUGIN_SWAPS, "counter", "Plugins swapped during the run.", self.plugin_swaps),
        ] {
            head(f, name, kind, help)?;
            writeln!(f, "{name}{{run=\"{run}\"}} {value}")?;
        }
        let mut metrics: BTreeMap<String, Vec<(&str, f64)>> = BTreeMap::new();
        for (figure, value) in &self.figures {
            metrics.entry(metric(figure)).or_default().push((figure, *value));
        }
        for (name, samples) in metrics {
            head(f, &name, "gauge", "The last logged value of the metric in the label.")?;
            for (figure, value) in samples {
                // `{:?}` writes long numbers with an exponent, `{}` does not.
                writeln!(f, "{name}{{run=\"{run}\",figure=\"{}\"}} {value:?}", label(figure))?;
            }
        }
        Ok(())
    }
}

fn locked(exposed: &Mutex<ExposedMetrics>) -> MutexGuard<'_, ExposedMetrics> {
    exposed.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer(request: &Request<Incoming>, exposed: &Mutex<ExposedMetrics>, hosts: &AllowedHosts) -> Response<String> {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let (status, text) = match (request.uri().path(), request.method()) {
        _ if !host.is_some_and(|host| hosts.allows(host)) => {
            (StatusCode::FORBIDDEN, "this endpoint does not serve that Host; use its address\n".into())
        }
        ("/metrics", &Method::GET | &Method::HEAD) => (StatusCode::OK, locked(exposed).to_string()),
        ("/metrics", _) => (StatusCode::METHOD_NOT_ALLOWED, "only GET is supported\n".into()),
        _ => (StatusCode::NOT_FOUND, "the only path is /metrics\n".into()),
    };
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    response
}

async fn accept(listener: TcpListener, exposed: Arc<Mutex<ExposedMetrics>>, hosts: Arc<AllowedHosts>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() == MAX_CONNECTIONS {
            connections.join_next().await;
        }
        let Ok((stream, _)) = listener.accept().await else {
            // The process may be out of file descriptors for a while.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (exposed, hosts) = (Arc::clone(&exposed), Arc::clone(&hosts));
        connections.spawn(async move {
            let service = service_fn(|request| {
                let response = answer(&request, &exposed, &hosts);
                async move { Ok::<_, Infallible>(response) }
            });
            let mut connection = http1::Builder::new();
            connection.keep_alive(false).max_buf_size(MAX_REQUEST).max_headers(MAX_HEADERS);
            let connection = connection.serve_connection(TokioIo::new(stream), service);
            // A client that fails or is slow only harms itself.
            let _ = timeout(MAX_DURATION, connection).await;
        });
    }
}

/// An endpoint for Prometheus to scrape. Dropping it stops it.
#[derive(Debug)]
pub struct Prometheus {
    address: SocketAddr,
    exposed: Arc<Mutex<ExposedMetrics>>,
    /// Stops the thread when dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Prometheus {
    /// Serves a run's `/metrics` on an address (an IP or host name); port 0 picks a free port. Answers requests for that address or name or
    /// localhost. On all addresses (`0.0.0.0`) it also answers to any IP address and to this machine's name.
    ///
    /// # Errors
    /// If it can't listen on the address; names address and port.
    pub fn serve(address: &str, port: u16, run: &str, max_steps: u64) -> io::Result<Self> {
        let unfit = |e: io::Error| {
            let reason = match e.kind() {
                io::ErrorKind::AddrInUse => "the port is in use; choose another".into(),
                _ => e.to_string(),
            };
            io::Error::new(e.kind(), format!("can't serve metrics on port {port} of {address}: {reason}"))
        };
        let listener = net::TcpListener::bind((address, port)).map_err(unfit)?;
        listener.set_nonblocking(true).map_err(unfit)?;
        let name = address.to_owned();
        let address = listener.local_addr().map_err(unfit)?;
        let hosts = Arc::new(AllowedHosts::new(name, address.ip()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let listener = {
            let _guard = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let exposed = ExposedMetrics { run: run.into(), max_steps, global_step: 0, plugin_swaps: 0, figures: BTreeMap::new() };
        let exposed = Arc::new(Mutex::new(exposed));
        let (stop, stopped) = oneshot::channel();
        let serving = accept(listener, Arc::clone(&exposed), hosts);
        let thread = thread::Builder::new().name("prometheus".into()).spawn(move || {
            runtime.spawn(serving);
            // Ending the thread drops the runtime and its open connections.
            let _ = runtime.block_on(stopped);
        })?;
        Ok(Self { address, exposed, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the address that the endpoint listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the number of steps and plugin swaps so far.
    pub fn set_progress(&self, global_step: u64, plugin_swaps: u64) {
        let mut exposed = locked(&self.exposed);
        (exposed.global_step, exposed.plugin_swaps) = (global_step, plugin_swaps);
    }

    /// Replaces the exposed metrics; a value that is no longer finite becomes NaN. Metrics of an evaluation (`eval_...`) stay until the
    /// next evaluation, which leaves the others unchanged.
    pub fn set_metrics(&self, figures: &Map<String, Value>) {
        let of_evaluation = |name: &str| name.starts_with("eval_");
        let of_training = |name: &str| !of_evaluation(name) && !matches!(name, "step" | "epoch" | "time" | "versions");
        let evaluated = figures.keys().any(|name| of_evaluation(name));
        let trained = figures.keys().any(|name| of_training(name));
        let mut exposed = locked(&self.exposed);
        exposed.figures.retain(|name, _| if of_evaluation(name) { !evaluated } else { !trained });
        for (name, value) in figures.iter().filter(|(name, _)| *name != "step") {
            let value = if value.is_null() { Some(f64::NAN) } else { value.as_f64() };
            exposed.figures.extend(value.map(|value| (name.clone(), value)));
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic has already been printed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn line(figures: Value) -> Map<String, Value> {
        figures.as_object().unwrap().clone()
    }

    /// Returns the status line with headers, and the body.
    fn ask(endpoint: &Prometheus, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(endpoint.address()).unwrap();
        stream.write_all(format!("{request} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_lowercase(), body.to_owned())
    }

    fn scrape(endpoint: &Prometheus) -> String {
        ask(endpoint, "GET /metrics").1
    }

    #[test]
    fn versions_in_a_row_are_neither_shown_nor_taken_for_a_metric_of_training() {
        let endpoint = Prometheus::serve("127.0.0.1", 0, "run", 10).unwrap();
        endpoint.set_metrics(&line(json!({ "step": 1, "reward": 2.0, "versions": { "a": "0123456789ab" } })));
        endpoint.set_metrics(&line(json!({ "step": 1, "eval_reward": 3.0, "versions": { "a": "0123456789ab" } })));
        let text = scrape(&endpoint);
        assert!(text.contains("figure=\"reward\"") && text.contains("eval_reward") && !text.contains("versions"), "{text}");
    }

    #[test]
    fn a_scrape_shows_the_newest_figures() {
        let endpoint = Prometheus::serve("127.0.0.1", 0, "run", 100).unwrap();
        assert!(endpoint.address().ip().is_loopback());
        endpoint.set_progress(7, 2);
        endpoint.set_metrics(&line(json!({ "step": 7, "reward": 1.5, "gone": 1, "eval_reward": 1e300, "name": "x" })));
        endpoint.set_metrics(&line(json!({ "step": 7, "reward": null, "rewards/x/mean": -3 })));
        let (head, body) = ask(&endpoint, "GET /metrics");
        assert!(head.starts_with("http/1.1 200 ok\r\n"), "{head}");
        assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
        let expected = r#"# HELP rlhost_global_step Optimizer updates so far.
# TYPE rlhost_global_step gauge
rlhost_global_step{run="run"} 7
# HELP rlhost_max_steps Optimizer updates in the whole run.
# TYPE rlhost_max_steps gauge
rlhost_max_steps{run="run"} 100
# HELP rlhost_plugin_swaps_total Plugins swapped during the run.
# TYPE rlhost_plugin_swaps_total counter
rlhost_plugin_swaps_total{run="run"} 2
# HELP rlhost_eval_reward The last logged value of the metric in the label.
# TYPE rlhost_eval_reward gauge
rlhost_eval_reward{run="run",figure="eval_reward"} 1e300
# HELP rlhost_reward The last logged value of the metric in the label.
# TYPE rlhost_reward gauge
rlhost_reward{run="run",figure="reward"} NaN
# HELP rlhost_rewards_x_mean The last logged value of the metric in the label.
# TYPE rlhost_rewards_x_mean gauge
rlhost_rewards_x_mean{run="run",figure="rewards/x/mean"} -3.0
"#;
        assert_eq!(body, expected);
        endpoint.set_metrics(&line(json!({ "step": 8, "epoch": 0.5, "eval_loss": 2 })));
        let body = scrape(&endpoint);
        let shown = ["rlhost_eval_loss", "rlhost_epoch", "rlhost_rewards_x_mean"];
        assert!(shown.iter().all(|name| body.contains(name)) && !body.contains("eval_reward"), "{body}");
    }

    #[test]
    fn what_is_not_a_scrape_is_refused() {
        let endpoint = Prometheus::serve("127.0.0.1", 0, "run", 1).unwrap();
        assert!(ask(&endpoint, "GET /").0.starts_with("http/1.1 404"));
        assert!(ask(&endpoint, "DELETE /metrics").0.starts_with("http/1.1 405"));
        let (head, body) = ask(&endpoint, "HEAD /metrics");
        assert!(head.starts_with("http/1.1 200") && body.is_empty(), "{head} {body}");
    }

    #[test]
    fn it_is_asked_for_by_its_own_name_alone() {
        let endpoint = Prometheus::serve("127.0.0.1", 0, "run", 1).unwrap();
        let raw = |request: &str| {
            let mut stream = TcpStream::connect(endpoint.address()).unwrap();
            // A request that is too long is answered before it has been sent completely.
            let _ = stream.write_all(request.as_bytes());
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            String::from_utf8_lossy(&answer).into_owned()
        };
        for host in ["Host: evil.example\r\n", ""] {
            let answer = raw(&format!("GET /metrics HTTP/1.1\r\n{host}\r\n"));
            assert!(answer.starts_with("HTTP/1.1 403") && !answer.contains("rlhost_"), "{answer}");
        }
        let long = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(4 * MAX_REQUEST));
        let many = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: x\r\n".repeat(2 * MAX_HEADERS));
        for request in [long, many] {
            assert!(!raw(&request).contains("rlhost_"));
        }
        assert!(scrape(&endpoint).contains("rlhost_max_steps"));
    }

    #[test]
    fn names_that_become_one_stay_apart_and_none_can_write_lines_of_its_own() {
        let endpoint = Prometheus::serve("127.0.0.1", 0, "a\"b\\c\nd", 1).unwrap();
        endpoint.set_metrics(&line(json!({
            "rewards/x": 1, "rewards.x": 2, "global_step": 3, "plugin/swaps/total": 4, "": 5, "größe": 6,
            "a\"} 1\nfake 2\n# TYPE": 7, "\\n": 8,
        })));
        let body = scrape(&endpoint);
        let samples: Vec<&str> = body.lines().filter(|l| !l.starts_with('#')).map(|l| l.trim_start_matches("rlhost_")).collect();
        let run = r#"run="a\"b\\c\nd""#;
        let expected = [
            format!("global_step{{{run}}} 0"),
            format!("max_steps{{{run}}} 1"),
            format!("plugin_swaps_total{{{run}}} 0"),
            format!(r#"{{{run},figure=""}} 5.0"#),
            format!(r#"_n{{{run},figure="\\n"}} 8.0"#),
            format!(r#"a___1_fake_2___TYPE{{{run},figure="a\"}} 1\nfake 2\n# TYPE"}} 7.0"#),
            format!(r#"global_step_{{{run},figure="global_step"}} 3.0"#),
            format!(r#"gr__e{{{run},figure="größe"}} 6.0"#),
            format!(r#"plugin_swaps_total_{{{run},figure="plugin/swaps/total"}} 4.0"#),
            format!(r#"rewards_x{{{run},figure="rewards.x"}} 2.0"#),
            format!(r#"rewards_x{{{run},figure="rewards/x"}} 1.0"#),
        ];
        assert_eq!(samples, expected);
        assert_eq!(body.matches("# TYPE rlhost_rewards_x ").count(), 1);
    }

    #[test]
    fn a_port_is_one_endpoints_until_it_is_dropped() {
        let endpoint = Prometheus::serve("127.0.0.1", 0, "run", 1).unwrap();
        let port = endpoint.address().port();
        let error = Prometheus::serve("127.0.0.1", port, "run", 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let expected = format!("can't serve metrics on port {port} of 127.0.0.1: the port is in use; choose another");
        assert_eq!(error.to_string(), expected);
        // Dropping does not wait for a client that sends nothing, or for one that stops in the middle.
        let mut silent = TcpStream::connect(endpoint.address()).unwrap();
        let mut slow = TcpStream::connect(endpoint.address()).unwrap();
        slow.write_all(b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\nx").unwrap();
        assert!(scrape(&endpoint).contains("rlhost_max_steps"));
        drop(endpoint);
        assert_eq!(silent.read(&mut [0]).unwrap(), 0, "the connection is closed");
    }
}
