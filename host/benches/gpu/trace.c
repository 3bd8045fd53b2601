// Writes what a device did in a process, a line each: when it began and took in nanoseconds, the grid or the bytes, and the kernel.
// trace.sh builds this and sums it up. CUPTI calls it by the variable CUDA_INJECTION64_PATH, so that the process needs no change.
#include <cupti.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static FILE *out;
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;

static void CUPTIAPI give_room(uint8_t **buffer, size_t *size, size_t *most_records) {
    *size = 8 << 20, *most_records = 0;
    *buffer = aligned_alloc(8, *size);
}

static void write_record(const CUpti_Activity *record) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const CUpti_ActivityKernel10 *k = (const void *)record;
        fprintf(out, "%llu %llu %d,%d,%d %s\n", (unsigned long long)k->start, (unsigned long long)(k->end - k->start), k->gridX, k->gridY,
                k->gridZ, k->name);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const CUpti_ActivityMemcpy6 *c = (const void *)record;
        fprintf(out, "%llu %llu %llu copy %s\n", (unsigned long long)c->start, (unsigned long long)(c->end - c->start),
                (unsigned long long)c->bytes, c->copyKind == 1 ? "to the device" : c->copyKind == 2 ? "to the host" : "on the device");
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const CUpti_ActivityMemset4 *m = (const void *)record;
        fprintf(out, "%llu %llu %llu fill\n", (unsigned long long)m->start, (unsigned long long)(m->end - m->start),
                (unsigned long long)m->bytes);
    }
}

static void CUPTIAPI take(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t used) {
    (void)context, (void)stream, (void)size;
    pthread_mutex_lock(&writing);
    for (CUpti_Activity *record = NULL; cuptiActivityGetNextRecord(buffer, used, &record) == CUPTI_SUCCESS;) write_record(record);
    pthread_mutex_unlock(&writing);
    free(buffer);
}

static void end(void) {
    cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    fflush(out);
}

int InitializeInjection(void) {
    const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};
    const char *path = getenv("TRACE");
    if (!path || !(out = fopen(path, "w"))) return 0;
    if (cuptiActivityRegisterCallbacks(give_room, take) != CUPTI_SUCCESS) return 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (cuptiActivityEnable(kinds[i]) != CUPTI_SUCCESS) return 0;
    atexit(end);
    return 1;
}
