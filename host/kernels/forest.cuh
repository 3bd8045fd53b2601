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

// Rows of a list of ranges and of one range more, up to TILE at a time.
template <int TILE> struct Walk {
    const Range *ranges;
    uint32_t count;
    Range own;
    bool own_first;
    uint32_t index = 0, at = 0;

    // Sets `rows` to the next tile, and `is_own` to whether it is of the one range more; false after the last.
    __device__ __forceinline__ bool next(Range &rows, bool &is_own) {
        while (index <= count) {
            is_own = index == (own_first ? 0 : count);
            const Range run = is_own ? own : ranges[own_first ? index - 1 : index];
            if (at < run.count) {
                rows = {run.first + at, min((uint32_t)TILE, run.count - at)};
                at += TILE;
                return true;
            }
            index++, at = 0;
        }
        return false;
    }
};

// All tiles of keys of up to TILE rows that a tile of queries sees.
template <int TILE> struct Keys {
    const Forest &f;
    const Scores &scores;
    const Tile &tile;
    Walk<TILE> walk;

    __device__ __forceinline__ Keys(const Forest &f, const Scores &scores, const Tile &tile) : f(f), scores(scores), tile(tile) {
        const Segment s = f.segments[tile.segment];
        walk = {f.ranges + s.before.first, s.before.count, {s.rows.first, tile.rows.first + tile.rows.count - s.rows.first}, false};
    }

    __device__ __forceinline__ bool next(Other &keys) {
        while (walk.next(keys.rows, keys.causal)) {
            keys.reach = Reach(f, scores, tile.rows, keys.rows);
            if (!keys.reach.hides_all(keys.rows)) return true;
        }
        return false;
    }
};

// All tiles of queries of up to TILE rows that see a tile of keys.
template <int TILE> struct Queries {
    const Forest &f;
    const Scores &scores;
    const Tile &tile;
    Walk<TILE> walk;

    __device__ __forceinline__ Queries(const Forest &f, const Scores &scores, const Tile &tile)
        : f(f), scores(scores), tile(tile) {
        const Segment s = f.segments[tile.segment];
        const uint32_t end = s.rows.first + s.rows.count;
        walk = {f.ranges + s.after.first, s.after.count, {tile.rows.first, end - tile.rows.first}, true};
    }

    __device__ __forceinline__ bool next(Other &queries) {
        while (walk.next(queries.rows, queries.causal)) {
            queries.reach = Reach(f, scores, queries.rows, tile.rows);
            if (!queries.reach.hides_all(tile.rows)) return true;
        }
        return false;
    }
};
