#!/bin/sh
# Builds javascript.wasm into the folder $1, from runtime/runtime.wasm.zst. Needs npm and zstd.
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
runtime=$(pwd)/runtime/runtime.wasm.zst
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/wit/deps/plugin"
cp ../wit/script.wit "$work/wit"
cp ../../../plugin-sdk/wit/rlhost-plugin.wit "$work/wit/deps/plugin"
cp package.json ./*.js "$work"
npm install --prefix "$work" --no-audit --no-fund
preloaded=$(../reproducible.sh "$work")
cd "$work"
# The part of sucrase that removes types and turns exports into assignments; line numbers stay.
echo 'export { transform } from "sucrase";' >entry.mjs
node_modules/.bin/esbuild entry.mjs --bundle --format=esm --minify-syntax --minify-whitespace --legal-comments=none --outfile=sucrase.js
zstd -q -d "$runtime" -o runtime.wasm
LD_PRELOAD=$preloaded node_modules/.bin/componentize-qjs --wit wit --world rewarding-interpreter --runtime runtime.wasm --minify \
    --js interpreter.js --module-root . --output "$out/javascript.wasm"
