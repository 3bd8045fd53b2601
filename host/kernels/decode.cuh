// A step of generation: the newest token of each of some sequences, one a row. All that changes from step to step lies in
// device memory (ops/src/cuda/decode/state.rs writes it), so that a step that was recorded once can be run again.
#pragma once
#include "common.cuh"

// A sequence's state, in its slot.
struct Sequence {
    uint32_t token;  // the newest one, which the model has not seen
    uint32_t drawn;  // number of tokens drawn, that one included
    uint32_t prompt; // length of the prompt
    uint32_t room;   // unused
};

// Rows that share a prompt, and the positions of it that one block takes.
struct Share {
    uint32_t prompt, first_row, rows, first_position;
};

struct Step {
    uint32_t rows, shares;
};

// Row `row` of a step, or none beyond its last.
__device__ __forceinline__ bool is_row(const Step *step, int row) { return row < (int)step->rows; }

// The position of a sequence's newest token.
__device__ __forceinline__ uint32_t position_of(const Sequence &sequence) { return sequence.prompt + sequence.drawn - 1; }
