// What a layer does for one new token of each sequence, beside its products and its attention. Weights of norms and biases
// are f32; a bias may be absent.
#include "activation.cuh"
#include "decode.cuh"

// x[row] = table[token of the row's sequence] * factor, and its position's row of `positions`, unless that is null. One block
// a row.
template <typename T>
__device__ void embed(T *x, const T *table, const T *positions, float factor, const Sequence *sequences, const uint32_t *slots,
                      const Step *step, int d) {
    const int row = blockIdx.x;
    if (!is_row(step, row)) return;
    const Sequence sequence = sequences[slots[row]];
    const T *from = table + (size_t)sequence.token * d, *of_position = positions + (size_t)position_of(sequence) * d;
    for (int c = threadIdx.x; c < d; c += blockDim.x) {
        const float v = to_float(from[c]) * factor;
        x[(size_t)row * d + c] = from_float<T>(positions ? v + to_float(of_position[c]) : v);
    }
}

// How rows are normalised: not at all if `weight` is null, by the deviation from the mean if there is a bias, else by the root
// mean square.
struct Norm {
    const float *weight, *bias;
    float eps;
};

// Calls `each(column, count)` for this thread's columns, a pack at a time if rows, which begin at multiples of `unit`, begin at
// whole packs.
template <typename T, typename F> __device__ __forceinline__ void for_thread(int d, int unit, F each) {
    constexpr int width = Wide<T>::count;
    if (unit % width == 0) {
        for (int c = threadIdx.x * width; c < d; c += blockDim.x * width) each(c, width);
    } else {
        for (int c = threadIdx.x; c < d; c += blockDim.x) each(c, 1);
    }
}

// Calls `each(column, count, values)` with the normalised values of a row, which `read(column, count, values)` reads, for this
// thread's columns.
template <typename T, typename R, typename F>
__device__ __forceinline__ void normalised(Norm n, int d, int unit, float *scratch, R read, F each) {
    float mean = 0.0f, scale = 1.0f, v[8];
    if (n.bias) {
        float sum = 0.0f;
        for_thread<T>(d, unit, [&](int c, int count) {
            read(c, count, v);
            for (int j = 0; j < count; j++) sum += v[j];
        });
        mean = block_sum(sum, scratch) / d;
    }
    if (n.weight) {
        float squares = 0.0f;
        for_thread<T>(d, unit, [&](int c, int count) {
            read(c, count, v);
            for (int j = 0; j < count; j++) squares += (v[j] - mean) * (v[j] - mean);
        });
        scale = rsqrtf(block_sum(squares, scratch) / d + n.eps);
    }
    for_thread<T>(d, unit, [&](int c, int count) {
        read(c, count, v);
        for (int j = 0; j < count; j++)
            v[j] = (v[j] - mean) * scale * (n.weight ? n.weight[c + j] : 1.0f) + (n.bias ? n.bias[c + j] : 0.0f);
        each(c, count, v);
    });
}

// x += bias, then h = the norm of x. One block a row.
template <typename T> __device__ void norm(T *h, T *x, const float *bias, Norm n, const Step *step, int d) {
    __shared__ float scratch[32];
    const int row = blockIdx.x;
    if (!is_row(step, row)) return;
    h += (size_t)row * d, x += (size_t)row * d;
    if (bias) {
        for_thread<T>(d, d, [&](int c, int count) {
            float v[8];
            load(v, x + c, count);
            for (int j = 0; j < count; j++) v[j] += bias[c + j];
            store(x + c, v, count);
        });
    }
    auto read = [&](int c, int count, float *v) { load(v, x + c, count); };
    normalised<T>(n, d, d, scratch, read, [&](int c, int count, const float *v) { store(h + c, v, count); });
}

// x += factor * the norm of (out + bias). One block a row.
template <typename T>
__device__ void add(T *x, const T *out, const float *bias, Norm n, float factor, const Step *step, int d) {
    __shared__ float scratch[32];
    const int row = blockIdx.x;
    if (!is_row(step, row)) return;
    x += (size_t)row * d, out += (size_t)row * d;
    auto read = [&](int c, int count, float *v) {
        load(v, out + c, count);
        for (int j = 0; j < count; j++) v[j] += bias ? bias[c + j] : 0.0f;
    };
    normalised<T>(n, d, d, scratch, read, [&](int c, int count, const float *v) {
        float sum[8];
        load(sum, x + c, count);
        for (int j = 0; j < count; j++) sum[j] += factor * v[j];
        store(x + c, sum, count);
    });
}

// Adds biases, unless they are null, and normalises all query heads of a row together, and all key heads, in place. Blocks:
// rows, 3 (queries, keys, values).
template <typename T>
__device__ void norm_heads(T *qkv, const float *bias, const float *q_norm, const float *k_norm, const Step *step, float eps,
                           int heads, int kv_heads, int dim) {
    __shared__ float scratch[32];
    const int row = blockIdx.x, part = blockIdx.y, first = (part > 0 ? heads : 0) + (part > 1 ? kv_heads : 0);
    if (!is_row(step, row)) return;
    qkv += ((size_t)row * (heads + 2 * kv_heads) + first) * dim;
    const Norm n = {part == 0 ? q_norm : part == 1 ? k_norm : nullptr, nullptr, eps};
    auto read = [&](int c, int count, float *v) {
        load(v, qkv + c, count);
        for (int j = 0; j < count; j++) v[j] += bias ? bias[first * dim + c + j] : 0.0f;
    };
    const int d = (part == 0 ? heads : kv_heads) * dim;
    normalised<T>(n, d, dim, scratch, read, [&](int c, int count, const float *v) { store(qkv + c, v, count); });
}

// Biases, norms of heads and rotation of a row's queries, keys and values; keys and values go to the end of the sequence's
// own cache. One warp a head: query heads first, then keys, then values.
//
// qkv: [rows, (heads + 2 kv_heads) * dim]; q: [rows, heads * dim]; own_k, own_v: [slots, room, kv_heads * dim], of this layer;
// cosines, sines: [positions, half], for the first 2 half dimensions of a head.
template <typename T>
__device__ void rotate_and_keep(T *q, T *own_k, T *own_v, const T *qkv, const float *bias, const float *q_norm,
                                const float *k_norm, const float *cosines, const float *sines, const Sequence *sequences,
                                const uint32_t *slots, const Step *step, float eps, int heads, int kv_heads, int dim, int half,
                                int room) {
    const int row = blockIdx.x, lane = threadIdx.x % 32;
    const int head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
    if (!is_row(step, row) || head >= heads + 2 * kv_heads) return;
    const uint32_t slot = slots[row], own = sequences[slot].drawn - 1, position = position_of(sequences[slot]);
    const size_t first = (size_t)head * dim;
    const T *from = qkv + (size_t)row * (heads + 2 * kv_heads) * dim + first;
    const bool is_query = head < heads, is_key = !is_query && head < heads + kv_heads;
    const int kv = is_key ? head - heads : head - heads - kv_heads;
    const size_t at = (((size_t)slot * room + own) * kv_heads + kv) * dim;
    T *into = is_query ? q + ((size_t)row * heads + head) * dim : (is_key ? own_k : own_v) + at;
    const float *weight = is_query ? q_norm : is_key ? k_norm : nullptr;
    auto plain = [&](int c) { return to_float(from[c]) + (bias ? bias[first + c] : 0.0f); };
    float scale = 1.0f;
    if (weight) {
        float squares = 0.0f;
        for (int c = lane; c < dim; c += 32) squares += plain(c) * plain(c);
        scale = rsqrtf(warp_sum(squares) / dim + eps);
    }
    auto value = [&](int c) { return weight ? plain(c) * scale * weight[c] : plain(c); };
    const int turned = is_query || is_key ? half : 0;
    for (int c = lane; c < turned; c += 32) {
        const size_t angle = (size_t)position * half + c;
        const float low = value(c), high = value(c + half);
        into[c] = from_float<T>(low * cosines[angle] - high * sines[angle]);
        into[c + half] = from_float<T>(high * cosines[angle] + low * sines[angle]);
    }
    for (int c = 2 * turned + lane; c < dim; c += 32) into[c] = from_float<T>(value(c));
}

// y = f(gate) * up, from rows [gate, up] of 2 * width; or f(gate) from rows of `width`. Blocks: parts of a row, rows.
template <typename F, typename T>
__device__ void activate(T *y, const T *wide, const float *gate_bias, const float *up_bias, const Step *step, int width,
                         int columns) {
    const int row = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (!is_row(step, row) || c >= width) return;
    wide += (size_t)row * columns;
    float v = F::at(to_float(wide[c]) + (gate_bias ? gate_bias[c] : 0.0f)).value;
    if (columns > width) v *= to_float(wide[width + c]) + (up_bias ? up_bias[c] : 0.0f);
    y[(size_t)row * width + c] = from_float<T>(v);
}

#define DEFINE(suffix, T)                                                                                                  \
    extern "C" __global__ void decode_embed_##suffix(T *x, const T *table, const T *positions, float factor,               \
                                                     const Sequence *sequences, const uint32_t *slots, const Step *step,   \
                                                     int d) {                                                              \
        embed(x, table, positions, factor, sequences, slots, step, d);                                                     \
    }                                                                                                                      \
    extern "C" __global__ void decode_norm_##suffix(T *h, T *x, const float *bias, Norm n, const Step *step, int d) {      \
        norm(h, x, bias, n, step, d);                                                                                      \
    }                                                                                                                      \
    extern "C" __global__ void decode_add_##suffix(T *x, const T *out, const float *bias, Norm n, float factor,            \
                                                   const Step *step, int d) {                                              \
        add(x, out, bias, n, factor, step, d);                                                                             \
    }                                                                                                                      \
    extern "C" __global__ void decode_norm_heads_##suffix(T *qkv, const float *bias, const float *q_norm,                  \
                                                          const float *k_norm, const Step *step, float eps, int heads,     \
                                                          int kv_heads, int dim) {                                         \
        norm_heads(qkv, bias, q_norm, k_norm, step, eps, heads, kv_heads, dim);                                            \
    }                                                                                                                      \
    extern "C" __global__ void decode_rotate_and_keep_##suffix(                                                            \
        T *q, T *own_k, T *own_v, const T *qkv, const float *bias, const float *q_norm, const float *k_norm,               \
        const float *cosines, const float *sines, const Sequence *sequences, const uint32_t *slots, const Step *step,      \
        float eps, int heads, int kv_heads, int dim, int half, int room) {                                                 \
        rotate_and_keep(q, own_k, own_v, qkv, bias, q_norm, k_norm, cosines, sines, sequences, slots, step, eps, heads,    \
                        kv_heads, dim, half, room);                                                                        \
    }                                                                                                                      \
    DEFINE_ACTIVATION(silu, Silu, suffix, T)                                                                               \
    DEFINE_ACTIVATION(gelu, Gelu, suffix, T)                                                                               \
    DEFINE_ACTIVATION(gelu_tanh, GeluTanh, suffix, T)

#define DEFINE_ACTIVATION(name, F, suffix, T)                                                                              \
    extern "C" __global__ void decode_##name##_##suffix(T *y, const T *wide, const float *gate_bias, const float *up_bias, \
                                                        const Step *step, int width, int columns) {                        \
        activate<F>(y, wide, gate_bias, up_bias, step, width, columns);                                                    \
    }
FOR_EACH_TYPE(DEFINE)

// Logits from products: times `factor`, bounded if `cap` is not 0. Blocks: parts of a row, rows.
extern "C" __global__ void decode_logits(float *logits, float factor, float cap, const Step *step, int vocab) {
    const int row = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (!is_row(step, row) || c >= vocab) return;
    float *logit = logits + (size_t)row * vocab + c;
    const float v = *logit * factor;
    *logit = cap > 0.0f ? cap * tanhf(v / cap) : v;
}
