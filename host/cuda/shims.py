#!/usr/bin/env python3
"""Assembly of stand-ins for the CUDA libraries that the crate cudarc links to.

usage: shims.py CUDARC_SOURCE OUT writes OUT/{cuda,cublas,cublasLt,curand,nvrtc,nccl}.S

Every function that cudarc declares gets an entry which opens the real library at its first call
(shim_runtime.c), so that a binary starts on a machine without CUDA. Where library or function are
missing, the entry returns the library's own status for that. x86-64 alone.
"""

import pathlib
import re
import sys

# Library: cudarc's module, names to open in order, status where none is there.
LIBRARIES = {
    "cuda": ("driver", ["libcuda.so.1"], 100),  # CUDA_ERROR_NO_DEVICE
    "cublas": ("cublas", ["libcublas.so.13", "libcublas.so.12"], 1),  # CUBLAS_STATUS_NOT_INITIALIZED
    "cublasLt": ("cublaslt", ["libcublasLt.so.13", "libcublasLt.so.12"], 1),
    "curand": ("curand", ["libcurand.so.10"], 203),  # CURAND_STATUS_INITIALIZATION_FAILED
    "nvrtc": ("nvrtc", ["libnvrtc.so.13", "libnvrtc.so.12"], 11),  # NVRTC_ERROR_INTERNAL_ERROR
    "nccl": ("nccl", ["libnccl.so.2"], 3),  # ncclInternalError
}


def functions(declarations):
    """Names of the functions, each with whether it returns a string."""
    names = set(re.findall(r"^\s+fn (\w+)\(", declarations, re.M))
    wanted = sorted(name for name in names if re.match(r"(cu|nvrtc|p?nccl)", name) and name != "culib")
    return [(name, bool(re.search(rf"fn {name}\([^)]*\)\s*->\s*\*const", declarations))) for name in wanted]


def assembly(library, names, sonames, status):
    lines = ['.section .note.GNU-stack,"",@progbits', f'.section .rodata.shim_{library},"a",@progbits', ".Lsonames:"]
    lines += [f'  .asciz "{soname}"' for soname in sonames] + ["  .byte 0"]
    lines += [f'.section .data.rel.shim_{library},"aw",@progbits', ".balign 8"]
    lines += [".Llibrary: .quad 0", "  .quad .Lsonames", f"  .quad {status}"]
    for name, returns_text in names:
        lines += [
            f'.section .rodata.shim.{name},"a",@progbits',
            f'.Lname_{name}: .asciz "{name}"',
            f'.section .data.rel.shim.{name},"aw",@progbits',
            ".balign 8",
            f".Lentry_{name}: .quad .Lfirst_{name}, .Lname_{name}, .Llibrary, {int(returns_text)}",
            f'.section .text.shim.{name},"ax",@progbits',
            f".globl {name}",
            f".type {name},@function",
            f"{name}: jmp *.Lentry_{name}(%rip)",
            f".Lfirst_{name}: leaq .Lentry_{name}(%rip), %r11",
            "  jmp cuda_shim_first@PLT",
            f".size {name}, .-{name}",
        ]
    return "\n".join(lines) + "\n"


def main():
    source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    for library, (module, sonames, status) in LIBRARIES.items():
        names = functions((source / "src" / module / "sys" / "mod.rs").read_text())
        if not names:
            sys.exit(f"{source}: no functions of {library} found")
        (out / f"{library}.S").write_text(assembly(library, names, sonames, status))


main()
