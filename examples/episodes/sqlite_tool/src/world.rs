//! What SQLite knows of the world: no files, a fixed time, and random numbers that follow from a seed. SQLite's default, the system, is
//! none of these. All of it is the process's, like SQLite's memory limit, so [`alone`] lets one caller at a time work.
#![allow(unsafe_code, reason = "SQLite takes functions and counts its memory in C alone")]

use rusqlite::ffi;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

static NOW: AtomicI64 = AtomicI64::new(0);
static SEED: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    _: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    _: c_int,
    _: *mut c_int,
) -> c_int {
    // SAFETY: SQLite passes a file of `szOsFile` bytes, and closes it after a failure unless it has no methods.
    unsafe { (*file).pMethods = std::ptr::null() };
    ffi::SQLITE_CANTOPEN
}

unsafe extern "C" fn delete(_: *mut ffi::sqlite3_vfs, _: *const c_char, _: c_int) -> c_int {
    ffi::SQLITE_IOERR_DELETE_NOENT
}

unsafe extern "C" fn access(_: *mut ffi::sqlite3_vfs, _: *const c_char, _: c_int, found: *mut c_int) -> c_int {
    // SAFETY: SQLite passes a place for the result.
    unsafe { *found = 0 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn full_name(_: *mut ffi::sqlite3_vfs, _: *const c_char, room: c_int, full: *mut c_char) -> c_int {
    if room > 0 {
        // SAFETY: SQLite passes `room` bytes.
        unsafe { *full = 0 };
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn randomness(_: *mut ffi::sqlite3_vfs, count: c_int, bytes: *mut c_char) -> c_int {
    let mut last = SEED.load(Relaxed);
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // Knuth's generator. SQLite's own makes good random numbers of these.
        last = last.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // SAFETY: SQLite passes `count` bytes.
        unsafe { *bytes.add(i) = (last >> 56) as c_char };
    }
    count
}

unsafe extern "C" fn sleep(_: *mut ffi::sqlite3_vfs, microseconds: c_int) -> c_int {
    microseconds
}

unsafe extern "C" fn days(_: *mut ffi::sqlite3_vfs, days: *mut f64) -> c_int {
    // SAFETY: SQLite passes a place for the result.
    unsafe { *days = NOW.load(Relaxed) as f64 / 86_400_000.0 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn milliseconds(_: *mut ffi::sqlite3_vfs, milliseconds: *mut ffi::sqlite3_int64) -> c_int {
    // SAFETY: SQLite passes a place for the result.
    unsafe { *milliseconds = NOW.load(Relaxed) };
    ffi::SQLITE_OK
}

fn register() {
    let world = ffi::sqlite3_vfs {
        iVersion: 2,
        szOsFile: size_of::<ffi::sqlite3_file>() as c_int,
        mxPathname: 64,
        pNext: std::ptr::null_mut(),
        zName: c"world".as_ptr(),
        pAppData: std::ptr::null_mut(),
        xOpen: Some(open),
        xDelete: Some(delete),
        xAccess: Some(access),
        xFullPathname: Some(full_name),
        xDlOpen: None,
        xDlError: None,
        xDlSym: None,
        xDlClose: None,
        xRandomness: Some(randomness),
        xSleep: Some(sleep),
        xCurrentTime: Some(days),
        xGetLastError: None,
        xCurrentTimeInt64: Some(milliseconds),
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
    };
    // SAFETY: SQLite keeps the pointer, and what it points to is never freed.
    unsafe { ffi::sqlite3_vfs_register(Box::leak(Box::new(world)), 1) };
}

/// Built without functions of a system, SQLite asks the program for them when it starts.
#[cfg(target_family = "wasm")]
#[unsafe(no_mangle)]
extern "C" fn sqlite3_os_init() -> c_int {
    register();
    ffi::SQLITE_OK
}

#[cfg(target_family = "wasm")]
#[unsafe(no_mangle)]
extern "C" fn sqlite3_os_end() -> c_int {
    ffi::SQLITE_OK
}

/// The right to use SQLite.
pub struct SqliteGuard(#[expect(dead_code, reason = "held until dropped")] MutexGuard<'static, ()>);

/// Waits for the right to use SQLite.
pub fn lock_sqlite() -> SqliteGuard {
    static ONE: Mutex<()> = Mutex::new(());
    static REGISTERED: Once = Once::new();
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    REGISTERED.call_once(|| {
        if cfg!(not(target_family = "wasm")) {
            register();
        }
    });
    SqliteGuard(one)
}

impl SqliteGuard {
    /// Sets SQLite's time, in milliseconds as SQLite counts them, and begins its random numbers anew.
    pub fn set(&self, now: i64, seed: u64) {
        NOW.store(now, Relaxed);
        SEED.store(seed, Relaxed);
        // SAFETY: without a buffer, it only forgets its random numbers.
        unsafe { ffi::sqlite3_randomness(0, std::ptr::null_mut()) };
    }

    /// Returns the memory that SQLite uses, in bytes.
    pub fn memory(&self) -> i64 {
        // SAFETY: it takes nothing.
        unsafe { ffi::sqlite3_memory_used() }
    }

    /// Lets SQLite use that much memory in all, in bytes; 0 is any amount.
    pub fn limit_memory(&self, bytes: i64) {
        // SAFETY: every value is allowed.
        unsafe { ffi::sqlite3_hard_heap_limit64(bytes) };
    }
}
