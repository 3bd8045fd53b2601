// What the entries that shims.py writes share: a function's first call opens its library, with every
// argument register kept, and puts the function's address where the next call jumps to.
#include <dlfcn.h>
#include <glob.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static int verbose(void) { return getenv("CUDA_SHIM_VERBOSE") != 0; }

static void *open_in(const char *folder, const char *name) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path || access(path, R_OK)) return 0;
    // What libcublas needs is found if it is open already.
    if (!strncmp(name, "libcublas.so", 12)) {
        char beside[4096];
        if (snprintf(beside, sizeof beside, "%s/libcublasLt.so%s", folder, name + 12) < (int)sizeof beside)
            dlopen(beside, RTLD_NOW | RTLD_GLOBAL);
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!handle && verbose()) fprintf(stderr, "%s\n", dlerror());
    return handle;
}

// Whether the driver is of this version of CUDA or later, such as 13000.
static int driver_is(int version) {
    int own = 0, (*of_driver)(int *) = 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver) *(void **)&of_driver = dlsym(driver, "cuDriverGetVersion");
    return !of_driver || of_driver(&own) || own >= version;
}

// Opens a library in one of the folders of this pattern, in which %.*s is `base`.
static void *open_in_any(const char *pattern, const char *base, size_t length, const char *name) {
    char folders[4096];
    glob_t found = {0};
    void *handle = 0;
    if (snprintf(folders, sizeof folders, pattern, (int)length, base) >= (int)sizeof folders) return 0;
    if (!glob(folders, 0, 0, &found))
        for (size_t i = 0; i < found.gl_pathc && !handle; i++) handle = open_in(found.gl_pathv[i], name);
    globfree(&found);
    return handle;
}

// Opens a library that the loader does not find: from a toolkit, or from beside the folders on PATH (conda, PyTorch's packages).
static void *open_elsewhere(const char *name) {
    const char *toolkits[] = {getenv("CUDA_HOME"), getenv("CUDA_PATH"), "/usr/local/cuda"};
    void *handle = 0;
    const char *version = strrchr(name, '.');
    if (!strncmp(name, "libcuda.so", 10)) return 0; // the driver's, which is nowhere else
    if (version && !strcmp(version, ".13") && !driver_is(13000)) return 0;
    for (size_t i = 0; i < sizeof toolkits / sizeof *toolkits && !handle; i++)
        if (toolkits[i] && *toolkits[i] == '/') handle = open_in_any("%.*s/lib64", toolkits[i], strlen(toolkits[i]), name);
    for (const char *path = getenv("PATH"); path && *path && !handle; path += *path == ':') {
        size_t length = strcspn(path, ":");
        if (*path == '/') handle = open_in_any("%.*s/../lib/python3*/*-packages/nvidia/*/lib", path, length, name);
        if (*path == '/' && !handle) handle = open_in_any("%.*s/../lib", path, length, name);
        path += length;
    }
    return handle;
}

static void *open_library(struct library *library) {
    void *handle = library->handle;
    if (handle) return handle;
    for (const char *name = library->sonames; *name && !handle; name += strlen(name) + 1)
        handle = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    for (const char *name = library->sonames; *name && !handle; name += strlen(name) + 1) handle = open_elsewhere(name);
    if (!handle && verbose()) fprintf(stderr, "%s: neither the loader, a toolkit nor a folder beside PATH has it\n", library->sonames);
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
