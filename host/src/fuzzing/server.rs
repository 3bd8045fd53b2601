//! A server that returns arbitrary bytes.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Responses to the next requests.
#[derive(Clone, Default)]
pub(super) struct FuzzAnswers(Arc<Mutex<Vec<Vec<u8>>>>);

impl FuzzAnswers {
    /// Sets the next responses, in this order.
    pub(super) fn set(&self, mut answers: Vec<Vec<u8>>) {
        answers.reverse();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = answers;
    }

    fn next(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }
}

/// Starts a server on a free port; returns its address.
pub(super) fn start() -> std::io::Result<(String, FuzzAnswers)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    let answers = FuzzAnswers::default();
    let theirs = answers.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that closed the connection early is not an error.
            let _ = stream.and_then(|stream| answer(stream, &theirs));
        }
    });
    Ok((endpoint, answers))
}

/// Reads a request, sends the next response, and closes the connection.
fn answer(mut stream: TcpStream, answers: &FuzzAnswers) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut request = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    while request.read_line(&mut line)? > 2 {
        line.clear();
    }
    stream.write_all(&answers.next())
}
