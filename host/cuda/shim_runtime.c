// What the entries that shims.py writes share: a function's first call opens its library, with every
// argument register kept, and puts the function's address where the next call jumps to.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct library {
    void *volatile handle;
    const char *sonames; // one after the other, an empty one at the end
    uint64_t status;     // what a function returns where there is no library
};

struct entry {
    void *volatile function;
    const char *name;
    struct library *library;
    uint64_t returns_text;
};

#define MISSING ((void *)-1)

static void *open_library(struct library *library) {
    void *handle = library->handle;
    if (handle) return handle;
    for (const char *name = library->sonames; *name && !handle; name += strlen(name) + 1)
        handle = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (!handle && getenv("CUDA_SHIM_VERBOSE")) fprintf(stderr, "%s\n", dlerror());
    return library->handle = handle ? handle : MISSING;
}

// The address to jump to; or null, and in *result what to return.
void *cuda_shim_resolve(struct entry *entry, uint64_t *result) {
    void *handle = open_library(entry->library);
    void *function = handle == MISSING ? 0 : dlsym(handle, entry->name);
    if (function) return entry->function = function;
    *result = entry->returns_text ? (uint64_t)(uintptr_t)"CUDA library not found" : entry->library->status;
    return 0;
}

__asm__(
".text\n.globl cuda_shim_first\n.type cuda_shim_first,@function\ncuda_shim_first:\n"
"  pushq %rbp\n  movq %rsp,%rbp\n"
"  pushq %rdi\n  pushq %rsi\n  pushq %rdx\n  pushq %rcx\n  pushq %r8\n  pushq %r9\n  pushq %rax\n  pushq $0\n"
"  subq $128,%rsp\n"
"  movdqu %xmm0,(%rsp)\n  movdqu %xmm1,16(%rsp)\n  movdqu %xmm2,32(%rsp)\n  movdqu %xmm3,48(%rsp)\n"
"  movdqu %xmm4,64(%rsp)\n  movdqu %xmm5,80(%rsp)\n  movdqu %xmm6,96(%rsp)\n  movdqu %xmm7,112(%rsp)\n"
"  movq %r11,%rdi\n  leaq 128(%rsp),%rsi\n  call cuda_shim_resolve\n  movq %rax,%r11\n"
"  movdqu (%rsp),%xmm0\n  movdqu 16(%rsp),%xmm1\n  movdqu 32(%rsp),%xmm2\n  movdqu 48(%rsp),%xmm3\n"
"  movdqu 64(%rsp),%xmm4\n  movdqu 80(%rsp),%xmm5\n  movdqu 96(%rsp),%xmm6\n  movdqu 112(%rsp),%xmm7\n"
"  addq $128,%rsp\n"
"  popq %r10\n  popq %rax\n  popq %r9\n  popq %r8\n  popq %rcx\n  popq %rdx\n  popq %rsi\n  popq %rdi\n"
"  popq %rbp\n"
"  testq %r11,%r11\n  jz 1f\n  jmp *%r11\n1: movq %r10,%rax\n  ret\n"
".size cuda_shim_first,.-cuda_shim_first\n");
