// Products of small matrices on tensor cores (PTX ISA, mma.m16n8k16): a warp has 16 x 16 of A, 16 x 8 of B and 16 x 8 of the
// result, of which lane l = 4 g + t holds, two values of bf16 in a word:
//   A: rows g and g + 8, columns 2 t, 2 t + 1 and these + 8   B: rows as A's columns, column g   result: rows g, g + 8, columns 2 t, 2 t + 1
// Where the compiler is not CUDA's, the same is done in memory that a warp shares.
#pragma once
#include "common.cuh"

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)&both;
}

#ifdef __CUDACC__

// c += a b
__device__ __forceinline__ void multiply(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8 x 8 matrices from shared memory, row r of the i-th at the address that lane 8 i + r gives: of each, lane l gets row g,
// columns 2 t and 2 t + 1.
__device__ __forceinline__ void load_matrices(uint32_t out[4], const bf16 *row) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at)
                 : "memory");
}

// The same of the matrices' transposes: rows 2 t and 2 t + 1, column g.
__device__ __forceinline__ void load_transposed(uint32_t out[4], const bf16 *row) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at)
                 : "memory");
}

// Begins to copy 16 bytes to shared memory, or sets them to zero.
__device__ __forceinline__ void copy_async(void *to, const void *from, bool there) {
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// Ends a group of this thread's copies.
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for this thread's copies but those of the last `LATER` groups.
template <int LATER> __device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory"); }

// 2^x to two units in the last place; 0 below the least normal number.
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#else

inline void copy_async(void *to, const void *from, bool there) { software_cuda::begin_copy(to, there ? from : nullptr); }
inline void end_copies() { software_cuda::end_copies(); }
template <int LATER> inline void wait_for_copies() { software_cuda::wait_for_copies(LATER); }
inline float power_of_two(float x) { return exp2f(x); }

// What the lanes of each warp show one another. A block's threads share one thread of the CPU there (tests/software-cuda).
struct Shown {
    uint32_t a[32][4], b[32][2];
    const bf16 *rows[32];
};
static thread_local Shown shown_by[32];

inline float half_of(uint32_t word, int which) { return __uint_as_float(which ? word & 0xffff0000u : word << 16); }

inline void multiply(float c[4], const uint32_t a[4], const uint32_t b[2]) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    Shown &shown = shown_by[threadIdx.x / 32];
    for (int i = 0; i < 4; i++) shown.a[lane][i] = a[i];
    for (int i = 0; i < 2; i++) shown.b[lane][i] = b[i];
    __syncwarp();
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4; i++) // which half of the 16, and which of two rows
            for (int column = 0; column < 2; column++)
                for (int h = 0; h < 2; h++)
                    c[2 * (i % 2) + column] +=
                        half_of(shown.a[4 * g + k][i], h) * half_of(shown.b[4 * (2 * t + column) + k][i / 2], h);
    __syncwarp();
}

inline const Shown &show_row(const bf16 *row) {
    Shown &shown = shown_by[threadIdx.x / 32];
    shown.rows[threadIdx.x % 32] = row;
    __syncwarp();
    return shown;
}

inline void load_matrices(uint32_t out[4], const bf16 *row) {
    const int lane = threadIdx.x % 32;
    const Shown &shown = show_row(row);
    for (int i = 0; i < 4; i++) out[i] = *(const uint32_t *)(shown.rows[8 * i + lane / 4] + 2 * (lane % 4));
    __syncwarp();
}

inline void load_transposed(uint32_t out[4], const bf16 *row) {
    const int lane = threadIdx.x % 32;
    const Shown &shown = show_row(row);
    for (int i = 0; i < 4; i++) {
        const bf16 *low = shown.rows[8 * i + 2 * (lane % 4)], *high = shown.rows[8 * i + 2 * (lane % 4) + 1];
        out[i] = (uint32_t)__bfloat16_as_ushort(low[lane / 4]) | (uint32_t)__bfloat16_as_ushort(high[lane / 4]) << 16;
    }
    __syncwarp();
}

#endif
