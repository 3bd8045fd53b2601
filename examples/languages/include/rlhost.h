// The contract of plugin-sdk/wit/ for C23 and C++ on wasm32: its structures as the component
// model's canonical ABI lays them out, its exports, and the memory that calls need. Names are those
// of the WIT file, which explains them.
//
// Define RLHOST_REWARD, or RLHOST_ALGORITHM and, where it makes something of a generation,
// RLHOST_ESTIMATOR. Include this in one file, and define the functions under "a plugin defines".
// Each but `describe` answers whether it succeeded, and says why where not.
//
// What a call brings, and what `rl_alloc` gives during it, is freed once the host has read the
// answer. What is to last longer goes into memory of your own.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RL_LIST(T)  \
    struct {        \
        T *ptr;     \
        size_t len; \
    }

#define RL_OPTION(T) \
    struct {         \
        bool some;   \
        T value;     \
    }

typedef RL_LIST(const char) rl_string;
typedef RL_LIST(const rl_string) rl_strings;
typedef RL_LIST(const bool) rl_bools;
typedef RL_LIST(uint8_t) rl_u8s;
typedef RL_LIST(const uint32_t) rl_u32s;
typedef RL_LIST(float) rl_f32s;
typedef RL_OPTION(float) rl_maybe_f32;
typedef RL_LIST(rl_maybe_f32) rl_maybe_f32_list;

enum { RL_CONFIG, RL_INPUT, RL_UNSUPPORTED, RL_INTERNAL };

typedef struct {
    uint8_t kind;
    rl_string text;
} rl_error;

enum { RL_MEAN, RL_SUM, RL_MIN, RL_MAX };

typedef struct {
    rl_string name;
    double value, weight;
    uint8_t reduction;
} rl_metric;

typedef RL_LIST(rl_metric) rl_metrics;

typedef struct {
    rl_string name, version, description, config_schema;
    rl_strings needs;
    bool stateless;
} rl_info;

#ifdef RLHOST_REWARD
typedef struct {
    rl_string name;
    rl_strings values;
} rl_column;

typedef struct {
    uint64_t step, seed;
    rl_strings prompts;
    RL_LIST(const rl_column) columns;
    rl_u32s prompt_of;
    rl_strings completions;
    rl_bools finished;
    rl_u32s offsets, token_ids;
} rl_batch;

typedef struct {
    rl_maybe_f32_list rewards;
    rl_metrics metrics;
} rl_scores;
#endif

#ifdef RLHOST_ALGORITHM
enum { RL_TOKEN, RL_PROMPT_TOKEN, RL_TURN, RL_SEQUENCE, RL_GROUP, RL_MICRO_BATCH };

typedef struct {
    rl_string name;
    uint8_t unit;
    rl_f32s values;
    rl_u32s missing;
} rl_column;

typedef RL_LIST(const rl_column) rl_columns;

typedef struct {
    uint32_t sequence, start, end;
} rl_turn;

typedef struct {
    uint32_t items;
    uint64_t tokens, prompt_tokens;
    uint32_t max_completion_length;
} rl_scale;

typedef struct {
    uint64_t step, seed;
    rl_u32s groups, tokens, prompt_tokens;
    RL_LIST(const rl_turn) turns;
    rl_u8s mask;
    rl_columns columns;
    rl_scale scale;
} rl_batch;

typedef struct {
    rl_string name;
    float weight;
} rl_weighted_reward;

typedef RL_LIST(const rl_weighted_reward) rl_weighted_rewards;

enum { RL_FROM_POLICY, RL_FROM_DATASET, RL_FROM_EITHER };
enum { RL_COMPLETIONS, RL_PAIRS };

typedef struct {
    uint8_t source, shape;
    rl_strings estimates;
} rl_data;

typedef struct {
    double loss;
    rl_columns derivatives;
    rl_metrics metrics;
} rl_gradient;

typedef struct {
    rl_columns columns;
    rl_metrics metrics;
} rl_estimates;
#endif

// A plugin defines

rl_info describe(void);
bool configure(rl_string config, rl_error *error);
#ifdef RLHOST_REWARD
bool score(const rl_batch *batch, rl_scores *scores, rl_error *error);
#endif
#ifdef RLHOST_ALGORITHM
bool describe_data(rl_data *data, rl_error *error);
bool loss(const rl_batch *batch, rl_gradient *gradient, rl_error *error);
#endif
#ifdef RLHOST_ESTIMATOR
bool estimate(const rl_batch *generation, rl_weighted_rewards rewards, rl_estimates *estimates, rl_error *error);
#endif

// A plugin calls

// Of a literal, also where constants are needed.
#define RL_TEXT(literal) {literal, sizeof(literal) - 1}

// A list of all items of an array, which must last.
#define RL_ALL(array) {array, sizeof(array) / sizeof *(array)}

// The text itself must last.
static inline rl_string rl_text(const char *text) {
    rl_string string = {text, strlen(text)};
    return string;
}

static inline bool rl_equal(rl_string string, const char *text) {
    return string.len == strlen(text) && memcmp(string.ptr, text, string.len) == 0;
}

static inline bool rl_fail(rl_error *error, uint8_t kind, const char *text) {
    error->kind = kind;
    error->text = rl_text(text);
    return false;
}

#ifdef RLHOST_ALGORITHM
// The column whose name consists of these two parts, or NULL.
static inline const rl_column *rl_find(const rl_batch *batch, rl_string first, rl_string second) {
    for (size_t c = 0; c < batch->columns.len; c++) {
        const rl_column *column = &batch->columns.ptr[c];
        if (column->name.len == first.len + second.len && memcmp(column->name.ptr, first.ptr, first.len) == 0 &&
            memcmp(column->name.ptr + first.len, second.ptr, second.len) == 0)
            return column;
    }
    return NULL;
}

static inline const rl_column *rl_column_of(const rl_batch *batch, const char *name) {
    return rl_find(batch, rl_text(name), rl_text(""));
}

// The scores of a reward, or NULL.
static inline const rl_column *rl_scores_of(const rl_batch *generation, rl_string reward) {
    return rl_find(generation, rl_text("reward/"), reward);
}

static inline bool rl_is_missing(const rl_column *column, uint32_t entry) {
    for (size_t i = 0; i < column->missing.len; i++)
        if (column->missing.ptr[i] == entry) return true;
    return false;
}
#endif

typedef struct rl_block {
    struct rl_block *next;
    uint32_t to_alignment[3];
} rl_block;

static rl_block *rl_blocks;

static inline void *rl_alloc(size_t size) {
    rl_block *block = (rl_block *)malloc(sizeof(rl_block) + size);
    if (!block) abort();
    block->next = rl_blocks;
    rl_blocks = block;
    return block + 1;
}

// The exports: they take apart and put together what the canonical ABI passes, a result as the
// address of its structure. `cabi_post_` functions are called once the host has read it.

#define RL_EXPORT(name) __attribute__((export_name("rlhost:plugin/" name)))
#define RL_AFTER(name) __attribute__((export_name("cabi_post_rlhost:plugin/" name)))

#define RL_RESULT(T)        \
    static struct {         \
        bool failed;        \
        union {             \
            T ok;           \
            rl_error error; \
        };                  \
    }

__attribute__((export_name("cabi_realloc"))) void *rl_realloc(void *old, size_t old_size, size_t align, size_t size) {
    (void)align;
    void *memory = rl_alloc(size);
    if (old_size) memcpy(memory, old, old_size < size ? old_size : size);
    return memory;
}

static void rl_free_all(void) {
    while (rl_blocks) {
        rl_block *block = rl_blocks;
        rl_blocks = block->next;
        free(block);
    }
}

RL_EXPORT("plugin@1.0.0#describe") const void *rl_describe(void) {
    static rl_info info;
    info = describe();
    return &info;
}

RL_AFTER("plugin@1.0.0#describe") void rl_after_describe(const void *) { rl_free_all(); }

RL_EXPORT("plugin@1.0.0#configure") const void *rl_configure(const char *config, size_t len) {
    static struct {
        bool failed;
        rl_error error;
    } result;
    rl_string text = {config, len};
    result.failed = !configure(text, &result.error);
    return &result;
}

RL_AFTER("plugin@1.0.0#configure") void rl_after_configure(const void *) { rl_free_all(); }

#ifdef RLHOST_REWARD
RL_EXPORT("reward@1.0.0#score")
const void *rl_score(uint64_t step, uint64_t seed, const rl_string *prompts, size_t prompts_len, const rl_column *columns,
                     size_t columns_len, const uint32_t *prompt_of, size_t rows, const rl_string *completions,
                     size_t completions_len, const bool *finished, size_t finished_len, const uint32_t *offsets,
                     size_t offsets_len, const uint32_t *token_ids, size_t token_ids_len) {
    RL_RESULT(rl_scores) result;
    rl_scores scores = {};
    rl_error error = {};
    rl_batch batch = {step,
                      seed,
                      {prompts, prompts_len},
                      {columns, columns_len},
                      {prompt_of, rows},
                      {completions, completions_len},
                      {finished, finished_len},
                      {offsets, offsets_len},
                      {token_ids, token_ids_len}};
    result.failed = !score(&batch, &scores, &error);
    if (result.failed)
        result.error = error;
    else
        result.ok = scores;
    return &result;
}

RL_AFTER("reward@1.0.0#score") void rl_after_score(const void *) { rl_free_all(); }
#endif

#ifdef RLHOST_ALGORITHM
RL_EXPORT("algorithm@1.0.0#describe-data") const void *rl_describe_data(void) {
    RL_RESULT(rl_data) result;
    rl_data data = {};
    rl_error error = {};
    result.failed = !describe_data(&data, &error);
    if (result.failed)
        result.error = error;
    else
        result.ok = data;
    return &result;
}

RL_AFTER("algorithm@1.0.0#describe-data") void rl_after_describe_data(const void *) { rl_free_all(); }

RL_EXPORT("algorithm@1.0.0#loss") const void *rl_loss(const rl_batch *batch) {
    RL_RESULT(rl_gradient) result;
    rl_gradient gradient = {};
    rl_error error = {};
    result.failed = !loss(batch, &gradient, &error);
    if (result.failed)
        result.error = error;
    else
        result.ok = gradient;
    return &result;
}

RL_AFTER("algorithm@1.0.0#loss") void rl_after_loss(const void *) { rl_free_all(); }
#endif

#ifdef RLHOST_ESTIMATOR
typedef struct {
    rl_batch generation;
    rl_weighted_rewards rewards;
} rl_estimate_arguments;

RL_EXPORT("estimator@1.0.0#estimate") const void *rl_estimate(const rl_estimate_arguments *arguments) {
    RL_RESULT(rl_estimates) result;
    rl_estimates estimates = {};
    rl_error error = {};
    result.failed = !estimate(&arguments->generation, arguments->rewards, &estimates, &error);
    if (result.failed)
        result.error = error;
    else
        result.ok = estimates;
    return &result;
}

RL_AFTER("estimator@1.0.0#estimate") void rl_after_estimate(const void *) { rl_free_all(); }
#endif

#ifdef __cplusplus
}
#endif
