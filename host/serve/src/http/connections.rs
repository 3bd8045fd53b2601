//! Requests to the model's server: checks, reads and answers them.

use super::access::InferenceAccess;
use super::body::{BodyMemoryBudget, ReplyBody};
use super::limits::ConnectionLimits;
use super::listener::HttpService;
use crate::api::{ApiError, App, InferenceRoute, Reply, ReplyContent};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use std::sync::Arc;
use tokio::time::timeout;

/// State shared by all connections.
pub(super) struct InferenceServerContext {
    pub app: Arc<App>,
    pub access: InferenceAccess,
    pub limits: ConnectionLimits,
    pub budget: BodyMemoryBudget,
}

impl HttpService for InferenceServerContext {
    async fn respond(&self, request: Request<Incoming>) -> Response<ReplyBody> {
        respond(self, request).await
    }
}

async fn respond(context: &InferenceServerContext, request: Request<Incoming>) -> Response<ReplyBody> {
    let is_head = request.method() == Method::HEAD;
    let path = request.uri().path().to_owned();
    let reply = answer(context, request).await.unwrap_or_else(|error| Reply::error(&error, &path));
    let (bytes, kind) = match reply.content {
        ReplyContent::Json(value) => (value.to_string(), "application/json"),
        ReplyContent::Text(text) => (text, "text/plain; version=0.0.4; charset=utf-8"),
        ReplyContent::Events(source) => return events(ReplyBody::Events(source)),
    };
    let body = if is_head { None } else { Some(Bytes::from(bytes)) };
    let mut response = Response::new(ReplyBody::Whole(body));
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if matches!(reply.status, 429 | 503) {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

fn events(body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

async fn answer(context: &InferenceServerContext, request: Request<Incoming>) -> Result<Reply, ApiError> {
    context.access.check_host(request.headers())?;
    let route = InferenceRoute::find(request.method().as_str(), request.uri().path());
    let mut app = Arc::clone(&context.app);
    if !route.as_ref().is_ok_and(|route| route.is_open()) {
        match context.app.sessions() {
            None => context.access.check_key(request.headers())?,
            Some(_) if route.as_ref().is_ok_and(|route| route.is_of_drivers()) => {
                context.access.check_key(request.headers())?;
                app = app.for_driver(InferenceAccess::host(request.headers()));
            }
            Some(sessions) => app = app.for_session(context.access.session(sessions, request.headers())?),
        }
    }
    let answered = answer_route(context, route, Arc::clone(&app), request).await;
    if let (Err(error), Some(session)) = (&answered, app.session()) {
        session.refuse(error);
    }
    answered
}

async fn answer_route(
    context: &InferenceServerContext,
    route: Result<InferenceRoute, ApiError>,
    app: Arc<App>,
    request: Request<Incoming>,
) -> Result<Reply, ApiError> {
    let route = route?;
    let mut body = request.uri().query().unwrap_or_default().as_bytes().to_vec();
    if route.acts_without_body() {
        InferenceAccess::check_not_from_page(request.headers())?;
    }
    if route.takes_body() {
        InferenceAccess::check_type(request.headers())?;
        let read = context.budget.read(request.into_body(), route.largest_body(context.limits.body_bytes));
        let late = |_| ApiError::new(408, "the body took too long to arrive");
        let read = timeout(context.limits.body_time, read).await.map_err(late)?;
        body = read.map_err(|unread| ApiError::new(unread.status(), unread.to_string()))?;
    }
    let answered = route.answer(app, body);
    let late = |_| ApiError::new(504, "the answer took too long; ask for fewer tokens, or use a longer --request-timeout");
    timeout(context.limits.answer_time, answered).await.map_err(late)?
}
