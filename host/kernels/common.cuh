// What all kernels share. Values are f32 or bf16 in memory and f32 in registers.
#pragma once
#include <cuda_bf16.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }

template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }

// Some values side by side, read and written in one go.
template <typename T, int N> struct alignas(sizeof(T) * N) Pack {
    T at[N];
};

// As many values as 16 bytes hold.
template <typename T> struct Wide {
    static constexpr int count = 16 / sizeof(T);
    typedef Pack<T, count> type;
};

// Reads a whole pack, or one value where `count` is 1.
template <typename T> __device__ __forceinline__ void load(float *into, const T *from, int count) {
    if (count > 1) {
        const typename Wide<T>::type pack = *(const typename Wide<T>::type *)from;
        for (int j = 0; j < Wide<T>::count; j++) into[j] = to_float(pack.at[j]);
    } else {
        into[0] = to_float(*from);
    }
}

// Writes a whole pack, or one value where `count` is 1.
template <typename T> __device__ __forceinline__ void store(T *into, const float *from, int count) {
    if (count > 1) {
        typename Wide<T>::type pack;
        for (int j = 0; j < Wide<T>::count; j++) pack.at[j] = from_float<T>(from[j]);
        *(typename Wide<T>::type *)into = pack;
    } else {
        *into = from_float<T>(from[0]);
    }
}

// The sum over a warp, in every lane.
__device__ __forceinline__ float warp_sum(float x) {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
    for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

// The sum over a block of whole warps, in every thread. `scratch` holds 32 values and is free again afterwards.
__device__ __forceinline__ float block_sum(float x, float *scratch) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    x = warp_sum(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = warp_sum(lane < warps ? scratch[lane] : 0.0f);
    __syncthreads();
    return x;
}

__device__ __forceinline__ float block_max(float x, float *scratch) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    x = warp_max(x);
    if (lane == 0) scratch[warp] = x;
    __syncthreads();
    x = warp_max(lane < warps ? scratch[lane] : -INFINITY);
    __syncthreads();
    return x;
}

// This thread's place in the grid, and the number of threads.
__device__ __forceinline__ size_t thread_index() { return (size_t)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ size_t thread_count() { return (size_t)gridDim.x * blockDim.x; }

// Defines a kernel once for each type of values: `DEFINE(suffix, type)`.
#define FOR_EACH_TYPE(DEFINE) DEFINE(f32, float) DEFINE(bf16, bf16)
