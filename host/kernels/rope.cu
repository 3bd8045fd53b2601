// Rotary position embedding, half-split, in place: dimension i of a head turns with dimension i + half. Dimensions from
// 2 half on stay as they are.
#include "common.cuh"

// One thread a pair. `cosines` and `sines` are [positions, half]; `direction` is -1 for the way back.
template <typename T>
__device__ void rotate(T *x, const float *cosines, const float *sines, const uint32_t *positions, int heads, int half,
                       int dim, float direction, size_t pairs) {
    for (size_t i = thread_index(); i < pairs; i += thread_count()) {
        const size_t dimension = i % half, head = i / half, row = head / heads;
        const size_t angle = (size_t)positions[row] * half + dimension;
        const float c = cosines[angle], s = sines[angle] * direction;
        T *low = x + head * dim + dimension, *high = low + half;
        const float a = to_float(*low), b = to_float(*high);
        *low = from_float<T>(a * c - b * s);
        *high = from_float<T>(b * c + a * s);
    }
}

#define DEFINE(suffix, T)                                                                                                  \
    extern "C" __global__ void rotate_##suffix(T *x, const float *cosines, const float *sines, const uint32_t *positions,  \
                                               int heads, int half, int dim, float direction, size_t pairs) {              \
        rotate(x, cosines, sines, positions, heads, half, dim, direction, pairs);                                          \
    }
FOR_EACH_TYPE(DEFINE)
