// Prefers completions of a target number of words: -|words - target|, none without a word.

#define RLHOST_REWARD
#include "rlhost.h"

#define DEFAULT_TARGET 20

static int64_t target = DEFAULT_TARGET;

static const rl_string needs[] = {RL_TEXT("completion_text"), RL_TEXT("dataset_columns")};

rl_info describe(void) {
    return (rl_info){
        .name = rl_text("words-c"),
        .version = rl_text("0.1.0"),
        .description = rl_text("Prefers completions of a target number of words"),
        .config_schema = rl_text("{\"type\": \"object\", \"additionalProperties\": false, \"properties\": {\"target\": "
                                 "{\"description\": \"The number of words that scores highest.\", "
                                 "\"type\": \"integer\", \"minimum\": 0, \"default\": 20}}}"),
        .needs = RL_ALL(needs),
        .stateless = true,
    };
}

// Just as much JSON as is needed here; `text` moves on behind what was read.

static bool starts_with(rl_string *text, const char *wanted) {
    while (text->len && memchr(" \t\n\r", *text->ptr, 4)) text->ptr++, text->len--;
    size_t len = strlen(wanted);
    if (text->len < len || memcmp(text->ptr, wanted, len) != 0) return false;
    text->ptr += len;
    text->len -= len;
    return true;
}

static bool read_integer(rl_string *text, int64_t *value) {
    bool negative = starts_with(text, "-");
    size_t digits = 0;
    int64_t sum = 0;
    for (; digits < text->len && text->ptr[digits] >= '0' && text->ptr[digits] <= '9'; digits++) {
        if (digits == 15) return false;
        sum = 10 * sum + (text->ptr[digits] - '0');
    }
    if (digits == 0 || (digits > 1 && text->ptr[0] == '0')) return false;
    text->ptr += digits;
    text->len -= digits;
    *value = negative ? -sum : sum;
    return true;
}

static bool at_end(rl_string *text) { return starts_with(text, "") && text->len == 0; }

bool configure(rl_string config, rl_error *error) {
    int64_t given = DEFAULT_TARGET;
    bool fits = starts_with(&config, "{");
    if (fits && starts_with(&config, "\"target\"")) {
        fits = starts_with(&config, ":") && starts_with(&config, "") && read_integer(&config, &given) && given >= 0;
    }
    if (!fits || !starts_with(&config, "}") || !at_end(&config)) {
        return rl_fail(error, RL_CONFIG, "expected {\"target\": N}, where N is an integer from 0");
    }
    target = given;
    return true;
}

static int64_t count_words(rl_string text) {
    int64_t words = 0;
    bool inside = false;
    for (size_t i = 0; i < text.len; i++) {
        bool space = text.ptr[i] == ' ' || (text.ptr[i] >= '\t' && text.ptr[i] <= '\r');
        words += !space && !inside;
        inside = !space;
    }
    return words;
}

static int64_t target_of(const rl_batch *batch, size_t row) {
    for (size_t c = 0; c < batch->columns.len; c++) {
        const rl_column *column = &batch->columns.ptr[c];
        if (!rl_equal(column->name, "target")) continue;
        rl_string json = column->values.ptr[batch->prompt_of.ptr[row]];
        int64_t own;
        if (starts_with(&json, "") && read_integer(&json, &own) && at_end(&json)) return own;
    }
    return target;
}

bool score(const rl_batch *batch, rl_scores *scores, rl_error *error) {
    (void)error;
    size_t rows = batch->completions.len;
    rl_maybe_f32 *rewards = rl_alloc(rows * sizeof *rewards);
    for (size_t row = 0; row < rows; row++) {
        int64_t words = count_words(batch->completions.ptr[row]);
        rewards[row].some = words > 0;
        rewards[row].value = -llabs(words - target_of(batch, row));
    }
    scores->rewards.ptr = rewards;
    scores->rewards.len = rows;
    return true;
}
