#!/bin/sh
# Builds javascript_tool.wasm, which is kept here because the build of rlhost has cargo alone. Needs npm.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/wit/deps/first"
cp ../../plugin-sdk/wit/0.2/*.wit "$work/wit"
cp ../../plugin-sdk/wit/0.1/*.wit "$work/wit/deps/first"
cp package.json "$work"
npm install --prefix "$work" --no-audit --no-fund
"$work/node_modules/.bin/componentize-qjs" --wit "$work/wit" --world cell-environment-plugin --sync --opt-size \
    --js javascript_tool.js --module-root . --output javascript_tool.wasm
cat text.js run.js javascript_tool.js package.json | sha256sum | cut -d ' ' -f 1 >source.sha256
