// decode_attention.cu's attention in bf16, on tensor cores, for heads of up to 256 values whose number is a multiple of 8. Four
// warps share a tile of 64 positions. If the block's queries fill one or two tiles of 16, four or two warps have the same queries
// and other positions of the tile, and bring together what they found at the end.
#include "decode_runs.cuh"
#include "tiles.cuh"

// While one tile is used, the next is copied, unless shared memory would not suffice.
template <int DIM> struct Shared {
    static constexpr int STAGES = DIM > 128 ? 1 : 2;
    Rows<DIM> queries, keys[STAGES], values[STAGES];
    int hidden[QUERIES]; // positions of the run that lie before the query's window
};

// Begins to copy the block's queries, which are not side by side in memory.
template <int DIM> __device__ __forceinline__ void copy_queries(Rows<DIM> &into, const bf16 *q, const Asking &ask, int dim) {
    for (int i = threadIdx.x; i < QUERIES * DIM / 8; i += THREADS) {
        const int query = i / (DIM / 8), c = i % (DIM / 8) * 8;
        const bool there = query < ask.count && c < dim;
        copy_async(&into.at[query][c], there ? q + ask.head_of(query) * dim + c : q, there);
    }
}

// A query's results of one run: the greatest score, the sum of weights, the weighted sum of values.
struct Part {
    float *at;
    __device__ __forceinline__ Part(float *parts, size_t head, int most_parts, int part, int dim)
        : at(parts + (head * most_parts + part) * (dim + 2)) {}
    // `top` is in powers of two.
    __device__ __forceinline__ void begin(float top, float sum) const { at[0] = top * LN_2, at[1] = sum; }
};

extern __shared__ Eight shared_rows[];

// The first positions of tiles.
struct Tiles {
    typedef int Item;
    int at, end;

    __device__ __forceinline__ bool next(int &first) {
        first = at, at += TILE;
        return first < end;
    }
};

template <int DIM, int WAYS>
__device__ void attend(Shared<DIM> &s, float *parts, const Run<bf16> &run, const Asking &ask, int begin, Sizes h, Scores by,
                       int most_parts) {
    constexpr int PARTS = TILE / WAYS / 8, STAGES = Shared<DIM>::STAGES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int row = warp / WAYS * 16, column = warp % WAYS * (TILE / WAYS), width = h.kv_heads * h.dim;
    auto copy = [&](int first, int stage) {
        const size_t offset = (size_t)first * width + ask.kv * h.dim;
        copy_rows(s.keys[stage], run.k + offset, run.positions - first, h.dim, width);
        copy_rows(s.values[stage], run.v + offset, run.positions - first, h.dim, width);
    };
    Softmax<DIM, PARTS> softmax;
    pipeline<STAGES>(Tiles{begin, run.positions}, copy, [&](int first, int stage) {
        float p[PARTS][4];
        products<DIM, PARTS>(p, s.queries, row, s.keys[stage], column);
#pragma unroll
        for (int j = 0; j < PARTS; j++)
            for (int i = 0; i < 4; i++) {
                const int position = first + column + 8 * j + 2 * t + i % 2;
                const bool seen = position < run.positions && position >= s.hidden[row + g + i / 2 * 8];
                p[j][i] = seen ? by.bounded(p[j][i]) : -INFINITY;
            }
        softmax.weigh(p, by.scale * LOG2_E);
        add_weighted<DIM, PARTS>(softmax.sums, p, s.values[stage], column);
    });
    if (WAYS == 1) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int query = row + g + 8 * i;
            if (query >= ask.count) continue;
            const Part part(parts, ask.head_of(query), most_parts, run.part, h.dim);
            if (t == 0) part.begin(softmax.top[i], softmax.total[i]);
#pragma unroll
            for (int d = 0; d < DIM / 8; d++)
                for (int e = 0; e < 2; e++)
                    if (8 * d + 2 * t < h.dim) part.at[2 + 8 * d + 2 * t + e] = softmax.sums[d][2 * i + e];
        }
        return;
    }
    // Where keys and values were: a row of each warp's results for each of its queries.
    float(*found)[DIM + 2] = (float(*)[DIM + 2])s.keys;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float *of_row = found[16 * warp + g + 8 * i];
        if (t == 0) of_row[0] = softmax.top[i], of_row[1] = softmax.total[i];
#pragma unroll
        for (int d = 0; d < DIM / 8; d++)
            for (int e = 0; e < 2; e++) of_row[2 + 8 * d + 2 * t + e] = softmax.sums[d][2 * i + e];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < ask.count * h.dim; i += THREADS) {
        const int query = i / h.dim, c = i % h.dim;
        // Of the first warp that has the query; the others follow, 16 rows apart.
        const float(*of_query)[DIM + 2] = found + query / 16 * WAYS * 16 + query % 16;
        float top = -INFINITY, sum = 0.0f, value = 0.0f;
        for (int way = 0; way < WAYS; way++) top = fmaxf(top, of_query[16 * way][0]);
        const float origin = top > -INFINITY ? top : 0.0f;
        for (int way = 0; way < WAYS; way++) {
            const float weight = power_of_two(of_query[16 * way][0] - origin);
            sum += weight * of_query[16 * way][1], value += weight * of_query[16 * way][2 + c];
        }
        const Part part(parts, ask.head_of(query), most_parts, run.part, h.dim);
        if (c == 0) part.begin(top, sum);
        part.at[2 + c] = value;
    }
}

// parts: [rows, heads, most_parts, dim + 2]. Blocks: shares and own runs, key/value heads. Dynamic shared memory: Shared<DIM>.
#define DEFINE(DIM)                                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS) decode_attention_mma_##DIM(                                      \
        float *parts, const bf16 *q, const Prompt *prompts, const uint32_t *prompt_lengths, const bf16 *own_k,             \
        const bf16 *own_v, const Sequence *sequences, const uint32_t *slots, const Step *step, const Share *shares,        \
        int layers, int most_shares, int own_runs, int split, int room, int most_parts, Scores by, int heads,              \
        int kv_heads, int dim) {                                                                                           \
        const Run<bf16> run = this_run(prompts, prompt_lengths, own_k, own_v, sequences, slots, step, shares, layers,      \
                                       most_shares, own_runs, split, room, kv_heads * dim);                                \
        if (run.rows == 0) return;                                                                                         \
        const Sizes h = {heads, kv_heads, dim};                                                                            \
        const Asking ask = asking(run, h);                                                                                 \
        Shared<DIM> &s = *(Shared<DIM> *)shared_rows;                                                                      \
        const int begin = hide<TILE>(s.hidden, ask, run, sequences, slots, by.window);                                     \
        copy_queries(s.queries, q, ask, dim);                                                                              \
        if (ask.count <= 16) attend<DIM, 4>(s, parts, run, ask, begin, h, by, most_parts);                                 \
        else if (ask.count <= 32) attend<DIM, 2>(s, parts, run, ask, begin, h, by, most_parts);                            \
        else attend<DIM, 1>(s, parts, run, ask, begin, h, by, most_parts);                                                 \
    }
DEFINE(64)
DEFINE(128)
DEFINE(256)
