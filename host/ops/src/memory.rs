//! How the allocator treats the memory of tensors, and how much the process has taken.

/// `mi_option_purge_delay` of mimalloc's versions 2 and 3.
const PURGE_DELAY: i32 = 15;

/// Keeps freed memory for what comes next instead of giving it back to the system, which would have to
/// clear it again: every step makes and frees the same tensors, and spends a fifth of its time on that
/// otherwise. The process stays as large as its largest step.
pub fn keep_freed_memory() {
    // SAFETY: a call that sets a number in the allocator, which is the process's own.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
}

/// The largest resident size that this process has had so far, in bytes; 0 where the system does not
/// say.
pub fn peak_memory() -> u64 {
    // Where there is such a file it is of this program alone; what getrusage says includes the size of
    // the process that started it.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).and_then(|rest| rest.trim().strip_suffix("kB"));
    if let Some(kib) = line.and_then(|number| number.trim().parse::<u64>().ok()) {
        return kib * 1024;
    }
    let (mut peak, none) = (0usize, std::ptr::null_mut());
    // SAFETY: the allocator sets the number that it is given a place for, and skips null.
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
