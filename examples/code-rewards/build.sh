#!/usr/bin/env bash
# build.sh [FOLDER]: builds python_reward.wasm into FOLDER (target/code-rewards). Needs python3 and PyPI.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$here/../../target/code-rewards}
mkdir -p "$out"
out=$(cd "$out" && pwd)
tools=$out/.tools
[ -d "$tools" ] || python3 -m venv "$tools" || { rm -rf "$tools"; exit 1; }
"$tools/bin/pip" install --quiet --disable-pip-version-check -r "$here/python/requirements.txt"
PATH=$tools/bin:$PATH sh "$here/python/build.sh" "$out"
echo "$out/python_reward.wasm: $(wc -c <"$out/python_reward.wasm") bytes"
