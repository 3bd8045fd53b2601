#!/usr/bin/env bash
# check.sh OUT: builds the device with kernels that try it, and tries it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(realpath -m "${1:?where to put the libraries}")
"$here/build.sh" "$out" "$here/check/check.cu"
${CXX:-g++} -std=c++20 -O1 -Wall "$here/check/main.cpp" -o "$out/check" -L"$out" -l:libcuda.so.1 -Wl,-rpath,"$out"
"$out/check"
