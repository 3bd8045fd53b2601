//! What this process may take of the machine.

use std::io;

/// Bounds what this process takes from here on: bytes of address space, and seconds of processor time, after which the
/// system ends it. It leaves no core dump then, and on Linux ends with the process that started it. Systems other than Unix have
/// no such limits, and nothing happens.
///
/// # Errors
/// If the system refuses, as macOS does for the address space.
#[cfg(unix)]
pub fn limit_process(memory: u64, seconds: u64) -> io::Result<()> {
    // A second between the signal that has a name for this and the one that ends whatever ignores it.
    let bounds =
        [(libc::RLIMIT_CORE, 0, 0), (libc::RLIMIT_CPU, seconds, seconds.saturating_add(1)), (libc::RLIMIT_AS, memory, memory)];
    #[cfg(target_os = "linux")]
    // SAFETY: the call changes a number of this process alone.
    unsafe {
        // Nobody waits for what a killed process asked for.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
    for (resource, soft, hard) in bounds {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the call fills in the structure that it is given.
        if unsafe { libc::getrlimit(resource, &raw mut limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // What is bounded already can't be raised.
        limit.rlim_max = limit.rlim_max.min(hard as libc::rlim_t);
        limit.rlim_cur = limit.rlim_max.min(soft as libc::rlim_t);
        // SAFETY: the call reads the structure that it is given, and changes numbers of this process alone.
        if unsafe { libc::setrlimit(resource, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// There are no such limits here.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn limit_process(_memory: u64, _seconds: u64) -> io::Result<()> {
    Ok(())
}
