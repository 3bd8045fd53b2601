// What is known of a row of logits: the target's log-probability, the entropy, and the gradient of both. One block a row.
#include "common.cuh"

// The greatest of some logits, the sum of exp(z - greatest), and of exp(z - greatest) (z - greatest).
struct Seen {
    float top, sum, weighted;

    template <int N> __device__ __forceinline__ void add(const float *logits) {
        float greatest = logits[0];
        for (int j = 1; j < N; j++) greatest = fmaxf(greatest, logits[j]);
        if (greatest > top) {
            // What was summed so far by the new greatest.
            const float lower = top - greatest, by = expf(lower);
            weighted = sum > 0.0f ? by * (weighted + sum * lower) : 0.0f;
            sum *= by;
            top = greatest;
        }
        for (int j = 0; j < N; j++) {
            const float x = logits[j];
            if (x == -INFINITY) continue;
            // Also of what is not a number, which must not pass unseen.
            const float e = expf(x - top);
            sum += e;
            weighted += e * (x - top);
        }
    }
};

// Whether four values at a time can be read from here on.
template <typename T> __device__ __forceinline__ bool begins_whole(const T *at) { return (size_t)at % (4 * sizeof(T)) == 0; }

__device__ __forceinline__ Seen together(Seen a, Seen b) {
    if (a.sum == 0.0f) return b;
    if (b.sum == 0.0f) return a;
    const float top = fmaxf(a.top, b.top), of_a = a.top - top, of_b = b.top - top;
    const float by_a = expf(of_a), by_b = expf(of_b);
    return {top, by_a * a.sum + by_b * b.sum, by_a * (a.weighted + a.sum * of_a) + by_b * (b.weighted + b.sum * of_b)};
}

__device__ __forceinline__ Seen over_warp(Seen seen) {
    for (int offset = 16; offset > 0; offset /= 2) {
        const Seen other = {__shfl_down_sync(0xffffffffu, seen.top, offset), __shfl_down_sync(0xffffffffu, seen.sum, offset),
                            __shfl_down_sync(0xffffffffu, seen.weighted, offset)};
        seen = together(seen, other);
    }
    return seen;
}

// stats: [4, rows] of log-probability of the target, entropy, whether nothing is likelier, log of the normaliser.
extern "C" __global__ void row_stats(float *stats, const float *logits, const uint32_t *targets, int rows, int vocab) {
    __shared__ Seen of_warps[32];
    const int row = blockIdx.x;
    const float *z = logits + (size_t)row * vocab;
    Seen seen = {-INFINITY, 0.0f, 0.0f};
    const int wide = begins_whole(z) ? vocab / 4 : 0;
    for (int i = threadIdx.x; i < wide; i += blockDim.x) {
        const Pack<float, 4> four = ((const Pack<float, 4> *)z)[i];
        seen.add<4>(four.at);
    }
    for (int i = 4 * wide + threadIdx.x; i < vocab; i += blockDim.x) seen.add<1>(z + i);
    seen = over_warp(seen);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = seen;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < blockDim.x / 32; w++) seen = together(seen, of_warps[w]);
        const float ln_sum = logf(seen.sum), logit = z[targets[row]];
        stats[row] = logit - seen.top - ln_sum;
        stats[rows + row] = ln_sum - seen.weighted / seen.sum;
        stats[2 * rows + row] = logit == seen.top ? 1.0f : 0.0f;
        stats[3 * rows + row] = seen.top + ln_sum;
    }
}

// d_logits = the loss's derivatives by each logit, from those by the log-probability and, unless it is null, the entropy
// (see `logit_gradient` of ops/logprob.rs). `d_logits` may be where the logits are. Blocks: any, rows.
template <typename T>
__device__ void logit_gradient(T *d_logits, const float *logits, const uint32_t *targets, const float *log_sums,
                               const float *entropies, const float *d_logps, const float *d_entropies, int vocab) {
    const int row = blockIdx.y;
    const float log_sum = log_sums[row], d_logp = d_logps[row];
    const float entropy = d_entropies ? entropies[row] : 0.0f, d_entropy = d_entropies ? d_entropies[row] : 0.0f;
    const int target = targets[row];
    logits += (size_t)row * vocab, d_logits += (size_t)row * vocab;
    auto gradient = [&](int i, float logit) {
        const float ln_p = logit - log_sum, p = expf(ln_p);
        const float d = p > 0.0f ? -p * (d_logp + d_entropy * (ln_p + entropy)) : 0.0f;
        return from_float<T>(i == target ? d + d_logp : d);
    };
    const int wide = begins_whole(logits) && begins_whole(d_logits) ? vocab / 4 : 0;
    for (int i = thread_index(); i < wide; i += thread_count()) {
        const Pack<float, 4> four = ((const Pack<float, 4> *)logits)[i];
        Pack<T, 4> out;
        for (int j = 0; j < 4; j++) out.at[j] = gradient(4 * i + j, four.at[j]);
        ((Pack<T, 4> *)d_logits)[i] = out;
    }
    for (int i = 4 * wide + thread_index(); i < vocab; i += thread_count()) d_logits[i] = gradient(i, logits[i]);
}

// A token and the rows before which it occurred. Its factors lie together.
struct Penalised {
    uint32_t token, first_row, rows, first_factor;
};

// Multiplies the logits of tokens that occurred as the sampler does. `factors` gets the factor of each. One block an entry.
extern "C" __global__ void penalise(float *logits, float *factors, const Penalised *entries, float penalty, int vocab) {
    const Penalised entry = entries[blockIdx.x];
    for (int i = threadIdx.x; i < (int)entry.rows; i += blockDim.x) {
        float *logit = logits + (size_t)(entry.first_row + i) * vocab + entry.token;
        const float factor = *logit > 0.0f ? 1.0f / penalty : penalty;
        *logit *= factor, factors[entry.first_factor + i] = factor;
    }
}

// The derivatives by logits that `penalise` multiplied, from those by the products. One block an entry.
template <typename T>
__device__ void scale_penalised(T *d_logits, const float *factors, const Penalised *entries, int vocab) {
    const Penalised entry = entries[blockIdx.x];
    for (int i = threadIdx.x; i < (int)entry.rows; i += blockDim.x) {
        T *d = d_logits + (size_t)(entry.first_row + i) * vocab + entry.token;
        *d = from_float<T>(to_float(*d) * factors[entry.first_factor + i]);
    }
}

// A row and the words with its tokens: ascending ids or, if they are as many as that takes, a bit for each token.
struct Restricted {
    uint32_t row, first_word, words;
};

__device__ __forceinline__ bool is_among(const uint32_t *ids, int count, uint32_t id) {
    int first = 0, end = count;
    while (first < end) {
        const int middle = (first + end) / 2;
        if (ids[middle] < id) first = middle + 1;
        else end = middle;
    }
    return first < count && ids[first] == id;
}

// Excludes the tokens that could not be sampled. One block an entry.
extern "C" __global__ void restrict_rows(float *logits, const Restricted *entries, const uint32_t *words, int vocab) {
    const Restricted entry = entries[blockIdx.x];
    const bool is_bits = (int)entry.words == (vocab + 31) / 32;
    logits += (size_t)entry.row * vocab, words += entry.first_word;
    for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
        const bool kept = is_bits ? words[i / 32] >> (i % 32) & 1 : is_among(words, entry.words, i);
        if (!kept) logits[i] = -INFINITY;
    }
}

#define DEFINE(suffix, T)                                                                                                  \
    extern "C" __global__ void logit_gradient_##suffix(T *d_logits, const float *logits, const uint32_t *targets,          \
                                                       const float *log_sums, const float *entropies,                      \
                                                       const float *d_logps, const float *d_entropies, int vocab) {        \
        logit_gradient(d_logits, logits, targets, log_sums, entropies, d_logps, d_entropies, vocab);                       \
    }                                                                                                                      \
    extern "C" __global__ void scale_penalised_##suffix(T *d_logits, const float *factors, const Penalised *entries,       \
                                                        int vocab) {                                                       \
        scale_penalised(d_logits, factors, entries, vocab);                                                                \
    }
FOR_EACH_TYPE(DEFINE)
