#!/bin/sh
# Builds plugin.wasm into the folder $1.
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
# Without the smaller stack, the linker reserves 16 MiB in every instance.
python3 -m ziglang build-exe words.zig -target wasm32-freestanding -O ReleaseSmall -fstrip -fno-entry -rdynamic \
    --stack 65536 -femit-bin="$out/plugin.wasm"
