// One launch: blocks of threads, each thread a fiber, all fibers of a block on one thread of the CPU.
#pragma once
#include "../include/cuda_runtime.h"
#include <functional>
#include <string>

namespace software_cuda {

struct Launch {
    std::string kernel;
    uint3 grid, block;
    unsigned dynamic_shared;
    std::function<void()> body;
};

// Runs it to its end; what went wrong, or nothing.
std::string run(const Launch &launch);

// Calls the function for each of the numbers below `n`, on all the CPU's threads.
void parallel(size_t n, const std::function<void(size_t)> &f);

// A kernel's dynamic shared memory: an array under the name that its source gives it.
struct DynamicShared {
    void *(*address)();
    size_t size;
};
void add_dynamic_shared(DynamicShared array);

} // namespace software_cuda
