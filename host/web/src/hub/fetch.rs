//! Downloads a file, resumes interrupted downloads, and verifies the content.

use super::cache::{HubCache, append, is_hash, is_inside};
use super::client::{COMMIT, HubFailure, HubRequestKind, text};
use super::name::Repo;
use super::{Error, Hub, HubTimeouts, Result};
use crate::activity::{Activity, ProgressTask, ProgressUnit};
use indicatif::HumanBytes;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;
use ureq::http::StatusCode;

/// Maximum number of consecutive attempts without progress.
const TRIES: u32 = 5;

/// Maximum size in bytes of a file whose size the hub does not report.
const UNSAID: u64 = 64 << 30;

/// Metadata of a file on the hub.
struct RemoteFile {
    /// Hash that names the content in the cache.
    hash: String,
    size: Option<u64>,
    /// Whether the hash is the SHA-256 of the content, as it is for all large files.
    sha256: bool,
}

impl RemoteFile {
    /// Returns the maximum number of bytes to receive.
    fn most(&self) -> u64 {
        self.size.unwrap_or(UNSAID)
    }
}

/// Progress of a download, across all its requests.
struct DownloadProgress {
    slowest: HubTimeouts,
    since: Instant,
    bytes: u64,
    task: ProgressTask,
}

impl DownloadProgress {
    fn new(slowest: HubTimeouts, task: ProgressTask) -> Self {
        Self { slowest, since: Instant::now(), bytes: 0, task }
    }

    /// Records received bytes; returns false if the download is too slow.
    fn note(&mut self, bytes: usize) -> bool {
        self.bytes += bytes as u64;
        self.task.add(bytes as u64);
        if self.since.elapsed() < self.slowest.stretch {
            return true;
        }
        let enough = self.bytes >= self.slowest.least;
        (self.since, self.bytes) = (Instant::now(), 0);
        enough
    }
}

/// Reason why a part of a download ended before the end of the file.
enum DownloadInterruption {
    /// The connection broke; the download may resume.
    Broken(String),
    Final(Error),
}

impl Hub {
    /// Returns a commit's file, downloaded into the cache if necessary. Subtracts the downloaded bytes from `left`.
    pub(super) fn fetch(&self, repo: &Repo, cache: &HubCache, commit: &str, file: &str, left: &mut u64) -> Result<PathBuf> {
        if !is_inside(file) {
            return Err(broken(repo, format!("{file:?} is not a file name")));
        }
        let path = cache.snapshot(commit).join(file);
        if path.exists() {
            return Ok(path);
        }
        if self.settings.offline {
            return Err(Error::Unreachable {
                name: repo.id.clone(),
                detail: format!("{file} is not in the cache, and HF_HUB_OFFLINE forbids downloading it"),
            });
        }
        let url = repo.file(&self.settings.endpoint, commit, file);
        let content = self.content(repo, &url, file)?;
        *left = left.checked_sub(content.most()).ok_or_else(|| {
            let (size, left) = (HumanBytes(content.most()), HumanBytes(*left));
            broken(repo, format!("{file} is {size} according to the hub; at most {left} are downloaded"))
        })?;
        let _lock = cache.lock(&content.hash, file)?;
        let blob = cache.blob(&content.hash);
        if !blob.exists() {
            let part = cache.blob(&format!("{}.incomplete", content.hash));
            self.download(repo, &url, file, &content, &part)?;
            std::fs::rename(&part, &blob).map_err(|source| Error::Io { path: blob, source })?;
        }
        cache.link(&content.hash, commit, file)
    }

    /// Waits before a retry; each wait is longer.
    fn wait(&self, tries: u32) {
        std::thread::sleep(self.settings.retry_delay * 2_u32.pow(tries.saturating_sub(1)));
    }

    fn content(&self, repo: &Repo, url: &str, file: &str) -> Result<RemoteFile> {
        let mut tries = 0;
        let answer = loop {
            match self.wire.ask(url, HubRequestKind::Head) {
                Err(failure) if failure.is_transient() && tries < TRIES => {
                    tries += 1;
                    self.wait(tries);
                }
                answer => break answer.map_err(|failure| self.explain(repo, failure))?,
            }
        };
        let (linked, own) = (text(&answer, "x-linked-etag"), text(&answer, "etag"));
        let etag = if linked.is_empty() { own } else { linked };
        let hash = etag.trim_start_matches("W/").trim_matches('"').to_owned();
        if !is_hash(&hash) || text(&answer, COMMIT).is_empty() {
            let endpoint = &self.settings.endpoint;
            return Err(broken(repo, format!("{endpoint} does not describe {file} the way a hub does; check HF_ENDPOINT")));
        }
        let size = match text(&answer, "x-linked-size") {
            "" if answer.status().is_redirection() => "",
            "" => text(&answer, "content-length"),
            linked => linked,
        };
        let sha256 = !linked.is_empty() && hash.len() == 64 && hash.chars().all(|c| c.is_ascii_hexdigit());
        Ok(RemoteFile { hash, size: size.parse().ok(), sha256 })
    }

    /// Downloads a content into `part`, resuming after the bytes that it holds.
    fn download(&self, repo: &Repo, url: &str, file: &str, content: &RemoteFile, part: &Path) -> Result<()> {
        let io = |source| Error::Io { path: part.to_owned(), source };
        let mut into = append(part)?;
        let mut have = into.metadata().map_err(io)?.len();
        let of = content.size.map(|size| format!(" ({})", HumanBytes(size))).unwrap_or_default();
        let from = if have > 0 { format!(", resuming at {}", HumanBytes(have)) } else { String::new() };
        tracing::info!("downloading {} {file}{of}{from}", repo.id);
        let mut advance = DownloadProgress::new(
            self.settings.timeouts,
            ProgressTask::new(Activity::Downloading).with_subject(file.to_owned()).with_total(content.size, ProgressUnit::Bytes),
        );
        let mut tries = 0;
        while content.size != Some(have) {
            let stop = match self.part(repo, url, &mut into, have, content, &mut advance) {
                Ok(()) if content.size.is_none() => break,
                Ok(()) => "the connection ended".to_owned(),
                Err(DownloadInterruption::Broken(said)) => said,
                Err(DownloadInterruption::Final(error)) => return Err(error),
            };
            let now = into.metadata().map_err(io)?.len();
            if content.size == Some(now) {
                break;
            }
            let closer = now > have && content.size.is_none_or(|size| now < size);
            tries = if closer { 1 } else { tries + 1 };
            if tries >= TRIES {
                let of = content.size.map(|size| format!(" of {}", HumanBytes(size))).unwrap_or_default();
                let detail = format!("{file} stopped at {}{of} ({stop})", HumanBytes(now));
                return Err(broken(repo, format!("{detail}; run the same command again to resume there")));
            }
            have = now;
            self.wait(tries);
        }
        into.sync_all().map_err(io)?;
        if content.sha256 && sha256(&mut into).map_err(io)? != content.hash {
            std::fs::remove_file(part).map_err(io)?;
            let endpoint = &self.settings.endpoint;
            let detail =
                format!("{file} differs from the file on {endpoint}: its SHA-256 does not match; the download was removed");
            return Err(broken(repo, format!("{detail}, and running the same command again restarts it")));
        }
        Ok(())
    }

    /// Receives the response to one request, from byte `have` on.
    fn part(
        &self,
        repo: &Repo,
        url: &str,
        into: &mut File,
        have: u64,
        content: &RemoteFile,
        advance: &mut DownloadProgress,
    ) -> std::result::Result<(), DownloadInterruption> {
        let full = |source| DownloadInterruption::Final(Error::Io { path: self.settings.cache.clone(), source });
        let answer = self.wire.ask(url, HubRequestKind::Get { from: have }).map_err(|failure| match failure {
            failure if failure.is_transient() => DownloadInterruption::Broken(failure.to_string()),
            // The partial file is longer than the file and can't be used.
            HubFailure::Refused { status: StatusCode::RANGE_NOT_SATISFIABLE, .. } => match into.set_len(0) {
                Ok(()) => DownloadInterruption::Broken("the size of the file has changed".into()),
                Err(source) => full(source),
            },
            refused => DownloadInterruption::Final(self.explain(repo, refused)),
        })?;
        let continues = text(&answer, "content-range").starts_with(&format!("bytes {have}-"));
        let at = if answer.status() == StatusCode::PARTIAL_CONTENT && continues { have } else { 0 };
        // A server without range support starts over.
        into.set_len(at).map_err(full)?;
        advance.task.set(at);
        let mut reader = answer.into_body().into_reader();
        let mut buffer = vec![0; 1 << 18];
        let mut room = content.most().saturating_sub(at);
        loop {
            let read = reader.read(&mut buffer).map_err(|e| DownloadInterruption::Broken(e.to_string()))?;
            if read == 0 {
                return Ok(());
            }
            let Some(rest) = room.checked_sub(read as u64) else {
                into.set_len(0).map_err(full)?;
                let most = HumanBytes(content.most());
                return Err(DownloadInterruption::Final(broken(
                    repo,
                    format!("{} sends more than the {most} that the file has", host(url)),
                )));
            };
            room = rest;
            into.write_all(&buffer[..read]).map_err(full)?;
            if !advance.note(read) {
                let HubTimeouts { stretch, least, .. } = self.settings.timeouts;
                let detail = format!("{} sends a file too slowly, less than {} in {stretch:?}", host(url), HumanBytes(least));
                return Err(DownloadInterruption::Final(broken(repo, format!("{detail}; the same command goes on from there"))));
            }
        }
    }
}

/// Returns the server and repository in a file's address, for messages.
fn host(url: &str) -> &str {
    url.split("/resolve/").next().unwrap_or(url)
}

fn broken(repo: &Repo, detail: String) -> Error {
    Error::Broken { name: repo.id.clone(), detail }
}

fn sha256(file: &mut File) -> std::io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect()),
            read => hash.update(&buffer[..read]),
        }
    }
}
