// The forest of segments as attention sees it (ops/cuda/plan.rs writes these).
#pragma once
#include "common.cuh"

// Packed rows `first` to `first + count`.
struct Range {
    uint32_t first, count;
};

// A segment: its rows, the segments that lead to it, and those that it leads to.
struct Segment {
    Range rows;
    Range before; // in `ranges`
    Range after;  // in `ranges`
};

// Rows of one segment that a block takes.
struct Tile {
    Range rows;
    uint32_t segment;
};

struct Forest {
    const Tile *tiles;
    const Segment *segments;
    const Range *ranges;
};

// Sizes of the heads: query heads, key/value heads, size of a head.
struct Heads {
    int heads, kv_heads, dim;
    __device__ __forceinline__ int kv_of(int head) const { return head / (heads / kv_heads); }
};
