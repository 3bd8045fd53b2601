#!/bin/sh
# Builds plugin.wasm into the folder $1.
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
componentize-py --wit-path ../../../plugin-sdk/wit --world reward-plugin componentize words --output "$out/plugin.wasm"
