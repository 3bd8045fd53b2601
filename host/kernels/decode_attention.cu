// Attention of one new token of each sequence over the prompt, which several sequences may share, and over the sequence's own
// positions, for values of any type and heads of any size up to 256; decode_attention_bf16.cu has it on tensor cores.
#include "decode_runs.cuh"

// Positions that a block has at once; threads stand as 16 x 16.
constexpr int TILE = 64, SIDE = 16, THREADS = SIDE * SIDE, WARPS = THREADS / 32;

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
    const Asking ask = asking(run, h);
    const int kv = ask.kv, queries = ask.count, width = h.kv_heads * h.dim;
    for (int i = threadIdx.x; i < queries * h.dim; i += THREADS)
        s.q[i / h.dim][i % h.dim] = to_float(q[ask.head_of(i / h.dim) * h.dim + i % h.dim]) * by.scale;
    if (threadIdx.x < QUERIES) s.top[threadIdx.x] = -INFINITY, s.sum[threadIdx.x] = 0.0f;
    float sums[QUERIES / SIDE][DIM / SIDE] = {};
    const int begin = hide<TILE>(s.hidden, ask, run, sequences, slots, by.window);

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
        float *part = parts + (ask.head_of(query) * most_parts + run.part) * (h.dim + 2);
        if (x == 0) part[0] = s.top[query], part[1] = s.sum[query];
        for (int j = 0; j < DIM / SIDE; j++)
            if (x + SIDE * j < h.dim) part[2 + x + SIDE * j] = sums[i][j];
    }
}

// out: [rows, heads * dim]. Blocks: rows, parts of a row.
template <typename T>
__device__ void combine(T *out, const float *parts, const Sequence *sequences, const uint32_t *slots, const Step *step,
                        Sizes h, int split, int most_parts) {
    const int row = blockIdx.x;
    if (!is_row(step, row)) return;
    const Sequence sequence = sequences[slots[row]];
    const int count = runs_of(sequence.prompt, split) + runs_of(sequence.drawn, split), wide = h.dim + 2;
    const int i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i < h.heads * h.dim) {
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
