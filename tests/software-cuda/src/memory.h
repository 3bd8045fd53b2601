// Memory of the device: pages of the process, with a page that nobody may touch behind each allocation.
#pragma once
#include <cstddef>
#include <cstdint>

namespace software_cuda {

// Null where the device has no room left. What comes is full of NaNs.
void *allocate(size_t bytes);
// Whether there was such an allocation.
bool release(void *at);
// Whether [at, at + bytes) lies in one allocation.
bool holds(const void *at, size_t bytes);
size_t memory_total();
size_t memory_used();
size_t memory_most_used();

} // namespace software_cuda
