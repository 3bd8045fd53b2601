// The contract of plugin-sdk/wit/ for C23 and C++ on wasm32: its structures as the component
// model's canonical ABI lays them out, its exports, and the memory that calls need. Names are those
// of the WIT file, which explains them.
//
// Define RLHOST_REWARD or RLHOST_POLICY, include this in one file, and define the functions under
// "a plugin defines". Each but `describe` answers whether it succeeded, and says why where not.
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
typedef RL_OPTION(rl_u8s) rl_maybe_u8s;
typedef RL_OPTION(rl_f32s) rl_maybe_f32s;
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

enum {
    RL_PROMPT_TEXT = 1 << 0,
    RL_COMPLETION_TEXT = 1 << 1,
    RL_TOKEN_IDS = 1 << 2,
    RL_DATASET_COLUMNS = 1 << 3,
    RL_REF_LOGP = 1 << 4,
    RL_SAMPLING_LOGP = 1 << 5,
    RL_VALUES = 1 << 6,
    RL_ENTROPY = 1 << 7,
    RL_MEAN_LOGITS = 1 << 8,
};

typedef struct {
    rl_string name, version, description, config_schema;
    uint16_t needs;
    bool stateless;
} rl_info;

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

typedef struct {
    uint32_t rows;
    uint64_t tokens;
    uint32_t max_completion_length;
} rl_scale;

typedef struct {
    rl_string name;
    float weight;
    rl_maybe_f32_list values;
} rl_reward_column;

typedef struct {
    uint64_t step;
    RL_LIST(const rl_reward_column) rewards;
    rl_u32s prompt_of;
    rl_bools finished;
    rl_u32s offsets;
    rl_u8s mask;
    rl_f32s logp;
    rl_maybe_f32s ref_logp, values, entropy;
} rl_rollouts;

typedef struct {
    rl_f32s advantages;
    rl_maybe_f32s returns;
    rl_maybe_u8s mask;
    rl_metrics metrics;
} rl_advantages;

typedef struct {
    uint64_t step;
    rl_u32s offsets;
    rl_u8s mask;
    rl_f32s advantages, logp, old_logp;
    rl_maybe_f32s ref_logp, sampling_logp, entropy, values, old_values, returns;
    rl_scale scale;
} rl_tokens;

typedef struct {
    double loss;
    rl_f32s d_logp;
    rl_maybe_f32s d_entropy, d_values;
    rl_metrics metrics;
} rl_gradient;

// A plugin defines

rl_info describe(void);
bool configure(rl_string config, rl_error *error);
#ifdef RLHOST_REWARD
bool score(const rl_batch *batch, rl_scores *scores, rl_error *error);
#endif
#ifdef RLHOST_POLICY
bool estimate(const rl_rollouts *rollouts, rl_advantages *advantages, rl_error *error);
bool loss(const rl_tokens *tokens, rl_gradient *gradient, rl_error *error);
#endif

// A plugin calls

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

RL_EXPORT("plugin@0.1.0#describe") const void *rl_describe(void) {
    static rl_info info;
    info = describe();
    return &info;
}

RL_AFTER("plugin@0.1.0#describe") void rl_after_describe(const void *) { rl_free_all(); }

RL_EXPORT("plugin@0.1.0#configure") const void *rl_configure(const char *config, size_t len) {
    static struct {
        bool failed;
        rl_error error;
    } result;
    rl_string text = {config, len};
    result.failed = !configure(text, &result.error);
    return &result;
}

RL_AFTER("plugin@0.1.0#configure") void rl_after_configure(const void *) { rl_free_all(); }

#ifdef RLHOST_REWARD
RL_EXPORT("reward@0.1.0#score")
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

RL_AFTER("reward@0.1.0#score") void rl_after_score(const void *) { rl_free_all(); }
#endif

#ifdef RLHOST_POLICY
RL_EXPORT("policy@0.1.0#estimate") const void *rl_estimate(const rl_rollouts *rollouts) {
    RL_RESULT(rl_advantages) result;
    rl_advantages advantages = {};
    rl_error error = {};
    result.failed = !estimate(rollouts, &advantages, &error);
    if (result.failed)
        result.error = error;
    else
        result.ok = advantages;
    return &result;
}

RL_AFTER("policy@0.1.0#estimate") void rl_after_estimate(const void *) { rl_free_all(); }

RL_EXPORT("policy@0.1.0#loss") const void *rl_loss(const rl_tokens *tokens) {
    RL_RESULT(rl_gradient) result;
    rl_gradient gradient = {};
    rl_error error = {};
    result.failed = !loss(tokens, &gradient, &error);
    if (result.failed)
        result.error = error;
    else
        result.ok = gradient;
    return &result;
}

RL_AFTER("policy@0.1.0#loss") void rl_after_loss(const void *) { rl_free_all(); }
#endif

#ifdef __cplusplus
}
#endif
