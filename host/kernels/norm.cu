// Root-mean-square and layer normalisation over rows of `d` values, one warp a row. Weights and biases are f32.
#include "common.cuh"

// Calls `each(column, count)` for the columns of a lane, a pack at a time where rows begin at whole packs.
template <typename T, typename F> __device__ __forceinline__ void for_lane(int d, F each) {
    constexpr int width = Wide<T>::count;
    const int lane = threadIdx.x % 32;
    if (d % width == 0) {
        for (int c = lane * width; c < d; c += 32 * width) each(c, width);
    } else {
        for (int c = lane; c < d; c += 32) each(c, 1);
    }
}

template <typename T> __device__ __forceinline__ float inverse_rms(const T *x, int d, float eps) {
    float squares = 0.0f;
    for_lane<T>(d, [&](int c, int count) {
        float v[8];
        load(v, x + c, count);
        for (int j = 0; j < count; j++) squares += v[j] * v[j];
    });
    return rsqrtf(warp_sum(squares) / d + eps);
}

// y = x / rms(x) * w
template <typename T> __device__ void rms_norm_forward(T *y, const T *x, const float *w, float eps, int rows, int d) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    x += (size_t)row * d, y += (size_t)row * d;
    const float scale = inverse_rms(x, d, eps);
    for_lane<T>(d, [&](int c, int count) {
        float v[8];
        load(v, x + c, count);
        for (int j = 0; j < count; j++) v[j] *= scale * w[c + j];
        store(y + c, v, count);
    });
}

// dx += the gradient of x, and scales[row] = 1 / rms(x), which the gradient of w takes up.
template <typename T>
__device__ void rms_norm_backward(T *dx, float *scales, const T *x, const float *w, const T *dy, float eps, int rows, int d) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    x += (size_t)row * d, dy += (size_t)row * d, dx += (size_t)row * d;
    const float scale = inverse_rms(x, d, eps);
    float along = 0.0f;
    for_lane<T>(d, [&](int c, int count) {
        float v[8], g[8];
        load(v, x + c, count), load(g, dy + c, count);
        for (int j = 0; j < count; j++) along += v[j] * g[j] * w[c + j];
    });
    along = warp_sum(along) * scale * scale * scale / d;
    for_lane<T>(d, [&](int c, int count) {
        float v[8], g[8], out[8];
        load(v, x + c, count), load(g, dy + c, count), load(out, dx + c, count);
        for (int j = 0; j < count; j++) out[j] += g[j] * w[c + j] * scale - v[j] * along;
        store(dx + c, out, count);
    });
    if (threadIdx.x % 32 == 0) scales[row] = scale;
}

struct Moments {
    float mean, scale; // scale: the inverse of the deviation
};

template <typename T> __device__ __forceinline__ Moments moments(const T *x, int d, float eps) {
    float sum = 0.0f, squares = 0.0f;
    for_lane<T>(d, [&](int c, int count) {
        float v[8];
        load(v, x + c, count);
        for (int j = 0; j < count; j++) sum += v[j];
    });
    const float mean = warp_sum(sum) / d;
    for_lane<T>(d, [&](int c, int count) {
        float v[8];
        load(v, x + c, count);
        for (int j = 0; j < count; j++) squares += (v[j] - mean) * (v[j] - mean);
    });
    return {mean, rsqrtf(warp_sum(squares) / d + eps)};
}

// y = (x - mean) / deviation * w + b
template <typename T>
__device__ void layer_norm_forward(T *y, const T *x, const float *w, const float *b, float eps, int rows, int d) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    x += (size_t)row * d, y += (size_t)row * d;
    const Moments m = moments(x, d, eps);
    for_lane<T>(d, [&](int c, int count) {
        float v[8];
        load(v, x + c, count);
        for (int j = 0; j < count; j++) v[j] = (v[j] - m.mean) * m.scale * w[c + j] + b[c + j];
        store(y + c, v, count);
    });
}

// dx += the gradient of x; `scales` and `means` get each row's moments, which the gradient of w takes up.
template <typename T>
__device__ void layer_norm_backward(T *dx, float *scales, float *means, const T *x, const float *w, const T *dy, float eps,
                                    int rows, int d) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    x += (size_t)row * d, dy += (size_t)row * d, dx += (size_t)row * d;
    const Moments m = moments(x, d, eps);
    float level = 0.0f, along = 0.0f;
    for_lane<T>(d, [&](int c, int count) {
        float v[8], g[8];
        load(v, x + c, count), load(g, dy + c, count);
        for (int j = 0; j < count; j++) {
            const float d_normed = g[j] * w[c + j];
            level += d_normed, along += d_normed * (v[j] - m.mean) * m.scale;
        }
    });
    level = warp_sum(level) / d, along = warp_sum(along) / d;
    for_lane<T>(d, [&](int c, int count) {
        float v[8], g[8], out[8];
        load(v, x + c, count), load(g, dy + c, count), load(out, dx + c, count);
        for (int j = 0; j < count; j++) out[j] += m.scale * (g[j] * w[c + j] - level - (v[j] - m.mean) * m.scale * along);
        store(dx + c, out, count);
    });
    if (threadIdx.x % 32 == 0) scales[row] = m.scale, means[row] = m.mean;
}

#define DEFINE(suffix, T)                                                                                                  \
    extern "C" __global__ void rms_norm_forward_##suffix(T *y, const T *x, const float *w, float eps, int rows, int d) {   \
        rms_norm_forward(y, x, w, eps, rows, d);                                                                           \
    }                                                                                                                      \
    extern "C" __global__ void rms_norm_backward_##suffix(T *dx, float *scales, const T *x, const float *w, const T *dy,   \
                                                          float eps, int rows, int d) {                                    \
        rms_norm_backward(dx, scales, x, w, dy, eps, rows, d);                                                             \
    }                                                                                                                      \
    extern "C" __global__ void layer_norm_forward_##suffix(T *y, const T *x, const float *w, const float *b, float eps,    \
                                                           int rows, int d) {                                              \
        layer_norm_forward(y, x, w, b, eps, rows, d);                                                                      \
    }                                                                                                                      \
    extern "C" __global__ void layer_norm_backward_##suffix(T *dx, float *scales, float *means, const T *x,                \
                                                            const float *w, const T *dy, float eps, int rows, int d) {     \
        layer_norm_backward(dx, scales, means, x, w, dy, eps, rows, d);                                                    \
    }
FOR_EACH_TYPE(DEFINE)
