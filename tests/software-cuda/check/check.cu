// Kernels that try what the software device promises, and what it must refuse.
#include <cuda_bf16.h>

#define FOR_TYPES(macro) macro(f32, float) macro(bf16, __nv_bfloat16)

#define ROW_SUM(suffix, type)                                                                                          \
    extern "C" __global__ void __launch_bounds__(128) row_sum_##suffix(const type *__restrict__ x, float *sums, int n) { \
        __shared__ float parts[4];                                                                                     \
        float sum = 0;                                                                                                 \
        for (int i = threadIdx.x; i < n; i += blockDim.x) sum += float(x[blockIdx.x * n + i]);                         \
        for (int with = 16; with; with /= 2) sum += __shfl_xor_sync(~0u, sum, with);                                   \
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;                                                      \
        __syncthreads();                                                                                               \
        if (threadIdx.x == 0) sums[blockIdx.x] = parts[0] + parts[1] + parts[2] + parts[3];                            \
    }
FOR_TYPES(ROW_SUM)

extern "C" __global__ void reversed(const int *x, int *y, int n) {
    extern __shared__ int room[];
    room[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = room[n - 1 - int(threadIdx.x)];
}

extern "C" __global__ void votes(unsigned *out) {
    unsigned lane = threadIdx.x;
    out[lane] = __ballot_sync(~0u, lane % 3 == 0);
    out[32 + lane] = __reduce_add_sync(~0u, lane);
    out[64 + lane] = __shfl_down_sync(~0u, lane, 4, 8);
    if (lane < 16) out[96 + lane] = __reduce_max_sync(0xffffu, lane ^ 5);
    atomicAdd(&out[128], lane);
}

extern "C" __global__ void barrier_left_out(int *x) {
    if (threadIdx.x == 7) return;
    __syncthreads();
    x[threadIdx.x] = 1;
}

extern "C" __global__ void two_barriers(int *x) {
    if (threadIdx.x == 7) __syncthreads();
    else
        __syncthreads();
    x[threadIdx.x] = 1;
}

extern "C" __global__ void lonely_shuffle(int *x) {
    if (threadIdx.x < 8) x[threadIdx.x] = __shfl_sync(~0u, 1, 0);
}

extern "C" __global__ void unset_shared(float *x, int no) {
    __shared__ float never[32];
    if (no) never[threadIdx.x] = 0;
    x[threadIdx.x] = never[threadIdx.x];
}

// Copies a group of 16 bytes and another, and reads both after waiting for all but the last `later` groups.
extern "C" __global__ void copied(const float *x, float *y, int later, int offset) {
    __shared__ float4 room[2];
    float *at = (float *)room;
    software_cuda::begin_copy(at, x + offset);
    software_cuda::end_copies();
    software_cuda::begin_copy(at + 4, nullptr);
    software_cuda::end_copies();
    if (later == 0) software_cuda::wait_for_copies(0);
    if (later == 1) software_cuda::wait_for_copies(1);
    for (int i = 0; i < 8; i++) y[i] = at[i];
}

extern "C" __global__ void past_the_end(float *x, int n) { x[n] = 1; }
