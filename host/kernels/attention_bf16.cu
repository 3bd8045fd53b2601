// Causal attention over a forest of segments in bf16, on tensor cores, for heads of up to 128 values whose number is a multiple
// of 8. attention.cu says what is computed; here four warps share a tile of 64 rows, 16 each, after FlashAttention-2 (Dao 2023).
// While a tile is used, the next one is copied, where shared memory suffices.
#include "forest.cuh"
#include "tiles.cuh"

// Parts of eight columns that a warp's scores of a tile have, and those of half a tile.
constexpr int ALL = TILE / 8, HALF = ALL / 2;

// Begins to copy head `head` of rows of x: [N, heads * dim].
template <int DIM>
__device__ __forceinline__ void copy_head(Rows<DIM> &into, const bf16 *x, Range rows, int head, int heads, int dim) {
    copy_rows(into, x + ((size_t)rows.first * heads + head) * dim, rows.count, dim, (size_t)heads * dim);
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
__device__ __forceinline__ void mask(float scores[ALL][4], float to, Range queries, int row, const Other &of) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const Range keys = of.rows;
    const bool all = keys.count == TILE && !(of.causal && keys.first + TILE > queries.first + row + 1);
    if (all && !of.reach.hides_some(row + 15)) return;
#pragma unroll
    for (int j = 0; j < ALL; j++)
        for (int i = 0; i < 4; i++) {
            const int k = 8 * j + 2 * t + i % 2, q = row + g + i / 2 * 8;
            if (k >= (int)keys.count || (of.causal && keys.first + k > queries.first + q) || of.reach.hides(q, k)) scores[j][i] = to;
        }
}

// Bounds a warp's products, if scores are bounded.
template <int PARTS> __device__ __forceinline__ void bound(float products[PARTS][4], const Scores &scores) {
    if (scores.cap == 0.0f) return;
#pragma unroll
    for (int j = 0; j < PARTS; j++)
        for (int i = 0; i < 4; i++) products[j][i] = scores.bounded(products[j][i]);
}

extern __shared__ Eight shared_rows[];

// Tiles that are kept in shared memory: those of the block's own rows, and twice those that it goes over, where there is room on
// devices of every kind (ops/cuda/attention.rs).
template <int DIM, int OWN, int STAGES> struct Shared {
    Rows<DIM> own[OWN], first[STAGES], second[STAGES];
    float of_sum[STAGES][TILE], of_along[STAGES][TILE];
};

// out: [N, H * C]; log_sum: [N, H]. Blocks: heads, tiles.
template <int DIM>
__device__ void forward(bf16 *out, float *log_sum, const bf16 *q, const bf16 *k, const bf16 *v, Forest f, Heads h, Scores scores) {
    Shared<DIM, 1, 2> &s = *(Shared<DIM, 1, 2> *)shared_rows;
    const int head = blockIdx.x, kv = h.kv_of(head), row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
    const Tile tile = f.of_queries();
    copy_head(s.own[0], q, tile.rows, head, h.heads, h.dim);
    Softmax<DIM, ALL> softmax;
    auto copy = [&](const Other &keys, int stage) {
        copy_head(s.first[stage], k, keys.rows, kv, h.kv_heads, h.dim);
        copy_head(s.second[stage], v, keys.rows, kv, h.kv_heads, h.dim);
    };
    pipeline<2>(Keys<TILE>(f, scores, tile), copy, [&](const Other &keys, int stage) {
        float p[ALL][4];
        products<DIM, ALL>(p, s.own[0], row, s.first[stage], 0);
        bound<ALL>(p, scores);
        mask(p, -INFINITY, tile.rows, row, keys);
        softmax.weigh(p, scores.scale * LOG2_E);
        add_weighted<DIM, ALL>(softmax.sums, p, s.second[stage], 0);
    });
    const float inverse[2] = {1.0f / softmax.total[0], 1.0f / softmax.total[1]};
    write_rows<DIM>(out, softmax.sums, inverse, tile.rows, head, h.heads, h.dim);
    for (int i = 0; i < 2; i++) {
        const int r = row + lane / 4 + 8 * i;
        if (lane % 4 == 0 && r < tile.rows.count)
            log_sum[(size_t)(tile.rows.first + r) * h.heads + head] = (softmax.top[i] + log2f(softmax.total[i])) * LN_2;
    }
}

// dq: [N, H * C]. Blocks: heads, tiles.
template <int DIM, int STAGES>
__device__ void backward_queries(bf16 *dq, const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *d_out, const float *log_sum,
                                 const float *along, Forest f, Heads h, Scores scores) {
    Shared<DIM, 2, STAGES> &s = *(Shared<DIM, 2, STAGES> *)shared_rows;
    const int head = blockIdx.x, kv = h.kv_of(head), row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
    const Tile tile = f.of_queries();
    const float by_two = scores.scale * LOG2_E;
    copy_head(s.own[0], q, tile.rows, head, h.heads, h.dim);
    copy_head(s.own[1], d_out, tile.rows, head, h.heads, h.dim);
    float of_sum[2], of_along[2];
    for (int i = 0; i < 2; i++) {
        const int r = row + lane / 4 + 8 * i;
        const bool there = r < tile.rows.count;
        const size_t at = (size_t)(tile.rows.first + r) * h.heads + head;
        of_sum[i] = there ? log_sum[at] * LOG2_E : INFINITY, of_along[i] = there ? along[at] : 0.0f;
    }
    float sums[DIM / 8][4] = {};
    auto copy = [&](const Other &keys, int stage) {
        copy_head(s.first[stage], k, keys.rows, kv, h.kv_heads, h.dim);
        copy_head(s.second[stage], v, keys.rows, kv, h.kv_heads, h.dim);
    };
    pipeline<STAGES>(Keys<TILE>(f, scores, tile), copy, [&](const Other &keys, int stage) {
        float p[ALL][4], dp[ALL][4];
        products<DIM, ALL>(p, s.own[0], row, s.first[stage], 0);
        bound<ALL>(p, scores);
        mask(p, -INFINITY, tile.rows, row, keys);
        products<DIM, ALL>(dp, s.own[1], row, s.second[stage], 0);
#pragma unroll
        for (int j = 0; j < ALL; j++)
            for (int i = 0; i < 4; i++) dp[j][i] = power_of_two(p[j][i] * by_two - of_sum[i / 2]) * (dp[j][i] - of_along[i / 2]);
        if (scores.cap > 0.0f) {
#pragma unroll
            for (int j = 0; j < ALL; j++)
                for (int i = 0; i < 4; i++)
                    if (p[j][i] > -INFINITY) dp[j][i] *= scores.slope(p[j][i]);
        }
        add_weighted<DIM, ALL>(sums, dp, s.first[stage], 0);
    });
    const float by[2] = {scores.scale, scores.scale};
    write_rows<DIM>(dq, sums, by, tile.rows, head, h.heads, h.dim);
}

// dk, dv: [N, H * C], what each query head gives to the keys and values that it reads. Blocks: heads, tiles. Here rows of scores
// are keys, and columns queries.
template <int DIM, int STAGES>
__device__ void backward_keys(float *dk, float *dv, const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *d_out,
                              const float *log_sum, const float *along, Forest f, Heads h, Scores scores) {
    Shared<DIM, 2, STAGES> &s = *(Shared<DIM, 2, STAGES> *)shared_rows;
    const int head = blockIdx.x, kv = h.kv_of(head), row = threadIdx.x / 32 * 16, lane = threadIdx.x % 32;
    const Tile tile = f.of_keys();
    const float by_two = scores.scale * LOG2_E;
    copy_head(s.own[0], k, tile.rows, kv, h.kv_heads, h.dim);
    copy_head(s.own[1], v, tile.rows, kv, h.kv_heads, h.dim);
    float dk_sums[DIM / 8][4] = {}, dv_sums[DIM / 8][4] = {};
    auto copy = [&](const Other &queries, int stage) {
        copy_head(s.first[stage], q, queries.rows, head, h.heads, h.dim);
        copy_head(s.second[stage], d_out, queries.rows, head, h.heads, h.dim);
        for (int r = threadIdx.x; r < TILE; r += THREADS) {
            const bool there = r < queries.rows.count;
            const size_t at = (size_t)(queries.rows.first + r) * h.heads + head;
            // A query that is not there gives every key the probability zero.
            s.of_sum[stage][r] = there ? log_sum[at] * LOG2_E : INFINITY, s.of_along[stage][r] = there ? along[at] : 0.0f;
        }
    };
    pipeline<STAGES>(Queries<TILE>(f, scores, tile), copy, [&](const Other &queries, int stage) {
        // Keys that are not there have rows of their own, which are not written.
        const bool causal = queries.causal && tile.rows.first + row + 15 > queries.rows.first;
        const bool hides = causal || queries.reach.hides_some(TILE - 1);
        // One half of the queries and then the other: with all of them, scores would take the registers of another block.
        for (int first = 0; first < TILE; first += TILE / 2) {
            // Of a lane's columns, two lie side by side.
            const Pack<float, 2> *of_sum = (const Pack<float, 2> *)(s.of_sum[stage] + first) + lane % 4;
            const Pack<float, 2> *of_along = (const Pack<float, 2> *)(s.of_along[stage] + first) + lane % 4;
            float p[HALF][4], dp[HALF][4];
            products<DIM, HALF>(p, s.own[0], row, s.first[stage], first);
            bound<HALF>(p, scores);
            if (hides) {
#pragma unroll
                for (int j = 0; j < HALF; j++)
                    for (int i = 0; i < 4; i++) {
                        const int query = first + 8 * j + 2 * (lane % 4) + i % 2, key = row + lane / 4 + i / 2 * 8;
                        const bool hidden = causal && tile.rows.first + key > queries.rows.first + query;
                        if (hidden || queries.reach.hides(query, key)) p[j][i] = -INFINITY;
                    }
            }
#pragma unroll
            for (int j = 0; j < HALF; j++) {
                const Pack<float, 2> sums = of_sum[4 * j];
                for (int i = 0; i < 4; i++) p[j][i] = power_of_two(p[j][i] * by_two - sums.at[i % 2]);
            }
            add_weighted<DIM, HALF>(dv_sums, p, s.second[stage], first);
            products<DIM, HALF>(dp, s.own[1], row, s.second[stage], first);
#pragma unroll
            for (int j = 0; j < HALF; j++) {
                const Pack<float, 2> alongs = of_along[4 * j];
                for (int i = 0; i < 4; i++) dp[j][i] = p[j][i] * (dp[j][i] - alongs.at[i % 2]);
            }
            if (scores.cap > 0.0f) {
                // The product again, from its probability: to keep it would take registers of those that bound nothing.
#pragma unroll
                for (int j = 0; j < HALF; j++)
                    for (int i = 0; i < 4; i++)
                        if (p[j][i] > 0.0f) dp[j][i] *= scores.slope((log2f(p[j][i]) + of_sum[4 * j].at[i % 2]) / by_two);
            }
            add_weighted<DIM, HALF>(dk_sums, dp, s.first[stage], first);
        }
    });
    const float one[2] = {1.0f, 1.0f}, by[2] = {scores.scale, scores.scale};
    write_rows<DIM>(dk, dk_sums, by, tile.rows, head, h.heads, h.dim);
    write_rows<DIM>(dv, dv_sums, one, tile.rows, head, h.heads, h.dim);
}

#define DEFINE(DIM, STAGES)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_mma_forward_##DIM(                                            \
        bf16 *out, float *log_sum, const bf16 *q, const bf16 *k, const bf16 *v, Forest f, Heads h, Scores scores) {                 \
        forward<DIM>(out, log_sum, q, k, v, f, h, scores);                                                                         \
    }                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_mma_backward_queries_##DIM(                                   \
        bf16 *dq, const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *d_out, const float *log_sum, const float *along,       \
        Forest f, Heads h, Scores scores) {                                                                                         \
        backward_queries<DIM, STAGES>(dq, q, k, v, d_out, log_sum, along, f, h, scores);                                           \
    }                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_mma_backward_keys_##DIM(                                      \
        float *dk, float *dv, const bf16 *q, const bf16 *k, const bf16 *v, const bf16 *d_out, const float *log_sum,               \
        const float *along, Forest f, Heads h, Scores scores) {                                                                     \
        backward_keys<DIM, STAGES>(dk, dv, q, k, v, d_out, log_sum, along, f, h, scores);                                          \
    }
DEFINE(64, 2)
DEFINE(128, 1)
