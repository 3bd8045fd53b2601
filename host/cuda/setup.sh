#!/usr/bin/env bash
# A private CUDA 13.0 build toolkit in FOLDER, from packages of PyPI (420 MB); needs python3 and gcc, and no GPU.
# usage: host/cuda/setup.sh FOLDER && . FOLDER/env.sh
set -euo pipefail
[ $# = 1 ] || { sed -n '2,3s/^# //p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
root=$(realpath -m "$1")
home=$root/cuda
mkdir -p "$root"

# One version for all: a newer compiler writes PTX that the drivers of CUDA 13.0 refuse.
[ -x "$root/venv/bin/pip" ] || python3 -m venv "$root/venv"
"$root/venv/bin/pip" install --quiet --disable-pip-version-check nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 \
    nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
packages=$(echo "$root"/venv/lib/python3*/site-packages/nvidia/cu13)

rm -rf "$home"
mkdir -p "$home/lib64" "$root/shims"
ln -s lib64 "$home/lib"
for part in bin nvvm include; do ln -s "$packages/$part" "$home/$part"; done
ln -s "$packages/lib/libcudart_static.a" "$packages/lib/libcudadevrt.a" "$home/lib64/"
# What asks for the runtime gets the static one.
ln -s libcudart_static.a "$home/lib64/libcudart.so"

# The linker opens an archive by its content, whatever it is called: -lcuda and the like find these.
manifest=$here/../Cargo.toml
cargo fetch --quiet --locked --manifest-path "$manifest"
cudarc=$(cargo metadata --locked --format-version 1 --features cuda --manifest-path "$manifest" |
    python3 -c 'import json, os, sys
print(next(os.path.dirname(p["manifest_path"]) for p in json.load(sys.stdin)["packages"] if p["name"] == "cudarc"))')
python3 "$here/shims.py" "$cudarc" "$root/shims"
gcc -O2 -fPIC -c "$here/shim_runtime.c" -o "$root/shims/runtime.o"
for library in cuda cublas cublasLt curand nvrtc nccl; do
    gcc -c "$root/shims/$library.S" -o "$root/shims/$library.o"
    ar rcs "$home/lib64/lib$library.so" "$root/shims/$library.o" "$root/shims/runtime.o"
done
cp "$here/nvcc-lean" "$home/nvcc-lean"

cat > "$root/env.sh" <<X
export CUDA_HOME=$home PATH=$home/bin:\$PATH NVCC=$home/nvcc-lean
# Known to the build scripts of cudarc and candle-kernels, which ask nvidia-smi otherwise.
export CUDARC_CUDA_VERSION=13000 CUDA_COMPUTE_CAP=80 CUDAFORGE_THREADS=\${CUDAFORGE_THREADS:-2}
X
echo "toolkit in $home: $("$home/bin/nvcc" --version | sed -n 4p)"
echo ". $root/env.sh"
