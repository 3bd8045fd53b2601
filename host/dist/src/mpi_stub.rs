//! Stub that replaces MPI in builds without it.

use super::launcher::launched;
use super::{Error, Result};

/// The other ranks of a build without MPI. The type is uninhabited.
pub(super) enum StubRanks {}

/// Collectives on numbers of a build without MPI. The type is uninhabited.
#[derive(Clone, Copy)]
pub(super) enum StubChannel {}

impl StubChannel {
    pub(super) fn rank(self) -> usize {
        match self {}
    }

    pub(super) fn size(self) -> usize {
        match self {}
    }

    pub(super) fn all_reduce(self, _own: &[f32], _sums: &mut [f32]) {
        match self {}
    }

    pub(super) fn all_to_all(self, _own: &[u16], _parts: &mut [u16]) {
        match self {}
    }

    pub(super) fn all_gather(self, _own: &[u16], _all: &mut [u16]) {
        match self {}
    }

    pub(super) fn reduce(self, _own: &[f32], _sums: &mut [f32], _owner: usize) {
        match self {}
    }

    pub(super) fn gather(self, _own: &[u16], _all: &mut [u16], _owner: usize) {
        match self {}
    }

    pub(super) fn broadcast(self, _bytes: &mut [u8], _owner: usize) {
        match self {}
    }
}

impl StubRanks {
    /// Returns `None`, or an error if this process was started as one of several.
    pub(super) fn join() -> Result<Option<Self>> {
        match launched() {
            Some((rank, size)) if size > 1 => Err(Error::NoMpi { rank, size }),
            _ => Ok(None),
        }
    }

    pub(super) fn rank(&self) -> usize {
        match *self {}
    }

    pub(super) fn size(&self) -> usize {
        match *self {}
    }

    pub(super) fn headers(&self, _own: [u64; 3], _came: &dyn Fn(usize)) -> Vec<[u64; 3]> {
        match *self {}
    }

    pub(super) fn bytes(&self, _own: &[u8], _lengths: &[usize]) -> Vec<Vec<u8>> {
        match *self {}
    }

    pub(super) fn serialized(&self) -> bool {
        match *self {}
    }

    pub(super) fn channel(&self) -> StubChannel {
        match *self {}
    }

    pub(super) fn leave(self) {
        match self {}
    }

    pub(super) fn abort(&self) -> ! {
        match *self {}
    }
}
