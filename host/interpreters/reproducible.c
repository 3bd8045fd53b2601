// For builds that give the same bytes: a library to preload (Linux on x86-64) under which a process reads no clock, no random numbers, no
// times or numbers of files, and folders in the order of their names. What runs while a component is built leaves traces of these in its memory, which becomes the component.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <ucontext.h>

// 1 January 2026.
#define NOW 1767225600
// A sixth argument, which the calls below don't have, by which the filter knows our own.
#define OURS 0x5eed5eed

ssize_t getrandom(void *buffer, size_t length, unsigned flags) {
    (void)flags;
    memset(buffer, 42, length);
    return (ssize_t)length;
}

int getentropy(void *buffer, size_t length) {
    memset(buffer, 42, length);
    return 0;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    time->tv_sec = clock == CLOCK_REALTIME ? NOW : 1000;
    time->tv_nsec = 0;
    return 0;
}

static long raw(long number, long a, long b, long c, long d, long e) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = OURS;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}

struct entry {
    uint64_t ino;
    int64_t off;
    uint16_t length;
    uint8_t kind;
    char name[];
};

// Sorts what was read of a folder, whose files are in an order of the file system's own.
static void sort(char *read, long size) {
    static __thread char copy[1 << 16];
    static __thread uint16_t order[1 << 12];
    int count = 0;
    if (size > (long)sizeof copy) return;
    memcpy(copy, read, size);
    for (long at = 0; at < size; at += ((struct entry *)(copy + at))->length) {
        struct entry *new = (struct entry *)(copy + at);
        int place = count++;
        new->ino = 1;
        for (; place > 0 && strcmp(((struct entry *)(copy + order[place - 1]))->name, new->name) > 0; place--) order[place] = order[place - 1];
        order[place] = at;
    }
    for (int i = 0; i < count; i++) {
        struct entry *entry = (struct entry *)(copy + order[i]);
        memcpy(read, entry, entry->length);
        read += entry->length;
    }
}

// Makes the call that was caught, and takes times and inode numbers out of its result.
static void caught(int signal, siginfo_t *info, void *context) {
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    long number = info->si_syscall;
    (void)signal;
    long result = raw(number, regs[REG_RDI], regs[REG_RSI], regs[REG_RDX], regs[REG_R10], regs[REG_R8]);
    if (number == SYS_statx && result == 0) {
        struct statx *found = (struct statx *)regs[REG_R8];
        struct statx_timestamp never = {.tv_sec = NOW};
        found->stx_atime = found->stx_btime = found->stx_ctime = found->stx_mtime = never;
        found->stx_ino = found->stx_nlink = 1;
        found->stx_blksize = found->stx_blocks = found->stx_dev_major = found->stx_dev_minor = 0;
        if (S_ISDIR(found->stx_mode)) found->stx_size = 0;
    } else if (number == SYS_getdents64 && result > 0) {
        sort((char *)regs[REG_RSI], result);
    }
    regs[REG_RAX] = result;
}

#define ARGUMENT(n) offsetof(struct seccomp_data, args[n])
#define IS(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP)

__attribute__((constructor)) static void start(void) {
    struct sigaction action = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARGUMENT(5)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OURS, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        IS(SYS_statx),
        IS(SYS_getdents64),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    sigaction(SIGSYS, &action, NULL);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
