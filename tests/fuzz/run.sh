#!/bin/sh
# Fuzzes each target for so many seconds (60), or those that are named: run.sh [SECONDS [TARGET...]]
# Prints executions, and the inputs that were found, which lie in $RLHOST_FUZZ/findings (target/fuzz/findings). What was
# learned is kept beside them in corpus. An input may take $RLHOST_FUZZ_TIMEOUT seconds (10); on a busy machine give it more.
# Needs cargo-fuzz, a nightly toolchain and, so that nothing is asked of a real network, unshare.
set -eu
cd "$(dirname "$0")"
seconds=${1:-60}
[ $# -eq 0 ] || shift
root=$(cd ../.. && pwd)
kept=${RLHOST_FUZZ:-$root/target/fuzz}
triple=$(rustc -vV | sed -n 's/^host: //p')

# The versions that the binary has.
cp "$root/Cargo.lock" Cargo.lock
# No plugin is compiled here, so that cc is linker enough; see .cargo/cc.
linker=CARGO_TARGET_$(echo "$triple" | tr 'a-z-' 'A-Z_')_LINKER
env "$linker=cc" cargo +nightly fuzz build --fuzz-dir . --release --sanitizer none --target-dir "$root/target/fuzz"

scratch=$(mktemp -d -p /dev/shm 2> /dev/null || mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' INT TERM
mkdir "$scratch/tmp"
# A stack is found by running a finding again; looked up here, it can take longer than an input may.
export TMPDIR="$scratch/tmp" RLHOST_CACHE_DIR="$scratch/cache" RLHOST_STATE_DIR="$scratch/state" RUST_BACKTRACE=0
found=0
for target in ${*:-$(sed -n 's/^name = "\(.*\)"/\1/p' Cargo.toml | tail -n +2)}; do
    mkdir -p "$kept/corpus/$target" "$kept/findings/$target"
    cp -n "seeds/$target/"* "$kept/corpus/$target/"
    if [ "$target" = dataset ]; then
        for file in ../fixtures/datasets/*.parquet; do
            (printf 20; cat "$file") > "$kept/corpus/dataset/$(basename "$file")"
        done
    fi
    if [ -e "dictionaries/$target" ]; then dictionary=-dict=dictionaries/$target; else dictionary=; fi
    # Findings don't end it: with a process of its own for each, the next is looked for.
    timeout -k 5 $((seconds + 120)) unshare --map-root-user --net sh -c 'ip link set lo up && exec "$@"' - \
        "$root/target/fuzz/$triple/release/$target" "$kept/corpus/$target" "-artifact_prefix=$kept/findings/$target/" $dictionary \
        -max_total_time="$seconds" -fork=1 -ignore_crashes=1 -ignore_ooms=1 -ignore_timeouts=1 \
        -timeout="${RLHOST_FUZZ_TIMEOUT:-10}" -rss_limit_mb=2048 -malloc_limit_mb=1024 -max_len=16384 > "$scratch/log" 2>&1 || cat "$scratch/log"
    executions=$(sed -n 's/^#\([0-9]*\): cov.*/\1/p' "$scratch/log" | tail -n 1)
    findings=$(find "$kept/findings/$target" -type f | wc -l)
    found=$((found + findings))
    echo "$target: ${executions:-0} executions in $seconds s, $findings findings"
    rm -rf "$scratch/tmp" && mkdir "$scratch/tmp"
done
[ "$found" -eq 0 ] || find "$kept/findings" -type f
exit $((found > 0))
