/* Kills a rank of Open MPI within a call. Loaded by LD_PRELOAD, with
 *   KILL_AT=RANK:FUNCTION=NUMBER,FUNCTION=NUMBER...  the rank dies in the last call, each counted from the one before;
 *   DELAY_AT=RANK:FUNCTION=MILLISECONDS              the rank waits for so long in each call;
 *   COUNT_CALLS=FILE                                  rank 1 writes how often each function was called.
 * A broadcast counts from LARGE bytes on: parameters, not headers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LARGE 4096

static const char *const NAMES[] = {"MPI_Bcast", "MPI_Reduce", "MPI_Send", "rename"};
enum { BCAST, REDUCE, SEND, RENAME, FUNCTIONS };
static long calls[FUNCTIONS];

static int is_rank(const char *text) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    return rank && text && !strncmp(rank, text, strlen(rank)) && text[strlen(rank)] == ':';
}

static void delay(int function) {
    const char *all = getenv("DELAY_AT");
    if (!is_rank(all)) return;
    const char *rest = strchr(all, ':') + 1;
    size_t length = strlen(NAMES[function]);
    if (!strncmp(rest, NAMES[function], length) && rest[length] == '=') usleep(1000 * atol(rest + length + 1));
}

static void called(int function) {
    static const char *rest = NULL;
    static long seen = 0;
    static int begun = 0;
    calls[function]++;
    delay(function);
    if (!begun) {
        const char *all = getenv("KILL_AT");
        begun = 1;
        rest = is_rank(all) ? strchr(all, ':') + 1 : NULL;
    }
    size_t length = strlen(NAMES[function]);
    if (!rest || strncmp(rest, NAMES[function], length) || rest[length] != '=') return;
    if (++seen < atol(rest + length + 1)) return;
    seen = 0;
    const char *next = strchr(rest, ',');
    rest = next ? next + 1 : NULL;
    if (!rest) {
        fprintf(stderr, "killed in %s\n", NAMES[function]);
        kill(getpid(), SIGKILL);
    }
}

__attribute__((destructor)) static void report(void) {
    const char *file = getenv("COUNT_CALLS");
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (!file || !rank || strcmp(rank, "1")) return;
    FILE *to = fopen(file, "w");
    for (int i = 0; to && i < FUNCTIONS; i++) fprintf(to, "%s %ld\n", NAMES[i], calls[i]);
    if (to) fclose(to);
}

int MPI_Bcast(void *buffer, int count, void *type, int root, void *comm) {
    static int (*real)(void *, int, void *, int, void *) = NULL;
    if (!real) real = dlsym(RTLD_NEXT, "MPI_Bcast");
    if (count >= LARGE) called(BCAST);
    return real(buffer, count, type, root, comm);
}

int MPI_Reduce(const void *from, void *to, int count, void *type, void *op, int root, void *comm) {
    static int (*real)(const void *, void *, int, void *, void *, int, void *) = NULL;
    if (!real) real = dlsym(RTLD_NEXT, "MPI_Reduce");
    called(REDUCE);
    return real(from, to, count, type, op, root, comm);
}

int MPI_Send(const void *buffer, int count, void *type, int to, int tag, void *comm) {
    static int (*real)(const void *, int, void *, int, int, void *) = NULL;
    if (!real) real = dlsym(RTLD_NEXT, "MPI_Send");
    called(SEND);
    return real(buffer, count, type, to, tag, comm);
}

int rename(const char *from, const char *to) {
    static int (*real)(const char *, const char *) = NULL;
    if (!real) real = dlsym(RTLD_NEXT, "rename");
    called(RENAME);
    return real(from, to);
}
