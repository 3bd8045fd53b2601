// Causal attention over a forest of segments, for values of any type and heads of any size up to 256. Products are sums of
// single multiplications; attention_bf16.cu has the same for bf16 on tensor cores.
//
// Scores are taken tile by tile with a running softmax, and formed again on the way back from the logarithm of its
// normaliser (Dao et al. 2022). A block has one tile of rows and one query head, and 8 x 8 threads, each of which has 4 x 4
// scores: rows y + 8 i and columns x + 8 j.
#include "forest.cuh"

constexpr int TILE = 32, SIDE = 8, PER = TILE / SIDE, THREADS = SIDE * SIDE;

// Sums or maxima over the threads that share rows.
__device__ __forceinline__ float along_row(float x, bool greatest) {
    for (int offset = SIDE / 2; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, x, offset);
        x = greatest ? fmaxf(x, other) : x + other;
    }
    return x;
}

// Rows of shared memory: DIM values and one more, so that columns lie in different banks.
template <int DIM> struct Rows {
    float at[TILE][DIM + 1];
};

// Reads `rows` of head `head` of x: [N, heads * dim], zeros where there is nothing.
template <int DIM, typename T>
__device__ __forceinline__ void read_rows(Rows<DIM> &into, const T *x, Range rows, int head, int heads, int dim) {
    for (int i = threadIdx.x; i < TILE * DIM; i += THREADS) {
        const int r = i / DIM, c = i % DIM;
        const bool there = r < rows.count && c < dim;
        into.at[r][c] = there ? to_float(x[((size_t)(rows.first + r) * heads + head) * dim + c]) : 0.0f;
    }
}

// out[i][j] = a[y + 8 i] . b[x + 8 j]
template <int DIM>
__device__ __forceinline__ void products(float out[PER][PER], const Rows<DIM> &a, const Rows<DIM> &b, int x, int y) {
    for (int i = 0; i < PER; i++)
        for (int j = 0; j < PER; j++) out[i][j] = 0.0f;
    for (int c = 0; c < DIM; c++) {
        float of_a[PER], of_b[PER];
        for (int i = 0; i < PER; i++) of_a[i] = a.at[y + SIDE * i][c], of_b[i] = b.at[x + SIDE * i][c];
        for (int i = 0; i < PER; i++)
            for (int j = 0; j < PER; j++) out[i][j] += of_a[i] * of_b[j];
    }
}

// sums[i][j] += the sum over k of weights[y + 8 i][k] * rows[k][x + 8 j]
template <int DIM>
__device__ __forceinline__ void add_weighted(float sums[PER][DIM / SIDE], const float weights[TILE][TILE + 1],
                                             const Rows<DIM> &rows, int x, int y) {
    for (int k = 0; k < TILE; k++) {
        float w[PER];
        for (int i = 0; i < PER; i++) w[i] = weights[y + SIDE * i][k];
#pragma unroll
        for (int j = 0; j < DIM / SIDE; j++) {
            const float v = rows.at[k][x + SIDE * j];
            for (int i = 0; i < PER; i++) sums[i][j] += w[i] * v;
        }
    }
}

// The same with the weights' transpose.
template <int DIM>
__device__ __forceinline__ void add_weighted_transposed(float sums[PER][DIM / SIDE], const float weights[TILE][TILE + 1],
                                                        const Rows<DIM> &rows, int x, int y) {
    for (int k = 0; k < TILE; k++) {
        float w[PER];
        for (int i = 0; i < PER; i++) w[i] = weights[k][y + SIDE * i];
#pragma unroll
        for (int j = 0; j < DIM / SIDE; j++) {
            const float v = rows.at[k][x + SIDE * j];
            for (int i = 0; i < PER; i++) sums[i][j] += w[i] * v;
        }
    }
}

// Whether query `q` of `queries` sees key `k` of `keys`; neither may be there.
__device__ __forceinline__ bool sees(Range queries, int q, Range keys, int k, const Other &of) {
    return q < queries.count && k < keys.count && (!of.causal || keys.first + k <= queries.first + q) && !of.reach.hides(q, k);
}

extern __shared__ float shared[];

// out: [N, H * C]; log_sum: [N, H], the logarithms of the normalisers. Blocks: heads, tiles.
template <int DIM, typename T>
__device__ void forward(T *out, float *log_sum, const T *q, const T *k, const T *v, Forest f, Heads h, Scores by) {
    Rows<DIM> &queries = *(Rows<DIM> *)shared, &others = *(&queries + 1);
    float(*weights)[TILE + 1] = (float(*)[TILE + 1])(&others + 1);
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE, head = blockIdx.x, kv = h.kv_of(head);
    const Tile tile = f.of_queries();
    read_rows<DIM>(queries, q, tile.rows, head, h.heads, h.dim);
    float sums[PER][DIM / SIDE] = {}, top[PER], total[PER] = {};
    for (int i = 0; i < PER; i++) top[i] = -INFINITY;
    Keys<TILE> all(f, by, tile);
    for (Other of; all.next(of);) {
        const Range keys = of.rows;
        __syncthreads();
        read_rows<DIM>(others, k, keys, kv, h.kv_heads, h.dim);
        __syncthreads();
        float p[PER][PER];
        products<DIM>(p, queries, others, x, y);
        for (int i = 0; i < PER; i++) {
            float greatest = -INFINITY;
            for (int j = 0; j < PER; j++) {
                const bool seen = sees(tile.rows, y + SIDE * i, keys, x + SIDE * j, of);
                p[i][j] = seen ? by.bounded(p[i][j]) * by.scale : -INFINITY;
                greatest = fmaxf(greatest, p[i][j]);
            }
            greatest = fmaxf(top[i], along_row(greatest, true));
            // Rows that see nothing yet, or are not there, keep their zeros.
            const float rescale = greatest > -INFINITY ? expf(top[i] - greatest) : 1.0f;
            float sum = 0.0f;
            for (int j = 0; j < PER; j++) {
                p[i][j] = p[i][j] > -INFINITY ? expf(p[i][j] - greatest) : 0.0f;
                sum += p[i][j];
                weights[y + SIDE * i][x + SIDE * j] = p[i][j];
            }
            total[i] = total[i] * rescale + along_row(sum, false);
            for (int j = 0; j < DIM / SIDE; j++) sums[i][j] *= rescale;
            top[i] = greatest;
        }
        __syncthreads();
        read_rows<DIM>(others, v, keys, kv, h.kv_heads, h.dim);
        __syncthreads();
        add_weighted<DIM>(sums, weights, others, x, y);
    }
    for (int i = 0; i < PER; i++) {
        const int r = y + SIDE * i;
        if (r >= tile.rows.count) continue;
        const size_t at = (size_t)(tile.rows.first + r) * h.heads + head;
        for (int j = 0; j < DIM / SIDE; j++) {
            const int c = x + SIDE * j;
            if (c < h.dim) out[at * h.dim + c] = from_float<T>(sums[i][j] / total[i]);
        }
        if (x == 0) log_sum[at] = top[i] + logf(total[i]);
    }
}

// Probabilities of a tile of queries and one of keys, and the derivatives by their scores, into shared memory.
template <int DIM>
__device__ __forceinline__ void score_gradients(float p[PER][PER], float dp[PER][PER], Range queries, Range keys, const Other &of,
                                                const float *log_sum, const float *along, int heads, int head,
                                                Scores by, int x, int y) {
    for (int i = 0; i < PER; i++) {
        const int r = y + SIDE * i;
        const size_t at = (size_t)(queries.first + r) * heads + head;
        const bool there = r < queries.count;
        const float l = there ? log_sum[at] : 0.0f, a = there ? along[at] : 0.0f;
        for (int j = 0; j < PER; j++) {
            const bool seen = sees(queries, r, keys, x + SIDE * j, of);
            const float product = by.bounded(p[i][j]);
            p[i][j] = seen ? expf(product * by.scale - l) : 0.0f;
            dp[i][j] = p[i][j] * (dp[i][j] - a) * by.slope(product);
        }
    }
}

// dq: [N, H * C]. Blocks: heads, tiles.
template <int DIM, typename T>
__device__ void backward_queries(T *dq, const T *q, const T *k, const T *v, const T *d_out, const float *log_sum,
                                 const float *along, Forest f, Heads h, Scores by) {
    Rows<DIM> &queries = *(Rows<DIM> *)shared, &d_outs = *(&queries + 1), &others = *(&d_outs + 1);
    float(*weights)[TILE + 1] = (float(*)[TILE + 1])(&others + 1);
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE, head = blockIdx.x, kv = h.kv_of(head);
    const Tile tile = f.of_queries();
    read_rows<DIM>(queries, q, tile.rows, head, h.heads, h.dim);
    read_rows<DIM>(d_outs, d_out, tile.rows, head, h.heads, h.dim);
    float sums[PER][DIM / SIDE] = {};
    Keys<TILE> all(f, by, tile);
    for (Other of; all.next(of);) {
        const Range keys = of.rows;
        float p[PER][PER], dp[PER][PER];
        __syncthreads();
        read_rows<DIM>(others, v, keys, kv, h.kv_heads, h.dim);
        __syncthreads();
        products<DIM>(dp, d_outs, others, x, y);
        __syncthreads();
        read_rows<DIM>(others, k, keys, kv, h.kv_heads, h.dim);
        __syncthreads();
        products<DIM>(p, queries, others, x, y);
        score_gradients<DIM>(p, dp, tile.rows, keys, of, log_sum, along, h.heads, head, by, x, y);
        for (int i = 0; i < PER; i++)
            for (int j = 0; j < PER; j++) weights[y + SIDE * i][x + SIDE * j] = dp[i][j];
        __syncthreads();
        add_weighted<DIM>(sums, weights, others, x, y);
    }
    for (int i = 0; i < PER; i++) {
        const int r = y + SIDE * i;
        if (r >= tile.rows.count) continue;
        const size_t at = ((size_t)(tile.rows.first + r) * h.heads + head) * h.dim;
        for (int j = 0; j < DIM / SIDE; j++) {
            const int c = x + SIDE * j;
            if (c < h.dim) dq[at + c] = from_float<T>(sums[i][j] * by.scale);
        }
    }
}

// dk, dv: [N, H * C], what each query head gives to the keys and values that it reads. Blocks: heads, tiles.
template <int DIM, typename T>
__device__ void backward_keys(float *dk, float *dv, const T *q, const T *k, const T *v, const T *d_out, const float *log_sum,
                              const float *along, Forest f, Heads h, Scores by) {
    Rows<DIM> &keys = *(Rows<DIM> *)shared, &values = *(&keys + 1), &others = *(&values + 1);
    float(*weights)[TILE + 1] = (float(*)[TILE + 1])(&others + 1);
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE, head = blockIdx.x, kv = h.kv_of(head);
    const Tile tile = f.of_keys();
    read_rows<DIM>(keys, k, tile.rows, kv, h.kv_heads, h.dim);
    read_rows<DIM>(values, v, tile.rows, kv, h.kv_heads, h.dim);
    float dk_sums[PER][DIM / SIDE] = {}, dv_sums[PER][DIM / SIDE] = {};
    Queries<TILE> all(f, by, tile);
    for (Other of; all.next(of);) {
        const Range queries = of.rows;
        float p[PER][PER], dp[PER][PER];
        __syncthreads();
        read_rows<DIM>(others, q, queries, head, h.heads, h.dim);
        __syncthreads();
        products<DIM>(p, others, keys, x, y);
        __syncthreads();
        read_rows<DIM>(others, d_out, queries, head, h.heads, h.dim);
        __syncthreads();
        products<DIM>(dp, others, values, x, y);
        score_gradients<DIM>(p, dp, queries, tile.rows, of, log_sum, along, h.heads, head, by, x, y);
        for (int i = 0; i < PER; i++)
            for (int j = 0; j < PER; j++) weights[y + SIDE * i][x + SIDE * j] = p[i][j];
        __syncthreads();
        add_weighted_transposed<DIM>(dv_sums, weights, others, x, y);
        __syncthreads();
        read_rows<DIM>(others, q, queries, head, h.heads, h.dim);
        for (int i = 0; i < PER; i++)
            for (int j = 0; j < PER; j++) weights[y + SIDE * i][x + SIDE * j] = dp[i][j];
        __syncthreads();
        add_weighted_transposed<DIM>(dk_sums, weights, others, x, y);
    }
    for (int i = 0; i < PER; i++) {
        const int r = y + SIDE * i;
        if (r >= tile.rows.count) continue;
        const size_t at = ((size_t)(tile.rows.first + r) * h.heads + head) * h.dim;
        for (int j = 0; j < DIM / SIDE; j++) {
            const int c = x + SIDE * j;
            if (c < h.dim) dk[at + c] = dk_sums[i][j] * by.scale, dv[at + c] = dv_sums[i][j];
        }
    }
}

#define DEFINE_DIM(suffix, T, DIM)                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_forward_##DIM##_##suffix(                              \
        T *out, float *log_sum, const T *q, const T *k, const T *v, Forest f, Heads h, Scores by) {                      \
        forward<DIM>(out, log_sum, q, k, v, f, h, by);                                                                  \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_backward_queries_##DIM##_##suffix(                     \
        T *dq, const T *q, const T *k, const T *v, const T *d_out, const float *log_sum, const float *along, Forest f,     \
        Heads h, Scores by) {                                                                                            \
        backward_queries<DIM>(dq, q, k, v, d_out, log_sum, along, f, h, by);                                            \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_backward_keys_##DIM##_##suffix(                        \
        float *dk, float *dv, const T *q, const T *k, const T *v, const T *d_out, const float *log_sum,                    \
        const float *along, Forest f, Heads h, Scores by) {                                                              \
        backward_keys<DIM>(dk, dv, q, k, v, d_out, log_sum, along, f, h, by);                                           \
    }
DEFINE_DIM(f32, float, 16)
DEFINE_DIM(f32, float, 64)
DEFINE_DIM(f32, float, 128)
DEFINE_DIM(f32, float, 256)
DEFINE_DIM(bf16, bf16, 128)
DEFINE_DIM(bf16, bf16, 256)
