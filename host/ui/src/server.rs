//! Server of the page: access control, static files, and the API.

use crate::access::{PageAccess, new_token};
use crate::api::{ApiRefusal, LiveUpdateStream, PageApi, PageRoute};
use crate::assets;
use crate::backend::PageBackend;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION};
use hyper::{Method, Request, Response, StatusCode};
use rlhost_records::metrics::AllowedHosts;
use rlhost_serve::{BodyMemoryBudget, BoundAddress, ConnectionLimits, HttpListener, HttpService, ReplyBody};
use serde_json::Value;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Maximum size of a request's body, and memory for all bodies at once, in bytes.
const LARGEST_BODY: usize = 64 << 20;
const MOST_BODIES: usize = 128 << 20;

/// Maximum number of open connections.
const CONNECTIONS: usize = 256;

/// Content security policy: only this server's own files may run, style or be requested, and no other page may embed this one.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of every response.
const HEADERS: [(&str, &str); 6] = [
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("x-frame-options", "DENY"),
];

/// Address of the server, and what the page may do.
#[derive(Clone, Debug)]
pub struct PageServerSettings {
    /// Folder of a run, or of several runs.
    pub root: PathBuf,
    /// IP address or host name.
    pub host: String,
    /// Port; 0 picks a free one.
    pub port: u16,
    /// Whether the page may control runs.
    pub control: bool,
}

/// Running server of the page. Dropping it closes all connections.
pub struct PageServer {
    listening: HttpListener,
    token: String,
}

impl PageServer {
    /// Binds the address and starts to answer requests.
    ///
    /// # Errors
    /// If the address can't be bound; names address and port.
    pub fn start(settings: PageServerSettings, backend: impl PageBackend) -> io::Result<Self> {
        let PageServerSettings { root, host, port, control } = settings;
        let bound = BoundAddress::new(&host, port)?;
        let token = new_token()?;
        let access = PageAccess { token: token.clone(), hosts: AllowedHosts::new(host, bound.address().ip()) };
        let api = PageApi::new(root, Box::new(backend), control);
        let server = PageServerState { access, api: Arc::new(api), limits: limits(), budget: BodyMemoryBudget::new(MOST_BODIES) };
        Ok(Self { listening: HttpListener::start(Arc::new(server), bound, limits())?, token })
    }

    /// Returns the address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }

    /// Returns the page's address, with its token.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/{}/", self.address(), self.token)
    }
}

fn limits() -> ConnectionLimits {
    ConnectionLimits { connections: CONNECTIONS, body_bytes: LARGEST_BODY, ..ConnectionLimits::default() }
}

/// State shared by all connections.
struct PageServerState {
    access: PageAccess,
    api: Arc<PageApi>,
    limits: ConnectionLimits,
    budget: BodyMemoryBudget,
}

/// Answer before it becomes an HTTP response.
enum PageAnswer {
    File(assets::Asset),
    Json(Value),
    Live(LiveUpdateStream),
}

impl HttpService for PageServerState {
    async fn respond(&self, request: Request<Incoming>) -> Response<ReplyBody> {
        let is_head = request.method() == Method::HEAD;
        let mut response = match self.answer(request).await {
            Ok(PageAnswer::File(asset)) => {
                let mut response = full_response(StatusCode::OK, asset.kind, Bytes::from_static(asset.text.as_bytes()));
                // The address changes with each start.
                response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
                response
            }
            Ok(PageAnswer::Json(value)) => json(StatusCode::OK, &value),
            Ok(PageAnswer::Live(live)) => {
                let mut response = Response::new(ReplyBody::Events(Box::new(live)));
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
                response
            }
            Err(refused) => refusal(&refused),
        };
        for (name, value) in HEADERS {
            response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        if !response.headers().contains_key(CACHE_CONTROL) {
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        }
        if is_head {
            *response.body_mut() = ReplyBody::Whole(None);
        }
        response
    }
}

impl PageServerState {
    async fn answer(&self, request: Request<Incoming>) -> Result<PageAnswer, ApiRefusal> {
        self.access.check_host(request.headers())?;
        let path = self.access.path(request.uri().path())?.to_owned();
        let Some(below) = path.strip_prefix("api/") else {
            let asset = assets::find(&path).ok_or_else(|| ApiRefusal::new(404, "there is nothing here"))?;
            check_method(request.method(), false)?;
            return Ok(PageAnswer::File(asset));
        };
        let route = PageRoute::find(below).ok_or_else(|| ApiRefusal::new(404, "there is nothing here"))?;
        check_method(request.method(), route.acts())?;
        let query = request.uri().query().unwrap_or_default().to_owned();
        let api = Arc::clone(&self.api);
        if route == PageRoute::Live {
            return spawn_blocking(move || LiveUpdateStream::start(&api, &query))
                .await
                .map_err(task_failure)?
                .map(PageAnswer::Live);
        }
        let mut body = Vec::new();
        if route.acts() {
            self.access.check_act(request.headers())?;
            if !self.api.control {
                return Err(ApiRefusal::new(403, "this page only reads; start it with rlhost ui --control"));
            }
            let read = self.budget.read(request.into_body(), self.limits.body_bytes);
            let late = |_| ApiRefusal::new(408, "the body took too long to arrive");
            let read = timeout(self.limits.body_time, read).await.map_err(late)?;
            body = read.map_err(|unread| ApiRefusal::new(unread.status(), unread.to_string()))?;
        }
        spawn_blocking(move || api.answer(route, &query, &body)).await.map_err(task_failure)?.map(PageAnswer::Json)
    }
}

fn task_failure(error: tokio::task::JoinError) -> ApiRefusal {
    ApiRefusal::new(500, format!("this is a bug in rlhost: {error}"))
}

fn check_method(method: &Method, acts: bool) -> Result<(), ApiRefusal> {
    let fits = if acts { method == Method::POST } else { method == Method::GET || method == Method::HEAD };
    if fits { Ok(()) } else { Err(ApiRefusal::new(405, format!("{method} does not fit this address"))) }
}

fn full_response(status: StatusCode, kind: &'static str, bytes: Bytes) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::Whole(Some(bytes)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn json(status: StatusCode, value: &Value) -> Response<ReplyBody> {
    full_response(status, "application/json", Bytes::from(value.to_string()))
}

fn refusal(refused: &ApiRefusal) -> Response<ReplyBody> {
    let status = StatusCode::from_u16(refused.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if status == StatusCode::PERMANENT_REDIRECT {
        let mut response = json(status, &Value::Null);
        HeaderValue::from_str(&refused.message).into_iter().for_each(|to| drop(response.headers_mut().insert(LOCATION, to)));
        return response;
    }
    json(status, &refused.to_json())
}
