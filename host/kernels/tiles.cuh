// Tiles of 64 rows of bf16 in shared memory, and products of them on tensor cores: four warps share a tile, for heads of up to DIM
// values whose number is a multiple of 8.
#pragma once
#include "mma.cuh"

constexpr int TILE = 64, WARPS = 4, THREADS = 32 * WARPS;
constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

// Rows of shared memory, eight values apart so that eight rows lie in different banks.
template <int DIM> struct Rows {
    bf16 at[TILE][DIM + 8];
};

struct alignas(16) Eight {
    uint32_t words[4];
};

// Begins to copy `count` rows of `dim` values, `stride` apart, and zeros where there is nothing. The rows are there once `copied`
// has returned in all threads of the block.
template <int DIM> __device__ __forceinline__ void copy_rows(Rows<DIM> &into, const bf16 *from, int count, int dim, size_t stride) {
    for (int i = threadIdx.x; i < TILE * DIM / 8; i += THREADS) {
        const int r = i / (DIM / 8), c = i % (DIM / 8) * 8;
        const bool there = r < count && c < dim;
        copy_async(&into.at[r][c], there ? from + r * stride + c : from, there);
    }
}

// Calls `use(item, stage)` for all that `all` walks over, of which `copy(item, stage)` begins to copy what is used to one of STAGES
// places. Copies that were begun before are there then too, also where there is nothing to walk over.
template <int STAGES, typename W, typename C, typename U> __device__ __forceinline__ void pipeline(W all, C copy, U use) {
    typename W::Item now, next;
    bool more = all.next(now);
    if (more) copy(now, 0);
    end_copies();
    for (int stage = 0; more; now = next) {
        if (STAGES > 1) {
            more = all.next(next);
            if (more) copy(next, 1 - stage);
            end_copies();
        }
        wait_for_copies<STAGES - 1>();
        __syncthreads();
        use(now, stage);
        __syncthreads();
        if (STAGES > 1) {
            stage = 1 - stage;
        } else {
            more = all.next(next);
            if (more) copy(next, 0);
            end_copies();
        }
    }
    wait_for_copies<0>();
}

// A 16 x 16 part of rows as A: rows from `row`, columns from `column`.
template <int DIM> __device__ __forceinline__ void load_a(uint32_t a[4], const Rows<DIM> &rows, int row, int column) {
    const int lane = threadIdx.x % 32;
    load_matrices(a, &rows.at[row + lane % 16][column + lane / 16 * 8]);
}

// Two 16 x 8 parts of the rows' transpose as B: its rows from `column`, its columns the 16 rows from `row`.
template <int DIM> __device__ __forceinline__ void load_b_transposed(uint32_t b[4], const Rows<DIM> &rows, int row, int column) {
    const int lane = threadIdx.x % 32;
    load_matrices(b, &rows.at[row + lane / 16 * 8 + lane % 8][column + lane / 8 % 2 * 8]);
}

// Two 16 x 8 parts of the rows as B: the 16 rows from `row`, columns from `column`.
template <int DIM> __device__ __forceinline__ void load_b(uint32_t b[4], const Rows<DIM> &rows, int row, int column) {
    const int lane = threadIdx.x % 32;
    load_transposed(b, &rows.at[row + lane % 16][column + lane / 16 * 8]);
}

// out[j] = rows `row` to `row + 16` of a, times the transpose of eight rows of b from `first + 8 j` on.
template <int DIM, int PARTS>
__device__ __forceinline__ void products(float out[PARTS][4], const Rows<DIM> &a, int row, const Rows<DIM> &b, int first) {
#pragma unroll
    for (int j = 0; j < PARTS; j++)
        for (int i = 0; i < 4; i++) out[j][i] = 0.0f;
#pragma unroll
    for (int k = 0; k < DIM; k += 16) {
        uint32_t of_a[4];
        load_a(of_a, a, row, k);
#pragma unroll
        for (int j = 0; j < PARTS; j += 2) {
            uint32_t of_b[4];
            load_b_transposed(of_b, b, first + 8 * j, k);
            multiply(out[j], of_a, of_b);
            multiply(out[j + 1], of_a, of_b + 2);
        }
    }
}

// sums += weights rows from `first` on, for a warp's weights as `products` leaves them.
template <int DIM, int PARTS>
__device__ __forceinline__ void add_weighted(float sums[DIM / 8][4], const float weights[PARTS][4], const Rows<DIM> &rows,
                                             int first) {
#pragma unroll
    for (int k = 0; k < PARTS / 2; k++) {
        const float *low = weights[2 * k], *high = weights[2 * k + 1];
        const uint32_t a[4] = {pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]), pack_bf16(high[0], high[1]),
                               pack_bf16(high[2], high[3])};
#pragma unroll
        for (int d = 0; d < DIM / 8; d += 2) {
            uint32_t b[4];
            load_b(b, rows, first + 16 * k, 8 * d);
            multiply(sums[d], a, b);
            multiply(sums[d + 1], a, b + 2);
        }
    }
}

// The sum or the greatest over the four lanes that share a row of `products`.
__device__ __forceinline__ float over_quad(float x, bool greatest) {
    for (int offset = 1; offset < 4; offset *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, x, offset);
        x = greatest ? fmaxf(x, other) : x + other;
    }
    return x;
}

// A running softmax over a warp's rows of scores, of which lane 4 g + t has rows g and g + 8: what `by_two` scores make of the
// rows' sums so far. Scores become weights, powers of two.
template <int DIM, int PARTS> struct Softmax {
    float sums[DIM / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, total[2] = {};

    __device__ __forceinline__ void weigh(float scores[PARTS][4], float by_two) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float greatest = -INFINITY;
#pragma unroll
            for (int j = 0; j < PARTS; j++) greatest = fmaxf(greatest, fmaxf(scores[j][2 * i], scores[j][2 * i + 1]));
            greatest = fmaxf(top[i], over_quad(greatest, true) * by_two);
            // A row that has seen nothing yet has nothing to be scaled.
            const float origin = greatest > -INFINITY ? greatest : 0.0f, by = power_of_two(top[i] - origin);
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < PARTS; j++)
                for (int e = 2 * i; e < 2 * i + 2; e++) {
                    scores[j][e] = power_of_two(scores[j][e] * by_two - origin);
                    sum += scores[j][e];
                }
            total[i] = total[i] * by + over_quad(sum, false);
#pragma unroll
            for (int d = 0; d < DIM / 8; d++) sums[d][2 * i] *= by, sums[d][2 * i + 1] *= by;
            top[i] = greatest;
        }
    }
};
