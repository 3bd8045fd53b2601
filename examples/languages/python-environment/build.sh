#!/bin/sh
# Builds plugin.wasm into the folder $1.
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
componentize-py --wit-path ../../../plugin-sdk/wit --wit-path ../../../plugin-sdk/wit/0.2 \
    --world rlhost:plugin/environment-plugin@0.2.0 componentize echo --output "$out/plugin.wasm"
