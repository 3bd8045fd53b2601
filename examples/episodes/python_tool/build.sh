#!/usr/bin/env bash
# build.sh [FOLDER]: builds python_tool.wasm into FOLDER (target/python-tool). Needs python3 and PyPI.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../../..
out=${1:-$root/target/python-tool}
mkdir -p "$out"
out=$(cd "$out" && pwd)
tools=$out/.tools
[ -d "$tools" ] || python3 -m venv "$tools" || { rm -rf "$tools"; exit 1; }
"$tools/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
cd "$here"
# The standard library that the code may import is the Python reward's.
"$tools/bin/componentize-py" --wit-path "$root/plugin-sdk/wit" --wit-path world.wit --world rlhost:python-tool/python-tool \
    componentize -p . -p "$root/examples/code-rewards/python" python_tool --output "$out/python_tool.wasm"
echo "$out/python_tool.wasm: $(wc -c <"$out/python_tool.wasm") bytes"
