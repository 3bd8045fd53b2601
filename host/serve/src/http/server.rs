//! The server: listens, bounds the number of connections, and drains at the end.

use super::access::Access;
use super::body::Budget;
use super::connections::{Context, serve};
use super::limits::Limits;
use crate::api::App;
use rlhost_records::metrics::Hosts;
use std::io;
use std::net::{self, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Memory for all bodies that are being read, in bytes.
const MOST_BODIES: usize = 256 << 20;

/// Threads that read bodies, render templates and tokenize.
const READERS: usize = 4;

/// Where a server listens, and who may ask.
#[derive(Clone, Debug)]
pub struct Settings {
    /// IP address or host name.
    pub host: String,
    /// Port; 0 picks a free one.
    pub port: u16,
    /// API keys, one of which a request needs; none if anybody may ask.
    pub keys: Vec<String>,
    /// Limits on connections.
    pub limits: Limits,
}

/// A running server. Dropping it ends all connections.
pub struct Server {
    address: SocketAddr,
    app: Arc<App>,
    stop: watch::Sender<bool>,
    /// Disconnected when the last connection has ended after a stop.
    ended: Receiver<()>,
    /// Ends the thread, with open connections, when dropped.
    kill: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens, and starts to answer.
    ///
    /// # Errors
    /// If it can't listen there, or an address that others reach has no keys; names address and port.
    pub fn start(app: App, settings: Settings) -> io::Result<Self> {
        let Settings { host, port, keys, limits } = settings;
        let unfit = |e: io::Error| {
            let reason = match e.kind() {
                io::ErrorKind::AddrInUse => "the port is in use; choose another with --port".into(),
                _ => e.to_string(),
            };
            io::Error::new(e.kind(), format!("can't serve on port {port} of {host}: {reason}"))
        };
        let listener = net::TcpListener::bind((host.as_str(), port)).map_err(unfit)?;
        listener.set_nonblocking(true).map_err(unfit)?;
        let address = listener.local_addr().map_err(unfit)?;
        if keys.is_empty() && !address.ip().is_loopback() {
            let detail = format!(
                "{host} can be reached from other machines, and nothing asks them for a key; give an --api-key-file, or listen on 127.0.0.1"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, detail));
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(READERS)
            .thread_name("request")
            .build()?;
        let listener = {
            let _guard = runtime.enter();
            TcpListener::from_std(listener)?
        };
        let app = Arc::new(app);
        let access = Access { keys, hosts: Hosts::new(host, address.ip()) };
        let context = Arc::new(Context { app: Arc::clone(&app), access, limits, budget: Budget::new(MOST_BODIES) });
        let (stop, stopped) = watch::channel(false);
        let ((ended_sender, ended), (kill, killed)) = (channel(), tokio::sync::oneshot::channel());
        let thread = thread::Builder::new().name("http".into()).spawn(move || {
            runtime.spawn(accept(listener, context, stopped, ended_sender));
            // Ending the thread drops the runtime and its open connections.
            let _ = runtime.block_on(killed);
            runtime.shutdown_background();
        })?;
        Ok(Self { address, app, stop, ended, kill: Some(kill), thread: Some(thread) })
    }

    /// Returns the address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts nothing more, and waits up to `limit` for what is under way. Returns whether all of it was finished.
    pub fn drain(&self, limit: Duration) -> bool {
        if let Some(engine) = self.app.engine() {
            engine.stop_accepting();
            // What a pause has kept is finished too. The engine has ended if this fails.
            let _ = engine.resume();
        }
        // All receivers are gone when everything has ended already.
        let _ = self.stop.send(true);
        matches!(self.ended.recv_timeout(limit), Err(RecvTimeoutError::Disconnected))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill = None;
        if let Some(thread) = self.thread.take() {
            // A panic has already been printed.
            let _ = thread.join();
        }
    }
}

/// Accepts connections until `stop`, then waits for those that are open. Dropping `_ended` says that all have ended.
async fn accept(listener: TcpListener, context: Arc<Context>, stop: watch::Receiver<bool>, _ended: Sender<()>) {
    let (places, mut connections) = (Arc::new(Semaphore::new(context.limits.connections)), JoinSet::new());
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
            let (context, stop) = (Arc::clone(&context), stop.clone());
            connections.spawn(async move {
                serve(context, stream, stop).await;
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
    let (mut work, mut end) = (std::pin::pin!(work), std::pin::pin!(end));
    std::future::poll_fn(|context| {
        let ended = end.as_mut().poll(context).is_ready() || work.as_mut().poll(context).is_ready();
        if ended { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
