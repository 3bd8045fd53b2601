//! How the allocator treats the memory of tensors.

/// `mi_option_purge_delay` of mimalloc's versions 2 and 3.
const PURGE_DELAY: i32 = 15;

/// Keeps freed memory for what comes next instead of giving it back to the system, which would have to
/// clear it again: every step makes and frees the same tensors, and spends a fifth of its time on that
/// otherwise. The process stays as large as its largest step.
pub fn keep_freed_memory() {
    // SAFETY: a call that sets a number in the allocator, which is the process's own.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, -1) };
}
