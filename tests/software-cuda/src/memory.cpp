#include "memory.h"
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>

namespace software_cuda {
namespace {

constexpr size_t PAGE = 4096, ALIGNMENT = 16;

struct Allocation {
    size_t bytes;
    char *pages;
    size_t mapped;
};

std::mutex lock_;
std::map<uintptr_t, Allocation> &all() {
    static auto *allocations = new std::map<uintptr_t, Allocation>;
    return *allocations;
}
size_t used = 0, most_used = 0;

} // namespace

size_t memory_total() {
    static size_t total = [] {
        const char *wish = getenv("SOFTWARE_CUDA_MEMORY");
        return wish ? size_t(strtoull(wish, nullptr, 10)) : size_t(8) << 30;
    }();
    return total;
}

size_t memory_used() {
    std::lock_guard lock(lock_);
    return used;
}

size_t memory_most_used() {
    std::lock_guard lock(lock_);
    return most_used;
}

void *allocate(size_t bytes) {
    std::lock_guard lock(lock_);
    if (bytes > memory_total() - used) return nullptr;
    // The end stands against the forbidden page, as nearly as the alignment of wide loads allows.
    size_t room = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    size_t mapped = (room + PAGE - 1) / PAGE * PAGE + PAGE;
    char *pages = static_cast<char *>(mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (pages == MAP_FAILED) return nullptr;
    mprotect(pages + mapped - PAGE, PAGE, PROT_NONE);
    char *at = pages + mapped - PAGE - room;
    memset(at, 0xff, room);
    all()[reinterpret_cast<uintptr_t>(at)] = {bytes, pages, mapped};
    used += bytes;
    if (used > most_used) most_used = used;
    return at;
}

bool release(void *at) {
    std::lock_guard lock(lock_);
    auto found = all().find(reinterpret_cast<uintptr_t>(at));
    if (found == all().end()) return false;
    munmap(found->second.pages, found->second.mapped);
    used -= found->second.bytes;
    all().erase(found);
    return true;
}

bool holds(const void *at, size_t bytes) {
    std::lock_guard lock(lock_);
    auto address = reinterpret_cast<uintptr_t>(at);
    auto after = all().upper_bound(address);
    if (after == all().begin()) return false;
    auto &[begin, allocation] = *std::prev(after);
    return address + bytes <= begin + allocation.bytes;
}

} // namespace software_cuda
