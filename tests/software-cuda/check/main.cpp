// Runs the kernels of check.cu through the driver's functions: check.sh builds and starts it.
#include <cassert>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern "C" {
int cuInit(unsigned);
int cuMemAlloc_v2(void **, size_t);
int cuMemFree_v2(void *);
int cuMemcpyHtoD_v2(void *, const void *, size_t);
int cuMemcpyDtoH_v2(void *, const void *, size_t);
int cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuGetErrorString(int, const char **);
int cuStreamBeginCapture_v2(void *, int);
int cuStreamEndCapture(void *, void **);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
int cuGraphLaunch(void *, void *);
int cublasGemmEx(void *, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int, const void *, void *, int, int, int, int);
}

#define EXPECT(what) do { if (!(what)) { printf("line %d: not so: %s\n", __LINE__, #what); return 1; } } while (0)

template <class T> struct Buffer {
    void *at = nullptr;
    size_t n;
    explicit Buffer(size_t n) : n(n) { assert(cuMemAlloc_v2(&at, n * sizeof(T)) == 0); }
    explicit Buffer(const std::vector<T> &v) : Buffer(v.size()) { cuMemcpyHtoD_v2(at, v.data(), n * sizeof(T)); }
    ~Buffer() { cuMemFree_v2(at); }
    std::vector<T> values() const {
        std::vector<T> v(n);
        cuMemcpyDtoH_v2(v.data(), at, n * sizeof(T));
        return v;
    }
};

static void *module_;
template <class... A> int launch(const char *name, unsigned grid, unsigned block, unsigned shared, A... arguments) {
    void *function = nullptr;
    if (int status = cuModuleGetFunction(&function, module_, name)) return status;
    void *pointers[] = {&arguments...};
    return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, nullptr, pointers, nullptr);
}

static std::string why(int status) {
    const char *text;
    cuGetErrorString(status, &text);
    return text;
}

static unsigned short bf16(float x) {
    unsigned u;
    memcpy(&u, &x, 4);
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

int main() {
    EXPECT(cuInit(0) == 0);
    std::string ptx;
    for (const char *name : {"row_sum_f32", "row_sum_bf16", "reversed", "votes", "barrier_left_out", "two_barriers", "lonely_shuffle", "unset_shared", "copied", "past_the_end", "elsewhere"})
        ptx += std::string(".entry ") + name + "(\n";
    EXPECT(cuModuleLoadData(&module_, ptx.c_str()) == 0);

    std::vector<float> x(3 * 1000), want(3);
    std::vector<unsigned short> x16(x.size());
    for (size_t i = 0; i < x.size(); i++) x[i] = float(i % 17) - 4, x16[i] = bf16(x[i]), want[i / 1000] += x[i];
    Buffer<float> sums(3);
    Buffer<float> xs(x);
    Buffer<unsigned short> x16s(x16);
    EXPECT(launch("row_sum_f32", 3, 128, 0, xs.at, sums.at, 1000) == 0 && sums.values() == want);
    EXPECT(launch("row_sum_bf16", 3, 128, 0, x16s.at, sums.at, 1000) == 0 && sums.values() == want);

    std::vector<int> numbers(256);
    for (int i = 0; i < 256; i++) numbers[i] = i;
    Buffer<int> from(numbers), to(256);
    EXPECT(launch("reversed", 1, 256, 1024, from.at, to.at, 256) == 0 && to.values()[3] == 252);
    EXPECT(launch("reversed", 1, 256, 512, from.at, to.at, 256) == 719 && why(719).find("past its dynamic shared memory") != std::string::npos);

    Buffer<unsigned> out(std::vector<unsigned>(129));
    EXPECT(launch("votes", 1, 32, 0, out.at) == 0);
    auto v = out.values();
    EXPECT(v[5] == 0x49249249 && v[32 + 31] == 496 && v[64] == 4 && v[64 + 5] == 5 && v[96] == 15 && v[128] == 496);

    Buffer<int> ints(64);
    EXPECT(launch("barrier_left_out", 1, 64, 0, ints.at) == 719 && why(719).find("thread 7 has ended") != std::string::npos);
    EXPECT(launch("two_barriers", 1, 64, 0, ints.at) == 719 && why(719).find("waits at the barrier") != std::string::npos);
    EXPECT(launch("lonely_shuffle", 1, 32, 0, ints.at) == 719 && why(719).find("waits for its warp") != std::string::npos);
    Buffer<float> floats(32);
    EXPECT(launch("unset_shared", 1, 32, 0, floats.at, 0) == 0 && std::isnan(floats.values()[9]));
    // Copies are there once they were waited for, and not before.
    for (int later : {0, 1, 2}) {
        EXPECT(launch("copied", 1, 1, 0, xs.at, floats.at, later, 0) == 0);
        const std::vector<float> copied = floats.values();
        EXPECT(later < 2 ? copied[0] == -4 && copied[3] == -1 : std::isnan(copied[0]));
        EXPECT(later < 1 ? copied[4] == 0 && copied[7] == 0 : std::isnan(copied[4]));
    }
    EXPECT(launch("copied", 1, 1, 0, xs.at, floats.at, 0, 1) == 719 && why(719).find("no multiple of 16") != std::string::npos);
    EXPECT(launch("row_sum_f32", 3, 256, 0, xs.at, sums.at, 1000) == 701);
    EXPECT(launch("row_sum_f32", 3, 128, 0, (void *)&x, sums.at, 1000) == 1 && why(1) == "invalid argument");
    EXPECT(launch("missing", 1, 32, 0, ints.at) == 500);
    EXPECT(launch("elsewhere", 1, 32, 0, ints.at) == 500);
    if (fork() == 0) return launch("past_the_end", 1, 1, 0, floats.at, 32);
    int status = 0;
    wait(&status);
    EXPECT(WIFSIGNALED(status));

    // A graph does what was recorded each time that it is launched.
    void *graph, *exec;
    Buffer<unsigned> counter(std::vector<unsigned>(129));
    EXPECT(cuStreamBeginCapture_v2(nullptr, 0) == 0 && launch("votes", 1, 32, 0, counter.at) == 0);
    EXPECT(cuStreamEndCapture(nullptr, &graph) == 0 && cuGraphInstantiateWithFlags(&exec, graph, 0) == 0);
    EXPECT(cuGraphLaunch(exec, nullptr) == 0 && cuGraphLaunch(exec, nullptr) == 0 && counter.values()[128] == 2 * 496);

    // C = A^T B + C over sizes that fill no panel, against the plain sum.
    int m = 19, n = 5, k = 37;
    std::vector<float> a(m * k), b(k * n), c(m * n, 1.0f);
    for (int i = 0; i < m * k; i++) a[i] = float(i % 7) - 3;
    for (int i = 0; i < k * n; i++) b[i] = float(i % 5) - 2;
    Buffer<float> as(a), bs(b), cs(c);
    float one = 1;
    EXPECT(cublasGemmEx(nullptr, 1, 0, m, n, k, &one, as.at, 0, k, bs.at, 0, k, &one, cs.at, 0, m, 68, -1) == 0);
    auto got = cs.values();
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = 1;
            for (int p = 0; p < k; p++) sum += a[i * k + p] * b[j * k + p];
            EXPECT(got[j * m + i] == sum);
        }
    EXPECT(cublasGemmEx(nullptr, 1, 0, m, n, k, &one, as.at, 0, k - 1, bs.at, 0, k, &one, cs.at, 0, m, 68, -1) != 0);
    printf("the software CUDA device does what it should\n");
}
