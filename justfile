# Recipes that people repeat. `just` lists them.

default:
    @just --list

# The small built-in model for some steps, as in `just run --max-steps 5`.
run *flags:
    cargo run -- --plugin tldr_length_reward.wasm {{flags}}

# Types only, in seconds.
check package="rlhost":
    cargo check -p {{package}} --lib

# Formatting and clippy, as CI wants them.
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings

# Unit tests of a crate, or of a module of it, as in `just unit rlhost-config grants::`.
unit package module="":
    cargo test -p {{package}} --lib {{module}}

# End-to-end tests whose paths begin so, as in `just e2e runs::whole`.
e2e test="":
    cargo build --workspace
    cargo test --workspace --test e2e -- {{test}}

# Everything, as README says.
test:
    cargo test --workspace

# The stages of CI, or one of them: `just ci lint`.
ci *stages:
    bash .ci/run {{stages}}

# Writes the pages and tables that are generated from the sources.
reference:
    cargo build -p rlhost
    RLHOST_WRITE_GENERATED=1 cargo test --workspace --test e2e -- repository::generated
    RLHOST_WRITE_GENERATED=1 cargo test -p rlhost --test trl_options

# Comparisons with TRL, transformers and others, as in `just parity check_lora`; without a name, all.
parity *checks:
    python3 tests/parity/run.py {{checks}}

# The book, in target/book; needs mdbook.
book:
    python3 host/docs/book/build.py

# Licences, bans and advisories of what we depend on; needs cargo-deny.
deny:
    cargo deny check

# All benchmarks of one file, as in `just bench ops`.
bench name:
    cargo bench --workspace --profile dev --bench {{name}}

# The tests of devices, on the device in software.
device:
    #!/usr/bin/env bash
    set -euo pipefail
    host/cuda/setup.sh target/cuda
    . target/cuda/env.sh
    tests/software-cuda/build.sh target/software-cuda
    export LD_LIBRARY_PATH=$PWD/target/software-cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    cargo test --workspace --features rlhost/cuda --test device --test device_step --test device_generation

# The tests of several processes; needs an MPI library.
ranks:
    cargo test --workspace --features rlhost/mpi --test e2e -- ranks::runs ranks::settings ranks::namespaces
