#!/usr/bin/env bash
# Builds what is given to people who have no Rust: an archive and a wheel for each Linux target, with checksums.
#
#     host/packaging/build.sh [FOLDER] [TARGET...]
#
# FOLDER is target/packages unless given, and the targets are x86_64 and aarch64 with glibc 2.28 (Debian 10, RHEL 8) or later. Needs
# rustup, Python 3.8 and what a build needs; the rest comes from PyPI into target/packaging.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(mkdir -p "${1:-target/packages}" && cd "${1:-target/packages}" && pwd)
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then targets=(x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu); fi
glibc=2.28

tools=$PWD/target/packaging
python3 -m venv "$tools"
"$tools/bin/pip" install --quiet --disable-pip-version-check --requirement host/packaging/requirements.txt
export PATH=$tools/bin:$PATH
version=$(cargo metadata --no-deps --format-version 1 | python3 -c 'import json, sys; print(next(p["version"] for p in json.load(sys.stdin)["packages"] if p["name"] == "rlhost"))')

# Which the wheel takes from beside its description.
cp LICENSE-MIT LICENSE-APACHE host/packaging/

for target in "${targets[@]}"; do
    rustup target add "$target" wasm32-wasip2
    echo "+ $target"
    (cd host/packaging && maturin build --release --zig --compatibility "manylinux_${glibc/./_}" --target "$target" --out "$out")
    # The archive holds the same binary.
    name=rlhost-$version-$target
    folder=$tools/$name
    rm -rf "$folder" && mkdir -p "$folder"
    cp "target/$target/release/rlhost" README.md LICENSE-MIT LICENSE-APACHE "$folder"
    # The same bytes from the same commit: owners and times are the same for all.
    tar --create --gzip --file "$out/$name.tar.gz" --directory "$tools" --sort=name --owner=0 --group=0 --numeric-owner \
        --mtime="@$(git log -1 --format=%ct 2> /dev/null || echo 0)" "$name"
done
(cd "$out" && sha256sum -- *.tar.gz *.whl > SHA256SUMS && cat SHA256SUMS)
