#!/bin/sh
# Builds python.wasm into the folder $1. Needs componentize-py (requirements.txt).
set -eu
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/wit/deps/plugin" "$work/empty/lib/python/site-packages" "$work/app"
cp ../wit/script.wit "$work/wit"
cp ../../../plugin-sdk/wit/rlhost-plugin.wit "$work/wit/deps/plugin"
cp -r interpreter.py rlhost.py rlhost_interpreter "$work/app"
rm -rf "$work/app/rlhost_interpreter/__pycache__"
# Without the packages that happen to be installed, and without their names in the component.
VIRTUAL_ENV="$work/empty" PYTHONHASHSEED=0 LD_PRELOAD=$(../reproducible.sh "$work") componentize-py --wit-path "$work/wit" \
    --world interpreter componentize --python-path "$work/app" interpreter --output "$out/python.wasm"
python3 ../image.py "$out/python.wasm"
