#!/bin/sh
# Builds plugin.wasm into the folder $1.
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
PATH=$PWD/node_modules/.bin:$PATH
componentize-qjs --wit ../../../plugin-sdk/wit --world reward-plugin --sync --js words.js --output "$out/plugin.wasm"
