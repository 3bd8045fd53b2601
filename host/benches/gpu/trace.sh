#!/usr/bin/env bash
# trace.sh OUT COMMAND...: runs a command and says what the device did in it, by kernels; every kernel's time is in the file OUT.
#
# Needs gcc and CUPTI of CUDA 13: an installed toolkit's, or the package nvidia-cuda-cupti with its folder (site-packages/nvidia/cu13) in
# the variable CUPTI.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(realpath -m "${1:?a file for what the device did}")
shift
cuda=${CUDA_HOME:-/usr/local/cuda}
cupti=${CUPTI:-$cuda/extras/CUPTI}
[ -e "$cupti/include/cupti.h" ] || cupti=/usr/local/cuda/extras/CUPTI
[ -e "$cupti/include/cupti.h" ] || { echo "no CUPTI in an installed toolkit; set CUPTI to the folder of nvidia-cuda-cupti" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
libraries="$cupti/lib64:$cupti/lib"
gcc -O2 -shared -fPIC -o "$folder/trace.so" "$here/trace.c" -I"$cupti/include" -I"$cuda/include" -L"$cupti/lib64" -L"$cupti/lib" -l:libcupti.so.13
TRACE=$out CUDA_INJECTION64_PATH=$folder/trace.so LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@"
python3 "$here/trace.py" "$out"
