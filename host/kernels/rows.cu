// Rows and columns of matrices: picked, added, filled. One block a row; matrices are row-major with `d` columns.
#include "common.cuh"

// Calls `each(column, count)` for all columns of a row, a pack at a time where rows begin at whole packs.
template <typename T, typename F> __device__ __forceinline__ void for_columns(int d, F each) {
    constexpr int width = Wide<T>::count;
    if (d % width == 0) {
        for (int c = threadIdx.x * width; c < d; c += blockDim.x * width) each(c, width);
    } else {
        for (int c = threadIdx.x; c < d; c += blockDim.x) each(c, 1);
    }
}

// out[i] = from[rows[i]]
template <typename T> __device__ void gather_rows(T *out, const T *from, const uint32_t *rows, int d) {
    out += (size_t)blockIdx.x * d, from += (size_t)rows[blockIdx.x] * d;
    for_columns<T>(d, [&](int c, int count) {
        if (count > 1) {
            *(typename Wide<T>::type *)(out + c) = *(const typename Wide<T>::type *)(from + c);
        } else {
            out[c] = from[c];
        }
    });
}

// into[rows[i]] += the sum of from[sources[j]] for j from starts[i] to starts[i + 1]. Each value of `into` is one thread's
// alone, so that sums have one order; the second dimension of blocks parts the columns.
template <typename I, typename T>
__device__ void scatter_add_rows(I *into, const T *from, const uint32_t *rows, const uint32_t *starts, const uint32_t *sources,
                                 int d) {
    into += (size_t)rows[blockIdx.x] * d;
    const uint32_t first = starts[blockIdx.x], end = starts[blockIdx.x + 1];
    for (int c = blockIdx.y * blockDim.x + threadIdx.x; c < d; c += gridDim.y * blockDim.x) {
        float sum = to_float(into[c]);
        for (uint32_t j = first; j < end; j++) sum += to_float(from[(size_t)sources[j] * d + c]);
        into[c] = from_float<I>(sum);
    }
}

// Every row of `out` becomes `row`, which is f32.
template <typename T> __device__ void fill_rows(T *out, const float *row, int d) {
    out += (size_t)blockIdx.x * d;
    for (int c = threadIdx.x; c < d; c += blockDim.x) out[c] = from_float<T>(row[c]);
}

// out[i] = scale * (x[i] . y), for a `y` in f32; one warp a row.
template <typename T> __device__ void row_products(float *out, const T *x, const float *y, float scale, int n, int d) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    float sum = 0.0f;
    for (int c = lane; c < d; c += 32) sum += to_float(x[(size_t)row * d + c]) * y[c];
    sum = warp_sum(sum);
    if (lane == 0) out[row] = sum * scale;
}

// out[i] = row i's own dot product of a and b; one warp a row.
template <typename T> __device__ void row_dots(float *out, const T *a, const T *b, int n, int d) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    float sum = 0.0f;
    for (int c = lane; c < d; c += 32) sum += to_float(a[(size_t)row * d + c]) * to_float(b[(size_t)row * d + c]);
    sum = warp_sum(sum);
    if (lane == 0) out[row] = sum;
}

// out[i] = x[i] * weights[i]
template <typename T> __device__ void scale_rows(T *out, const T *x, const float *weights, int d) {
    out += (size_t)blockIdx.x * d, x += (size_t)blockIdx.x * d;
    const float weight = weights[blockIdx.x];
    for_columns<T>(d, [&](int c, int count) {
        float v[8];
        load(v, x + c, count);
        for (int j = 0; j < count; j++) v[j] *= weight;
        store(out + c, v, count);
    });
}

// into[i] += the sum of from[places[i, j]] over j, each times its weight unless `weights` is null.
template <typename T>
__device__ void add_places(T *into, const T *from, const uint32_t *places, const float *weights, int each, int d) {
    into += (size_t)blockIdx.x * d, places += (size_t)blockIdx.x * each;
    for_columns<T>(d, [&](int c, int count) {
        float sum[8], v[8];
        load(sum, into + c, count);
        for (int j = 0; j < each; j++) {
            const uint32_t place = places[j];
            const float weight = weights ? weights[place] : 1.0f;
            load(v, from + (size_t)place * d + c, count);
            for (int k = 0; k < count; k++) sum[k] += weight * v[k];
        }
        store(into + c, sum, count);
    });
}

// Columns `first` to `first + width` of each group of `group` columns of x, which part: [n values] has side by side.
template <typename T> __device__ void take_columns(T *part, const T *x, int group, int first, int width, size_t n) {
    for (size_t i = thread_index(); i < n; i += thread_count()) part[i] = x[i / width * group + first + i % width];
}

// The way back: puts a part's columns into x.
template <typename T> __device__ void put_columns(T *x, const T *part, int group, int first, int width, size_t n) {
    for (size_t i = thread_index(); i < n; i += thread_count()) x[i / width * group + first + i % width] = part[i];
}

#define DEFINE(suffix, T)                                                                                                  \
    extern "C" __global__ void gather_rows_##suffix(T *out, const T *from, const uint32_t *rows, int d) {                  \
        gather_rows(out, from, rows, d);                                                                                   \
    }                                                                                                                      \
    extern "C" __global__ void scatter_add_rows_##suffix(T *into, const T *from, const uint32_t *rows,                     \
                                                         const uint32_t *starts, const uint32_t *sources, int d) {         \
        scatter_add_rows(into, from, rows, starts, sources, d);                                                            \
    }                                                                                                                      \
    extern "C" __global__ void scatter_add_rows_f32_from_##suffix(float *into, const T *from, const uint32_t *rows,        \
                                                                  const uint32_t *starts, const uint32_t *sources,         \
                                                                  int d) {                                                 \
        scatter_add_rows(into, from, rows, starts, sources, d);                                                            \
    }                                                                                                                      \
    extern "C" __global__ void fill_rows_##suffix(T *out, const float *row, int d) { fill_rows(out, row, d); }             \
    extern "C" __global__ void row_products_##suffix(float *out, const T *x, const float *y, float scale, int n, int d) {  \
        row_products(out, x, y, scale, n, d);                                                                              \
    }                                                                                                                      \
    extern "C" __global__ void row_dots_##suffix(float *out, const T *a, const T *b, int n, int d) {                       \
        row_dots(out, a, b, n, d);                                                                                         \
    }                                                                                                                      \
    extern "C" __global__ void scale_rows_##suffix(T *out, const T *x, const float *weights, int d) {                      \
        scale_rows(out, x, weights, d);                                                                                    \
    }                                                                                                                      \
    extern "C" __global__ void add_places_##suffix(T *into, const T *from, const uint32_t *places, const float *weights,   \
                                                   int each, int d) {                                                      \
        add_places(into, from, places, weights, each, d);                                                                  \
    }                                                                                                                      \
    extern "C" __global__ void take_columns_##suffix(T *part, const T *x, int group, int first, int width, size_t n) {     \
        take_columns(part, x, group, first, width, n);                                                                     \
    }                                                                                                                      \
    extern "C" __global__ void put_columns_##suffix(T *x, const T *part, int group, int first, int width, size_t n) {      \
        put_columns(x, part, group, first, width, n);                                                                      \
    }
FOR_EACH_TYPE(DEFINE)
