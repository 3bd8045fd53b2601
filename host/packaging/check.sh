#!/usr/bin/env bash
# Before a release: builds everything that is released for Linux and tries it, which takes far too long for every change: under
# emulation the first step's completions alone take eight minutes of processor time. The emulators come from Debian: qemu-user, a C
# library, and proot, without which an emulated program can't start itself again, as rlhost does to compile a plugin.
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
other=aarch64 library=libc6-arm64-cross
if [ "$machine" = aarch64 ]; then other=x86_64 library=libc6-amd64-cross; fi
apt-get install --yes --no-install-recommends qemu-user-static proot "$library" > /dev/null 2>&1 || true
run "$machine-unknown-linux-gnu" env
run "$other-unknown-linux-gnu" proot -q "qemu-$other-static -L /usr/$other-linux-gnu"
python3 host/packaging/compare.py "$place/run-$machine-unknown-linux-gnu" "$place/run-$other-unknown-linux-gnu"
if [ "$machine" = x86_64 ]; then
    mv "$place/run-x86_64-unknown-linux-gnu" "$place/run-native"
    run x86_64-unknown-linux-gnu env PROOT_FORCE_FOREIGN_BINARY=1 proot -q "qemu-x86_64-static -cpu qemu64"
    python3 host/packaging/compare.py "$place/run-native" "$place/run-x86_64-unknown-linux-gnu"
fi
