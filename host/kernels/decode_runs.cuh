// What attention of generation reads: runs of positions, of a prompt for all queries that see it or of one sequence.
//
// Positions are split, so that many blocks work at once (Flash-Decoding, Dao et al. 2023): each block takes one key/value
// head and one run, and leaves the greatest score, the sum of weights and the weighted sum of values of each query. Another kernel
// brings the runs together, always in the same order.
#pragma once
#include "decode.cuh"
#include "scores.cuh"

// Queries that a block has at once.
constexpr int QUERIES = 64;

struct Sizes {
    int heads, kv_heads, dim;
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
        const int begin = share.first_position;
        run = {(const T *)prompt.k + first, (const T *)prompt.v + first, begin, positions, (int)share.first_row, (int)share.rows,
               begin / split};
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

// The queries of a block's key/value head, of all rows of its run.
struct Asking {
    int first_row, kv, per_kv, heads, count;

    // Which of all rows' heads a query is.
    __device__ __forceinline__ size_t head_of(int query) const {
        return (size_t)(first_row + query / per_kv) * heads + kv * per_kv + query % per_kv;
    }
};

template <typename T> __device__ __forceinline__ Asking asking(const Run<T> &run, Sizes h) {
    const int per_kv = h.heads / h.kv_heads;
    return {run.first_row, (int)blockIdx.y, per_kv, h.heads, run.rows * per_kv};
}

// Sets how many positions of the run lie before each query's window, and returns the first position of a tile that any of them
// sees: sequences of a prompt may be of different lengths.
template <int TILE, typename T>
__device__ __forceinline__ int hide(int *hidden, const Asking &ask, const Run<T> &run, const Sequence *sequences,
                                    const uint32_t *slots, int window) {
    if (threadIdx.x < QUERIES) hidden[threadIdx.x] = 0;
    if (!window) return 0;
    if ((int)threadIdx.x < ask.count) {
        const int position = position_of(sequences[slots[run.first_row + threadIdx.x / ask.per_kv]]);
        hidden[threadIdx.x] = position + 1 - window - run.begin;
    }
    __syncthreads();
    int least = hidden[0];
    for (int query = ask.per_kv; query < ask.count; query += ask.per_kv) least = min(least, hidden[query]);
    return max(0, least) / TILE * TILE;
}
