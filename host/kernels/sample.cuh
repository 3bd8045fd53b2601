// What sampling on a device shares.
//
// Weights of tokens are whole numbers, so that they can be added in any order; a token's is exp(z - greatest z), with 40
// bits after the point.
#pragma once
#include "decode.cuh"

constexpr int MOST_WARPS = 32;
typedef unsigned long long Mass;

// A larger number for a larger float.
__device__ __forceinline__ uint32_t key_of(float z) {
    const uint32_t bits = __float_as_uint(z);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float of_key(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

__device__ __forceinline__ Mass mass_of(float weight) { return (Mass)(weight * 1099511627776.0f); }

__device__ __forceinline__ Mass warp_sum(Mass x) {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

// A row of logits as tokens are drawn from it.
struct Adjusted {
    const float *logits;
    const uint32_t *occurred; // bits of tokens, read with a penalty alone
    float penalty, divisor;

    __device__ __forceinline__ float operator()(int i) const {
        float z = logits[i];
        if (penalty != 1.0f && occurred[i / 32] >> (i % 32) & 1) z = z > 0.0f ? z / penalty : z * penalty;
        return z / divisor;
    }

    // A number that is greater for a likelier token, and for the first of equals.
    __device__ __forceinline__ Mass rank(int i) const { return (Mass)key_of((*this)(i)) << 32 | (uint32_t)~i; }
};

__device__ __forceinline__ int token_of(Mass rank) { return (int)~(uint32_t)rank; }
__device__ __forceinline__ float logit_of(Mass rank) { return of_key((uint32_t)(rank >> 32)); }

__device__ __forceinline__ Mass warp_max(Mass x) {
    for (int offset = 16; offset > 0; offset /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

// Ends a row's draw: writes the token and its log-probability, and makes it the sequence's newest.
__device__ __forceinline__ void end_draw(uint2 *drawn, Sequence *sequence, uint32_t *occurred, int token, float logp, float penalty) {
    *drawn = make_uint2((uint32_t)token, __float_as_uint(logp));
    if (penalty != 1.0f) occurred[token / 32] |= 1u << token % 32;
    sequence->token = (uint32_t)token;
    sequence->drawn += 1;
}
