//! Errors between ranks.

use crate::ops;
use serde::{Deserialize, Serialize};

/// Why a rank failed, as reported to the others.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct RankFailure {
    /// The error message.
    pub reason: String,
    /// The plugin whose call failed, if any.
    pub plugin: Option<String>,
    /// Whether the user's input is at fault.
    pub mistake: bool,
    /// Whether writing a checkpoint failed.
    pub of_saving: bool,
}

/// The reason why ranks can't work together.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A rank failed.
    #[error("rank {rank}: {}", failure.reason)]
    Failed {
        /// The rank.
        rank: usize,
        /// The failure.
        failure: RankFailure,
    },
    /// The build lacks MPI, but several processes were started.
    #[error(
        "this process was started as rank {rank} of {size}, but this rlhost was built without MPI; build it with --features rlhost/mpi"
    )]
    NoMpi {
        /// The rank of this process.
        rank: usize,
        /// The number of processes.
        size: usize,
    },
    /// MPI is already initialised: a bug.
    #[error("MPI is already initialised in this process")]
    Joined,
    /// A thread can't be started.
    #[error("can't start the ranks' watchdog: {0}")]
    Watchdog(#[from] std::io::Error),
    /// Ranks called different collectives: a bug.
    #[error("rank {rank} is at {there:?} when rank 0 is at {first:?}; this is a bug in rlhost")]
    OutOfStep {
        /// The first rank that called another collective than rank 0.
        rank: usize,
        /// The collective that this rank called.
        there: String,
        /// The collective that rank 0 called.
        first: String,
    },
    /// A collective returned nothing: a bug.
    #[error("nothing came of the ranks' {what:?}; this is a bug in rlhost")]
    Missing {
        /// The collective.
        what: &'static str,
    },
    /// An owner has no values to send: a bug.
    #[error("rank {rank} owns a tensor of shape {shape:?} and has freed it; this is a bug in rlhost")]
    NotOwned {
        /// The rank.
        rank: usize,
        /// The tensor's shape.
        shape: Vec<usize>,
    },
    /// A value can't be encoded or decoded.
    #[error("{what:?} can't be sent to the other ranks: {source}")]
    Encoding {
        /// The value that was sent.
        what: &'static str,
        /// The cause.
        source: postcard::Error,
    },
    /// Some ranks compute on a device and others don't.
    #[error("rank {rank} computes on {there} and rank 0 on {first}; set device to \"cuda\" or \"cpu\" for all ranks")]
    MixedDevices {
        /// The rank.
        rank: usize,
        /// The place where this rank computes.
        there: &'static str,
        /// The place where the first rank computes.
        first: &'static str,
    },
    /// NCCL is missing or failed.
    #[error("NCCL can't {what}: {detail}")]
    Nccl {
        /// The operation.
        what: &'static str,
        /// NCCL's message.
        detail: String,
    },
    /// A tensor can't be summed.
    #[error(transparent)]
    Op(#[from] ops::Error),
}

impl Error {
    /// Returns whether the user's input is at fault, rather than the machine or the program.
    pub fn is_mistake(&self) -> bool {
        match self {
            Self::Failed { failure, .. } => failure.mistake,
            Self::NoMpi { .. } | Self::MixedDevices { .. } => true,
            Self::Joined
            | Self::Watchdog(_)
            | Self::OutOfStep { .. }
            | Self::Missing { .. }
            | Self::NotOwned { .. }
            | Self::Encoding { .. }
            | Self::Nccl { .. }
            | Self::Op(_) => false,
        }
    }
}

/// Result of an operation between ranks.
pub type Result<T> = std::result::Result<T, Error>;
