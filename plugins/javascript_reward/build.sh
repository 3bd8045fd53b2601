#!/bin/sh
# Builds javascript_reward.wasm, which is kept here because the build of rlhost has cargo alone. Needs npm.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/wit/deps/first"
cp ../../plugin-sdk/wit/0.2/*.wit "$work/wit"
cp ../../plugin-sdk/wit/0.1/*.wit "$work/wit/deps/first"
cp package.json "$work"
npm install --prefix "$work" --no-audit --no-fund
"$work/node_modules/.bin/componentize-qjs" --wit "$work/wit" --world cell-reward-plugin --sync --opt-size \
    --js javascript_reward.js --module-root . --output javascript_reward.wasm
cat values.js compare.js script.js cell.js remote.js judge.js javascript_reward.js package.json | sha256sum | cut -d ' ' -f 1 >source.sha256
