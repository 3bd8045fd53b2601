// The functions between an MLP's wide products and its last one; see ops/activation.rs.
#pragma once
#include "common.cuh"

struct ValueAndSlope {
    float value, slope;
};

struct Silu {
    static __device__ __forceinline__ ValueAndSlope at(float x) {
        const float s = 1.0f / (1.0f + expf(-x)), value = x * s;
        return {value, s + value * (1.0f - s)};
    }
};

// x times the probability that a standard normal variable is below it.
struct Gelu {
    static __device__ __forceinline__ ValueAndSlope at(float x) {
        const float below = 0.5f * erfcf(-0.70710678f * x);
        return {x * below, below + x * 0.3989423f * expf(-0.5f * x * x)};
    }
};

struct GeluTanh {
    static __device__ __forceinline__ ValueAndSlope at(float x) {
        const float root = 0.7978846f, cubic = 0.044715f;
        const float t = tanhf(root * (x + cubic * x * x * x)), slope = root * (1.0f + 3.0f * cubic * x * x);
        return {0.5f * x * (1.0f + t), 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope};
    }
};
