//! Configures the allocator for tensors, and reports how much memory the process has used.

/// `mi_option_purge_delay` of mimalloc's versions 2 and 3.
const PURGE_DELAY: i32 = 15;

/// Keeps freed memory for reuse instead of returning it to the system, which would have to clear it again. Every step allocates
/// and frees the same tensors; without this, that takes a fifth of its time. The process stays as large as its largest step.
pub fn keep_freed_memory() {
    // SAFETY: the call sets a number in this process's allocator.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
}

/// Returns the peak resident size of this process so far, in bytes; 0 if the system does not say.
pub fn peak_memory() -> u64 {
    // This file covers only this program; getrusage includes the process that started it.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).and_then(|rest| rest.trim().strip_suffix("kB"));
    if let Some(kib) = line.and_then(|number| number.trim().parse::<u64>().ok()) {
        return kib * 1024;
    }
    let (mut peak, none) = (0usize, std::ptr::null_mut());
    // SAFETY: the allocator sets the number whose address it is given, and skips null.
    unsafe { libmimalloc_sys::mi_process_info(none, none, none, none, &raw mut peak, none, none, none) };
    peak as u64
}

#[cfg(test)]
mod tests {
    use super::peak_memory;

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
