#!/usr/bin/env bash
# Before a release: builds everything that is released for Linux and tries it. It takes half an hour on two cores, too long for every
# change. Needs qemu-user-static (Debian's) for the other processor.
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=$PWD/target/packages
rm -rf "$packages"
host/packaging/build.sh "$packages"

machine=$(uname -m)
host/packaging/try.sh "$packages"/rlhost-*-"manylinux_2_28_$machine".whl

# The same three steps on both processors, each under emulation unless it is this one's. Of x86-64 the oldest that there is.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
run() { # TARGET EMULATOR...
    tar --extract --gzip --file "$packages"/rlhost-*-"$1".tar.gz --directory "$place"
    echo "+ ${*:2} rlhost ($1)"
    RLHOST_CACHE_DIR=$place/cache-$1 "${@:2}" "$place"/rlhost-*-"$1"/rlhost --plugin tldr_length_reward.wasm --max-steps 3 --num-threads 2 \
        --output-dir "$place/run-$1" --logging-steps 1
}
# Debian's C library for the other processor, which the binary is linked with while it runs.
other=aarch64
if [ "$machine" = aarch64 ]; then other=x86_64; fi
apt-get install --yes --no-install-recommends "libc6-$(echo "$other" | sed s/aarch64/arm64/\;s/x86_64/amd64/)-cross" > /dev/null 2>&1 || true
run "$machine-unknown-linux-gnu" env
run "$other-unknown-linux-gnu" "qemu-$other-static" -L "/usr/$other-linux-gnu"
python3 host/packaging/compare.py "$place/run-$machine-unknown-linux-gnu" "$place/run-$other-unknown-linux-gnu"
if [ "$machine" = x86_64 ]; then
    mv "$place/run-x86_64-unknown-linux-gnu" "$place/run-native"
    run x86_64-unknown-linux-gnu qemu-x86_64-static -cpu qemu64
    python3 host/packaging/compare.py "$place/run-native" "$place/run-x86_64-unknown-linux-gnu"
fi
