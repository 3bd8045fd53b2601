// Sums over many values, formed in parts and then over the parts, in an order that sizes alone decide.
#include "common.cuh"

// A block's columns, and the rows that it takes at once.
constexpr int COLUMNS = 32;

// Sums what each warp has for the block's columns and gives the whole to the first warp.
__device__ __forceinline__ float across_warps(float sum, float *scratch) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    scratch[warp * COLUMNS + lane] = sum;
    __syncthreads();
    if (warp == 0) {
        sum = 0.0f;
        for (int w = 0; w < warps; w++) sum += scratch[w * COLUMNS + lane];
    }
    return sum;
}

// parts[p, c] = the sum of `value(row, c)` over the p-th share of rows. Blocks: columns / 32, parts.
template <typename F> __device__ __forceinline__ void sum_columns(float *parts, int rows, int columns, F value) {
    __shared__ float scratch[32 * COLUMNS];
    const int column = blockIdx.x * COLUMNS + threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int share = (rows + gridDim.y - 1) / gridDim.y;
    const int first = blockIdx.y * share, end = min(rows, first + share);
    float sum = 0.0f;
    if (column < columns) {
        for (int row = first + warp; row < end; row += warps) sum += value(row, column);
    }
    sum = across_warps(sum, scratch);
    if (warp == 0 && column < columns) parts[(size_t)blockIdx.y * columns + column] = sum;
}

// out[c] += scale * the sum of parts[p, c] over p. Blocks: columns / 32.
extern "C" __global__ void add_parts(float *out, const float *parts, int count, int columns, float scale) {
    __shared__ float scratch[32 * COLUMNS];
    const int column = blockIdx.x * COLUMNS + threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    float sum = 0.0f;
    if (column < columns) {
        for (int p = warp; p < count; p += warps) sum += parts[(size_t)p * columns + column];
    }
    sum = across_warps(sum, scratch);
    if (warp == 0 && column < columns) out[column] += scale * sum;
}

#define DEFINE(suffix, T)                                                                                                  \
    extern "C" __global__ void column_sums_##suffix(float *parts, const T *x, int rows, int columns) {                     \
        sum_columns(parts, rows, columns, [&](int r, int c) { return to_float(x[(size_t)r * columns + c]); });             \
    }                                                                                                                      \
    /* The gradient of a norm's weight: dy (x - mean) scale, over all rows; without `means`, dy x scale. */                \
    extern "C" __global__ void norm_weight_gradient_##suffix(float *parts, const T *x, const T *dy, const float *scales,   \
                                                             const float *means, int rows, int columns) {                  \
        sum_columns(parts, rows, columns, [&](int r, int c) {                                                              \
            const size_t i = (size_t)r * columns + c;                                                                      \
            return to_float(dy[i]) * (to_float(x[i]) - (means ? means[r] : 0.0f)) * scales[r];                             \
        });                                                                                                                \
    }
FOR_EACH_TYPE(DEFINE)

// parts[block] = the sum of the squares of its share of the values. A thread asks for several packs before it adds any, since
// what is under way decides how much of the memory's bandwidth is used.
extern "C" __global__ void sum_of_squares(double *parts, const float *x, size_t n) {
    constexpr int AHEAD = 4, width = Wide<float>::count;
    typedef Wide<float>::type FloatPack;
    __shared__ double scratch[32];
    const FloatPack *packs = (const FloatPack *)x;
    const size_t whole = n / width;
    double sum = 0.0;
    for (size_t first = thread_index(); first < whole; first += AHEAD * thread_count()) {
        FloatPack some[AHEAD] = {};
        for (int j = 0; j < AHEAD; j++) {
            const size_t i = first + j * thread_count();
            if (i < whole) some[j] = packs[i];
        }
        for (int j = 0; j < AHEAD; j++) {
            for (int k = 0; k < width; k++) sum += (double)some[j].at[k] * (double)some[j].at[k];
        }
    }
    for (size_t i = whole * width + thread_index(); i < n; i += thread_count()) sum += (double)x[i] * (double)x[i];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0.0;
        for (int w = 0; w < blockDim.x / 32; w++) sum += scratch[w];
        parts[blockIdx.x] = sum;
    }
}

// parts[block] = the sum, modulo 2^64, of a mixture of each value's place and bits (the finaliser of SplitMix64).
extern "C" __global__ void checksum(unsigned long long *parts, const uint32_t *bits, size_t n) {
    __shared__ unsigned long long scratch[32];
    unsigned long long sum = 0;
    for (size_t i = thread_index(); i < n; i += thread_count()) {
        unsigned long long z = ((unsigned long long)i << 32 ^ (unsigned long long)i >> 32 ^ bits[i]) + 0x9E3779B97F4A7C15ull;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ z >> 27) * 0x94D049BB133111EBull;
        sum += z ^ z >> 31;
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0;
        for (int w = 0; w < blockDim.x / 32; w++) sum += scratch[w];
        parts[blockIdx.x] = sum;
    }
}
