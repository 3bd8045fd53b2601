#!/usr/bin/env bash
# build.sh [--out DIR] [LANGUAGE...]: builds the plugins of all or the named folders to
# DIR/LANGUAGE.wasm. What a folder's requirements.txt or package.json asks for is installed into
# DIR/.tools; a language whose tools can't be had is skipped.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$here/../../target/languages
if [ "${1:-}" = --out ]; then
    out=${2:?--out needs a folder}
    shift 2
fi
mkdir -p "$out/.tools"
out=$(cd "$out" && pwd)
tools=$out/.tools
log=$tools/log

if [ $# -eq 0 ]; then
    for script in "$here"/*/build.sh; do
        set -- "$@" "$(basename "$(dirname "$script")")"
    done
fi

# Compilers of Zig and Go keep what they have compiled here and not in the user's folders.
export ZIG_GLOBAL_CACHE_DIR=$tools/zig ZIG_LOCAL_CACHE_DIR=$tools/zig GOCACHE=$tools/go GOTELEMETRY=off

# Says why where it fails.
install_tools() {
    local language=$1 folder=$here/$1 own=$tools/$1
    if [ -f "$folder/requirements.txt" ]; then
        command -v python3 >/dev/null || { echo "no python3"; return 1; }
        if [ ! -d "$tools/python" ]; then
            python3 -m venv "$tools/python" >"$log" 2>&1 || { rm -rf "$tools/python"; tail -n 1 "$log"; return 1; }
        fi
        "$tools/python/bin/pip" install --quiet --disable-pip-version-check -r "$folder/requirements.txt" >"$log" 2>&1 ||
            { tail -n 1 "$log"; return 1; }
    fi
    if [ -f "$folder/package.json" ]; then
        command -v npm >/dev/null || { echo "no npm"; return 1; }
        mkdir -p "$own"
        cp "$folder/package.json" "$own"
        npm install --prefix "$own" --no-audit --no-fund >"$log" 2>&1 || { grep 'npm error' "$log" | head -n 2 | tail -n 1; return 1; }
    fi
    if [ -f "$folder/Cargo.toml" ]; then
        command -v cargo >/dev/null || { echo "no cargo"; return 1; }
    fi
}

built=() skipped=() failed=()
for language in "$@"; do
    if [ ! -f "$here/$language/build.sh" ]; then
        echo "no language $language: there is no $here/$language/build.sh" >&2
        exit 2
    fi
    if ! reason=$(install_tools "$language"); then
        echo "skipped $language: $reason"
        skipped+=("$language")
        continue
    fi
    folder=$tools/built/$language
    if PATH=$tools/$language/node_modules/.bin:$tools/python/bin:$PATH CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$tools/cargo} \
        sh "$here/$language/build.sh" "$folder" >"$log" 2>&1; then
        mv "$folder/plugin.wasm" "$out/$language.wasm"
        echo "built $language: $(wc -c <"$out/$language.wasm") bytes"
        built+=("$language")
    else
        echo "failed $language:"
        cat "$log"
        failed+=("$language")
    fi
done

echo "in $out: ${built[*]:-nothing}"
[ ${#skipped[@]} -eq 0 ] || echo "skipped: ${skipped[*]}"
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
