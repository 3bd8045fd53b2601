// What a layer does for one new token of each sequence, beside its products and its attention. Weights of norms and biases
// are f32; a bias may be absent.
#include "decode.cuh"

// x[row] = table[token of the row's sequence]. One block a row.
template <typename T>
__device__ void embed(T *x, const T *table, const Sequence *sequences, const uint32_t *slots, const Step *step, int d) {
    const int row = blockIdx.x;
    if (!is_row(step, row)) return;
    const T *from = table + (size_t)sequences[slots[row]].token * d;
    for (int c = threadIdx.x; c < d; c += blockDim.x) x[(size_t)row * d + c] = from[c];
}

// x += bias, then h = x / rms(x) * w. One block a row.
template <typename T>
__device__ void norm(T *h, T *x, const float *bias, const float *w, const Step *step, float eps, int d) {
    __shared__ float scratch[32];
    const int row = blockIdx.x;
    if (!is_row(step, row)) return;
    h += (size_t)row * d, x += (size_t)row * d;
    float squares = 0.0f;
    for (int c = threadIdx.x; c < d; c += blockDim.x) {
        if (bias) x[c] = from_float<T>(to_float(x[c]) + bias[c]);
        const float v = to_float(x[c]);
        squares += v * v;
    }
    const float scale = rsqrtf(block_sum(squares, scratch) / d + eps);
    for (int c = threadIdx.x; c < d; c += blockDim.x) h[c] = from_float<T>(to_float(x[c]) * scale * w[c]);
}

// Biases, norms of heads and rotation of a row's queries, keys and values; keys and values go to the end of the sequence's
// own cache. One warp a head: query heads first, then keys, then values.
//
// qkv: [rows, (heads + 2 kv_heads) * dim]; q: [rows, heads * dim]; own_k, own_v: [slots, room, kv_heads * dim], of this layer;
// cosines, sines: [positions, dim / 2].
template <typename T>
__device__ void rotate_and_keep(T *q, T *own_k, T *own_v, const T *qkv, const float *bias, const float *q_norm,
                                const float *k_norm, const float *cosines, const float *sines, const Sequence *sequences,
                                const uint32_t *slots, const Step *step, float eps, int heads, int kv_heads, int dim, int room) {
    const int row = blockIdx.x, lane = threadIdx.x % 32, half = dim / 2;
    const int head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
    if (!is_row(step, row) || head >= heads + 2 * kv_heads) return;
    const uint32_t slot = slots[row], own = sequences[slot].drawn - 1, position = sequences[slot].prompt + own;
    const size_t first = (size_t)head * dim;
    const T *from = qkv + (size_t)row * (heads + 2 * kv_heads) * dim + first;
    const bool is_query = head < heads, is_key = !is_query && head < heads + kv_heads;
    const int kv = is_key ? head - heads : head - heads - kv_heads;
    const size_t at = (((size_t)slot * room + own) * kv_heads + kv) * dim;
    T *into = is_query ? q + ((size_t)row * heads + head) * dim : (is_key ? own_k : own_v) + at;
    auto value = [&](int c) { return to_float(from[c]) + (bias ? bias[first + c] : 0.0f); };
    if (!is_query && !is_key) {
        for (int c = lane; c < dim; c += 32) into[c] = from_float<T>(value(c));
        return;
    }
    const float *weight = is_query ? q_norm : k_norm;
    float scale = 1.0f;
    if (weight) {
        float squares = 0.0f;
        for (int c = lane; c < dim; c += 32) squares += value(c) * value(c);
        scale = rsqrtf(warp_sum(squares) / dim + eps);
    }
    for (int c = lane; c < half; c += 32) {
        const size_t angle = (size_t)position * half + c;
        const float low = value(c) * scale * (weight ? weight[c] : 1.0f);
        const float high = value(c + half) * scale * (weight ? weight[c + half] : 1.0f);
        into[c] = from_float<T>(low * cosines[angle] - high * sines[angle]);
        into[c + half] = from_float<T>(high * cosines[angle] + low * sines[angle]);
    }
}

// y = silu(gate) * up, from rows [gate, up] of 2 * width. Blocks: parts of a row, rows.
template <typename T>
__device__ void gated(T *y, const T *gate_up, const float *gate_bias, const float *up_bias, const Step *step, int width) {
    const int row = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (!is_row(step, row) || c >= width) return;
    const T *gate = gate_up + (size_t)row * 2 * width;
    const float g = to_float(gate[c]) + (gate_bias ? gate_bias[c] : 0.0f);
    const float u = to_float(gate[width + c]) + (up_bias ? up_bias[c] : 0.0f);
    y[(size_t)row * width + c] = from_float<T>(g / (1.0f + expf(-g)) * u);
}

#define DEFINE(suffix, T)                                                                                                  \
    extern "C" __global__ void decode_embed_##suffix(T *x, const T *table, const Sequence *sequences,                      \
                                                     const uint32_t *slots, const Step *step, int d) {                     \
        embed(x, table, sequences, slots, step, d);                                                                        \
    }                                                                                                                      \
    extern "C" __global__ void decode_norm_##suffix(T *h, T *x, const float *bias, const float *w, const Step *step,       \
                                                    float eps, int d) {                                                    \
        norm(h, x, bias, w, step, eps, d);                                                                                 \
    }                                                                                                                      \
    extern "C" __global__ void decode_rotate_and_keep_##suffix(                                                            \
        T *q, T *own_k, T *own_v, const T *qkv, const float *bias, const float *q_norm, const float *k_norm,               \
        const float *cosines, const float *sines, const Sequence *sequences, const uint32_t *slots, const Step *step,      \
        float eps, int heads, int kv_heads, int dim, int room) {                                                           \
        rotate_and_keep(q, own_k, own_v, qkv, bias, q_norm, k_norm, cosines, sines, sequences, slots, step, eps, heads,    \
                        kv_heads, dim, room);                                                                              \
    }                                                                                                                      \
    extern "C" __global__ void decode_gated_##suffix(T *y, const T *gate_up, const float *gate_bias, const float *up_bias, \
                                                     const Step *step, int width) {                                        \
        gated(y, gate_up, gate_bias, up_bias, step, width);                                                                \
    }
FOR_EACH_TYPE(DEFINE)
