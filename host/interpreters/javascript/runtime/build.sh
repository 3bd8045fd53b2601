#!/bin/sh
# Builds runtime.wasm.zst: QuickJS in componentize-qjs's runtime, with the changes of runtime.patch. Needs git, patch, zstd, cargo with the target
# wasm32-wasip2, and zig (`pip install ziglang`), whose clang compiles C. COMPONENTIZE_QJS and WASM_TOOLS
# may name local clones.
set -eu
COMPONENTIZE_QJS=${COMPONENTIZE_QJS:-https://github.com/andreiltd/componentize-qjs}
WASM_TOOLS=${WASM_TOOLS:-https://github.com/bytecodealliance/wasm-tools}
cd "$(dirname "$0")"
here=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tools/bin" "$work/tools/share" "$work/quickjs/src"

# part REPOSITORY REVISION FOLDER NAME
part() {
    repository=$1
    if [ ! -d "$1" ]; then
        repository=$work/$4.git
        git clone -q --bare --filter=blob:none "$1" "$repository"
    fi
    mkdir "$work/$4"
    git -C "$repository" archive "$2" "$3" | tar x -C "$work/$4" --strip-components="$(echo "$3/" | tr -dc / | wc -c)"
}
part "$COMPONENTIZE_QJS" v0.4.3 crates/runtime runtime
part "$WASM_TOOLS" e6317b4f33aa5867ee902623f5e57cfea0733035 crates/wit-dylib/ffi ffi

cat >"$work/quickjs/Cargo.toml" <<'TOML'
[package]
name = "quickjs"
version = "0.0.0"
[dependencies]
rquickjs-sys = "=0.14.0"
TOML
touch "$work/quickjs/src/lib.rs"
(cd "$work/quickjs" && cargo vendor -q >/dev/null && mv vendor/rquickjs-sys "$work")
rm -rf "$work/quickjs"

cp workspace.toml "$work/Cargo.toml"
cp workspace.lock "$work/Cargo.lock"
cd "$work"
patch -s -p1 <"$here/runtime.patch"

# rquickjs-sys asks for a folder with clang and ar, to which it gives options of their own.
cat >tools/bin/clang <<'SH'
#!/bin/sh
for option; do
    shift
    case $option in --sysroot=* | --target=*) ;; *) set -- "$@" "$option" ;; esac
done
exec python3 -m ziglang cc -target wasm32-wasi "$@"
SH
printf '#!/bin/sh\nexec python3 -m ziglang ar "$@"\n' >tools/bin/ar
chmod +x tools/bin/*
export WASI_SDK="$work/tools" CC_wasm32_wasip2="$work/tools/bin/clang" AR_wasm32_wasip2="$work/tools/bin/ar"
export CFLAGS_wasm32_wasip2="-fPIC -O3 -fno-sanitize=all -fno-stack-protector -fomit-frame-pointer -mbulk-memory -msign-ext -mnontrapping-fptoint"
flags="-Clinker=rust-lld -Clink-arg=-shared -Clink-arg=--no-entry -Clink-arg=--allow-undefined -Clto=fat -Copt-level=3 -Crelocation-model=pic"
export CARGO_TARGET_WASM32_WASIP2_RUSTFLAGS="$flags --remap-path-prefix=$work=." CARGO_TARGET_DIR="$work/target"
cargo build -q --locked --release --target wasm32-wasip2 -p componentize-qjs-runtime --no-default-features
zstd -q -19 -f target/wasm32-wasip2/release/componentize_qjs_runtime.wasm -o "$here/runtime.wasm.zst"
