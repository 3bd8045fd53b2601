// Operations on values one by one. All go over their `n` values with any number of threads, sixteen bytes at a time.
#include "activation.cuh"

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

// out = x * factor + more
template <typename T> __device__ void scale_and_add(T *out, const T *x, float factor, float more, size_t n) {
    for_packs<T>(n, [&](size_t i, int count) {
        float v[8];
        load(v, x + i, count);
        for (int j = 0; j < count; j++) v[j] = v[j] * factor + more;
        store(out + i, v, count);
    });
}

// out = cap * tanh(x / cap); both may be the same.
template <typename T> __device__ void bound(T *out, const T *x, float cap, size_t n) {
    for_packs<T>(n, [&](size_t i, int count) {
        float v[8];
        load(v, x + i, count);
        for (int j = 0; j < count; j++) v[j] = cap * tanhf(v[j] / cap);
        store(out + i, v, count);
    });
}

// y = f(gate) * up, or f(gate) if `up` is null.
template <typename F, typename T> __device__ void activation_forward(T *y, const T *gate, const T *up, size_t n) {
    for_packs<T>(n, [&](size_t i, int count) {
        float g[8], u[8];
        load(g, gate + i, count);
        if (up) load(u, up + i, count);
        for (int j = 0; j < count; j++) u[j] = F::at(g[j]).value * (up ? u[j] : 1.0f);
        store(y + i, u, count);
    });
}

// The same with `d_up` null where `up` is.
template <typename F, typename T>
__device__ void activation_backward(T *d_gate, T *d_up, const T *gate, const T *up, const T *dy, size_t n) {
    for_packs<T>(n, [&](size_t i, int count) {
        float g[8], u[8], d[8];
        load(g, gate + i, count), load(d, dy + i, count);
        if (up) load(u, up + i, count);
        for (int j = 0; j < count; j++) {
            const ValueAndSlope f = F::at(g[j]);
            g[j] = d[j] * f.slope * (up ? u[j] : 1.0f);
            u[j] = d[j] * f.value;
        }
        store(d_gate + i, g, count);
        if (up) store(d_up + i, u, count);
    });
}

#define DEFINE(suffix, T)                                                                                                  \
    extern "C" __global__ void add_into_##suffix(T *into, const T *t, size_t n) { add_into(into, t, n); }                  \
    extern "C" __global__ void mix_##suffix(T *out, const T *own, const float *other, float keep, float take, size_t n) {  \
        mix(out, own, other, keep, take, n);                                                                               \
    }                                                                                                                      \
    extern "C" __global__ void scale_and_add_##suffix(T *out, const T *x, float factor, float more, size_t n) {            \
        scale_and_add(out, x, factor, more, n);                                                                            \
    }                                                                                                                      \
    extern "C" __global__ void bound_##suffix(T *out, const T *x, float cap, size_t n) { bound(out, x, cap, n); }          \
    DEFINE_ACTIVATION(silu, Silu, suffix, T)                                                                               \
    DEFINE_ACTIVATION(gelu, Gelu, suffix, T)                                                                               \
    DEFINE_ACTIVATION(gelu_tanh, GeluTanh, suffix, T)

#define DEFINE_ACTIVATION(name, F, suffix, T)                                                                              \
    extern "C" __global__ void name##_forward_##suffix(T *y, const T *gate, const T *up, size_t n) {                       \
        activation_forward<F>(y, gate, up, n);                                                                             \
    }                                                                                                                      \
    extern "C" __global__ void name##_backward_##suffix(T *d_gate, T *d_up, const T *gate, const T *up, const T *dy,       \
                                                        size_t n) {                                                        \
        activation_backward<F>(d_gate, d_up, gate, up, dy, n);                                                             \
    }
FOR_EACH_TYPE(DEFINE)

// x *= by
template <typename T> __device__ void multiply_into(T *x, const float *by, size_t n) {
    for (size_t i = thread_index(); i < n; i += thread_count()) x[i] = from_float<T>(to_float(x[i]) * by[i]);
}

#define DEFINE_MULTIPLY(suffix, T) \
    extern "C" __global__ void multiply_into_##suffix(T *x, const float *by, size_t n) { multiply_into(x, by, n); }
FOR_EACH_TYPE(DEFINE_MULTIPLY)

// out = 1 - (x / cap)^2, the slope of `bound` where its result is `x`.
extern "C" __global__ void bound_slopes(float *out, const float *x, float cap, size_t n) {
    for (size_t i = thread_index(); i < n; i += thread_count()) out[i] = 1.0f - x[i] / cap * (x[i] / cap);
}

extern "C" __global__ void to_bf16(bf16 *out, const float *x, size_t n) {
    for (size_t i = thread_index(); i < n; i += thread_count()) out[i] = from_float<bf16>(x[i]);
}

extern "C" __global__ void to_f32(float *out, const bf16 *x, size_t n) {
    for (size_t i = thread_index(); i < n; i += thread_count()) out[i] = to_float(x[i]);
}
