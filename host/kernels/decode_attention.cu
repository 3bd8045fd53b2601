// Attention of one new token of each sequence over the prompt, which several sequences may share, and over the sequence's
// own positions.
//
// Positions are split, so that many blocks work at once (Flash-Decoding, Dao et al. 2023): each block takes one key/value
// head and one run of positions, of a prompt for all queries that see it or of one sequence, and leaves the greatest score,
// the sum of weights and the weighted sum of values. A second kernel brings the runs together, always in the same order.
#include "decode.cuh"

// Queries and positions that a block has at once; threads stand as 16 x 16.
constexpr int QUERIES = 64, TILE = 64, SIDE = 16, THREADS = SIDE * SIDE, WARPS = THREADS / 32;

struct Sizes {
    int heads, kv_heads, dim;
};

// How scores are formed. Without a bound, `cap` is 0, and without a window, `window` is.
struct Scores {
    float scale, cap;
    int window;
};

// Addresses of a prompt's keys and values in one layer, [positions, kv_heads * dim]. Prompts stand as [places, layers], from
// the layer on that is meant.
struct Prompt {
    uint64_t k, v;
};

// What one block takes: a run of positions from `begin` on, and the rows whose queries see it.
template <typename T> struct Run {
    const T *k, *v;
    int begin, positions, first_row, rows, part;
};

// Number of runs that `positions` are split into.
__device__ __forceinline__ int runs_of(int positions, int split) { return (positions + split - 1) / split; }

// The run of this block, or one of no rows. The first `most_shares` blocks have prompts, then `own_runs` each a row.
template <typename T>
__device__ __forceinline__ Run<T> this_run(const Prompt *prompts, const uint32_t *prompt_lengths, const T *own_k, const T *own_v,
                                           const Sequence *sequences, const uint32_t *slots, const Step *step,
                                           const Share *shares, int layers, int most_shares, int own_runs, int split,
                                           int room, int width) {
    Run<T> run = {nullptr, nullptr, 0, 0, 0, 0, 0};
    const int block = blockIdx.x;
    if (block < most_shares) {
        if (block >= (int)step->shares) return run;
        const Share share = shares[block];
        const Prompt prompt = prompts[(size_t)share.prompt * layers];
        const size_t first = (size_t)share.first_position * width;
        const int positions = min(split, (int)(prompt_lengths[share.prompt] - share.first_position));
        run = {(const T *)prompt.k + first, (const T *)prompt.v + first, (int)share.first_position, positions, (int)share.first_row, (int)share.rows, (int)share.first_position / split};
    } else {
        const int row = (block - most_shares) / own_runs, part = (block - most_shares) % own_runs;
        if (!is_row(step, row)) return run;
        const uint32_t slot = slots[row];
        const int length = sequences[slot].drawn;
        if (part * split >= length) return run;
        const size_t first = ((size_t)slot * room + (size_t)part * split) * width;
        const int prompt = sequences[slot].prompt;
        run = {own_k + first, own_v + first, prompt + part * split, min(split, length - part * split), row, 1,
               runs_of(prompt, split) + part};
    }
    return run;
}

// Reads `count` rows of `dim` values, `stride` apart, as f32; zeros after them.
template <int DIM, typename T>
__device__ __forceinline__ void read_tile(float (*into)[DIM + 1], const T *from, int count, int dim, int stride) {
    constexpr int width = Wide<T>::count;
    if (dim % width == 0) {
        const int packs = dim / width;
        for (int i = threadIdx.x; i < TILE * packs; i += THREADS) {
            const int r = i / packs, c = i % packs * width;
            float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
            if (r < count) load(v, from + (size_t)r * stride + c, width);
            for (int j = 0; j < width; j++) into[r][c + j] = v[j];
        }
    } else {
        for (int i = threadIdx.x; i < TILE * dim; i += THREADS) {
            const int r = i / dim, c = i % dim;
            into[r][c] = r < count ? to_float(from[(size_t)r * stride + c]) : 0.0f;
        }
    }
}

template <int DIM> struct Shared {
    float q[QUERIES][DIM + 1], kv[TILE][DIM + 1], scores[QUERIES][TILE + 1];
    float top[QUERIES], sum[QUERIES], rescale[QUERIES];
    int hidden[QUERIES]; // positions of the run that lie before the query's window
};

// parts: [rows, heads, most_parts, dim + 2]: the greatest score, the sum of weights, the weighted sum of values.
template <int DIM, typename T>
__device__ __forceinline__ void attend(float *parts, const T *q, Run<T> run, const Sequence *sequences, const uint32_t *slots,
                                       Sizes h, Scores by, int most_parts) {
    extern __shared__ float4 room_for_shared[];
    Shared<DIM> &s = *(Shared<DIM> *)room_for_shared;
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int kv = blockIdx.y, per_kv = h.heads / h.kv_heads, queries = run.rows * per_kv, width = h.kv_heads * h.dim;
    auto head_of = [&](int query) {
        return (size_t)(run.first_row + query / per_kv) * h.heads + kv * per_kv + query % per_kv;
    };
    for (int i = threadIdx.x; i < queries * h.dim; i += THREADS)
        s.q[i / h.dim][i % h.dim] = to_float(q[head_of(i / h.dim) * h.dim + i % h.dim]) * by.scale;
    if (threadIdx.x < QUERIES) {
        s.top[threadIdx.x] = -INFINITY, s.sum[threadIdx.x] = 0.0f, s.hidden[threadIdx.x] = 0;
        if (by.window && threadIdx.x < queries) {
            const int position = position_of(sequences[slots[run.first_row + threadIdx.x / per_kv]]);
            s.hidden[threadIdx.x] = position + 1 - by.window - run.begin;
        }
    }
    float sums[QUERIES / SIDE][DIM / SIDE] = {};
    // Sequences of a prompt may be of different lengths: the first position that any of them sees.
    int begin = 0;
    if (by.window) {
        __syncthreads();
        int least = s.hidden[0];
        for (int query = per_kv; query < queries; query += per_kv) least = min(least, s.hidden[query]);
        begin = max(0, least) / TILE * TILE;
    }

    for (int first = begin; first < run.positions; first += TILE) {
        const int count = min(TILE, run.positions - first);
        const size_t offset = (size_t)first * width + kv * h.dim;
        __syncthreads();
        read_tile<DIM>(s.kv, run.k + offset, count, h.dim, width);
        __syncthreads();
        float products[QUERIES / SIDE][TILE / SIDE] = {};
        for (int c = 0; c < h.dim; c++) {
            float of_k[TILE / SIDE];
            for (int j = 0; j < TILE / SIDE; j++) of_k[j] = s.kv[x + SIDE * j][c];
#pragma unroll
            for (int i = 0; i < QUERIES / SIDE; i++) {
                if (y + SIDE * i >= queries) break;
                const float of_q = s.q[y + SIDE * i][c];
                for (int j = 0; j < TILE / SIDE; j++) products[i][j] += of_q * of_k[j];
            }
        }
        for (int i = 0; i < QUERIES / SIDE; i++)
            for (int j = 0; j < TILE / SIDE; j++) {
                const int position = x + SIDE * j;
                const bool seen = position < count && first + position >= s.hidden[y + SIDE * i];
                const float score = by.cap > 0.0f ? by.cap * tanhf(products[i][j] / by.cap) : products[i][j];
                s.scores[y + SIDE * i][position] = seen ? score : -INFINITY;
            }
        __syncthreads();
        // Values take the place of keys while warps normalise.
        read_tile<DIM>(s.kv, run.v + offset, count, h.dim, width);
        for (int query = warp; query < queries; query += WARPS) {
            float *scores = s.scores[query];
            const float before = s.top[query], top = fmaxf(before, warp_max(fmaxf(scores[lane], scores[lane + 32])));
            // A query whose window begins later has seen nothing yet.
            const float origin = top > -INFINITY ? top : 0.0f;
            const float a = expf(scores[lane] - origin), b = expf(scores[lane + 32] - origin);
            scores[lane] = a, scores[lane + 32] = b;
            const float sum = warp_sum(a + b), rescale = expf(before - origin);
            if (lane == 0) s.top[query] = top, s.sum[query] = s.sum[query] * rescale + sum, s.rescale[query] = rescale;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < QUERIES / SIDE; i++) {
            const int query = y + SIDE * i;
            if (query >= queries) break;
            const float rescale = s.rescale[query];
            for (int j = 0; j < DIM / SIDE; j++) sums[i][j] *= rescale;
        }
        for (int t = 0; t < count; t++) {
            float of_v[DIM / SIDE];
            for (int j = 0; j < DIM / SIDE; j++) of_v[j] = s.kv[t][x + SIDE * j];
#pragma unroll
            for (int i = 0; i < QUERIES / SIDE; i++) {
                if (y + SIDE * i >= queries) break;
                const float weight = s.scores[y + SIDE * i][t];
                for (int j = 0; j < DIM / SIDE; j++) sums[i][j] += weight * of_v[j];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < QUERIES / SIDE; i++) {
        const int query = y + SIDE * i;
        if (query >= queries) break;
        float *part = parts + (head_of(query) * most_parts + run.part) * (h.dim + 2);
        if (x == 0) part[0] = s.top[query], part[1] = s.sum[query];
        for (int j = 0; j < DIM / SIDE; j++)
            if (x + SIDE * j < h.dim) part[2 + x + SIDE * j] = sums[i][j];
    }
}

// out: [rows, heads * dim]. One block a row.
template <typename T>
__device__ void combine(T *out, const float *parts, const Sequence *sequences, const uint32_t *slots, const Step *step,
                        Sizes h, int split, int most_parts) {
    const int row = blockIdx.x;
    if (!is_row(step, row)) return;
    const Sequence sequence = sequences[slots[row]];
    const int count = runs_of(sequence.prompt, split) + runs_of(sequence.drawn, split), wide = h.dim + 2;
    for (int i = threadIdx.x; i < h.heads * h.dim; i += blockDim.x) {
        const float *of_head = parts + ((size_t)row * h.heads + i / h.dim) * most_parts * wide;
        float top = -INFINITY, sum = 0.0f, value = 0.0f;
        for (int p = 0; p < count; p++) top = fmaxf(top, of_head[p * wide]);
        for (int p = 0; p < count; p++) {
            const float weight = expf(of_head[p * wide] - top);
            sum += weight * of_head[p * wide + 1];
            value += weight * of_head[p * wide + 2 + i % h.dim];
        }
        out[(size_t)row * h.heads * h.dim + i] = from_float<T>(value / sum);
    }
}

// Blocks: shares and own runs, key/value heads. Dynamic shared memory: Shared<DIM>.
#define DEFINE_ATTENTION(suffix, T, DIM)                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) decode_attention_##DIM##_##suffix(                               \
        float *parts, const T *q, const Prompt *prompts, const uint32_t *prompt_lengths, const T *own_k, const T *own_v,   \
        const Sequence *sequences, const uint32_t *slots, const Step *step, const Share *shares, int layers,               \
        int most_shares, int own_runs, int split, int room, int most_parts, Scores by, int heads, int kv_heads, int dim) { \
        const Run<T> run = this_run(prompts, prompt_lengths, own_k, own_v, sequences, slots, step, shares, layers,         \
                                    most_shares, own_runs, split, room, kv_heads * dim);                                                \
        if (run.rows == 0) return;                                                                                         \
        attend<DIM>(parts, q, run, sequences, slots, {heads, kv_heads, dim}, by, most_parts);                              \
    }

#define DEFINE(suffix, T)                                                                                                  \
    DEFINE_ATTENTION(suffix, T, 64)                                                                                        \
    DEFINE_ATTENTION(suffix, T, 128)                                                                                       \
    DEFINE_ATTENTION(suffix, T, 256)                                                                                       \
    extern "C" __global__ void decode_combine_##suffix(T *out, const float *parts, const Sequence *sequences,              \
                                                       const uint32_t *slots, const Step *step, int split, int most_parts, \
                                                       int heads, int kv_heads, int dim) {                                 \
        combine(out, parts, sequences, slots, step, {heads, kv_heads, dim}, split, most_parts);                            \
    }
FOR_EACH_TYPE(DEFINE)
