;; An algorithm of contract 1.0 whose answers are the mask of the batch that it was sent, which lies at the same place in every call.
(module
  (memory (export "memory") 2)
  (global $next (mut i32) (i32.const 4096))

  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
    (local $at i32)
    (local.set $at (global.get $next))
    (global.set $next (i32.and (i32.add (i32.add (local.get $at) (local.get 3)) (i32.const 15)) (i32.const -16)))
    (local.get $at))

  ;; info: name, version, description, config-schema, needs (logp, value, baseline), stateless
  (data (i32.const 16) "\00\01\00\00\01\00\00\00" "\00\01\00\00\01\00\00\00" "\00\01\00\00\01\00\00\00" "\08\01\00\00\02\00\00\00" "\20\01\00\00\03\00\00\00" "\01\00\00\00")
  (data (i32.const 256) "1")
  (data (i32.const 264) "{}")
  (data (i32.const 288) "\60\01\00\00\04\00\00\00" "\68\01\00\00\05\00\00\00" "\70\01\00\00\08\00\00\00" "\78\01\00\00\04\00\00\00")
  (data (i32.const 352) "logp")
  (data (i32.const 360) "value")
  (data (i32.const 368) "baseline")
  (data (i32.const 376) "mask")
  (func (export "rlhost:plugin/plugin@1.0.0#describe") (result i32) (i32.const 16))

  ;; ok, for the memory there is zero
  (func (export "rlhost:plugin/plugin@1.0.0#configure") (param i32 i32) (result i32)
    (global.set $next (i32.const 4096))
    (i32.const 512))

  ;; ok: from either source, completions, the estimates baseline and mask
  (data (i32.const 400) "\00\00\00\00" "\02\00\00\00" "\30\01\00\00\02\00\00\00")
  (func (export "rlhost:plugin/algorithm@1.0.0#describe-data") (result i32) (i32.const 400))

  ;; The mask lies at 48 in a batch.
  (func $mask (param i32) (result i32)
    (global.set $next (i32.const 4096))
    (i32.load offset=48 (local.get 0)))
  (func (export "rlhost:plugin/algorithm@1.0.0#loss") (param i32) (result i32) (call $mask (local.get 0)))
  (func (export "rlhost:plugin/estimator@1.0.0#estimate") (param i32) (result i32) (call $mask (local.get 0)))
  (func (export "rlhost:plugin/pairing@1.0.0#choose") (param i32) (result i32) (call $mask (local.get 0)))
)
