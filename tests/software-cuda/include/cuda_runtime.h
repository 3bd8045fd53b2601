// CUDA's language as far as this project's kernels use it, in C++ for the CPU. What a thread may ask of
// its block (barriers, exchanges within a warp, shared memory) is in ../src/block.cpp.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>

// build.sh looks for these two attributes to find the kernels and their largest blocks.
#define __global__ __attribute__((cuda_kernel))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) alignas(n)
// A block runs on one thread of the CPU, so that what is shared is that thread's own. `extern` arrays
// are the launch's dynamic shared memory; build.sh finds them by this attribute.
#define __shared__ __attribute__((shared_memory)) thread_local

struct uint3 { unsigned x, y, z; };
struct dim3 : uint3 {
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : uint3{x, y, z} {}
};
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace software_cuda {
// Where a barrier or an exchange stands in the source; all threads must mean the same one.
struct Place {
    const char *file;
    int line;
};

uint3 thread_index();
uint3 block_index();
uint3 block_size();
uint3 grid_size();

// Waits for all threads of the block. `value` comes back from all of them, combined.
enum class Vote { all_sum, all_and, all_or };
int block_barrier(Place place, int value = 0, Vote vote = Vote::all_sum);

// What the lanes of `mask` do together. Each gives a value; the exchange gives each its result.
enum class Exchange { sync, shuffle, ballot, match, add, min_signed, max_signed, min_unsigned, max_unsigned, bit_and, bit_or, bit_xor };
uint64_t warp_exchange(Exchange what, unsigned mask, uint64_t value, unsigned from_lane, Place place);
unsigned lane();
unsigned present_lanes();

// Copies of 16 bytes to shared memory, or zeros from nowhere, as cp.async makes them. They are made when the thread waits for them,
// so that what is used before has not come.
void begin_copy(void *to, const void *from);
void end_copies();
void wait_for_copies(unsigned later_groups);

template <class T> uint64_t to_bits(T value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    return bits;
}
template <class T> T from_bits(uint64_t bits) {
    T value;
    memcpy(&value, &bits, sizeof(T));
    return value;
}
template <class T> T shuffle(unsigned mask, T value, unsigned from, Place place) {
    return from_bits<T>(warp_exchange(Exchange::shuffle, mask, to_bits(value), from, place));
}
} // namespace software_cuda

#define threadIdx (software_cuda::thread_index())
#define blockIdx (software_cuda::block_index())
#define blockDim (software_cuda::block_size())
#define gridDim (software_cuda::grid_size())
#define warpSize 32

// Default arguments are evaluated where the function is called.
#define PLACE software_cuda::Place place = {__builtin_FILE(), __builtin_LINE()}

inline void __syncthreads(PLACE) { software_cuda::block_barrier(place); }
inline int __syncthreads_count(int p, PLACE) { return software_cuda::block_barrier(place, p != 0); }
inline int __syncthreads_and(int p, PLACE) { return software_cuda::block_barrier(place, p != 0, software_cuda::Vote::all_and); }
inline int __syncthreads_or(int p, PLACE) { return software_cuda::block_barrier(place, p != 0, software_cuda::Vote::all_or); }
inline void __syncwarp(unsigned mask = ~0u, PLACE) {
    software_cuda::warp_exchange(software_cuda::Exchange::sync, mask, 0, 0, place);
}

template <class T> T __shfl_sync(unsigned mask, T v, int from, int width = 32, PLACE) {
    unsigned first = software_cuda::lane() / width * width;
    return software_cuda::shuffle(mask, v, first + unsigned(from) % width, place);
}
template <class T> T __shfl_xor_sync(unsigned mask, T v, int with, int width = 32, PLACE) {
    unsigned lane = software_cuda::lane(), from = lane ^ unsigned(with);
    return software_cuda::shuffle(mask, v, from / width == lane / width ? from : lane, place);
}
template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, PLACE) {
    unsigned lane = software_cuda::lane(), from = lane + by;
    return software_cuda::shuffle(mask, v, from / width == lane / width ? from : lane, place);
}
template <class T> T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, PLACE) {
    unsigned lane = software_cuda::lane();
    return software_cuda::shuffle(mask, v, lane % width >= by ? lane - by : lane, place);
}
inline unsigned __ballot_sync(unsigned mask, int p, PLACE) {
    return software_cuda::warp_exchange(software_cuda::Exchange::ballot, mask, p != 0, 0, place);
}
inline int __any_sync(unsigned mask, int p, PLACE) {
    return software_cuda::warp_exchange(software_cuda::Exchange::ballot, mask, p != 0, 0, place) != 0;
}
inline int __all_sync(unsigned mask, int p, PLACE) {
    return software_cuda::warp_exchange(software_cuda::Exchange::ballot, mask, p == 0, 0, place) == 0;
}
template <class T> unsigned __match_any_sync(unsigned mask, T v, PLACE) {
    return software_cuda::warp_exchange(software_cuda::Exchange::match, mask, software_cuda::to_bits(v), 0, place);
}
#define REDUCE(name, type, what)                                                                                  \
    inline type __reduce_##name##_sync(unsigned mask, type v, PLACE) {                                             \
        return type(software_cuda::warp_exchange(software_cuda::Exchange::what, mask, uint64_t(int64_t(v)), 0, place)); \
    }
REDUCE(add, int, add)
REDUCE(add, unsigned, add)
REDUCE(min, int, min_signed)
REDUCE(max, int, max_signed)
REDUCE(min, unsigned, min_unsigned)
REDUCE(max, unsigned, max_unsigned)
REDUCE(and, unsigned, bit_and)
REDUCE(or, unsigned, bit_or)
REDUCE(xor, unsigned, bit_xor)
#undef REDUCE
inline unsigned __activemask() { return software_cuda::present_lanes(); }

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() {}

template <class T, class F> T atomic_update(T *at, F f) {
    using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    Bits *bits = reinterpret_cast<Bits *>(at), old = __atomic_load_n(bits, __ATOMIC_SEQ_CST), next;
    do {
        T value = f(software_cuda::from_bits<T>(old));
        next = Bits(software_cuda::to_bits(value));
    } while (!__atomic_compare_exchange_n(bits, &old, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return software_cuda::from_bits<T>(old);
}
template <class T> T atomicAdd(T *at, std::type_identity_t<T> v) { return atomic_update(at, [=](T x) { return T(x + v); }); }
template <class T> T atomicSub(T *at, std::type_identity_t<T> v) { return atomic_update(at, [=](T x) { return T(x - v); }); }
template <class T> T atomicMax(T *at, std::type_identity_t<T> v) { return atomic_update(at, [=](T x) { return x > v ? x : v; }); }
template <class T> T atomicMin(T *at, std::type_identity_t<T> v) { return atomic_update(at, [=](T x) { return x < v ? x : v; }); }
template <class T> T atomicOr(T *at, std::type_identity_t<T> v) { return atomic_update(at, [=](T x) { return T(x | v); }); }
template <class T> T atomicAnd(T *at, std::type_identity_t<T> v) { return atomic_update(at, [=](T x) { return T(x & v); }); }
template <class T> T atomicXor(T *at, std::type_identity_t<T> v) { return atomic_update(at, [=](T x) { return T(x ^ v); }); }
template <class T> T atomicExch(T *at, std::type_identity_t<T> v) { return atomic_update(at, [=](T) { return v; }); }
template <class T> T atomicCAS(T *at, std::type_identity_t<T> is, std::type_identity_t<T> v) {
    return atomic_update(at, [=](T x) { return x == is ? v : x; });
}

template <class T> T __ldg(const T *p) { return *p; }
template <class T> T __ldcs(const T *p) { return *p; }
template <class T> T __ldcg(const T *p) { return *p; }
template <class T> void __stcs(T *p, T v) { *p = v; }

// CUDA has these for all mixtures of arithmetic types.
template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b) { return b < a ? b : a; }
template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b) { return a < b ? b : a; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// Of less exactness on a device.
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }
inline void sincosf_(float x, float *s, float *c) { *s = sinf(x), *c = cosf(x); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
// Never contracted into a fused multiplication and addition.
[[maybe_unused, gnu::noinline, gnu::optimize("fp-contract=off")]] static float __fmul_rn(float a, float b) { return a * b; }
[[maybe_unused, gnu::noinline, gnu::optimize("fp-contract=off")]] static float __fadd_rn(float a, float b) { return a + b; }
[[maybe_unused, gnu::noinline, gnu::optimize("fp-contract=off")]] static float __fsub_rn(float a, float b) { return a - b; }
[[maybe_unused, gnu::noinline, gnu::optimize("fp-contract=off")]] static double __dmul_rn(double a, double b) { return a * b; }
[[maybe_unused, gnu::noinline, gnu::optimize("fp-contract=off")]] static double __dadd_rn(double a, double b) { return a + b; }

inline int __float_as_int(float x) { return software_cuda::from_bits<int>(software_cuda::to_bits(x)); }
inline unsigned __float_as_uint(float x) { return software_cuda::from_bits<unsigned>(software_cuda::to_bits(x)); }
inline float __int_as_float(int x) { return software_cuda::from_bits<float>(software_cuda::to_bits(x)); }
inline float __uint_as_float(unsigned x) { return software_cuda::from_bits<float>(software_cuda::to_bits(x)); }
inline long long __double_as_longlong(double x) { return software_cuda::from_bits<long long>(software_cuda::to_bits(x)); }
inline double __longlong_as_double(long long x) { return software_cuda::from_bits<double>(software_cuda::to_bits(x)); }
inline int __float2int_rn(float x) { return int(nearbyintf(x)); }
inline int __float2int_rd(float x) { return int(floorf(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
    return y;
}
#undef PLACE
