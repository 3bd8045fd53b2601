// Causal attention over a forest of segments in bf16, on tensor cores, for heads of up to 128 values whose number is a multiple
// of 8. attention.cu says what is computed; here four warps share a tile of 64 rows, 16 each, after FlashAttention-2 (Dao 2023).
#include "forest.cuh"
#include "mma.cuh"

constexpr int TILE = 64, WARPS = 4, THREADS = 32 * WARPS;
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

// Rows of shared memory, eight values apart so that eight rows lie in different banks.
template <int DIM> struct Rows {
    bf16 at[TILE][DIM + 8];
};

struct alignas(16) Eight {
    uint32_t words[4];
};

// Reads `rows` of head `head` of x: [N, heads * dim], zeros where there is nothing.
template <int DIM>
__device__ __forceinline__ void read_rows(Rows<DIM> &into, const bf16 *x, Range rows, int head, int heads, int dim) {
    for (int i = threadIdx.x; i < TILE * DIM / 8; i += THREADS) {
        const int r = i / (DIM / 8), c = i % (DIM / 8) * 8;
        Eight eight = {};
        if (r < rows.count && c < dim) eight = *(const Eight *)(x + ((size_t)(rows.first + r) * heads + head) * dim + c);
        *(Eight *)&into.at[r][c] = eight;
    }
}

// A 16 x 16 part of rows as A: rows from `row`, columns from `column`.
template <int DIM> __device__ __forceinline__ void load_a(uint32_t a[4], const Rows<DIM> &rows, int row, int column) {
    const int lane = threadIdx.x % 32;
    load_matrices(a, &rows.at[row + lane % 16][column + lane / 16 * 8]);
}

// Two 16 x 8 parts of the rows' transpose as B: its rows from `column`, its columns the 16 rows from `row`.
template <int DIM> __device__ __forceinline__ void load_b_transposed(uint32_t b[4], const Rows<DIM> &rows, int row, int column) {
    const int lane = threadIdx.x % 32;
    load_matrices(b, &rows.at[row + lane / 16 * 8 + lane % 8][column + lane / 8 % 2 * 8]);
}

// Two 16 x 8 parts of the rows as B: the 16 rows from `row`, columns from `column`.
template <int DIM> __device__ __forceinline__ void load_b(uint32_t b[4], const Rows<DIM> &rows, int row, int column) {
    const int lane = threadIdx.x % 32;
    load_transposed(b, &rows.at[row + lane % 16][column + lane / 16 * 8]);
}

// out[j] = rows `row` to `row + 16` of a, times the transpose of rows 8 j to 8 j + 8 of b.
template <int DIM>
__device__ __forceinline__ void products(float out[TILE / 8][4], const Rows<DIM> &a, int row, const Rows<DIM> &b) {
#pragma unroll
    for (int j = 0; j < TILE / 8; j++)
        for (int i = 0; i < 4; i++) out[j][i] = 0.0f;
#pragma unroll
    for (int k = 0; k < DIM; k += 16) {
        uint32_t of_a[4];
        load_a(of_a, a, row, k);
#pragma unroll
        for (int j = 0; j < TILE / 8; j += 2) {
            uint32_t of_b[4];
            load_b_transposed(of_b, b, 8 * j, k);
            multiply(out[j], of_a, of_b);
            multiply(out[j + 1], of_a, of_b + 2);
        }
    }
}

// sums += weights rows, for a warp's 16 x 64 weights as `products` leaves them.
template <int DIM>
__device__ __forceinline__ void add_weighted(float sums[DIM / 8][4], const float weights[TILE / 8][4], const Rows<DIM> &rows) {
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) {
        const float *low = weights[2 * k], *high = weights[2 * k + 1];
        const uint32_t a[4] = {pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]), pack_bf16(high[0], high[1]),
                               pack_bf16(high[2], high[3])};
#pragma unroll
        for (int d = 0; d < DIM / 8; d += 2) {
            uint32_t b[4];
            load_b(b, rows, 16 * k, 8 * d);
            multiply(sums[d], a, b);
            multiply(sums[d + 1], a, b + 2);
        }
    }
}

// Writes a warp's 16 rows of sums, times `by` of each row, to rows of out: [N, heads * dim].
template <int DIM, typename T>
__device__ __forceinline__ void write_rows(T *out, const float sums[DIM / 8][4], const float by[2], Range rows, int head, int heads,
                                           int dim) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, first = threadIdx.x / 32 * 16;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int r = first + g + 8 * i;
        if (r >= rows.count) continue;
        T *row = out + ((size_t)(rows.first + r) * heads + head) * dim;
#pragma unroll
        for (int d = 0; d < DIM / 8; d++) {
            const int c = 8 * d + 2 * t;
            if (c < dim) {
                Pack<T, 2> two = {from_float<T>(sums[d][2 * i] * by[i]), from_float<T>(sums[d][2 * i + 1] * by[i])};
                *(Pack<T, 2> *)(row + c) = two;
            }
        }
    }
}

// Puts `to` where a query does not see a key: a warp's rows are queries from `row`, columns keys.
__device__ __forceinline__ void mask(float scores[TILE / 8][4], float to, Range queries, int row, Range keys, bool causal,
                                     Reach reach) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const bool all = keys.count == TILE && !(causal && keys.first + TILE > queries.first + row + 1);
    if (all && !reach.hides_some(row + 15)) return;
#pragma unroll
    for (int j = 0; j < TILE / 8; j++)
        for (int i = 0; i < 4; i++) {
            const int k = 8 * j + 2 * t + i % 2, q = row + g + i / 2 * 8;
            if (k >= (int)keys.count || (causal && keys.first + k > queries.first + q) || reach.hides(q, k)) scores[j][i] = to;
        }
}

// Bounds a warp's products, if scores are bounded.
__device__ __forceinline__ void bound(float products[TILE / 8][4], const Scores &scores) {
    if (scores.cap == 0.0f) return;
#pragma unroll
    for (int j = 0; j < TILE / 8; j++)
        for (int i = 0; i < 4; i++) products[j][i] = scores.bounded(products[j][i]);
}

__device__ __forceinline__ float over_quad(float x, bool greatest) {
    for (int offset = 1; offset < 4; offset *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, x, offset);
        x = greatest ? fmaxf(x, other) : x + other;
    }
    return x;
}

extern __shared__ Eight shared_rows[];

// out: [N, H * C]; log_sum: [N, H]. Blocks: tiles, heads.
template <int DIM>
__device__ void forward(bf16 *out, float *log_sum, const bf16 *q, const bf16 *k, const bf16 *v, Forest f, Heads h, Scores scores) {
    Rows<DIM> &queries = *(Rows<DIM> *)shared_rows, &keys_at = *(&queries + 1), &values_at = *(&keys_at + 1);
    const int head = blockIdx.y, kv = h.kv_of(head), row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
    const Tile tile = f.tiles[blockIdx.x];
    const float by_two = scores.scale * LOG2_E;
    read_rows<DIM>(queries, q, tile.rows, head, h.heads, h.dim);
    float sums[DIM / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {};
    for_keys<TILE>(f, scores, tile, [&](Range keys, bool causal, Reach reach) {
        __syncthreads();
        read_rows<DIM>(keys_at, k, keys, kv, h.kv_heads, h.dim);
        read_rows<DIM>(values_at, v, keys, kv, h.kv_heads, h.dim);
        __syncthreads();
        float p[TILE / 8][4];
        products<DIM>(p, queries, row, keys_at);
        bound(p, scores);
        mask(p, -INFINITY, tile.rows, row, keys, causal, reach);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float greatest = -INFINITY;
#pragma unroll
            for (int j = 0; j < TILE / 8; j++) greatest = fmaxf(greatest, fmaxf(p[j][2 * i], p[j][2 * i + 1]));
            greatest = fmaxf(top[i], over_quad(greatest, true) * by_two);
            // A row that has seen nothing yet has nothing to be scaled.
            const float origin = greatest > -INFINITY ? greatest : 0.0f, by = exp2f(top[i] - origin);
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < TILE / 8; j++)
                for (int e = 2 * i; e < 2 * i + 2; e++) {
                    p[j][e] = exp2f(p[j][e] * by_two - origin);
                    sum += p[j][e];
                }
            total[i] = total[i] * by + over_quad(sum, false);
#pragma unroll
            for (int d = 0; d < DIM / 8; d++) sums[d][2 * i] *= by, sums[d][2 * i + 1] *= by;
            top[i] = greatest;
        }
        add_weighted<DIM>(sums, p, values_at);
    });
    const float inverse[2] = {1.0f / total[0], 1.0f / total[1]};
    write_rows<DIM>(out, sums, inverse, tile.rows, head, h.heads, h.dim);
    for (int i = 0; i < 2; i++) {
        const int r = row + lane / 4 + 8 * i;
        if (lane % 4 == 0 && r < tile.rows.count)
            log_sum[(size_t)(tile.rows.first + r) * h.heads + head] = (top[i] + log2f(total[i])) * LN_2;
    }
}

// dq: [N, H * C]. Blocks: tiles, heads.
template <int DIM>
__device__ void backward_queries(bf16 *dq, const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *d_out, const float *log_sum,
                                 const float *along, Forest f, Heads h, Scores scores) {
    Rows<DIM> &queries = *(Rows<DIM> *)shared_rows, &d_outs = *(&queries + 1), &keys_at = *(&d_outs + 1);
    Rows<DIM> &values_at = *(&keys_at + 1);
    const int head = blockIdx.y, kv = h.kv_of(head), row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
    const Tile tile = f.tiles[blockIdx.x];
    const float by_two = scores.scale * LOG2_E;
    read_rows<DIM>(queries, q, tile.rows, head, h.heads, h.dim);
    read_rows<DIM>(d_outs, d_out, tile.rows, head, h.heads, h.dim);
    float of_sum[2], of_along[2];
    for (int i = 0; i < 2; i++) {
        const int r = row + lane / 4 + 8 * i;
        const bool there = r < tile.rows.count;
        const size_t at = (size_t)(tile.rows.first + r) * h.heads + head;
        of_sum[i] = there ? log_sum[at] * LOG2_E : INFINITY, of_along[i] = there ? along[at] : 0.0f;
    }
    float sums[DIM / 8][4] = {};
    for_keys<TILE>(f, scores, tile, [&](Range keys, bool causal, Reach reach) {
        __syncthreads();
        read_rows<DIM>(keys_at, k, keys, kv, h.kv_heads, h.dim);
        read_rows<DIM>(values_at, v, keys, kv, h.kv_heads, h.dim);
        __syncthreads();
        float p[TILE / 8][4], dp[TILE / 8][4];
        products<DIM>(p, queries, row, keys_at);
        bound(p, scores);
        mask(p, -INFINITY, tile.rows, row, keys, causal, reach);
        products<DIM>(dp, d_outs, row, values_at);
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
            for (int i = 0; i < 4; i++) {
                const float along = exp2f(p[j][i] * by_two - of_sum[i / 2]) * (dp[j][i] - of_along[i / 2]);
                dp[j][i] = scores.cap > 0.0f && p[j][i] > -INFINITY ? along * scores.slope(p[j][i]) : along;
            }
        add_weighted<DIM>(sums, dp, keys_at);
    });
    const float by[2] = {scores.scale, scores.scale};
    write_rows<DIM>(dq, sums, by, tile.rows, head, h.heads, h.dim);
}

// dk, dv: [N, H * C], what each query head gives to the keys and values that it reads. Blocks: tiles, heads. Here rows of scores
// are keys, and columns queries.
template <int DIM>
__device__ void backward_keys(float *dk, float *dv, const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *d_out,
                              const float *log_sum, const float *along, Forest f, Heads h, Scores scores) {
    Rows<DIM> &keys_at = *(Rows<DIM> *)shared_rows, &values_at = *(&keys_at + 1), &queries_at = *(&values_at + 1);
    Rows<DIM> &d_outs_at = *(&queries_at + 1);
    float *of_sum = (float *)(&d_outs_at + 1), *of_along = of_sum + TILE;
    const int head = blockIdx.y, kv = h.kv_of(head), row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
    const Tile tile = f.tiles[blockIdx.x];
    const float by_two = scores.scale * LOG2_E;
    read_rows<DIM>(keys_at, k, tile.rows, kv, h.kv_heads, h.dim);
    read_rows<DIM>(values_at, v, tile.rows, kv, h.kv_heads, h.dim);
    float dk_sums[DIM / 8][4] = {}, dv_sums[DIM / 8][4] = {};
    for_queries<TILE>(f, scores, tile, [&](Range queries, bool causal, Reach reach) {
        __syncthreads();
        read_rows<DIM>(queries_at, q, queries, head, h.heads, h.dim);
        read_rows<DIM>(d_outs_at, d_out, queries, head, h.heads, h.dim);
        for (int r = threadIdx.x; r < TILE; r += THREADS) {
            const bool there = r < queries.count;
            const size_t at = (size_t)(queries.first + r) * h.heads + head;
            // A query that is not there gives every key the probability zero.
            of_sum[r] = there ? log_sum[at] * LOG2_E : INFINITY, of_along[r] = there ? along[at] : 0.0f;
        }
        __syncthreads();
        float p[TILE / 8][4], dp[TILE / 8][4];
        products<DIM>(p, keys_at, row, queries_at);
        bound(p, scores);
        const bool hidden = causal && tile.rows.first + row + 15 > queries.first;
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
            for (int i = 0; i < 4; i++) {
                const int column = 8 * j + 2 * (lane % 4) + i % 2, key = row + lane / 4 + i / 2 * 8;
                const bool seen = key < tile.rows.count && (!hidden || tile.rows.first + key <= queries.first + column) &&
                                  !reach.hides(column, key);
                p[j][i] = seen ? exp2f(p[j][i] * by_two - of_sum[column]) : 0.0f;
            }
        add_weighted<DIM>(dv_sums, p, d_outs_at);
        products<DIM>(dp, values_at, row, d_outs_at);
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
            for (int i = 0; i < 4; i++) {
                const int column = 8 * j + 2 * (lane % 4) + i % 2;
                dp[j][i] = p[j][i] * (dp[j][i] - of_along[column]);
                // The product again, from its probability: to keep it would take registers of those that bound nothing.
                if (scores.cap > 0.0f && p[j][i] > 0.0f)
                    dp[j][i] *= scores.slope((log2f(p[j][i]) + of_sum[column]) / by_two);
            }
        add_weighted<DIM>(dk_sums, dp, queries_at);
    });
    const float one[2] = {1.0f, 1.0f}, by[2] = {scores.scale, scores.scale};
    write_rows<DIM>(dk, dk_sums, by, tile.rows, head, h.heads, h.dim);
    write_rows<DIM>(dv, dv_sums, one, tile.rows, head, h.heads, h.dim);
}

#define DEFINE(DIM)                                                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_mma_forward_##DIM(                                            \
        bf16 *out, float *log_sum, const bf16 *q, const bf16 *k, const bf16 *v, Forest f, Heads h, Scores scores) {                 \
        forward<DIM>(out, log_sum, q, k, v, f, h, scores);                                                                         \
    }                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_mma_backward_queries_##DIM(                                   \
        bf16 *dq, const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *d_out, const float *log_sum, const float *along,       \
        Forest f, Heads h, Scores scores) {                                                                                         \
        backward_queries<DIM>(dq, q, k, v, d_out, log_sum, along, f, h, scores);                                                   \
    }                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_mma_backward_keys_##DIM(                                      \
        float *dk, float *dv, const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *d_out, const float *log_sum,               \
        const float *along, Forest f, Heads h, Scores scores) {                                                                     \
        backward_keys<DIM>(dk, dv, q, k, v, d_out, log_sum, along, f, h, scores);                                                  \
    }
DEFINE(64)
DEFINE(128)
