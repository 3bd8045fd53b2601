// Operations on values one by one. All go over their `n` values with any number of threads, sixteen bytes at a time.
#include "common.cuh"

// Calls `each(values, count)` for every whole pack, and for the rest one by one.
template <typename T, typename F> __device__ __forceinline__ void for_packs(size_t n, F each) {
    constexpr size_t width = Wide<T>::count;
    const size_t packs = n / width;
    for (size_t i = thread_index(); i < packs; i += thread_count()) each(i * width, (int)width);
    for (size_t i = packs * width + thread_index(); i < n; i += thread_count()) each(i, 1);
}

// into += t
template <typename T> __device__ void add_into(T *into, const T *t, size_t n) {
    for_packs<T>(n, [&](size_t i, int count) {
        float a[8], b[8];
        load(a, into + i, count), load(b, t + i, count);
        for (int j = 0; j < count; j++) a[j] += b[j];
        store(into + i, a, count);
    });
}

// own = own * keep + other * (1 - keep), with `other` in f32
template <typename T> __device__ void mix(T *out, const T *own, const float *other, float keep, float take, size_t n) {
    for (size_t i = thread_index(); i < n; i += thread_count())
        out[i] = from_float<T>(to_float(own[i]) * keep + other[i] * take);
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// y = silu(gate) * up
template <typename T> __device__ void swiglu_forward(T *y, const T *gate, const T *up, size_t n) {
    for_packs<T>(n, [&](size_t i, int count) {
        float g[8], u[8];
        load(g, gate + i, count), load(u, up + i, count);
        for (int j = 0; j < count; j++) u[j] *= g[j] * sigmoid(g[j]);
        store(y + i, u, count);
    });
}

template <typename T>
__device__ void swiglu_backward(T *d_gate, T *d_up, const T *gate, const T *up, const T *dy, size_t n) {
    for_packs<T>(n, [&](size_t i, int count) {
        float g[8], u[8], d[8];
        load(g, gate + i, count), load(u, up + i, count), load(d, dy + i, count);
        for (int j = 0; j < count; j++) {
            const float s = sigmoid(g[j]), silu = g[j] * s;
            g[j] = d[j] * u[j] * (s + silu * (1.0f - s));
            u[j] = d[j] * silu;
        }
        store(d_gate + i, g, count), store(d_up + i, u, count);
    });
}

#define DEFINE(suffix, T)                                                                                                  \
    extern "C" __global__ void add_into_##suffix(T *into, const T *t, size_t n) { add_into(into, t, n); }                  \
    extern "C" __global__ void mix_##suffix(T *out, const T *own, const float *other, float keep, float take, size_t n) {  \
        mix(out, own, other, keep, take, n);                                                                               \
    }                                                                                                                      \
    extern "C" __global__ void swiglu_forward_##suffix(T *y, const T *gate, const T *up, size_t n) {                       \
        swiglu_forward(y, gate, up, n);                                                                                    \
    }                                                                                                                      \
    extern "C" __global__ void swiglu_backward_##suffix(T *d_gate, T *d_up, const T *gate, const T *up, const T *dy,       \
                                                        size_t n) {                                                        \
        swiglu_backward(d_gate, d_up, gate, up, dy, n);                                                                    \
    }
FOR_EACH_TYPE(DEFINE)

extern "C" __global__ void to_bf16(bf16 *out, const float *x, size_t n) {
    for (size_t i = thread_index(); i < n; i += thread_count()) out[i] = from_float<bf16>(x[i]);
}

extern "C" __global__ void to_f32(float *out, const bf16 *x, size_t n) {
    for (size_t i = thread_index(); i < n; i += thread_count()) out[i] = to_float(x[i]);
}
