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

// Calls `each(keys, causal)` for all tiles of keys of up to TILE rows that a tile of queries sees.
template <int TILE, typename F> __device__ __forceinline__ void for_keys(const Forest &f, const Tile &tile, F each) {
    const Segment s = f.segments[tile.segment];
    for (uint32_t r = 0; r < s.before.count; r++) {
        const Range run = f.ranges[s.before.first + r];
        for (uint32_t at = 0; at < run.count; at += TILE)
            each(Range{run.first + at, min((uint32_t)TILE, run.count - at)}, false);
    }
    const uint32_t own = tile.rows.first + tile.rows.count - s.rows.first;
    for (uint32_t at = 0; at < own; at += TILE) each(Range{s.rows.first + at, min((uint32_t)TILE, own - at)}, true);
}

// Calls `each(queries, causal)` for all tiles of queries of up to TILE rows that see a tile of keys.
template <int TILE, typename F> __device__ __forceinline__ void for_queries(const Forest &f, const Tile &tile, F each) {
    const Segment s = f.segments[tile.segment];
    const uint32_t end = s.rows.first + s.rows.count;
    for (uint32_t at = tile.rows.first; at < end; at += TILE) each(Range{at, min((uint32_t)TILE, end - at)}, true);
    for (uint32_t r = 0; r < s.after.count; r++) {
        const Range run = f.ranges[s.after.first + r];
        for (uint32_t at = 0; at < run.count; at += TILE)
            each(Range{run.first + at, min((uint32_t)TILE, run.count - at)}, false);
    }
}
