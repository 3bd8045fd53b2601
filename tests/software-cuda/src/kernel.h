// Put before each file of kernels by build.sh: makes them known under their names.
#pragma once
#include "block.h"
#include <tuple>

namespace software_cuda {

struct Kernel {
    const char *name, *file;
    unsigned most_threads;
    // The kernel with its arguments, copied from where a launch's parameters point; or what is wrong
    // with one of them.
    std::function<void()> (*bind)(void **parameters, std::string &wrong);
};

void add_kernel(const Kernel &kernel);
// Whether an address lies in memory of the device.
bool on_device(const void *address);

template <class T> void check(const T &argument, int number, std::string &wrong) {
    if constexpr (std::is_pointer_v<T>) {
        if (argument && !on_device(reinterpret_cast<const void *>(argument)))
            wrong = "argument " + std::to_string(number) + " points to no memory of the device";
    }
}

template <auto kernel> struct Bind;
template <class... A, void (*kernel)(A...)> struct Bind<kernel> {
    template <size_t... I> static std::function<void()> at(void **p, std::string &wrong, std::index_sequence<I...>) {
        std::tuple<A...> arguments(*static_cast<A *>(p[I])...);
        (check(std::get<I>(arguments), int(I), wrong), ...);
        return [arguments] { std::apply(kernel, arguments); };
    }
    static std::function<void()> bind(void **p, std::string &wrong) { return at(p, wrong, std::index_sequence_for<A...>()); }
};

struct AddKernel {
    AddKernel(const Kernel &kernel) { add_kernel(kernel); }
};
struct AddDynamicShared {
    AddDynamicShared(DynamicShared array) { add_dynamic_shared(array); }
};

} // namespace software_cuda
