//! Dispatches weights and requests to the servers of a run, in a thread. Requests of a server that fails are given to others; a server that
//! comes back gets the current weights first. Nothing waits forever: each request has a time limit, busy servers are checked for liveness,
//! and waiting requests fail if there is no server.

use super::balance::{MemberLoad, next_member};
use super::connection::{Connection, ServerFault, SyncedServer};
use super::publisher::PublishedPolicy;
use rlhost_web::inference::{Completion, CompletionRequest};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Interval of the dispatcher's loop.
const TICK: Duration = Duration::from_millis(200);

/// Interval of liveness checks of a busy server.
const CHECK: Duration = Duration::from_secs(2);

/// Maximum interval between attempts to reach a lost server.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Time for which others leave work to a server that is being updated, if updates take less than half of it.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// Maximum time that the end of a run waits for servers that are loading weights.
const LONGEST_UNLOAD: Duration = Duration::from_secs(10);

/// Maximum number of requests in flight at one server.
const MOST_REQUESTS: usize = 64;

/// A request for completions.
#[derive(Clone, Debug)]
pub(super) struct CompletionJob {
    /// The request, without the names of weights.
    pub request: CompletionRequest,
    /// Index of the job in its batch.
    pub place: usize,
}

/// Completed job.
#[derive(Debug)]
pub(super) struct FinishedJob {
    pub place: usize,
    pub completions: Vec<Completion>,
    /// Policy version that wrote the completions.
    pub version: u64,
}

/// Results of jobs that were submitted together.
#[derive(Debug, Default)]
pub(super) struct JobBatch {
    pub done: Vec<FinishedJob>,
    /// Number of times that a job was reassigned to another server.
    pub retried: u64,
    /// Number of servers that were usable at the end.
    pub servers: usize,
    /// The largest difference of a server's log-probabilities from the policy's.
    pub difference: f64,
    /// Warnings about servers.
    pub warnings: Vec<String>,
}

/// Results of jobs that were submitted together, or the reason for their failure.
pub(super) type JobBatchResult = Result<JobBatch, String>;

enum FleetMessage {
    Publish(Arc<PublishedPolicy>),
    Submit(Vec<CompletionJob>, Sender<JobBatchResult>),
    Updated { server: usize, result: Result<SyncedServer, ServerFault> },
    Answered { server: usize, incarnation: u64, job: u64, version: u64, result: Result<Vec<Completion>, ServerFault> },
    Checked { server: usize, incarnation: u64, is_alive: bool },
    Stop,
}

/// Handle of the dispatcher's thread. Dropping it stops the thread.
pub(super) struct Fleet {
    sender: Sender<FleetMessage>,
    thread: Option<JoinHandle<()>>,
}

impl Fleet {
    /// Starts the dispatcher. Waiting jobs fail once there has been no server for `patience`. A server computes at most `sequences`
    /// sequences at a time, except for a single request with more.
    pub(super) fn start(connections: Vec<Connection>, patience: Duration, sequences: usize) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let own = sender.clone();
        let now = Instant::now();
        let member = |connection| FleetMember::new(Arc::new(connection), now);
        let members = connections.into_iter().map(member).collect();
        let dispatcher = Dispatcher {
            members,
            published: None,
            queue: VecDeque::new(),
            pending: BTreeMap::new(),
            tickets: BTreeMap::new(),
            next: 0,
            sender: own,
            warnings: Vec::new(),
            patience,
            sequences,
        };
        let thread = thread::Builder::new().name("rollouts".into()).spawn(move || dispatcher.run(&receiver))?;
        Ok(Self { sender, thread: Some(thread) })
    }

    /// Makes all servers compute with these weights from now on.
    pub(super) fn publish(&self, published: Arc<PublishedPolicy>) {
        // If the thread has ended, the next submission notices.
        let _ = self.sender.send(FleetMessage::Publish(published));
    }

    /// Submits jobs. The receiver gets their results once.
    pub(super) fn submit(&self, jobs: Vec<CompletionJob>) -> Receiver<JobBatchResult> {
        let (sender, receiver) = channel();
        let _ = self.sender.send(FleetMessage::Submit(jobs, sender));
        receiver
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let _ = self.sender.send(FleetMessage::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic has already been printed.
            let _ = thread.join();
        }
    }
}

/// Availability of a server.
enum ServerAvailability {
    Ready(Arc<SyncedServer>),
    /// The server can't be used until it is updated, from this time on.
    Down {
        retry_at: Instant,
    },
}

/// Failures of a server since it last completed a job.
struct ServerTrouble {
    /// When it failed first.
    since: Instant,
    attempts: u32,
    reason: ServerFault,
}

struct FleetMember {
    connection: Arc<Connection>,
    state: ServerAvailability,
    /// When it became ready or was first looked for.
    began: Instant,
    trouble: Option<ServerTrouble>,
    /// What the server served last.
    served: Option<Arc<SyncedServer>>,
    /// When a thread began to update it to a version, if one does.
    updating_since: Option<Instant>,
    /// How long the last update took that it had as a working server.
    update_time: Duration,
    /// Number of sequences in flight, and of requests.
    under_way: (usize, usize),
    /// Number of times that the server was lost; requests from before no longer count as in flight.
    incarnation: u64,
    checked_at: Instant,
    is_checking: bool,
}

impl FleetMember {
    fn new(connection: Arc<Connection>, now: Instant) -> Self {
        Self {
            connection,
            state: ServerAvailability::Down { retry_at: now },
            began: now,
            trouble: None,
            served: None,
            updating_since: None,
            update_time: Duration::ZERO,
            under_way: (0, 0),
            incarnation: 0,
            checked_at: now,
            is_checking: false,
        }
    }

    /// Returns whether the server has never served the run, and waiting can't change that.
    fn is_unfit(&self) -> bool {
        self.served.is_none() && self.trouble.as_ref().is_some_and(|trouble| trouble.reason.is_lasting())
    }

    /// Returns what the server serves, if it can take a job with this version now.
    fn ready(&self, version: u64) -> Option<&Arc<SyncedServer>> {
        match &self.state {
            ServerAvailability::Ready(serving) if self.updating_since.is_none() && serving.version == version => Some(serving),
            _ => None,
        }
    }

    /// Returns whether the server is being updated, has not failed, and should be ready soon: other servers leave it its share of the work.
    fn is_awaited(&self) -> bool {
        let wait = SHORTEST_WAIT.max(2 * self.update_time);
        self.trouble.is_none() && self.updating_since.is_some_and(|since| since.elapsed() < wait)
    }
}

/// An unfinished job.
struct PendingJob {
    job: CompletionJob,
    ticket: u64,
    /// The servers that are computing the job.
    servers: Vec<usize>,
    /// The servers that have refused it.
    refusals: BTreeSet<usize>,
}

/// Jobs that were submitted together.
struct Ticket {
    reply: Sender<JobBatchResult>,
    remaining: usize,
    batch: JobBatch,
}

struct Dispatcher {
    members: Vec<FleetMember>,
    published: Option<Arc<PublishedPolicy>>,
    queue: VecDeque<u64>,
    pending: BTreeMap<u64, PendingJob>,
    tickets: BTreeMap<u64, Ticket>,
    /// Next number of a job or ticket.
    next: u64,
    sender: Sender<FleetMessage>,
    /// Warnings since the last finished batch.
    warnings: Vec<String>,
    patience: Duration,
    sequences: usize,
}

impl Dispatcher {
    fn run(mut self, receiver: &Receiver<FleetMessage>) {
        loop {
            match receiver.recv_timeout(TICK) {
                Ok(FleetMessage::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(message) => self.handle(message),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.update_members();
            self.check_members();
            self.assign();
            self.give_up();
        }
        self.unload(receiver);
    }

    /// Unloads what the run loaded on its servers, also what they are loading now.
    fn unload(mut self, receiver: &Receiver<FleetMessage>) {
        let deadline = Instant::now() + LONGEST_UNLOAD;
        while self.members.iter().any(|member| member.updating_since.is_some()) {
            match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(FleetMessage::Updated { server, result }) => {
                    let member = &mut self.members[server];
                    member.updating_since = None;
                    member.served = result.ok().map(Arc::new).or(member.served.take());
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        for member in &self.members {
            if let Some(served) = &member.served {
                member.connection.forget(served);
            }
        }
    }

    fn handle(&mut self, message: FleetMessage) {
        match message {
            FleetMessage::Publish(published) => self.published = Some(published),
            FleetMessage::Submit(jobs, reply) => self.submit(jobs, reply),
            FleetMessage::Updated { server, result } => self.updated(server, result),
            FleetMessage::Answered { server, incarnation, job, version, result } => {
                self.answered(server, incarnation, job, version, result);
            }
            FleetMessage::Checked { server, incarnation, is_alive } => {
                let member = &mut self.members[server];
                (member.is_checking, member.checked_at) = (false, Instant::now());
                if !is_alive && member.incarnation == incarnation && matches!(member.state, ServerAvailability::Ready(_)) {
                    self.lost(server, ServerFault::Silent);
                }
            }
            FleetMessage::Stop => {}
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn submit(&mut self, jobs: Vec<CompletionJob>, reply: Sender<JobBatchResult>) {
        let number = self.number();
        self.tickets.insert(number, Ticket { reply, remaining: jobs.len(), batch: JobBatch::default() });
        for job in jobs {
            let id = self.number();
            self.pending.insert(id, PendingJob { job, ticket: number, servers: Vec::new(), refusals: BTreeSet::new() });
            self.queue.push_back(id);
        }
        self.end_if_done(number);
    }

    /// Starts updating servers to the newest version: those with another version, and lost ones whose retry is due.
    fn update_members(&mut self) {
        let Some(published) = self.published.clone() else { return };
        let now = Instant::now();
        for (server, member) in self.members.iter_mut().enumerate() {
            let is_due = match &member.state {
                ServerAvailability::Ready(serving) => serving.version != published.version,
                ServerAvailability::Down { retry_at, .. } => *retry_at <= now,
            };
            if member.updating_since.is_some() || !is_due {
                continue;
            }
            let (connection, published, before) = (Arc::clone(&member.connection), Arc::clone(&published), member.served.clone());
            let sender = self.sender.clone();
            let update = move || {
                let result = connection.bring_up(&published, before.as_deref());
                let _ = sender.send(FleetMessage::Updated { server, result });
            };
            // If no thread can be started, it is retried later.
            let is_started = thread::Builder::new().name("weights".into()).spawn(update).is_ok();
            member.updating_since = is_started.then_some(now);
        }
    }

    fn updated(&mut self, server: usize, result: Result<SyncedServer, ServerFault>) {
        let member = &mut self.members[server];
        let since = member.updating_since.take();
        match result {
            Ok(serving) => {
                // One that was lost may have taken longer for other reasons.
                if let (ServerAvailability::Ready(_), Some(since)) = (&member.state, since) {
                    member.update_time = since.elapsed();
                }
                if matches!(member.state, ServerAvailability::Down { .. }) {
                    member.began = Instant::now();
                }
                let serving = Arc::new(serving);
                member.served = Some(Arc::clone(&serving));
                member.state = ServerAvailability::Ready(serving);
                member.checked_at = Instant::now();
            }
            Err(trouble) => self.lost(server, trouble),
        }
    }

    /// Takes the work away from a lost server, and schedules a retry.
    fn lost(&mut self, server: usize, reason: ServerFault) {
        let (now, others) = (Instant::now(), self.members.len() - 1);
        let member = &mut self.members[server];
        member.connection.was_lost();
        if matches!(member.state, ServerAvailability::Ready(_)) && member.began.elapsed() > self.patience {
            // It has been there for longer than failures count.
            member.trouble = None;
        }
        let name = member.connection.name();
        let (since, attempts) = match &member.trouble {
            Some(trouble) => (trouble.since, trouble.attempts),
            None => {
                let others = if others > 0 { "its requests go to others, and it is tried again" } else { "it is tried again" };
                let warning = format!("rollout server {}; {others}", described(name, &reason));
                tracing::warn!("{warning}");
                self.warnings.push(warning);
                (if member.served.is_some() { now } else { member.began }, 0)
            }
        };
        let wait = Duration::from_millis(500) * 2u32.saturating_pow(attempts.min(16));
        member.state = ServerAvailability::Down { retry_at: now + wait.min(LONGEST_RETRY) };
        member.trouble = Some(ServerTrouble { since, attempts: attempts + 1, reason });
        (member.under_way, member.incarnation) = ((0, 0), member.incarnation + 1);
        let back: Vec<u64> = self.pending.iter_mut().filter_map(|(id, pending)| pending.leaves(server).then_some(*id)).collect();
        for id in back.into_iter().rev() {
            self.requeue(id);
        }
    }

    /// Puts a job back at the front of the queue if no server computes it.
    fn requeue(&mut self, id: u64) {
        let Some(pending) = self.pending.get(&id).filter(|pending| pending.servers.is_empty()) else { return };
        if let Some(ticket) = self.tickets.get_mut(&pending.ticket) {
            ticket.batch.retried += 1;
        }
        self.queue.push_front(id);
    }

    /// Checks whether busy servers are alive.
    fn check_members(&mut self) {
        for (server, member) in self.members.iter_mut().enumerate() {
            let is_busy = member.under_way.1 > 0 || member.updating_since.is_some();
            let is_due = is_busy && !member.is_checking && member.checked_at.elapsed() >= CHECK;
            if !is_due || !matches!(member.state, ServerAvailability::Ready(_)) {
                continue;
            }
            let (connection, sender, incarnation) = (Arc::clone(&member.connection), self.sender.clone(), member.incarnation);
            let check = move || {
                let _ = sender.send(FleetMessage::Checked { server, incarnation, is_alive: connection.is_alive() });
            };
            member.is_checking = thread::Builder::new().name("health".into()).spawn(check).is_ok();
        }
    }

    /// Returns how busy each server is that takes jobs of this version, now or soon.
    fn loads(&self, version: u64, samples: usize) -> Vec<MemberLoad> {
        let load = |(index, member): (usize, &FleetMember)| {
            let (sequences, requests) = member.under_way;
            let is_ready = member.ready(version).is_some();
            let has_room = requests == 0 || sequences + samples <= self.sequences && requests < MOST_REQUESTS;
            (is_ready || member.is_awaited()).then_some(MemberLoad { index, sequences, is_ready, has_room })
        };
        self.members.iter().enumerate().filter_map(load).collect()
    }

    /// Assigns waiting jobs to the least busy servers.
    fn assign(&mut self) {
        let Some(version) = self.published.as_ref().map(|published| published.version) else { return };
        let mut queued: usize =
            self.queue.iter().filter_map(|id| self.pending.get(id)).map(|pending| pending.job.request.samples).sum();
        while let Some(&id) = self.queue.front() {
            let Some(pending) = self.pending.get(&id) else {
                self.queue.pop_front();
                continue;
            };
            let samples = pending.job.request.samples;
            let Some(server) = next_member(&self.loads(version, samples), queued) else { return };
            let Some(pending) = self.pending.get_mut(&id) else { return };
            let member = &mut self.members[server];
            let Some(serving) = member.ready(version).cloned() else { return };
            let (connection, request) = (Arc::clone(&member.connection), pending.job.request.clone());
            let (sender, incarnation) = (self.sender.clone(), member.incarnation);
            let ask = move || {
                let (result, version) = (connection.complete(&serving, &request), serving.version);
                let _ = sender.send(FleetMessage::Answered { server, incarnation, job: id, version, result });
            };
            if thread::Builder::new().name("rollout".into()).spawn(ask).is_err() {
                // There will be room once other jobs have finished.
                return;
            }
            if member.under_way.1 == 0 {
                member.checked_at = Instant::now();
            }
            member.under_way = (member.under_way.0 + samples, member.under_way.1 + 1);
            pending.servers.push(server);
            self.queue.pop_front();
            queued -= samples;
        }
    }

    fn answered(
        &mut self,
        server: usize,
        incarnation: u64,
        job: u64,
        version: u64,
        result: Result<Vec<Completion>, ServerFault>,
    ) {
        let servers = self.members.len();
        let member = &mut self.members[server];
        let is_current = member.incarnation == incarnation;
        let Some(pending) = self.pending.get_mut(&job) else {
            // Another server was faster, or the ticket has failed.
            if is_current {
                member.under_way.1 = member.under_way.1.saturating_sub(1);
            }
            return;
        };
        if is_current {
            let (sequences, requests) = member.under_way;
            let samples = pending.job.request.samples;
            member.under_way = (sequences.saturating_sub(samples), requests.saturating_sub(1));
            pending.leaves(server);
        }
        match result {
            Ok(completions) => {
                if is_current && let Some(trouble) = member.trouble.take() {
                    let seconds = trouble.since.elapsed().as_secs();
                    tracing::info!("{} is back, with the policy's weights, after {seconds} s", member.connection.name());
                }
                self.done(job, completions, version);
            }
            Err(fault) => {
                if fault.is_of_the_request() {
                    pending.refusals.insert(server);
                }
                if pending.refusals.len() == servers {
                    let (ticket, why) = (pending.ticket, described(member.connection.name(), &fault));
                    self.fail(ticket, &format!("rollout server {why}"));
                } else if is_current {
                    // A server that was lost since has no jobs any more.
                    self.lost(server, fault);
                    self.requeue(job);
                }
            }
        }
    }

    fn done(&mut self, job: u64, completions: Vec<Completion>, version: u64) {
        let Some(pending) = self.pending.remove(&job) else { return };
        self.give_room(&pending);
        if let Some(ticket) = self.tickets.get_mut(&pending.ticket) {
            ticket.remaining -= 1;
            ticket.batch.done.push(FinishedJob { place: pending.job.place, completions, version });
        }
        self.end_if_done(pending.ticket);
    }

    /// Stops counting the sequences of a finished or failed job on the servers that still compute it.
    fn give_room(&mut self, pending: &PendingJob) {
        for &server in &pending.servers {
            let (sequences, _) = &mut self.members[server].under_way;
            *sequences = sequences.saturating_sub(pending.job.request.samples);
        }
    }

    fn end_if_done(&mut self, number: u64) {
        if self.tickets.get(&number).is_none_or(|ticket| ticket.remaining > 0) {
            return;
        }
        let Some(Ticket { reply, mut batch, .. }) = self.tickets.remove(&number) else { return };
        let ready = self.members.iter().filter_map(|member| match &member.state {
            ServerAvailability::Ready(serving) => Some(serving.difference),
            ServerAvailability::Down { .. } => None,
        });
        (batch.servers, batch.difference) = ready.fold((0, 0.0), |(count, most), one| (count + 1, f64::max(most, one)));
        batch.warnings = std::mem::take(&mut self.warnings);
        batch.done.sort_by_key(|done| done.place);
        // The submitter may be gone.
        let _ = reply.send(Ok(batch));
    }

    /// Fails waiting jobs if there has been no server for too long.
    fn give_up(&mut self) {
        if self.tickets.is_empty() || self.published.is_none() {
            return;
        }
        let mut reasons = Vec::new();
        for member in &self.members {
            let (since, reason) = match (&member.trouble, &member.state) {
                (Some(trouble), _) => (trouble.since, &trouble.reason),
                (None, ServerAvailability::Down { .. }) => (member.began, &ServerFault::Silent),
                (None, ServerAvailability::Ready(_)) => return,
            };
            if since.elapsed() <= self.patience && !member.is_unfit() {
                return;
            }
            reasons.push(described(member.connection.name(), reason));
        }
        let waited = match self.members.iter().all(FleetMember::is_unfit) {
            true => String::new(),
            false => format!(" for {} s (rollout_timeout_s)", self.patience.as_secs_f64()),
        };
        let why = format!("no rollout server can be used{waited}: {}", reasons.join("; "));
        let tickets: Vec<u64> = self.tickets.keys().copied().collect();
        tickets.into_iter().for_each(|ticket| self.fail(ticket, &why));
    }

    /// Fails the jobs of a ticket.
    fn fail(&mut self, ticket: u64, why: &str) {
        let given_up: Vec<u64> =
            self.pending.iter().filter_map(|(id, pending)| (pending.ticket == ticket).then_some(*id)).collect();
        for id in given_up {
            if let Some(pending) = self.pending.remove(&id) {
                self.give_room(&pending);
            }
        }
        if let Some(ticket) = self.tickets.remove(&ticket) {
            // The submitter may be gone.
            let _ = ticket.reply.send(Err(why.to_owned()));
        }
    }
}

impl PendingJob {
    /// Records that a server no longer computes the job. Returns whether it did.
    fn leaves(&mut self, server: usize) -> bool {
        let before = self.servers.len();
        self.servers.retain(|other| *other != server);
        self.servers.len() < before
    }
}

/// Adds the server's name to a fault that lacks it.
fn described(name: &str, trouble: &ServerFault) -> String {
    match trouble {
        ServerFault::Failed(failure) => failure.to_string(),
        other => format!("{name}: {other}"),
    }
}
