#!/bin/sh
# Builds python_reward.wasm into the folder $1.
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
componentize-py --wit-path ../../../plugin-sdk/wit --wit-path world.wit --world rlhost:python-reward/python-reward \
    componentize python_reward --output "$out/python_reward.wasm"
