#!/bin/sh
# Builds plugin.wasm into the folder $1.
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
# Without the smaller stack, Zig's linker reserves 16 MiB in every instance.
python3 -m ziglang cc -std=c23 -Wall -Wextra -O2 -s -target wasm32-wasi -mexec-model=reactor -Wl,-z,stack-size=65536 \
    -I ../include reinforce.c -o "$out/plugin.wasm"
