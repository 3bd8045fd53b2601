#!/usr/bin/env bash
# build.sh OUT [KERNEL.cu ...]: a CUDA driver and cuBLAS that run on the CPU, in the folder OUT, with the given
# kernels (host/kernels/*.cu unless any are given). Needs g++ 12 or newer; takes seconds.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(realpath -m "${1:?where to put the libraries}")
shift
if [ $# -eq 0 ]; then set -- "$here"/../../host/kernels/*.cu; fi
mkdir -p "$out/objects"
compile="${CXX:-g++} -std=c++20 -O2 -g1 -march=native -fPIC -Wno-attributes -Wno-unknown-pragmas -I$here/include"

# The driver; rebuilt where a source of it is newer.
if [ -z "$(find "$out/libcuda.so.1" -newer "$here/build.sh" 2> /dev/null)" ] ||
    [ -n "$(find "$here/src" "$here/include" -newer "$out/libcuda.so.1" 2> /dev/null)" ]; then
    for part in block memory driver cublas; do
        optimise=; [ $part = cublas ] && optimise="-O3 -funroll-loops"
        $compile $optimise -Wall -Wextra -c "$here/src/$part.cpp" -o "$out/objects/$part.o" &
        jobs="${jobs:-} $!"
    done
    for job in $jobs; do wait "$job"; done
    $compile -shared -Wl,-soname,libcuda.so.1 -o "$out/libcuda.so.1" "$out"/objects/{block,memory,driver,cublas}.o -lpthread -ldl
    $compile -Wall -Wextra -shared -Wl,-soname,libnccl.so.2 -o "$out/libnccl.so.2" "$here/src/nccl.cpp"
    ln -sf libcuda.so.1 "$out/libcublas.so.13"
    ln -sf libcuda.so.1 "$out/libcurand.so.10"
    ln -sf libcuda.so.1 "$out/libcublasLt.so.13"
fi

# A file of kernels, followed by lines that make each known under its name.
kernels() {
    local source=$1 name=$2 text
    $compile -x c++ -include "$here/src/kernel.h" -E -P "$source" | tr '\n' ' ' > "$out/objects/$name.ii"
    {
        echo "#line 1 \"$source\""
        cat "$source"
        echo
        grep -oE '__attribute__\(\(cuda_kernel\)\)[^(){};]*(__attribute__\(\(launch_bounds\([^)]*\)\)\)[^(){};]*)?[(]' "$out/objects/$name.ii" |
            sed -E 's/^__attribute__\(\(cuda_kernel\)\)//' | while read -r declaration; do
            bounds=$(sed -nE 's/.*launch_bounds\(([^,)]*).*/\1/p' <<< "$declaration")
            kernel=$(sed -E 's/.*[^A-Za-z_0-9]([A-Za-z_0-9]+) *\($/\1/' <<< " $declaration")
            echo "static software_cuda::AddKernel add_$kernel({\"$kernel\", \"$name\", ${bounds:-1024}, &software_cuda::Bind<&$kernel>::bind});"
        done
    } > "$out/objects/$name.cpp"
    $compile -fno-extern-tls-init -include "$here/src/kernel.h" -I"$(dirname "$source")" -c "$out/objects/$name.cpp" -o "$out/objects/$name.kernels.o"
}
rm -f "$out"/objects/*.ii "$out"/objects/*.kernels.o
jobs=
for source in "$@"; do
    kernels "$(realpath "$source")" "$(basename "$source" .cu)" &
    jobs="$jobs $!"
done
for job in $jobs; do wait "$job"; done

# Each name of dynamic shared memory is an array as large as a block's.
{
    echo '#include "kernel.h"'
    { grep -ohE 'extern +__attribute__\(\(shared_memory\)\) thread_local[^;]*\[ *\] *;' "$out"/objects/*.ii || true; } |
        sed -E 's/.*[^A-Za-z_0-9]([A-Za-z_0-9]+) *\[ *\] *;/\1/' | { cat; echo software_cuda_no_name; } | sort -u | while read -r name; do
        echo "alignas(1024) thread_local char $name[164 << 10];"
        echo "static software_cuda::AddDynamicShared add_$name({[] { return (void *)$name; }, sizeof $name});"
    done
} > "$out/objects/dynamic_shared.cpp"
$compile -I"$here/src" -c "$out/objects/dynamic_shared.cpp" -o "$out/objects/dynamic_shared.o"
$compile -shared -o "$out/libkernels.so" "$out"/objects/*.kernels.o "$out/objects/dynamic_shared.o" -L"$out" -l:libcuda.so.1
echo "$out: $(cat "$out"/objects/*.cpp | grep -c '^static software_cuda::AddKernel') kernels"
