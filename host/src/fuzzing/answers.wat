;; A plugin whose answers are what it was sent: the longest column of numbers of a call (token ids, the mask, log-probabilities)
;; is taken for the answer's own bytes, which lie at the same place in every call of a function.
(module
  (memory (export "memory") 2)
  (global $next (mut i32) (i32.const 4096))

  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
    (local $at i32)
    (local.set $at (global.get $next))
    (global.set $next (i32.and (i32.add (i32.add (local.get $at) (local.get 3)) (i32.const 15)) (i32.const -16)))
    (local.get $at))

  ;; info: name, version, description, config-schema, needs (all), stateless
  (data (i32.const 16) "\00\01\00\00\01\00\00\00" "\00\01\00\00\01\00\00\00" "\00\01\00\00\01\00\00\00" "\08\01\00\00\02\00\00\00" "\ff\01\01\00")
  (data (i32.const 256) "1")
  (data (i32.const 264) "{}")
  (func (export "rlhost:plugin/plugin@0.1.0#describe") (result i32) (i32.const 16))

  ;; ok, for the memory there is zero
  (func (export "rlhost:plugin/plugin@0.1.0#configure") (param i32 i32) (result i32)
    (global.set $next (i32.const 4096))
    (i32.const 512))

  (func (export "rlhost:plugin/reward@0.1.0#score")
    (param i64 i64 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)
    (global.set $next (i32.const 4096))
    (local.get 14))

  ;; The mask lies at 40 in rollouts, at 16 in tokens; the chosen side's log-probabilities lie at 16 in pairs.
  (func $estimate (export "rlhost:plugin/policy@0.1.0#estimate") (param i32) (result i32)
    (global.set $next (i32.const 4096))
    (i32.load offset=40 (local.get 0)))
  (func (export "rlhost:plugin/pairing@0.1.0#choose") (param i32) (result i32)
    (call $estimate (local.get 0)))
  (func $loss (export "rlhost:plugin/policy@0.1.0#loss") (param i32) (result i32)
    (global.set $next (i32.const 4096))
    (i32.load offset=16 (local.get 0)))
  (func (export "rlhost:plugin/preference@0.1.0#loss") (param i32) (result i32)
    (call $loss (local.get 0)))
)
