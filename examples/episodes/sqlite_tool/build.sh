#!/usr/bin/env bash
# build.sh [FOLDER]: builds sqlite_tool.wasm into FOLDER (target/sqlite-tool). Needs cargo, python3, crates.io and PyPI.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../../..
out=${1:-$root/target/sqlite-tool}
mkdir -p "$out"
out=$(cd "$out" && pwd)
tools=$out/.tools
[ -d "$tools" ] || python3 -m venv "$tools" || { rm -rf "$tools"; exit 1; }
"$tools/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
# cargo's names for targets are not Zig's.
for tool in cc ar; do
    target=$([ "$tool" = ar ] || echo "-target wasm32-wasi")
    printf '#!/bin/sh\nexec "%s" -m ziglang %s %s "$@"\n' "$tools/bin/python" "$tool" "$target" >"$tools/wasm-$tool"
    chmod +x "$tools/wasm-$tool"
done
export CC_wasm32_wasip2=$tools/wasm-cc AR_wasm32_wasip2=$tools/wasm-ar CRATE_CC_NO_DEFAULTS=1 CFLAGS_wasm32_wasip2=-O2
export ZIG_GLOBAL_CACHE_DIR=$tools/zig ZIG_LOCAL_CACHE_DIR=$tools/zig CARGO_TARGET_DIR=$tools/cargo
# Without a system (src/world.rs takes its place) and what databases of text and numbers don't need.
export LIBSQLITE3_FLAGS="-DSQLITE_OS_OTHER=1 -DSQLITE_TEMP_STORE=3 -DSQLITE_OMIT_LOAD_EXTENSION -USQLITE_ENABLE_LOAD_EXTENSION
    -USQLITE_ENABLE_API_ARMOR -USQLITE_ENABLE_DBSTAT_VTAB -USQLITE_ENABLE_FTS3 -USQLITE_ENABLE_FTS3_PARENTHESIS
    -USQLITE_ENABLE_FTS5 -USQLITE_ENABLE_RTREE -USQLITE_ENABLE_STAT4"
cd "$here"
# Not every rustup adds what rust-toolchain.toml or a build names by itself.
if command -v rustup >/dev/null; then
    rustup target add wasm32-wasip2
fi
cargo build --locked --release --target wasm32-wasip2
cp "$CARGO_TARGET_DIR/wasm32-wasip2/release/sqlite_tool.wasm" "$out/sqlite_tool.wasm"
echo "$out/sqlite_tool.wasm: $(wc -c <"$out/sqlite_tool.wasm") bytes"
