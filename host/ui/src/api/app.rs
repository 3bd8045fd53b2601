//! State shared by all routes.

use super::query::Query;
use super::refusal::{ApiRefusal, Result};
use crate::backend::PageBackend;
use crate::folder::RunListing;
use crate::store::RunStore;
use rlhost_live::LiveRun;
use serde_json::Value;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// State shared by all routes.
pub(crate) struct PageApi {
    /// Runs that are shown.
    pub listing: RunListing,
    pub backend: Box<dyn PageBackend>,
    /// Whether the page may control runs.
    pub control: bool,
    pub store: RunStore,
    /// Locked while a plugin scores completions, one request at a time.
    pub(super) scoring: Mutex<()>,
    /// Settings forms by plugin file. Locked while a plugin is loaded for its form, one at a time.
    pub(super) forms: Mutex<HashMap<PathBuf, Value>>,
}

impl PageApi {
    pub fn new(root: PathBuf, backend: Box<dyn PageBackend>, control: bool) -> Self {
        Self::with_listing(RunListing::new(root), backend, control)
    }

    /// Creates the API for the runs of a list.
    pub fn with_listing(listing: RunListing, backend: Box<dyn PageBackend>, control: bool) -> Self {
        Self { listing, backend, control, store: RunStore::default(), scoring: Mutex::new(()), forms: Mutex::default() }
    }

    /// Returns the folder of the run that a query names.
    pub(super) fn path_of(&self, query: &Query) -> Result<PathBuf> {
        self.path(query.required("run")?)
    }

    pub(super) fn path(&self, name: &str) -> Result<PathBuf> {
        self.listing.find(name).ok_or_else(|| ApiRefusal::new(404, format!("there is no run {name:?} in this folder")))
    }

    /// Returns the run that a query names.
    pub fn followed(&self, query: &Query) -> Result<Arc<Mutex<LiveRun>>> {
        Ok(self.store.run(&self.path_of(query)?))
    }
}
