#!/bin/sh
# Builds plugin.wasm into the folder $1.
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
PATH=$PWD/node_modules/.bin:$PATH
# `abort` would be an import; without it an abort traps.
asc words.ts -O3 --runtime stub --use abort= --transform ./exports.js --outFile "$out/plugin.wasm"
