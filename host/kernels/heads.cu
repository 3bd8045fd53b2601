// What the way back through attention needs by query heads, whichever kernels do the rest.
#include "forest.cuh"

// along[i] = out[i] . d_out[i] over each head of each row; one warp a head.
template <typename T> __device__ void attention_along(float *along, const T *out, const T *d_out, int dim, size_t n) {
    const size_t i = (size_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (i >= n) return;
    float sum = 0.0f;
    for (int c = threadIdx.x % 32; c < dim; c += 32) sum += to_float(out[i * dim + c]) * to_float(d_out[i * dim + c]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) along[i] = sum;
}

// out: [N, K * C] becomes the sums over the query heads of each key/value head of parts: [N, H * C].
template <typename T> __device__ void sum_heads(T *out, const float *parts, Heads h, size_t n) {
    const int per_kv = h.heads / h.kv_heads;
    for (size_t i = thread_index(); i < n; i += thread_count()) {
        const size_t c = i % h.dim, kv = i / h.dim; // of all rows' key/value heads
        float sum = 0.0f;
        for (int j = 0; j < per_kv; j++) sum += parts[(kv * per_kv + j) * h.dim + c];
        out[i] = from_float<T>(sum);
    }
}

#define DEFINE(suffix, T)                                                                                                  \
    extern "C" __global__ void attention_along_##suffix(float *along, const T *out, const T *d_out, int dim, size_t n) {   \
        attention_along(along, out, d_out, dim, n);                                                                        \
    }                                                                                                                      \
    extern "C" __global__ void sum_heads_##suffix(T *out, const float *parts, Heads h, size_t n) {                         \
        sum_heads(out, parts, h, n);                                                                                       \
    }
FOR_EACH_TYPE(DEFINE)
