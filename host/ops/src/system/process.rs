//! Limits this process's use of the machine, and manages groups of other processes.

use std::io;
#[cfg(unix)]
use std::os::unix::process::CommandExt;
use std::process::Command;
#[cfg(unix)]
use std::{os::fd::AsRawFd, process::Child, time::Duration};

/// Limits this process from now on to `memory` bytes of address space and `seconds` of processor time, after which the system ends it.
/// Disables core dumps, and on Linux makes the process end with its parent. No-op on systems other than Unix, which have no such limits.
///
/// # Errors
/// If the system refuses, as macOS does for the address space.
#[cfg(unix)]
pub fn limit_process(memory: u64, seconds: u64) -> io::Result<()> {
    // One second passes between the signal for the soft limit and the one that can't be ignored.
    let bounds =
        [(libc::RLIMIT_CORE, 0, 0), (libc::RLIMIT_CPU, seconds, seconds.saturating_add(1)), (libc::RLIMIT_AS, memory, memory)];
    #[cfg(target_os = "linux")]
    // SAFETY: the calls only change settings of this process.
    unsafe {
        // After the parent is killed, nobody waits for the result.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
    for (resource, soft, hard) in bounds {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the call fills in the structure it is given.
        if unsafe { libc::getrlimit(resource, &raw mut limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // An existing limit can't be raised.
        limit.rlim_max = limit.rlim_max.min(hard as libc::rlim_t);
        limit.rlim_cur = limit.rlim_max.min(soft as libc::rlim_t);
        // SAFETY: the call reads the structure it is given and only changes settings of this process.
        if unsafe { libc::setrlimit(resource, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// No-op, since this system has no such limits.
///
/// # Errors
/// None.
#[cfg(not(unix))]
pub fn limit_process(_memory: u64, _seconds: u64) -> io::Result<()> {
    Ok(())
}

/// Limits the memory that this process can write to, from now on, to its current size plus `more` bytes. Reserved memory does not count.
/// No-op on systems other than Linux, whose limits have another meaning.
///
/// # Errors
/// If the system refuses.
#[cfg(target_os = "linux")]
pub fn limit_memory(more: u64) -> io::Result<()> {
    // Pages of data and of stacks. The system counts only data, so this allows a little more.
    let pages = std::fs::read_to_string("/proc/self/statm")?.split(' ').nth(5).and_then(|pages| pages.parse::<u64>().ok());
    let pages = pages.ok_or_else(|| io::Error::other("/proc/self/statm does not say how much data there is"))?;
    // SAFETY: the call only returns a number.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let most = pages.saturating_mul(page).saturating_add(more);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills in the structure it is given.
    if unsafe { libc::getrlimit(libc::RLIMIT_DATA, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // An existing limit can't be raised.
    limit.rlim_max = limit.rlim_max.min(most as libc::rlim_t);
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the call reads the structure it is given and only changes settings of this process.
    if unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// No-op, since this system has no such limit.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub fn limit_memory(_more: u64) -> io::Result<()> {
    Ok(())
}

/// Makes a program run in a new process group, which [`kill_group`] ends. On Linux, it also ends with the thread that starts it. No-op on
/// systems other than Unix.
pub fn in_own_group(command: &mut Command) {
    #[cfg(unix)]
    command.process_group(0);
    // SAFETY: between fork and exec, the closure makes one system call, which changes a setting of the new process and allocates nothing.
    #[cfg(target_os = "linux")]
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    #[cfg(not(unix))]
    let _ = command;
}

/// Kills all processes of the group that [`in_own_group`] created for the program with this id. No-op if the group is gone, and on systems
/// other than Unix.
pub fn kill_group(id: u32) {
    #[cfg(unix)]
    if let Some(id) = i32::try_from(id).ok().filter(|id| *id > 1) {
        // SAFETY: the call only sends a signal.
        unsafe { libc::kill(-id, libc::SIGKILL) };
    }
    #[cfg(not(unix))]
    let _ = id;
}

/// Waits at most `limit` until a stream can be read without blocking or has ended. Returns whether it can be read. On systems other than
/// Unix, does not wait.
///
/// # Errors
/// If the system refuses.
#[cfg(unix)]
pub fn readable_within(stream: &impl AsRawFd, limit: Duration) -> io::Result<bool> {
    let mut asked = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let limit = libc::c_int::try_from(limit.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: the call reads and writes the one structure that it is given.
    match unsafe { libc::poll(&raw mut asked, 1, limit) } {
        -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => Ok(false),
        -1 => Err(io::Error::last_os_error()),
        ready => Ok(ready > 0),
    }
}

/// Returns whether a program has ended, without reaping it, so that its id is not reused.
#[cfg(unix)]
pub fn has_ended(child: &Child) -> bool {
    // SAFETY: all zeros are a value of this structure, and the call fills it in.
    let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the call writes the structure that it is given.
    let answered = unsafe { libc::waitid(libc::P_PID, child.id(), &raw mut found, how) } == 0;
    // SAFETY: the call has filled in the field, or left it zero.
    !answered || unsafe { found.si_pid() } != 0
}
