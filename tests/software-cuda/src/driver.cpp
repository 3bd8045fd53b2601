// The CUDA driver's functions that cudarc and candle call. All work is done when it is asked for: a stream is
// always idle, except that a stream in capture records instead.
#include "kernel.h"
#include "memory.h"
#include <chrono>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <vector>

namespace software_cuda {
namespace {

// Numbers of cuda.h.
enum Status {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_FAILED = 719,
    STREAM_CAPTURE_UNSUPPORTED = 900,
};

constexpr int SHARED_BY_DEFAULT = 48 << 10, SHARED_AT_MOST = 163 << 10;

std::vector<Kernel> &kernels() {
    static std::vector<Kernel> all;
    return all;
}

// What a module's text names; a kernel is found where both it and this library have it.
struct Module {
    std::string text;
};
struct Function {
    const Kernel *kernel;
    int most_dynamic_shared = SHARED_BY_DEFAULT;
};
struct Event {
    std::chrono::steady_clock::time_point at;
};
struct Graph {
    std::vector<std::function<int()>> steps;
};

// What SOFTWARE_CUDA_TIMES prints at the process's end: starts and seconds of each kernel.
struct Times {
    std::mutex lock;
    std::map<std::string, std::pair<uint64_t, double>> of;
    ~Times() {
        for (const auto &[kernel, spent] : of)
            fprintf(stderr, "software CUDA: %10.3f s, %8llu starts: %s\n", spent.second, (unsigned long long)spent.first, kernel.c_str());
    }
};

std::string timed_run(const Launch &launch) {
    static const bool wanted = getenv("SOFTWARE_CUDA_TIMES") != nullptr;
    if (!wanted) return run(launch);
    static Times times;
    auto begun = std::chrono::steady_clock::now();
    std::string wrong = run(launch);
    std::lock_guard lock(times.lock);
    auto &[starts, seconds] = times.of[launch.kernel];
    starts++, seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    return wrong;
}

// The stream's, so that what any thread puts there is captured.
Graph *capture = nullptr;
std::mutex capture_lock;
std::string last_failure;
char context;
thread_local void *current_context = nullptr;

int fail(int status, const std::string &why) {
    last_failure = "software CUDA: " + why;
    fprintf(stderr, "%s\n", last_failure.c_str());
    return status;
}

// Does it now, or when the graph is launched.
int submit(std::function<int()> step) {
    {
        std::lock_guard lock(capture_lock);
        if (capture) return capture->steps.push_back(std::move(step)), OK;
    }
    return step();
}

int not_in_capture(const char *what) {
    std::lock_guard lock(capture_lock);
    return capture ? fail(STREAM_CAPTURE_UNSUPPORTED, std::string(what) + " while a graph is captured") : OK;
}

// The kernels stand in a library beside this one.
void load_kernels() {
    static std::once_flag once;
    std::call_once(once, [] {
        Dl_info self;
        dladdr(reinterpret_cast<void *>(&load_kernels), &self);
        std::string path = self.dli_fname;
        path = path.substr(0, path.rfind('/') + 1) + "libkernels.so";
        if (!dlopen(path.c_str(), RTLD_NOW)) fail(INVALID_IMAGE, dlerror());
    });
}

int copy(void *to, const void *from, size_t bytes, bool to_device, bool from_device) {
    if (bytes == 0) return OK;
    if ((to_device && !holds(to, bytes)) || (from_device && !holds(from, bytes)))
        return fail(INVALID_VALUE, "a copy of " + std::to_string(bytes) + " bytes is not within one allocation");
    memmove(to, from, bytes);
    return OK;
}

int fill(void *at, size_t bytes, unsigned pattern, size_t width) {
    if (bytes == 0) return OK;
    if (!holds(at, bytes)) return fail(INVALID_VALUE, "a fill of " + std::to_string(bytes) + " bytes is not within one allocation");
    for (size_t i = 0; i < bytes; i += width) memcpy(static_cast<char *>(at) + i, &pattern, width);
    return OK;
}

int attribute(int which) {
    switch (which) {
    case 1: return 1024;                           // threads of a block
    case 2: case 3: return 1024;                   // block x, y
    case 4: return 64;                             // block z
    case 5: return INT32_MAX;                      // grid x
    case 6: case 7: return 65535;                  // grid y, z
    case 8: return SHARED_BY_DEFAULT;              // shared memory of a block
    case 10: return 32;                            // warp
    case 12: return 65536;                         // registers
    case 16: return 108;                           // multiprocessors
    case 39: return 2048;                          // threads of a multiprocessor
    case 75: return 8;                             // compute capability
    case 76: return 0;
    case 81: return SHARED_AT_MOST + 1024;         // shared memory of a multiprocessor
    case 97: return SHARED_AT_MOST;                // the same for a block that asks for it
    case 115: return 1;                            // memory pools
    default: return 0;
    }
}

} // namespace

void add_kernel(const Kernel &kernel) { kernels().push_back(kernel); }
bool on_device(const void *address) { return holds(address, 1); }
// For cuBLAS, whose work belongs to a graph too.
int submit_work(std::function<int()> step) { return submit(std::move(step)); }

} // namespace software_cuda

using namespace software_cuda;
using Handle = void *;
extern "C" {

int cuInit(unsigned) {
    load_kernels();
    return OK;
}
int cuDriverGetVersion(int *version) { return *version = 13000, OK; }
int cuGetErrorName(int, const char **name) { return *name = "CUDA_ERROR", OK; }
int cuGetErrorString(int status, const char **text) {
    static const std::map<int, const char *> texts = {{INVALID_VALUE, "invalid argument"}, {OUT_OF_MEMORY, "out of memory"},
        {INVALID_DEVICE, "invalid device ordinal"}, {NOT_FOUND, "named symbol not found"}};
    auto found = texts.find(status);
    *text = found != texts.end() ? found->second : last_failure.empty() ? "error" : last_failure.c_str();
    return OK;
}

int cuDeviceGetCount(int *count) { return *count = 1, OK; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal == 0 ? OK : INVALID_DEVICE; }
int cuDeviceGetName(char *name, int room, int) { return snprintf(name, size_t(room), "software CUDA device"), OK; }
int cuDeviceGetUuid(char *uuid, int) { return memset(uuid, 0, 16), OK; }
int cuDeviceGetUuid_v2(char *uuid, int) { return memset(uuid, 0, 16), OK; }
int cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = memory_total(), OK; }
int cuDeviceGetAttribute(int *value, int which, int) { return *value = attribute(which), OK; }
int cuDevicePrimaryCtxRetain(Handle *c, int) { return *c = &context, OK; }
int cuDevicePrimaryCtxRelease_v2(int) { return OK; }
int cuCtxGetCurrent(Handle *c) { return *c = current_context, OK; }
int cuCtxSetCurrent(Handle c) { return current_context = c, OK; }
int cuCtxSynchronize() { return not_in_capture("cuCtxSynchronize"); }
int cuCtxSetFlags(unsigned) { return OK; }

int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *total = memory_total(), *free = *total - memory_used();
    return OK;
}
int cuMemAlloc_v2(void **at, size_t bytes) {
    if (int status = not_in_capture("cuMemAlloc")) return status;
    if (bytes == 0) return fail(INVALID_VALUE, "an allocation of no bytes");
    *at = allocate(bytes);
    return *at ? OK : OUT_OF_MEMORY;
}
// A graph that allocates would have memory of its own, which this project's never do.
int cuMemAllocAsync(void **at, size_t bytes, Handle) { return cuMemAlloc_v2(at, bytes); }
int cuMemFree_v2(void *at) {
    if (int status = not_in_capture("cuMemFree")) return status;
    return !at || release(at) ? OK : fail(INVALID_VALUE, "freed what was not allocated");
}
int cuDeviceGetDefaultMemPool(Handle *pool, int) { return *pool = &context, OK; }
int cuMemPoolSetAttribute(Handle, int, void *) { return OK; }
int cuMemPoolGetAttribute(Handle, int attribute, void *value) {
    constexpr int RESERVED_MEM_HIGH = 6;
    if (attribute != RESERVED_MEM_HIGH) return INVALID_VALUE;
    return *static_cast<uint64_t *>(value) = memory_most_used(), OK;
}
int cuMemPoolTrimTo(Handle, size_t) { return OK; }
int cuMemFreeAsync(void *at, Handle) { return cuMemFree_v2(at); }
int cuMemHostAlloc(void **at, size_t bytes, unsigned) { return *at = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096), *at ? OK : OUT_OF_MEMORY; }
int cuMemFreeHost(void *at) { return free(at), OK; }
int cuMemHostGetFlags(unsigned *flags, void *) { return *flags = 0, OK; }

int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t n, Handle) {
    return submit([=] { return copy(to, from, n, true, false); });
}
int cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t n, Handle) {
    return submit([=] { return copy(to, from, n, false, true); });
}
int cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t n, Handle) {
    return submit([=] { return copy(to, from, n, true, true); });
}
int cuMemcpyHtoD_v2(void *to, const void *from, size_t n) { return cuMemcpyHtoDAsync_v2(to, from, n, nullptr); }
int cuMemcpyDtoH_v2(void *to, const void *from, size_t n) { return cuMemcpyDtoHAsync_v2(to, from, n, nullptr); }
int cuMemcpyDtoD_v2(void *to, const void *from, size_t n) { return cuMemcpyDtoDAsync_v2(to, from, n, nullptr); }
int cuMemsetD8Async(void *at, unsigned char byte, size_t n, Handle) {
    return submit([=] { return fill(at, n, byte, 1); });
}
int cuMemsetD8_v2(void *at, unsigned char byte, size_t n) { return cuMemsetD8Async(at, byte, n, nullptr); }
int cuMemsetD16Async(void *at, unsigned short x, size_t n, Handle) {
    return submit([=] { return fill(at, n * 2, x, 2); });
}
int cuMemsetD32Async(void *at, unsigned x, size_t n, Handle) {
    return submit([=] { return fill(at, n * 4, x, 4); });
}

int cuStreamCreate(Handle *stream, unsigned) { return *stream = new char, OK; }
int cuStreamCreateWithPriority(Handle *stream, unsigned, int) { return *stream = new char, OK; }
int cuStreamDestroy_v2(Handle stream) { return delete static_cast<char *>(stream), OK; }
int cuStreamSynchronize(Handle) { return not_in_capture("cuStreamSynchronize"); }
int cuStreamWaitEvent(Handle, Handle, unsigned) { return OK; }
int cuStreamQuery(Handle) { return OK; }

int cuEventCreate(Handle *event, unsigned) { return *event = new Event{}, OK; }
int cuEventDestroy_v2(Handle event) { return delete static_cast<Event *>(event), OK; }
int cuEventRecord(Handle event, Handle) { return static_cast<Event *>(event)->at = std::chrono::steady_clock::now(), OK; }
int cuEventSynchronize(Handle) { return OK; }
int cuEventQuery(Handle) { return OK; }
int cuEventElapsedTime_v2(float *ms, Handle from, Handle to) {
    *ms = std::chrono::duration<float, std::milli>(static_cast<Event *>(to)->at - static_cast<Event *>(from)->at).count();
    return OK;
}
int cuEventElapsedTime(float *ms, Handle from, Handle to) { return cuEventElapsedTime_v2(ms, from, to); }

int cuModuleLoadData(Handle *module, const void *image) {
    const char *text = static_cast<const char *>(image);
    // Machine code, as to a driver that is older than it.
    if (!memcmp(text, "\177ELF", 4)) return INVALID_IMAGE;
    if (!strstr(text, ".entry")) return fail(INVALID_IMAGE, "a module that is not PTX");
    *module = new Module{text};
    return OK;
}
int cuModuleLoadDataEx(Handle *module, const void *image, unsigned, void *, void *) { return cuModuleLoadData(module, image); }
int cuModuleUnload(Handle module) { return delete static_cast<Module *>(module), OK; }
int cuModuleGetFunction(Handle *function, Handle module, const char *name) {
    if (static_cast<Module *>(module)->text.find(std::string(".entry ") + name + "(") == std::string::npos)
        return fail(NOT_FOUND, std::string("the module has no kernel ") + name);
    for (const Kernel &kernel : kernels())
        if (!strcmp(kernel.name, name)) return *function = new Function{&kernel}, OK;
    return fail(NOT_FOUND, std::string("kernel ") + name + " is not among those that build.sh compiled");
}
int cuFuncSetAttribute(Handle function, int which, int value) {
    if (which != 8) return OK;
    if (value > SHARED_AT_MOST) return fail(INVALID_VALUE, std::to_string(value) + " bytes of dynamic shared memory; a block has " + std::to_string(SHARED_AT_MOST));
    static_cast<Function *>(function)->most_dynamic_shared = value;
    return OK;
}
int cuFuncGetAttribute(int *value, int which, Handle function) {
    auto *f = static_cast<Function *>(function);
    *value = which == 0 ? int(f->kernel->most_threads) : which == 8 ? f->most_dynamic_shared : 0;
    return OK;
}
int cuFuncSetCacheConfig(Handle, int) { return OK; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Handle, int, size_t) { return *blocks = 1, OK; }

int cuLaunchKernel(Handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   Handle, void **parameters, void **) {
    auto *f = static_cast<Function *>(function);
    std::string kernel = std::string("kernel ") + f->kernel->name + ": ", wrong;
    unsigned threads = bx * by * bz;
    if (!gx || !gy || !gz || gy > 65535 || gz > 65535 || !threads)
        return fail(INVALID_VALUE, kernel + "a grid of " + std::to_string(gx) + " x " + std::to_string(gy) + " x " + std::to_string(gz) +
                                       " blocks of " + std::to_string(threads) + " threads");
    if (threads > f->kernel->most_threads || bz > 64)
        return fail(LAUNCH_OUT_OF_RESOURCES, kernel + std::to_string(threads) + " threads a block, at most " + std::to_string(f->kernel->most_threads));
    if (int(shared) > f->most_dynamic_shared)
        return fail(INVALID_VALUE, kernel + std::to_string(shared) + " bytes of dynamic shared memory without having asked for more than " +
                                       std::to_string(f->most_dynamic_shared));
    Launch launch{f->kernel->name, {gx, gy, gz}, {bx, by, bz}, shared, f->kernel->bind(parameters, wrong)};
    if (!wrong.empty()) return fail(INVALID_VALUE, kernel + wrong);
    return submit([launch = std::move(launch)] {
        std::string wrong = timed_run(launch);
        return wrong.empty() ? OK : fail(LAUNCH_FAILED, wrong);
    });
}

int cuStreamBeginCapture_v2(Handle, int) {
    if (int status = not_in_capture("cuStreamBeginCapture")) return status;
    std::lock_guard lock(capture_lock);
    return capture = new Graph, OK;
}
int cuStreamIsCapturing(Handle, int *status) {
    std::lock_guard lock(capture_lock);
    return *status = capture != nullptr, OK;
}
int cuStreamEndCapture(Handle, Handle *graph) {
    std::lock_guard lock(capture_lock);
    if (!capture) return INVALID_VALUE;
    *graph = capture, capture = nullptr;
    return OK;
}
int cuGraphInstantiateWithFlags(Handle *exec, Handle graph, unsigned long long) { return *exec = new Graph(*static_cast<Graph *>(graph)), OK; }
int cuGraphUpload(Handle, Handle) { return OK; }
int cuGraphLaunch(Handle exec, Handle) {
    for (const auto &step : static_cast<Graph *>(exec)->steps)
        if (int status = step()) return status;
    return OK;
}
int cuGraphExecDestroy(Handle exec) { return delete static_cast<Graph *>(exec), OK; }
int cuGraphDestroy(Handle graph) { return delete static_cast<Graph *>(graph), OK; }

} // extern "C"
