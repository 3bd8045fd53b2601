#!/usr/bin/env bash
# Tries a wheel as somebody without Rust would: in a fresh environment, with an empty home, the main job for three steps. Then, with
# Rust again, a project that `plugin new --lang rust` makes.
#
#     host/packaging/try.sh WHEEL
set -euo pipefail
wheel=$(realpath "$1")
reader=$(realpath "$(dirname "$0")/try_reader.py")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/home"

python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
bare() { env --ignore-environment HOME="$place/home" PATH="$place/venv/bin:/usr/bin:/bin" "$@"; }
if bare sh -c 'command -v cargo || command -v rustc'; then
    echo "there is Rust in /usr/bin or /bin: this would not show that it is not needed" >&2
    exit 1
fi
cd "$place"
bare rlhost --version
bare rlhost --plugin tldr_length_reward.wasm --max-steps 3 --output-dir run
# The reader needs nothing but Python, and gives data frames where there is a package for them.
bare python "$reader" run
for package in pandas polars; do
    "$place/venv/bin/pip" install --quiet --disable-pip-version-check "$package" || echo "$package can't be had"
done
bare python "$reader" run
# Scripts need no Python: the one that runs here is rlhost's own.
bare rlhost plugin new my_script --lang python
nothing=$(mktemp -d)
env --ignore-environment HOME="$place/home" PATH="$nothing" "$place/venv/bin/rlhost" plugin check my_script/my_script.py
env --ignore-environment HOME="$place/home" PATH="$nothing" "$place/venv/bin/rlhost" --plugin my_script/my_script.py --max-steps 2 \
    --output-dir scripted
bare rlhost plugin new my_reward --lang rust

cd my_reward
if grep -rn "$OLDPWD\|/rlhost/" Cargo.toml; then
    echo "the project names a place of the machine that the binary comes from" >&2
    exit 1
fi
sh build.sh build
cd ..
bare rlhost plugin check my_reward/build/plugin.wasm
bare rlhost --plugin my_reward/build/plugin.wasm --max-steps 2 --output-dir other
