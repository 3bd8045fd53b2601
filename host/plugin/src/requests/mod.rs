//! Requests of plugins to servers that the user granted by name.
//!
//! A plugin passes a whole batch, and the host sends it from its own threads ([`transport`]). Every answer is written to a record in the
//! run's folder ([`record`]), which answers repetitions of the request.

mod budget;
mod import;
mod record;
mod request;
mod transport;

use super::deadline::{Deadline, EngineClock};
use crate::config::{Grants, Host, Secret};
use budget::AnswerBudget;
pub(super) use import::add_to_linker;
pub(super) use record::AnswerEntry;
use record::{AnswerRecord, RequestKey};
pub(super) use request::{INTERFACES, OutboundRequest, OutboundResponse, OutboundResult};
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use transport::OutboundTransport;

/// Maximum number of requests in a batch.
const MOST_REQUESTS: usize = 16_384;

/// Maximum number of a call's requests that the record can't answer.
const MOST_NEW: usize = 4 * MOST_REQUESTS;

/// Whether servers are contacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestPolicy {
    /// Sends requests without a recorded answer.
    Allowed,
    /// Refuses requests without a recorded answer.
    ReplayOnly,
    /// Refuses all requests, for this reason.
    Disabled(&'static str),
}

/// Sends the requests of one plugin of a run, for all its versions.
pub struct PluginHttpClient {
    grants: Grants,
    policy: RequestPolicy,
    wire: OutboundTransport,
    record: Mutex<AnswerRecord>,
}

impl PluginHttpClient {
    /// Creates the client of a plugin. Looks up secrets only if servers may be contacted.
    ///
    /// # Errors
    /// If a host, a secret or the certificate file is invalid; the error names the key.
    pub fn new(grants: Grants, asking: RequestPolicy) -> Result<Self, String> {
        let hosts = grants.hosts.iter().map(|host| Host::parse(host)).collect::<Result<Vec<_>, _>>()?;
        let mut secrets = Vec::new();
        if asking == RequestPolicy::Allowed {
            for (name, from) in &grants.secrets {
                secrets.push((name.clone(), Secret::read(name, from)?));
            }
        }
        let wire = OutboundTransport::new(hosts, secrets, &grants.http)?;
        let record = AnswerRecord::new(grants.http.max_record_mb).map_err(|e| format!("can't make a temporary file: {e}"))?;
        Ok(Self { grants, policy: asking, wire, record: Mutex::new(record) })
    }

    /// Returns the plugin's grants.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Returns whether servers are contacted.
    pub fn policy(&self) -> RequestPolicy {
        self.policy
    }

    fn record(&self) -> MutexGuard<'_, AnswerRecord> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the record in this file, if it exists, and answers from it too.
    ///
    /// # Errors
    /// If the file exists but is unusable.
    pub fn read(&self, file: &Path) -> Result<(), String> {
        self.record().read(file).map_err(|e| format!("{}: {e}", file.display()))
    }

    /// Adds the answers from another run's record.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn adopt(&self, file: &Path) -> Result<(), String> {
        self.record().adopt(file).map_err(|e| format!("{}: {e}", file.display()))
    }

    /// Writes the record to this file from now on, including the answers so far.
    ///
    /// # Errors
    /// If the file can't be read or written.
    pub fn persist_to(&self, file: &Path) -> Result<(), String> {
        self.record().persist_to(file).map_err(|e| format!("{}: {e}", file.display()))
    }

    /// Records the answers of a call: all of them if it succeeded, otherwise only answers with a success status.
    pub(super) fn commit(&self, entries: Vec<AnswerEntry>, succeeded: bool) -> Result<(), String> {
        let kept = entries.into_iter().filter(|entry| succeeded || entry.is_lasting()).collect();
        self.record().append(kept)
    }

    /// Sends a GET request. Returns the answer's status and its size in bytes.
    pub fn get(&self, url: &str) -> Result<(u16, usize), String> {
        let (method, url) = ("GET".to_owned(), url.to_owned());
        let request = OutboundRequest { method, url, headers: Vec::new(), body: Vec::new(), timeout_ms: 0 };
        let until = Instant::now() + self.grants.http.call_timeout();
        let answers = self.answer(vec![request], (0, 0), &mut PendingAnswers::default(), until)?;
        let answer = answers.into_iter().next().unwrap_or_else(|| Err("no answer".to_owned()))?;
        Ok((answer.status, budget::size(&answer)))
    }

    /// Answers a batch, in order, until its time is up.
    ///
    /// # Errors
    /// If the whole batch is refused.
    fn answer(
        &self,
        requests: Vec<OutboundRequest>,
        (step, scope): (u64, u64),
        pending: &mut PendingAnswers,
        until: Instant,
    ) -> Result<Vec<OutboundResult>, String> {
        if requests.len() > MOST_REQUESTS {
            return Err(format!("it sent {} requests at once; the limit is {MOST_REQUESTS}", requests.len()));
        }
        let keys: Vec<RequestKey> = requests.iter().map(|request| RequestKey::new(request, scope)).collect();
        let mut known: HashMap<RequestKey, OutboundResult> = HashMap::new();
        let mut missing: Vec<(RequestKey, &OutboundRequest)> = Vec::new();
        let mut seen = HashSet::new();
        for (key, request) in keys.iter().zip(&requests).filter(|(key, _)| seen.insert(**key)) {
            match self.known(*key, step, pending)? {
                Some(answer) => drop(known.insert(*key, answer)),
                None => missing.push((*key, request)),
            }
        }
        if !missing.is_empty() {
            self.may_ask(missing.len(), keys.len())?;
            if pending.entries.len() + missing.len() > MOST_NEW {
                return Err(format!("it sent more than {MOST_NEW} different requests in a call"));
            }
            let asked: Vec<&OutboundRequest> = missing.iter().map(|(_, request)| *request).collect();
            for ((key, _), answer) in missing.iter().zip(self.send(&asked, until, &pending.room)) {
                known.insert(*key, answer.clone());
                pending.add(AnswerEntry { key: *key, step, answer });
            }
        }
        // The plugin gets a copy of the answer for each of several equal requests.
        let mut left = budget::MOST_CARRIED;
        let answers = keys.iter().map(|key| match known.get(key) {
            Some(Ok(answer)) => {
                left = left.checked_sub(budget::size(answer)).ok_or_else(budget::too_much)?;
                Ok(answer.clone())
            }
            Some(failed) => failed.clone(),
            None => Err("it was not sent".to_owned()),
        });
        Ok(answers.collect())
    }

    /// Returns the answer to a request from this call or the record.
    fn known(&self, key: RequestKey, step: u64, pending: &mut PendingAnswers) -> Result<Option<OutboundResult>, String> {
        if let Some(entry) = pending.places.get(&key).map(|&place| &pending.entries[place]) {
            return Ok(Some(entry.answer.clone()));
        }
        let found = self.record().find(key, step)?;
        if let Some(Ok(answer)) = &found
            && !pending.counted.contains(&key)
        {
            let mut share = pending.room.share();
            if let Err(reason) = share.take(budget::size(answer)) {
                return Ok(Some(Err(reason)));
            }
            share.keep();
            pending.counted.insert(key);
        }
        Ok(found)
    }

    fn may_ask(&self, missing: usize, all: usize) -> Result<(), String> {
        match self.policy {
            RequestPolicy::Allowed => Ok(()),
            RequestPolicy::ReplayOnly => Err(format!(
                "{missing} of its {all} requests have no answer in the record, and replay_only forbids asking a server"
            )),
            RequestPolicy::Disabled(why) => Err(why.to_owned()),
        }
    }

    /// Sends requests in parallel.
    fn send(&self, requests: &[&OutboundRequest], until: Instant, room: &AnswerBudget) -> Vec<OutboundResult> {
        let threads = requests.len().min(self.grants.http.max_concurrency as usize);
        let next = AtomicUsize::new(0);
        let work = || {
            let mut answers = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(request) = requests.get(index) else { return answers };
                answers.push((index, self.wire.ask(request, until, room)));
            }
        };
        let mut answers: Vec<OutboundResult> =
            vec![Err("it was not sent: a thread could not be started".to_owned()); requests.len()];
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

/// The answers of a call, from all of its batches.
#[derive(Default)]
struct PendingAnswers {
    /// Answers that the record does not have yet.
    entries: Vec<AnswerEntry>,
    /// Index of each request's answer in `entries`.
    places: HashMap<RequestKey, usize>,
    /// Recorded answers that the call used, which count towards its memory.
    counted: HashSet<RequestKey>,
    room: AnswerBudget,
}

impl PendingAnswers {
    fn add(&mut self, entry: AnswerEntry) {
        self.places.insert(entry.key, self.entries.len());
        self.entries.push(entry);
    }
}

/// An instance's access to the request client. Time that servers take does not count as the instance's own.
pub(super) struct RequestChannel {
    asker: Arc<PluginHttpClient>,
    clock: EngineClock,
    deadline: Deadline,
    /// Step and scope of the call, if it may send requests.
    step: Option<(u64, u64)>,
    /// Time that servers may still take.
    left: Duration,
    /// Answers of this call.
    pending: PendingAnswers,
}

impl RequestChannel {
    pub(super) fn new(asker: Arc<PluginHttpClient>, clock: EngineClock) -> Self {
        let deadline = clock.after(Duration::ZERO);
        Self { asker, clock, deadline, step: None, left: Duration::ZERO, pending: PendingAnswers::default() }
    }

    /// Begins a call. Only calls with a step and a scope may send requests.
    pub(super) fn begin(&mut self, deadline: Deadline, step: Option<(u64, u64)>) {
        (self.deadline, self.step) = (deadline, step);
        self.left = self.asker.grants.http.call_timeout();
        self.pending = PendingAnswers::default();
    }

    /// Takes the new answers of the call.
    pub(super) fn take_entries(&mut self) -> Vec<AnswerEntry> {
        std::mem::take(&mut self.pending).entries
    }

    fn fetch(&mut self, requests: Vec<OutboundRequest>) -> Result<Vec<OutboundResult>, String> {
        let Some(step) = self.step else { return Err("it sent requests before it was asked for scores or episodes".to_owned()) };
        let (own, begun) = (self.clock.until(self.deadline), Instant::now());
        let until = begun + self.left;
        let answers = self.asker.answer(requests, step, &mut self.pending, until);
        self.left = self.left.saturating_sub(begun.elapsed());
        self.deadline = self.clock.in_ticks(own);
        answers
    }
}

#[cfg(test)]
mod tests;
