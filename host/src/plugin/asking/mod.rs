//! Requests of plugins to servers that the user granted them by name.
//!
//! A plugin hands over a whole batch, and the host sends it from threads of its own ([`wire`]). Every answer goes into a record in
//! the run's folder ([`record`]), from which the same request is answered from then on.

mod address;
mod record;
mod wire;

use super::deadline::{Clock, Deadline};
use super::sandbox::Sandbox;
use crate::config::{Grants, Host, Secret};
use record::Record;
pub(super) use record::{Entry, Key};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use wasmtime::StoreContextMut;
use wasmtime::component::{ComponentType, Lift, Linker, Lower};
use wire::Wire;

/// The interface that a plugin imports to send requests.
pub(super) const INTERFACE: &str = "rlhost:plugin/http@0.2.0";

/// Most requests of one batch.
const MOST_REQUESTS: usize = 16_384;

/// Most bytes of all answers of one batch.
const MOST_CARRIED: usize = 96 << 20;

/// A request as a plugin makes it.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lift)]
#[component(record)]
pub(super) struct Request {
    pub method: String,
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    #[component(name = "timeout-ms")]
    pub timeout_ms: u32,
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq, ComponentType, Lower)]
#[component(record)]
pub(super) struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// What a plugin learns of a request: an answer, or why there is none.
pub(super) type Answer = Result<Response, String>;

/// Whether servers are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// What the record does not have is asked.
    Freely,
    /// What the record does not have is refused.
    ReplayOnly,
    /// Nothing is: the reason.
    Never(&'static str),
}

/// Asks servers for one plugin of a run, whatever its version.
pub struct Asker {
    grants: Grants,
    asking: Asking,
    wire: Wire,
    record: Mutex<Record>,
}

impl Asker {
    /// Prepares the requests of a plugin. Secrets are looked up only if servers may be asked.
    ///
    /// # Errors
    /// If a host, a secret or the file of certificates is wrong; the error names its key.
    pub fn new(grants: Grants, asking: Asking) -> Result<Self, String> {
        let hosts = grants.hosts.iter().map(|host| Host::read(host)).collect::<Result<Vec<_>, _>>()?;
        let mut secrets = Vec::new();
        if asking == Asking::Freely {
            for (name, from) in &grants.secrets {
                secrets.push((name.clone(), Secret::read(name, from)?));
            }
        }
        let wire = Wire::new(hosts, secrets, &grants.http)?;
        let record = Record::new(grants.http.max_record_mb).map_err(|e| format!("can't make a temporary file: {e}"))?;
        Ok(Self { grants, asking, wire, record: Mutex::new(record) })
    }

    /// Returns what the plugin is granted.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Returns whether servers are asked.
    pub fn asking(&self) -> Asking {
        self.asking
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers from the record in this file too, if it exists.
    ///
    /// # Errors
    /// If it is there and can't be used.
    pub fn read(&self, file: &Path) -> Result<(), String> {
        self.record().read(file).map_err(|e| format!("{}: {e}", file.display()))
    }

    /// Keeps the record in this file from now on, with the answers so far.
    ///
    /// # Errors
    /// If the file can't be read or written.
    pub fn keep_in(&self, file: &Path) -> Result<(), String> {
        self.record().keep_in(file).map_err(|e| format!("{}: {e}", file.display()))
    }

    /// Keeps the answers of a call: all of them if it succeeded, otherwise those that servers gave.
    pub(super) fn commit(&self, entries: Vec<Entry>, succeeded: bool) -> Result<(), String> {
        let kept = entries.into_iter().filter(|entry| succeeded || entry.is_lasting()).collect();
        self.record().append(kept)
    }

    /// Answers a batch, in order, until the time is over. `pending` has the answers of this call so far and gets the new ones.
    ///
    /// # Errors
    /// If the batch is refused as a whole.
    fn answer(&self, requests: Vec<Request>, step: u64, pending: &mut Vec<Entry>, until: Instant) -> Result<Vec<Answer>, String> {
        if requests.len() > MOST_REQUESTS {
            return Err(format!("it sent {} requests at once; the limit is {MOST_REQUESTS}", requests.len()));
        }
        let keys: Vec<Key> = requests.iter().map(Key::of).collect();
        let mut missing: Vec<(Key, &Request)> = Vec::new();
        let mut known = std::collections::HashMap::new();
        {
            let mut record = self.record();
            for (key, request) in keys.iter().zip(&requests) {
                if known.contains_key(key) || missing.iter().any(|(other, _)| other == key) {
                    continue;
                }
                match pending.iter().find(|entry| entry.key == *key) {
                    Some(entry) => drop(known.insert(*key, entry.answer.clone())),
                    None => match record.find(*key, step)? {
                        Some(answer) => drop(known.insert(*key, answer)),
                        None => missing.push((*key, request)),
                    },
                }
            }
        }
        if !missing.is_empty() {
            self.may_ask(missing.len(), keys.len())?;
            let asked: Vec<&Request> = missing.iter().map(|(_, request)| *request).collect();
            for ((key, _), answer) in missing.iter().zip(self.send(&asked, until)) {
                known.insert(*key, answer.clone());
                pending.push(Entry { key: *key, step, answer });
            }
        }
        let mut room = MOST_CARRIED;
        let too_much = || Err(format!("the answers of this batch have more than {} MiB together", MOST_CARRIED >> 20));
        let answers = keys.iter().map(|key| match known.get(key) {
            Some(Ok(answer)) => match room.checked_sub(answer.body.len()) {
                Some(left) => {
                    room = left;
                    Ok(answer.clone())
                }
                None => too_much(),
            },
            Some(failed) => failed.clone(),
            None => Err("it was not sent".to_owned()),
        });
        Ok(answers.collect())
    }

    fn may_ask(&self, missing: usize, all: usize) -> Result<(), String> {
        match self.asking {
            Asking::Freely => Ok(()),
            Asking::ReplayOnly => Err(format!(
                "{missing} of its {all} requests have no answer in the record, and replay_only lets it ask no server"
            )),
            Asking::Never(why) => Err(why.to_owned()),
        }
    }

    /// Sends requests side by side.
    fn send(&self, requests: &[&Request], until: Instant) -> Vec<Answer> {
        let threads = requests.len().min(self.grants.http.max_concurrency as usize);
        let next = AtomicUsize::new(0);
        let work = || {
            let mut answers = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(request) = requests.get(index) else { return answers };
                answers.push((index, self.wire.ask(request, until)));
            }
        };
        let mut answers: Vec<Answer> = vec![Err("it was not sent: a thread could not be started".to_owned()); requests.len()];
        std::thread::scope(|scope| {
            let start = |_| std::thread::Builder::new().name("plugin-http".into()).spawn_scoped(scope, work).ok();
            let workers: Vec<_> = (0..threads).map_while(start).collect();
            for (index, answer) in workers.into_iter().filter_map(|worker| worker.join().ok()).flatten() {
                answers[index] = answer;
            }
        });
        answers
    }
}

/// An instance's way to its asker. Time that servers take is not the instance's own.
pub(super) struct Line {
    asker: Arc<Asker>,
    clock: Clock,
    deadline: Deadline,
    /// The step of the call, if it is one that may ask.
    step: Option<u64>,
    /// Time that servers may still take.
    left: Duration,
    /// Answers of this call that the record does not have yet.
    pending: Vec<Entry>,
}

impl Line {
    pub(super) fn new(asker: Arc<Asker>, clock: Clock) -> Self {
        let deadline = clock.after(Duration::ZERO);
        Self { asker, clock, deadline, step: None, left: Duration::ZERO, pending: Vec::new() }
    }

    /// Begins a call. Only one with a step may ask.
    pub(super) fn begin(&mut self, deadline: Deadline, step: Option<u64>) {
        (self.deadline, self.step) = (deadline, step);
        self.left = self.asker.grants.http.call_timeout();
        self.pending.clear();
    }

    /// Takes the new answers of the call.
    pub(super) fn taken(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.pending)
    }

    fn fetch(&mut self, requests: Vec<Request>) -> Result<Vec<Answer>, String> {
        let Some(step) = self.step else { return Err("it sent requests before it was asked for scores".to_owned()) };
        let (own, begun) = (self.clock.until(self.deadline), Instant::now());
        let until = begun + self.left;
        let answers = self.asker.answer(requests, step, &mut self.pending, until);
        self.left = self.left.saturating_sub(begun.elapsed());
        self.deadline = self.clock.in_ticks(own);
        answers
    }
}

/// Adds the import to a linker.
pub(super) fn offer(linker: &mut Linker<Sandbox>) -> wasmtime::Result<()> {
    linker.instance(INTERFACE)?.func_wrap("fetch", |mut store: StoreContextMut<'_, Sandbox>, (requests,): (Vec<Request>,)| {
        let line = store.data_mut().line.as_mut().ok_or_else(|| wasmtime::Error::msg("it was granted no server"))?;
        let answers = line.fetch(requests).map_err(wasmtime::Error::msg)?;
        let ticks = line.clock.until(line.deadline);
        store.set_epoch_deadline(ticks + 1);
        Ok((answers,))
    })
}

#[cfg(test)]
mod tests;
