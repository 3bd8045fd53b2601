// Scores of attention, in training and in generation.
#pragma once
#include "common.cuh"

// How scores are formed. Without a bound, `cap` is 0, and without a window, `window` is.
struct Scores {
    float scale, cap;
    int window;

    // A product as it is before it is scaled, with which the score is bounded.
    __device__ __forceinline__ float bounded(float product) const {
        return cap > 0.0f ? cap / scale * tanhf(product * scale / cap) : product;
    }

    // The slope of `bounded` where its result is `product`.
    __device__ __forceinline__ float slope(float product) const {
        const float part = cap > 0.0f ? product * scale / cap : 0.0f;
        return 1.0f - part * part;
    }
};
