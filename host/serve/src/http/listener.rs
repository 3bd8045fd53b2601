//! Accepts connections for a service, limits their number, and drains them on shutdown.

use super::body::ReplyBody;
use super::limits::ConnectionLimits;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{self, SocketAddr};
use std::pin::pin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Maximum size of the request line and headers, in bytes.
const MAX_HEAD: usize = 32 << 10;

/// Maximum number of headers.
const MAX_HEADERS: usize = 100;

/// Number of threads for blocking work: reading files, rendering templates, tokenizing.
const BLOCKING: usize = 4;

/// Service that answers the requests of all connections.
pub trait HttpService: Send + Sync + 'static {
    /// Answers a request. Blocking work must be spawned.
    fn respond(&self, request: Request<Incoming>) -> impl Future<Output = Response<ReplyBody>> + Send;
}

/// Bound address. Connections are accepted only after [`HttpListener::start`].
#[derive(Debug)]
pub struct BoundAddress {
    listener: net::TcpListener,
    address: SocketAddr,
}

impl BoundAddress {
    /// Binds a port of an IP address or host name; port 0 picks a free one.
    ///
    /// # Errors
    /// If the port can't be bound; names address and port.
    pub fn new(host: &str, port: u16) -> io::Result<Self> {
        let unfit = |e: io::Error| {
            let reason = match e.kind() {
                io::ErrorKind::AddrInUse => "the port is in use; choose another with --port".into(),
                _ => e.to_string(),
            };
            io::Error::new(e.kind(), format!("can't serve on port {port} of {host}: {reason}"))
        };
        let listener = net::TcpListener::bind((host, port)).map_err(unfit)?;
        listener.set_nonblocking(true).map_err(unfit)?;
        let address = listener.local_addr().map_err(unfit)?;
        Ok(Self { listener, address })
    }

    /// Returns the address, including the port.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Listening service. Dropping it closes all connections.
pub struct HttpListener {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    /// Disconnected when the last connection has ended after a stop.
    ended: Mutex<Receiver<()>>,
    /// Ends the thread and closes its connections when dropped.
    kill: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HttpListener {
    /// Starts to accept connections.
    ///
    /// # Errors
    /// If a thread or runtime can't be created.
    pub fn start(service: Arc<impl HttpService>, bound: BoundAddress, limits: ConnectionLimits) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(BLOCKING)
            .thread_name("request")
            .build()?;
        let listener = {
            let _guard = runtime.enter();
            TcpListener::from_std(bound.listener)?
        };
        let (stop, stopped) = watch::channel(false);
        let ((ended_sender, ended), (kill, killed)) = (channel(), oneshot::channel());
        let thread = thread::Builder::new().name("http".into()).spawn(move || {
            runtime.spawn(accept(listener, service, limits, stopped, ended_sender));
            // Ending the thread drops the runtime and its open connections.
            let _ = runtime.block_on(killed);
            runtime.shutdown_background();
        })?;
        Ok(Self { address: bound.address, stop, ended: Mutex::new(ended), kill: Some(kill), thread: Some(thread) })
    }

    /// Returns the address it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting connections, and waits up to `limit` for requests in progress. Returns whether all have finished.
    pub fn drain(&self, limit: Duration) -> bool {
        // Fails only if all connections have ended already.
        let _ = self.stop.send(true);
        matches!(
            self.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(limit),
            Err(RecvTimeoutError::Disconnected)
        )
    }
}

impl Drop for HttpListener {
    fn drop(&mut self) {
        self.kill = None;
        if let Some(thread) = self.thread.take() {
            // A panic has already been printed.
            let _ = thread.join();
        }
    }
}

/// Serves a connection until it ends. When `stop` becomes true, it closes after the current request.
async fn serve(service: Arc<impl HttpService>, header_time: Duration, stream: TcpStream, mut stop: watch::Receiver<bool>) {
    // Tokens are small, and must not be delayed to fill a packet.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let service = Arc::clone(&service);
        async move { Ok::<_, Infallible>(service.respond(request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(header_time).max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut stopping = pin!(stop.wait_for(|stop| *stop));
    let mut told = false;
    let served = poll_fn(|context| {
        if !told && stopping.as_mut().poll(context).is_ready() {
            told = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(context)
    });
    // A client that fails harms only itself.
    let _ = served.await;
}

/// Accepts connections until `stop`, then waits for the open ones. Dropping `_ended` signals that all have ended.
async fn accept(
    listener: TcpListener,
    service: Arc<impl HttpService>,
    limits: ConnectionLimits,
    stop: watch::Receiver<bool>,
    _ended: Sender<()>,
) {
    let (places, mut connections) = (Arc::new(Semaphore::new(limits.connections)), JoinSet::new());
    let mut stopping = stop.clone();
    let accepting = async {
        loop {
            while connections.try_join_next().is_some() {}
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                // The process may be out of file descriptors for a while.
                sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (service, stop) = (Arc::clone(&service), stop.clone());
            connections.spawn(async move {
                serve(service, limits.header_time, stream, stop).await;
                drop(place);
            });
        }
    };
    until(accepting, async move {
        // The server is gone if this fails.
        let _ = stopping.wait_for(|stop| *stop).await;
    })
    .await;
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Runs `work` until it or `end` is done.
async fn until(work: impl Future<Output = ()>, end: impl Future<Output = ()>) {
    let (mut work, mut end) = (pin!(work), pin!(end));
    poll_fn(|context| {
        let ended = end.as_mut().poll(context).is_ready() || work.as_mut().poll(context).is_ready();
        if ended { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
