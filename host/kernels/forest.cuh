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
    const uint32_t *positions; // of all rows
};

// How scores are formed. Without a bound, `cap` is 0, and without a window, `window` is.
struct Scores {
    float scale, cap;
    int window;

    // A product as it is before it is scaled, with which the score is bounded.
    __device__ __forceinline__ float bounded(float product) const {
        return cap > 0.0f ? cap / scale * tanhf(product * scale / cap) : product;
    }

    // The slope of `bounded` where its result is `product`.
    __device__ __forceinline__ float slope(float product) const {
        const float part = cap > 0.0f ? product * scale / cap : 0.0f;
        return 1.0f - part * part;
    }
};

// How far some queries lie behind some keys, each of one segment: a query does not see keys that are `window` positions or
// more before it.
struct Reach {
    int ahead, window;
    __device__ __forceinline__ Reach(const Forest &f, const Scores &s, Range queries, Range keys)
        : ahead(s.window ? (int)f.positions[queries.first] - (int)f.positions[keys.first] : 0), window(s.window) {}
    __device__ __forceinline__ bool hides(int query, int key) const { return window && ahead + query - key >= window; }
    // Whether no query sees any key.
    __device__ __forceinline__ bool hides_all(Range keys) const { return hides(0, keys.count - 1); }
    // Whether any of the queries does not see one of the keys.
    __device__ __forceinline__ bool hides_some(int last_query) const { return hides(last_query, 0); }
};

// Sizes of the heads: query heads, key/value heads, size of a head.
struct Heads {
    int heads, kv_heads, dim;
    __device__ __forceinline__ int kv_of(int head) const { return head / (heads / kv_heads); }
};

// Calls `use(keys, causal, reach)` for all tiles of keys of up to TILE rows that a tile of queries sees.
template <int TILE, typename F>
__device__ __forceinline__ void for_keys(const Forest &f, const Scores &scores, const Tile &tile, F use) {
    const Segment s = f.segments[tile.segment];
    auto each = [&](Range keys, bool causal) {
        const Reach reach(f, scores, tile.rows, keys);
        if (!reach.hides_all(keys)) use(keys, causal, reach);
    };
    for (uint32_t r = 0; r < s.before.count; r++) {
        const Range run = f.ranges[s.before.first + r];
        for (uint32_t at = 0; at < run.count; at += TILE)
            each(Range{run.first + at, min((uint32_t)TILE, run.count - at)}, false);
    }
    const uint32_t own = tile.rows.first + tile.rows.count - s.rows.first;
    for (uint32_t at = 0; at < own; at += TILE) each(Range{s.rows.first + at, min((uint32_t)TILE, own - at)}, true);
}

// Calls `use(queries, causal, reach)` for all tiles of queries of up to TILE rows that see a tile of keys.
template <int TILE, typename F>
__device__ __forceinline__ void for_queries(const Forest &f, const Scores &scores, const Tile &tile, F use) {
    const Segment s = f.segments[tile.segment];
    auto each = [&](Range queries, bool causal) {
        const Reach reach(f, scores, queries, tile.rows);
        if (!reach.hides_all(tile.rows)) use(queries, causal, reach);
    };
    const uint32_t end = s.rows.first + s.rows.count;
    for (uint32_t at = tile.rows.first; at < end; at += TILE) each(Range{at, min((uint32_t)TILE, end - at)}, true);
    for (uint32_t r = 0; r < s.after.count; r++) {
        const Range run = f.ranges[s.after.first + r];
        for (uint32_t at = 0; at < run.count; at += TILE)
            each(Range{run.first + at, min((uint32_t)TILE, run.count - at)}, false);
    }
}
