//! Reads the environment variables that launchers set for their processes.

/// Environment variables in which launchers pass a process's rank on its machine.
const LOCAL_RANKS: [&str; 7] = [
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
    "PMI_LOCAL_RANK",
    "FLUX_TASK_LOCAL_ID",
    "SLURM_LOCALID",
];

/// Returns this process's rank and the number of processes that the launcher started.
pub(super) fn launched() -> Option<(usize, usize)> {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    // Open MPI; MPICH and Slurm's PMI-2; Slurm's PMIx.
    let known =
        [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("PMIX_RANK", "SLURM_STEP_NUM_TASKS")];
    known.iter().find_map(|(rank, size)| Some((number(rank)?, number(size)?)))
}

/// Returns this process's rank on its machine, 0 if the launcher does not set it.
pub(super) fn local_rank() -> usize {
    let said = LOCAL_RANKS.iter().find_map(|name| std::env::var(name).ok());
    said.and_then(|rank| rank.parse().ok()).unwrap_or(0)
}
