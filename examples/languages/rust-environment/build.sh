#!/bin/sh
# Builds plugin.wasm into the folder $1.
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
# Not every rustup adds what rust-toolchain.toml or a build names by itself.
if command -v rustup > /dev/null; then
    rustup target add wasm32-wasip2
fi
cargo build --locked --release --target wasm32-wasip2
cp "${CARGO_TARGET_DIR:-target}/wasm32-wasip2/release/echo_rust.wasm" "$out/plugin.wasm"
