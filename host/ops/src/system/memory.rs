//! Configures the allocator for tensors, and reports how much memory the process uses.

/// `mi_option_purge_delay` of mimalloc's versions 2 and 3.
const PURGE_DELAY: i32 = 15;

/// Keeps freed memory for reuse instead of returning it to the system, which would have to clear it again. Every step allocates and frees
/// the same tensors; without this, that takes a fifth of its time. The process stays as large as its largest step.
pub fn keep_freed_memory() {
    // SAFETY: the call sets a number in this process's allocator.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
}

/// Returns freed memory to the system soon, as an allocator does by default. A process that shards its models over several needs less
/// memory between steps, and others may need it.
pub fn return_freed_memory() {
    // SAFETY: as above.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, 10) };
}

/// Returns the peak resident size of this process so far, in bytes; 0 if the system does not report it.
pub fn peak_memory() -> u64 {
    // This file covers only this program; getrusage includes the process that started it.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(kib) = line_of(&status, "VmHWM:") {
        return kib * 1024;
    }
    let (mut peak, none) = (0usize, std::ptr::null_mut());
    // SAFETY: the allocator sets the number whose address it is given, and skips null.
    unsafe { libmimalloc_sys::mi_process_info(none, none, none, none, &raw mut peak, none, none, none) };
    peak as u64
}

/// Returns the bytes of memory that this process can still allocate without others losing theirs, if the system reports it: Linux's
/// estimate, or what remains of the limit of the process's own control group (version 2).
pub fn available_memory() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let of_group = |file: &str| {
        let groups = read("/proc/self/cgroup");
        let own = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").trim_end_matches('/').to_owned();
        read(&format!("/sys/fs/cgroup{own}/{file}"))
    };
    let limit: Option<u64> = of_group("memory.max").trim().parse().ok();
    let used: Option<u64> = of_group("memory.current").trim().parse().ok();
    // Cached file pages count as used, but are released if memory is short.
    let files = line_of(&of_group("memory.stat"), "inactive_file");
    let left = limit.zip(used).map(|(limit, used)| limit.saturating_sub(used.saturating_sub(files.unwrap_or(0))));
    let of_machine = line_of(&read("/proc/meminfo"), "MemAvailable:").map(|kib| kib * 1024);
    of_machine.into_iter().chain(left).min()
}

/// Returns the number in the line that begins with this word.
fn line_of(text: &str, word: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(word))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{available_memory, line_of, peak_memory};

    #[test]
    fn numbers_are_read_from_lines_by_their_first_word() {
        let text = "MemTotal:       24609152 kB\nMemAvailable:   20000000 kB\ninactive_file 77\ninactive_file_more 5\nodd\n";
        assert_eq!(line_of(text, "MemAvailable:"), Some(20_000_000));
        assert_eq!((line_of(text, "inactive_file"), line_of(text, "odd"), line_of(text, "none")), (Some(77), None, None));
        if cfg!(target_os = "linux") {
            assert!(available_memory().is_some_and(|bytes| bytes > 0));
        }
    }

    #[test]
    fn the_peak_grows_with_what_is_touched_and_stays() {
        let before = peak_memory();
        assert!(before > 0);
        let bytes = before as usize + (64 << 20);
        drop(std::hint::black_box(vec![1u8; bytes]));
        let after = peak_memory();
        assert!(after >= bytes as u64 && after >= before, "{before} {after}");
    }
}
