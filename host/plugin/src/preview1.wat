;; WASI preview 1 for core modules, without access to anything: no arguments, environment, files or
;; sockets. It imports nothing, so a module wrapped with it imports nothing either.
;;
;; Each reading advances the clock by a microsecond, and random bytes are the same in every
;; instance, as with WASI 0.2 in `wasi.rs`. Standard output and error are dropped.
(module
  (import "env" "memory" (memory 0))

  (global $now (mut i64) (i64.const 0))
  (global $random (mut i64) (i64.const 0x9E3779B97F4A7C15))

  (func $tick (result i64)
    (global.set $now (i64.add (global.get $now) (i64.const 1000)))
    (global.get $now))

  (func (export "clock_res_get") (param $clock i32) (param $to i32) (result i32)
    (i64.store (local.get $to) (i64.const 1000))
    (i32.const 0))

  (func (export "clock_time_get") (param $clock i32) (param $precision i64) (param $to i32) (result i32)
    (i64.store (local.get $to) (call $tick))
    (i32.const 0))

  ;; Sleeping advances the clock and takes no time. Only clocks can be waited for.
  (func (export "poll_oneoff") (param $from i32) (param $to i32) (param $count i32) (param $answered i32) (result i32)
    (if (i32.or (i32.eqz (local.get $count)) (i32.load8_u offset=8 (local.get $from)))
      (then (return (i32.const 52)))) ;; ENOSYS
    (if (i32.load16_u offset=40 (local.get $from))
      (then ;; until a point in time
        (if (i64.gt_u (i64.load offset=24 (local.get $from)) (global.get $now))
          (then (global.set $now (i64.load offset=24 (local.get $from))))))
      (else ;; for a duration
        (global.set $now (i64.add (global.get $now) (i64.load offset=24 (local.get $from))))))
    (i64.store (local.get $to) (i64.load (local.get $from)))
    (i64.store offset=8 (local.get $to) (i64.const 0))
    (i32.store (local.get $answered) (i32.const 1))
    (i32.const 0))

  ;; Xorshift.
  (func (export "random_get") (param $to i32) (param $length i32) (result i32)
    (local $end i32)
    (local.set $end (i32.add (local.get $to) (local.get $length)))
    (block $done
      (loop $next
        (br_if $done (i32.eq (local.get $to) (local.get $end)))
        (global.set $random (i64.xor (global.get $random) (i64.shl (global.get $random) (i64.const 13))))
        (global.set $random (i64.xor (global.get $random) (i64.shr_u (global.get $random) (i64.const 7))))
        (global.set $random (i64.xor (global.get $random) (i64.shl (global.get $random) (i64.const 17))))
        (i64.store8 (local.get $to) (i64.shr_u (global.get $random) (i64.const 32)))
        (local.set $to (i32.add (local.get $to) (i32.const 1)))
        (br $next)))
    (i32.const 0))

  (func (export "fd_write") (param $fd i32) (param $parts i32) (param $count i32) (param $written i32) (result i32)
    (local $total i32)
    (if (i32.gt_u (i32.sub (local.get $fd) (i32.const 1)) (i32.const 1))
      (then (return (i32.const 8))))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $count)))
        (local.set $total (i32.add (local.get $total) (i32.load offset=4 (local.get $parts))))
        (local.set $parts (i32.add (local.get $parts) (i32.const 8)))
        (local.set $count (i32.sub (local.get $count) (i32.const 1)))
        (br $next)))
    (i32.store (local.get $written) (local.get $total))
    (i32.const 0))

  (func $none (param $count i32) (param $bytes i32) (result i32)
    (i32.store (local.get $count) (i32.const 0))
    (i32.store (local.get $bytes) (i32.const 0))
    (i32.const 0))
  (export "args_sizes_get" (func $none))
  (export "environ_sizes_get" (func $none))
  (func (export "args_get") (param i32 i32) (result i32) (i32.const 0))
  (func (export "environ_get") (param i32 i32) (result i32) (i32.const 0))
  (func (export "sched_yield") (result i32) (i32.const 0))

  (func (export "proc_exit") (param i32) unreachable)
  (func (export "proc_raise") (param i32) (result i32) unreachable)

  ;; No descriptor is open: everything else returns EBADF.
  (func (export "fd_advise") (param i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_allocate") (param i32 i64 i64) (result i32) (i32.const 8))
  (func (export "fd_close") (param i32) (result i32) (i32.const 8))
  (func (export "fd_datasync") (param i32) (result i32) (i32.const 8))
  (func (export "fd_fdstat_get") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_fdstat_set_flags") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_fdstat_set_rights") (param i32 i64 i64) (result i32) (i32.const 8))
  (func (export "fd_filestat_get") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_filestat_set_size") (param i32 i64) (result i32) (i32.const 8))
  (func (export "fd_filestat_set_times") (param i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_pread") (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_prestat_dir_name") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "fd_prestat_get") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_pwrite") (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_read") (param i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "fd_readdir") (param i32 i32 i32 i64 i32) (result i32) (i32.const 8))
  (func (export "fd_renumber") (param i32 i32) (result i32) (i32.const 8))
  (func (export "fd_seek") (param i32 i64 i32 i32) (result i32) (i32.const 8))
  (func (export "fd_sync") (param i32) (result i32) (i32.const 8))
  (func (export "fd_tell") (param i32 i32) (result i32) (i32.const 8))
  (func (export "path_create_directory") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_filestat_get") (param i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_filestat_set_times") (param i32 i32 i32 i32 i64 i64 i32) (result i32) (i32.const 8))
  (func (export "path_link") (param i32 i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_open") (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32) (i32.const 8))
  (func (export "path_readlink") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_remove_directory") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_rename") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_symlink") (param i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "path_unlink_file") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "sock_accept") (param i32 i32 i32) (result i32) (i32.const 8))
  (func (export "sock_recv") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "sock_send") (param i32 i32 i32 i32 i32) (result i32) (i32.const 8))
  (func (export "sock_shutdown") (param i32 i32) (result i32) (i32.const 8)))
