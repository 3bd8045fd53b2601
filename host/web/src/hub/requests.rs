//! Lists the files of a repository.

use super::cache::{HubCache, is_hash, is_inside};
use super::client::{HubFailure, HubRequestKind};
use super::listing::RepoListing;
use super::name::Repo;
use super::{Error, Hub, Result};
use crate::config::printable;
use serde::Deserialize;

/// Maximum size of a response about a repository, in bytes; repositories with very many files need some megabytes.
const LONGEST: u64 = 32 << 20;

/// Maximum number of files in a repository.
const MOST_FILES: usize = 100_000;

#[derive(Deserialize)]
struct RepoDescription {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

impl Hub {
    /// Returns the files of a revision: from the hub, or from the cache if the hub does not respond and `whole` holds for the cached files.
    pub(super) fn listing(&self, repo: &Repo, cache: &HubCache, whole: impl Fn(&RepoListing) -> bool) -> Result<RepoListing> {
        let cached = || cache.listing(&repo.revision).filter(&whole);
        if self.settings.offline {
            return cached().ok_or_else(|| Error::Unreachable {
                name: repo.id.clone(),
                detail: format!(
                    "there is no such path, the cache {} does not hold all of this {}, and HF_HUB_OFFLINE forbids downloading it",
                    self.settings.cache.display(),
                    repo.noun()
                ),
            });
        }
        self.ask(repo).or_else(|error| match cached() {
            Some(listing) => {
                tracing::warn!("{error}; continuing with what the cache holds");
                Ok(listing)
            }
            None => Err(error),
        })
    }

    fn ask(&self, repo: &Repo) -> Result<RepoListing> {
        let url = repo.api(&self.settings.endpoint);
        let mut answer = self.wire.ask(&url, HubRequestKind::ShortAnswer).map_err(|failure| self.explain(repo, failure))?;
        let text = answer.body_mut().with_config().limit(LONGEST).read_to_string();
        let text = text.map_err(|e| self.explain(repo, HubFailure::NoAnswer(e.to_string())))?;
        let foreign = || Error::Unfit {
            name: repo.id.clone(),
            detail: format!("{url} does not describe a {} the way a hub does; check HF_ENDPOINT", repo.noun()),
        };
        let answer: RepoDescription = serde_json::from_str(&text).map_err(|_| foreign())?;
        if !is_hash(&answer.sha) {
            return Err(foreign());
        }
        if answer.siblings.len() > MOST_FILES {
            let detail = format!("{url} lists {} files; the maximum is {MOST_FILES}", answer.siblings.len());
            return Err(Error::Unfit { name: repo.id.clone(), detail });
        }
        let (mut files, outside): (Vec<String>, Vec<String>) =
            answer.siblings.into_iter().map(|s| s.rfilename).partition(|file| is_inside(file));
        if let Some(first) = outside.first() {
            let first = printable(first, 128);
            tracing::warn!("{}: skipped {} files whose names can't be used: {first}", repo.id, outside.len());
        }
        files.sort_unstable();
        files.dedup();
        Ok(RepoListing { commit: answer.sha, files, fresh: true })
    }

    /// Turns a failure into an error for the user, with advice.
    pub(super) fn explain(&self, repo: &Repo, failure: HubFailure) -> Error {
        let (name, noun) = (repo.id.clone(), repo.noun());
        let (endpoint, page) = (&self.settings.endpoint, repo.page(&self.settings.endpoint));
        let (status, code, said) = match failure {
            HubFailure::NoAnswer(said) => {
                let help = "check the spelling, the network, HF_ENDPOINT and HTTPS_PROXY";
                let detail = format!("there is no such path, and {endpoint} does not answer ({said}); {help}");
                return Error::Unreachable { name, detail };
            }
            HubFailure::Disallowed(detail) => return Error::Denied { name, detail },
            HubFailure::Refused { status, code, message: said } => (status.as_u16(), code, said),
        };
        let known = self.settings.token.is_some();
        match (status, code.as_str()) {
            (_, "RevisionNotFound") => {
                Error::Missing { name, detail: format!("{endpoint} has this {noun}, but no revision {:?} of it", repo.revision) }
            }
            (_, "EntryNotFound") => {
                Error::Unfit { name, detail: format!("{endpoint} lists a file that it does not have ({status})") }
            }
            (_, "GatedRepo") | (403, _) => {
                let who = if known {
                    "the owner of the token in use must ask for access at"
                } else {
                    "set HF_TOKEN, and ask for access at"
                };
                Error::Denied { name, detail: format!("{endpoint} restricts access to this {noun} ({status}); {who} {page}") }
            }
            (401, _) if known => {
                let detail = format!(
                    "{endpoint} rejects the token that was sent, or has no such {noun} ({status}); check HF_TOKEN and {page}"
                );
                Error::Denied { name, detail }
            }
            (401 | 404, _) => {
                let help = "check the spelling; if it is private, set HF_TOKEN to a token that may read it";
                let help = if known { "check the spelling, and whether the token in use may read it" } else { help };
                Error::Missing {
                    name,
                    detail: format!("there is no such path, and {endpoint} has no {noun} of this name ({status}); {help}"),
                }
            }
            (429 | 500.., _) => {
                Error::Unreachable { name, detail: format!("{endpoint} can't answer now ({status} {said}); try again later") }
            }
            _ => Error::Unfit { name, detail: format!("{endpoint} answers {status} {said}") },
        }
    }
}
