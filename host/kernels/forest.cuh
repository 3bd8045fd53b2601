// The forest of segments as attention sees it (ops/cuda/plan.rs writes these).
#pragma once
#include "scores.cuh"

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
    const Tile *tiles; // sorted by how many rows see them, most first
    const Segment *segments;
    const Range *ranges;
    const uint32_t *positions; // of all rows

    // The tile of this block; gridDim.y is the number of tiles. Blocks with most work start first: those of keys that most rows see,
    // and those of queries at the end of the order, which see most.
    __device__ __forceinline__ Tile of_keys() const { return tiles[blockIdx.y]; }
    __device__ __forceinline__ Tile of_queries() const { return tiles[gridDim.y - 1 - blockIdx.y]; }
};

// How far some queries lie behind some keys, each of one segment: a query does not see keys that are `window` positions or
// more before it.
struct Reach {
    int ahead = 0, window = 0;
    Reach() = default;
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

// A tile of rows that another one sees or is seen by, and how.
struct Other {
    Range rows;
    bool causal; // of the same segment
    Reach reach;
};

// All tiles of up to TILE rows that a tile of queries sees, or that see a tile of keys. The rows of its own segment come last for
// queries and first for keys.
template <int TILE, bool OF_KEYS> struct Walk {
    typedef Other Item;
    const Forest &f;
    const Scores &scores;
    const Tile &tile;
    Range others, own; // others: in `ranges`
    uint32_t index = 0, at = 0;

    __device__ __forceinline__ Walk(const Forest &f, const Scores &scores, const Tile &tile) : f(f), scores(scores), tile(tile) {
        const Segment s = f.segments[tile.segment];
        const uint32_t end = s.rows.first + s.rows.count;
        others = OF_KEYS ? s.after : s.before;
        own = OF_KEYS ? Range{tile.rows.first, end - tile.rows.first}
                      : Range{s.rows.first, tile.rows.first + tile.rows.count - s.rows.first};
    }

    __device__ __forceinline__ bool next(Other &other) {
        while (index <= others.count) {
            other.causal = index == (OF_KEYS ? 0 : others.count);
            const Range run = other.causal ? own : f.ranges[others.first + index - (OF_KEYS ? 1 : 0)];
            if (at >= run.count) {
                index++, at = 0;
                continue;
            }
            other.rows = {run.first + at, min((uint32_t)TILE, run.count - at)};
            at += TILE;
            const Range queries = OF_KEYS ? other.rows : tile.rows, keys = OF_KEYS ? tile.rows : other.rows;
            other.reach = Reach(f, scores, queries, keys);
            if (!other.reach.hides_all(keys)) return true;
        }
        return false;
    }
};

template <int TILE> using Keys = Walk<TILE, false>;
template <int TILE> using Queries = Walk<TILE, true>;
