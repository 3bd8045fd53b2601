//! What all routes share.

use super::query::Query;
use super::refused::{Refused, Result};
use crate::backend::Backend;
use crate::folder::Listing;
use crate::store::Store;
use rlhost_followed::Followed;
use serde_json::Value;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// What all routes share.
pub(crate) struct Api {
    /// The runs that are shown.
    pub listing: Listing,
    pub backend: Box<dyn Backend>,
    /// Whether runs may be acted on.
    pub control: bool,
    pub store: Store,
    /// Held while a plugin scores completions: one at a time.
    pub(super) scoring: Mutex<()>,
    /// The forms of plugins that were loaded for it, by their files. Locked while one is loaded: one at a time.
    pub(super) forms: Mutex<HashMap<PathBuf, Value>>,
}

impl Api {
    pub fn new(root: PathBuf, backend: Box<dyn Backend>, control: bool) -> Self {
        Self::of(Listing::new(root), backend, control)
    }

    /// Creates what answers about the runs of a list.
    pub fn of(listing: Listing, backend: Box<dyn Backend>, control: bool) -> Self {
        Self { listing, backend, control, store: Store::default(), scoring: Mutex::new(()), forms: Mutex::default() }
    }

    /// Returns the folder of the run that a query names.
    pub(super) fn path_of(&self, query: &Query) -> Result<PathBuf> {
        self.path(query.required("run")?)
    }

    pub(super) fn path(&self, name: &str) -> Result<PathBuf> {
        self.listing.find(name).ok_or_else(|| Refused::new(404, format!("there is no run {name:?} in this folder")))
    }

    /// Returns the run that a query names.
    pub fn followed(&self, query: &Query) -> Result<Arc<Mutex<Followed>>> {
        Ok(self.store.run(&self.path_of(query)?))
    }
}
