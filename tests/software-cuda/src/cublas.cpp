// The matrix products of cuBLAS, and as much of cuRAND as candle asks for when it opens a device.
#include "block.h"
#include "memory.h"
#include "../include/cuda_bf16.h"
#include <cstdio>
#include <vector>

namespace software_cuda {
int submit_work(std::function<int()> step);
namespace {

// Numbers of cublas_api.h and library_types.h.
enum { OK = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum Type { F32 = 0, F64 = 1, F16 = 2, BF16 = 14 };

int fail(int status, const char *why) {
    fprintf(stderr, "software CUDA: cuBLAS: %s\n", why);
    return status;
}

size_t width(int type) { return type == F64 ? 8 : type == F32 ? 4 : 2; }

float get(const void *p, int type, size_t i) {
    if (type == F32) return static_cast<const float *>(p)[i];
    if (type == F64) return float(static_cast<const double *>(p)[i]);
    return static_cast<const __nv_bfloat16 *>(p)[i];
}

void put(void *p, int type, size_t i, float x) {
    if (type == F32) static_cast<float *>(p)[i] = x;
    else if (type == F64) static_cast<double *>(p)[i] = x;
    else static_cast<__nv_bfloat16 *>(p)[i] = x;
}

struct Matrix {
    const void *data;
    int type, transposed;
    int leading;
    long long stride;
    // Element (row, col) of what is multiplied, in column-major order.
    size_t at(int row, int col) const { return transposed ? size_t(row) * leading + col : size_t(col) * leading + row; }
};

constexpr int ROWS = 16, COLS = 4;

// C = alpha A B + beta C, all sums in f32.
struct Product {
    int m, n, k;
    float alpha, beta;
    Matrix a, b, c;
    int batch;

    int run() const {
        int panels = (m + ROWS - 1) / ROWS;
        for (int i = 0; i < batch; i++) {
            auto of = [&](const Matrix &x) { return static_cast<const char *>(x.data) + i * x.stride * (long long)width(x.type); };
            std::vector<float> b_packed(size_t(n + COLS) * k);
            for (int j = 0; j < n; j++)
                for (int p = 0; p < k; p++) b_packed[size_t(j / COLS) * COLS * k + size_t(p) * COLS + j % COLS] = get(of(b), b.type, b.at(p, j));
            parallel(size_t(panels), [&](size_t panel) { rows(int(panel) * ROWS, of(a), b_packed.data(), const_cast<char *>(of(c))); });
        }
        return OK;
    }

    void rows(int first, const void *as, const float *bs, void *cs) const {
        int rows = std::min(ROWS, m - first);
        std::vector<float> packed(size_t(k) * ROWS);
        for (int p = 0; p < k; p++)
            for (int i = 0; i < rows; i++) packed[size_t(p) * ROWS + i] = get(as, a.type, a.at(first + i, p));
        for (int j = 0; j < n; j += COLS) {
            float sums[COLS][ROWS] = {};
            const float *x = packed.data(), *y = bs + size_t(j) * k;
            for (int p = 0; p < k; p++, x += ROWS, y += COLS)
                for (int col = 0; col < COLS; col++)
                    for (int i = 0; i < ROWS; i++) sums[col][i] += x[i] * y[col];
            for (int col = 0; col < std::min(COLS, n - j); col++)
                for (int i = 0; i < rows; i++) {
                    size_t at = c.at(first + i, j + col);
                    // Where beta is zero, what stood there is not read: it may be a NaN.
                    put(cs, c.type, at, alpha * sums[col][i] + (beta == 0 ? 0 : beta * get(cs, c.type, at)));
                }
        }
    }

    // Bytes from a matrix's beginning to the end of its last element.
    static size_t extent(const Matrix &x, int rows, int cols, int batch) {
        size_t last = x.at(rows - 1, cols - 1) + (batch > 1 ? size_t(x.stride) * (batch - 1) : 0);
        return (last + 1) * width(x.type);
    }

    int submit() const {
        if (m == 0 || n == 0 || batch == 0) return OK;
        if (a.leading < (a.transposed ? k : m) || b.leading < (b.transposed ? n : k) || c.leading < m) return fail(INVALID_VALUE, "a leading dimension is too small");
        for (int type : {a.type, b.type, c.type})
            if (type == F16 || (type != F32 && type != F64 && type != BF16)) return fail(NOT_SUPPORTED, "a type that is not f32, f64 or bf16");
        if (k > 0 && (!holds(a.data, extent(a, m, k, batch)) || !holds(b.data, extent(b, k, n, batch)))) return fail(INVALID_VALUE, "a factor is not within one allocation");
        if (!holds(c.data, extent(c, m, n, batch))) return fail(INVALID_VALUE, "the product is not within one allocation");
        Product self = *this;
        return submit_work([self] { return self.run(); });
    }
};

} // namespace
} // namespace software_cuda

using namespace software_cuda;
using Handle = void *;
extern "C" {

int cublasCreate_v2(Handle *handle) { return *handle = new char, OK; }
int cublasDestroy_v2(Handle handle) { return delete static_cast<char *>(handle), OK; }
int cublasSetStream_v2(Handle, Handle) { return OK; }
int cublasSetWorkspace_v2(Handle, void *, size_t) { return OK; }
int cublasSetMathMode(Handle, int) { return OK; }
int cublasSetPointerMode_v2(Handle, int mode) { return mode == 0 ? OK : fail(NOT_SUPPORTED, "factors in memory of the device"); }
const char *cublasGetStatusName(int) { return "CUBLAS_STATUS"; }
const char *cublasGetStatusString(int) { return "error"; }

int cublasGemmStridedBatchedEx(Handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int a_type, int lda, long long stride_a,
                               const void *b, int b_type, int ldb, long long stride_b, const void *beta, void *c, int c_type, int ldc,
                               long long stride_c, int batch, int compute, int) {
    // CUBLAS_COMPUTE_32F and its faster forms, whose factors are f32.
    if (compute < 68 || compute > 79) return fail(NOT_SUPPORTED, "sums that are not in f32");
    return Product{m, n, k, *static_cast<const float *>(alpha), *static_cast<const float *>(beta),
                   {a, a_type, ta, lda, stride_a}, {b, b_type, tb, ldb, stride_b}, {c, c_type, 0, ldc, stride_c}, batch}.submit();
}
int cublasGemmEx(Handle h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int a_type, int lda, const void *b, int b_type,
                 int ldb, const void *beta, void *c, int c_type, int ldc, int compute, int algo) {
    return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, a, a_type, lda, 0, b, b_type, ldb, 0, beta, c, c_type, ldc, 0, 1, compute, algo);
}
int cublasSgemm_v2(Handle h, int ta, int tb, int m, int n, int k, const float *alpha, const float *a, int lda, const float *b, int ldb,
                   const float *beta, float *c, int ldc) {
    return cublasGemmEx(h, ta, tb, m, n, k, alpha, a, F32, lda, b, F32, ldb, beta, c, F32, ldc, 68, 0);
}
int cublasSgemmStridedBatched(Handle h, int ta, int tb, int m, int n, int k, const float *alpha, const float *a, int lda, long long sa,
                              const float *b, int ldb, long long sb, const float *beta, float *c, int ldc, long long sc, int batch) {
    return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, a, F32, lda, sa, b, F32, ldb, sb, beta, c, F32, ldc, sc, batch, 68, 0);
}

int curandCreateGenerator(Handle *generator, int) { return *generator = new char, 0; }
int curandDestroyGenerator(Handle generator) { return delete static_cast<char *>(generator), 0; }
int curandSetStream(Handle, Handle) { return 0; }
int curandSetPseudoRandomGeneratorSeed(Handle, unsigned long long) { return 0; }
int curandSetGeneratorOffset(Handle, unsigned long long) { return 0; }

} // extern "C"
