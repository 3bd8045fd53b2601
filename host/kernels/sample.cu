// One token from a row of logits, as ops/src/sampler.rs draws it. One block of whole warps a row.
#include "sample.cuh"

// Adds to a sum in shared memory. There an atomic addition of 64 bits is a loop that begins again whenever another thread was
// faster; two of 32 bits with the carry are not, and as exact.
__device__ __forceinline__ void add_to(Mass *sum, Mass x) {
    uint32_t *words = (uint32_t *)sum;
    const uint32_t low = (uint32_t)x, before = atomicAdd(words, low);
    const uint32_t high = (uint32_t)(x >> 32) + (before + low < before ? 1u : 0u);
    if (high) atomicAdd(words + 1, high);
}

// What a block's threads share.
struct Scratch {
    float floats[32];
    Mass of_warp[MOST_WARPS], histogram[256], found_mass, answer;
    uint32_t found;
};

__device__ __forceinline__ Mass block_sum(Mass x, Scratch &s) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) s.of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? s.of_warp[threadIdx.x % 32] : 0);
    __syncthreads();
    return x;
}

// The first index below `n` at which the sum of `mass(i)` from the beginning passes `threshold`; else the last one that has
// any mass. In every thread.
template <typename F> __device__ int find(int n, Mass threshold, Scratch &s, F mass) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    int first = 0, end = n;
    if (threadIdx.x == 0) s.found_mass = 0;
    // Each round, the warps share what is left, until that is little.
    while (warps > 1 && end - first > 32) {
        const int share = (end - first + warps - 1) / warps;
        const int begin = first + warp * share, stop = min(end, begin + share);
        Mass sum = 0;
        for (int i = begin + lane; i < stop; i += 32) sum += mass(i);
        sum = warp_sum(sum);
        if (lane == 0) s.of_warp[warp] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            Mass before = s.found_mass;
            uint32_t chosen = 0;
            for (int w = 0; w < warps; w++) {
                if (s.of_warp[w] == 0) continue;
                chosen = w;
                s.found_mass = before;
                before += s.of_warp[w];
                if (before > threshold) break;
            }
            s.found = chosen;
        }
        __syncthreads();
        first += s.found * share, end = min(end, first + share);
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        Mass sum = s.found_mass;
        s.found = first;
        for (int i = first; i < end; i++) {
            const Mass m = mass(i);
            if (m == 0) continue;
            s.found = i;
            sum += m;
            if (sum > threshold) break;
        }
    }
    __syncthreads();
    const int found = s.found;
    __syncthreads();
    return found;
}

// The greatest key at which the masses of that and greater keys reach `need`, and the mass above it. Digit by digit, from the
// highest: masses of the next digit's values, among those keys that begin as the answer does.
template <typename K, typename F>
__device__ uint32_t select(int n, Mass need, Mass &above, Scratch &s, K key, F mass) {
    uint32_t prefix = 0;
    above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += blockDim.x) s.histogram[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += blockDim.x) {
            const uint32_t k = key(i);
            if (shift == 24 || k >> (shift + 8) == prefix >> (shift + 8)) {
                const Mass m = mass(i);
                if (m) add_to(&s.histogram[k >> shift & 255], m);
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            Mass sum = above;
            uint32_t digit = 255;
            for (;; digit--) {
                if (sum + s.histogram[digit] >= need || digit == 0) break;
                sum += s.histogram[digit];
            }
            s.found = digit, s.found_mass = sum;
        }
        __syncthreads();
        prefix |= s.found << shift, above = s.found_mass;
        __syncthreads();
    }
    return prefix;
}

// logits: [.., V], of which row `logit_rows[row]`, or `row` itself; uniforms: [slots, most] numbers below one; seen: [slots,
// words] bits of tokens that occurred, read with a penalty alone; drawn: [rows] token and log-probability; support: null, or
// [rows, words] bits of the tokens that could be drawn, and then the log-probability is that of the draw.
extern "C" __global__ void __launch_bounds__(32 * MOST_WARPS)
    sample(uint2 *drawn, uint32_t *support, const float *logits, const uint32_t *logit_rows, Sequence *sequences,
           const uint32_t *slots, const Step *step, const double *uniforms, uint32_t *seen, int vocabulary, int most,
           float temperature, float logp_temperature, float top_p, float min_p, float penalty, int top_k) {
    __shared__ Scratch s;
    const int row = blockIdx.x, n = vocabulary;
    if (!is_row(step, row)) return;
    const uint32_t slot = slots[row];
    logits += (size_t)(logit_rows ? logit_rows[row] : row) * n;
    uint32_t *occurred = seen + (size_t)slot * ((n + 31) / 32);
    const Adjusted adjusted = {logits, occurred, penalty, temperature > 0.0f ? temperature : 1.0f};

    // The greatest logit, and the likeliest token, the first of equals.
    const float inverse = 1.0f / logp_temperature;
    float top = -INFINITY;
    Mass best = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        top = fmaxf(top, logits[i]);
        best = max(best, adjusted.rank(i));
    }
    top = block_max(top, s.floats) * inverse;
    // The log-probability's normaliser, of the logits as they are.
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(logits[i] * inverse - top);
    const float normaliser = top + logf(block_sum(sum, s.floats));

    best = warp_max(best);
    if (threadIdx.x % 32 == 0) s.of_warp[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 0; w < (int)blockDim.x / 32; w++) best = max(best, s.of_warp[w]);
        s.answer = best;
    }
    __syncthreads();
    best = s.answer;
    const float greatest = logit_of(best);
    int token = token_of(best);
    float support_normaliser = 0.0f;

    if (temperature > 0.0f) {
        auto key = [&](int i) { return key_of(adjusted(i)); };
        auto weight = [&](int i) { return mass_of(expf(adjusted(i) - greatest)); };
        // What is kept: keys from `least` on, and of those with key `tied` the ones up to index `last_tied`.
        uint32_t least = 0, tied = 0;
        int last_tied = n;
        Mass above;
        if (top_k > 0 && top_k < n) least = select(n, (Mass)top_k, above, s, key, [&](int) { return (Mass)1; });
        if (top_p < 1.0f) {
            auto kept = [&](int i) { return key(i) >= least ? weight(i) : 0; };
            Mass total = 0;
            for (int i = threadIdx.x; i < n; i += blockDim.x) total += kept(i);
            total = block_sum(total, s);
            const Mass need = max((Mass)1, (Mass)ceil((double)top_p * (double)total));
            least = max(least, select(n, need, above, s, key, kept));
            const Mass of_one = max((Mass)1, mass_of(expf(of_key(least) - greatest)));
            const Mass kept_ties = (need - min(need, above) + of_one - 1) / of_one;
            tied = least;
            if (kept_ties > 0) last_tied = find(n, kept_ties - 1, s, [&](int i) { return (Mass)(key(i) == tied); });
        }
        if (min_p > 0.0f) least = max(least, key_of(greatest + logf(min_p)));
        auto can_be = [&](int i) {
            const uint32_t k = key(i);
            return k >= least && !(k == tied && i > last_tied);
        };
        auto kept = [&](int i) { return can_be(i) ? weight(i) : 0; };
        Mass total = 0;
        for (int i = threadIdx.x; i < n; i += blockDim.x) total += kept(i);
        total = block_sum(total, s);
        const double threshold = uniforms[(size_t)slot * most + sequences[slot].drawn] * (double)total;
        token = find(n, (Mass)threshold, s, kept);
        if (support) {
            support += (size_t)row * ((n + 31) / 32);
            float sum = 0.0f;
            for (int first = threadIdx.x / 32 * 32; first < n; first += blockDim.x) {
                const int i = first + threadIdx.x % 32;
                const bool is = i < n && can_be(i);
                if (is) sum += expf(adjusted(i) - greatest);
                const uint32_t bits = __ballot_sync(0xffffffffu, is);
                if (threadIdx.x % 32 == 0) support[first / 32] = bits;
            }
            support_normaliser = greatest + logf(block_sum(sum, s.floats));
        }
    }
    if (threadIdx.x == 0) {
        const float logp = support && temperature > 0.0f ? adjusted(token) - support_normaliser
                                                         : logits[token] * inverse - normaliser;
        end_draw(drawn + row, sequences + slot, occurred, token, logp, penalty);
    }
}
