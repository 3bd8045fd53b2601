#!/bin/sh
# Builds python_reward.wasm into the folder $1.
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
wit=../../../plugin-sdk/wit
componentize-py --wit-path $wit --wit-path $wit/0.2 --world rlhost:plugin/cell-reward-plugin@0.2.0 \
    componentize python_reward --output "$out/python_reward.wasm"
