// The token that sample.cu draws where nothing is filtered. Each row is divided into parts that many blocks take at once: first
// the likeliest token of each part, then their masses, and then the part and in it the token that the random number falls on.
#include "sample.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32, PER_THREAD = 16, PART = THREADS * PER_THREAD;

// Most parts of a row.
constexpr int MOST_PARTS = 1024;

// Of a part's logits: the greatest rank, the greatest as it is, and the sum of exp((z - greatest) / logp_temperature).
struct Top {
    Mass best;
    float top, sum;
};

// What all kernels read.
struct Rows {
    const float *logits;        // [.., V]
    const uint32_t *logit_rows; // null, or which row of the logits each row has
    const uint32_t *slots;
    const Step *step;
    const uint32_t *seen; // [slots, words]
    int vocabulary;
    float temperature, penalty;

    __device__ __forceinline__ Adjusted of(int row) const {
        const float *of_row = logits + (size_t)(logit_rows ? logit_rows[row] : row) * vocabulary;
        const uint32_t *occurred = seen + (size_t)slots[row] * ((vocabulary + 31) / 32);
        return {of_row, occurred, penalty, temperature > 0.0f ? temperature : 1.0f};
    }
};

// The greatest of a row's ranks, in every lane.
__device__ __forceinline__ Mass best_of(const Top *tops, int parts) {
    Mass best = 0;
    for (int p = threadIdx.x % 32; p < parts; p += 32) best = max(best, tops[p].best);
    return warp_max(best);
}

// tops: [rows, parts]. Blocks: parts, rows.
extern "C" __global__ void __launch_bounds__(THREADS) sample_tops(Top *tops, Rows of, float logp_temperature) {
    __shared__ float floats[32];
    __shared__ Mass ranks[WARPS];
    const int row = blockIdx.y;
    if (!is_row(of.step, row)) return;
    const Adjusted adjusted = of.of(row);
    const int first = blockIdx.x * PART + threadIdx.x, end = min(of.vocabulary, (int)(blockIdx.x + 1) * PART);
    Top mine = {0, -INFINITY, 0.0f};
#pragma unroll 8
    for (int i = first; i < end; i += THREADS) {
        mine.top = fmaxf(mine.top, adjusted.logits[i]);
        mine.best = max(mine.best, adjusted.rank(i));
    }
    mine.top = block_max(mine.top, floats);
    // Where all are minus infinity, there is nothing to add.
    const float origin = mine.top > -INFINITY ? mine.top : 0.0f, inverse = 1.0f / logp_temperature;
#pragma unroll 8
    for (int i = first; i < end; i += THREADS) mine.sum += expf((adjusted.logits[i] - origin) * inverse);
    mine.sum = block_sum(mine.sum, floats);
    mine.best = warp_max(mine.best);
    if (threadIdx.x % 32 == 0) ranks[threadIdx.x / 32] = mine.best;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 0; w < WARPS; w++) mine.best = max(mine.best, ranks[w]);
        tops[(size_t)row * gridDim.x + blockIdx.x] = mine;
    }
}

// masses: [rows, parts]. Blocks: parts, rows.
extern "C" __global__ void __launch_bounds__(THREADS) sample_masses(Mass *masses, const Top *tops, Rows of) {
    __shared__ Mass of_warps[WARPS];
    const int row = blockIdx.y;
    if (!is_row(of.step, row)) return;
    const Adjusted adjusted = of.of(row);
    const float greatest = logit_of(best_of(tops + (size_t)row * gridDim.x, gridDim.x));
    const int first = blockIdx.x * PART + threadIdx.x, end = min(of.vocabulary, (int)(blockIdx.x + 1) * PART);
    Mass mass = 0;
#pragma unroll 8
    for (int i = first; i < end; i += THREADS) mass += mass_of(expf(adjusted(i) - greatest));
    mass = warp_sum(mass);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mass;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; w++) mass += of_warps[w];
        masses[(size_t)row * gridDim.x + blockIdx.x] = mass;
    }
}

// What a block's threads share in the last kernel.
struct Search {
    Mass masses[MOST_PARTS], of_warps[WARPS], before;
    int part, token;
};

// The first token at which the sum of masses from the beginning passes `threshold`, which is less than all of them.
__device__ __forceinline__ int find(Search &s, const Adjusted &adjusted, float greatest, Mass threshold, int vocabulary) {
    if (threadIdx.x == 0) {
        Mass before = 0;
        int part = 0;
        while (before + s.masses[part] <= threshold) before += s.masses[part++];
        s.part = part, s.before = before;
    }
    __syncthreads();
    const int first = s.part * PART + threadIdx.x * PER_THREAD, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Mass masses[PER_THREAD], own = 0;
    for (int i = 0; i < PER_THREAD; i++) {
        masses[i] = first + i < vocabulary ? mass_of(expf(adjusted(first + i) - greatest)) : 0;
        own += masses[i];
    }
    Mass through = own; // that of all lanes up to this one
    for (int offset = 1; offset < 32; offset *= 2) {
        const Mass other = __shfl_up_sync(0xffffffffu, through, offset);
        if (lane >= offset) through += other;
    }
    if (lane == 31) s.of_warps[warp] = through;
    __syncthreads();
    Mass sum = s.before + through - own;
    for (int w = 0; w < warp; w++) sum += s.of_warps[w];
    if (sum <= threshold && threshold < sum + own) {
        int i = 0;
        while (sum + masses[i] <= threshold) sum += masses[i++];
        s.token = first + i;
    }
    __syncthreads();
    return s.token;
}

// drawn: [rows] token and log-probability; uniforms: [slots, most] numbers below one. One block a row.
extern "C" __global__ void __launch_bounds__(THREADS)
    sample_parts(uint2 *drawn, const Top *tops, const Mass *masses, Rows of, int parts, float logp_temperature, Sequence *sequences,
                 const double *uniforms, int most, uint32_t *seen) {
    __shared__ Search s;
    const int row = blockIdx.x, lane = threadIdx.x % 32;
    if (!is_row(of.step, row)) return;
    const uint32_t slot = of.slots[row];
    const Adjusted adjusted = of.of(row);
    tops += (size_t)row * parts, masses += (size_t)row * parts;
    const Mass best = best_of(tops, parts);
    float top = -INFINITY, sum = 0.0f;
    for (int p = lane; p < parts; p += 32) top = fmaxf(top, tops[p].top);
    top = warp_max(top);
    const float inverse = 1.0f / logp_temperature;
    for (int p = lane; p < parts; p += 32) sum += tops[p].sum * expf((tops[p].top - top) * inverse);
    const float normaliser = top * inverse + logf(warp_sum(sum));
    int token = token_of(best);
    if (of.temperature > 0.0f) {
        Mass total = 0;
        for (int p = threadIdx.x; p < parts; p += THREADS) s.masses[p] = masses[p];
        for (int p = lane; p < parts; p += 32) total += masses[p];
        total = warp_sum(total);
        __syncthreads();
        const double threshold = uniforms[(size_t)slot * most + sequences[slot].drawn] * (double)total;
        if (total > 0) token = find(s, adjusted, logit_of(best), min((Mass)threshold, total - 1), of.vocabulary);
    }
    if (threadIdx.x == 0) {
        uint32_t *occurred = seen + (size_t)slot * ((of.vocabulary + 31) / 32);
        end_draw(drawn + row, sequences + slot, occurred, token, adjusted.logits[token] * inverse - normaliser, of.penalty);
    }
}
