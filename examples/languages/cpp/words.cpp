// Prefers completions of a target number of words: -|words - target|, none without a word.

#define RLHOST_REWARD
#include "rlhost.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

using std::string_view;

namespace {

constexpr std::int64_t default_target = 20;
constexpr string_view spaces = " \t\n\r\v\f";

std::int64_t target = default_target;

string_view view(rl_string text) { return {text.ptr, text.len}; }

std::size_t count_words(string_view text) {
    std::size_t words = 0;
    for (auto start = text.find_first_not_of(spaces); start != text.npos; words++) {
        auto end = text.find_first_of(spaces, start);
        start = text.find_first_not_of(spaces, end);
    }
    return words;
}

// Just as much JSON as is needed here.
class Json {
public:
    explicit Json(string_view text) : rest(text) {}

    // Skips white space, and then `wanted` where it is there.
    bool skip(string_view wanted) {
        rest.remove_prefix(std::min(rest.find_first_not_of(" \t\n\r"), rest.size()));
        if (!rest.starts_with(wanted)) return false;
        rest.remove_prefix(wanted.size());
        return true;
    }

    std::optional<std::int64_t> integer() {
        skip("");
        std::int64_t value = 0;
        auto [end, failure] = std::from_chars(rest.begin(), rest.end(), value);
        if (failure != std::errc()) return std::nullopt;
        rest.remove_prefix(end - rest.begin());
        return value;
    }

    bool ends() { return skip("") && rest.empty(); }

private:
    string_view rest;
};

std::int64_t target_of(const rl_batch &batch, std::size_t row) {
    for (const rl_column &column : std::span(batch.columns.ptr, batch.columns.len)) {
        if (view(column.name) != "target") continue;
        Json json(view(column.values.ptr[batch.prompt_of.ptr[row]]));
        auto own = json.integer();
        if (own && json.ends()) return *own;
    }
    return target;
}

} // namespace

rl_info describe() {
    static constexpr rl_string needs[] = {RL_TEXT("completion_text"), RL_TEXT("dataset_columns")};
    return {
        .name = rl_text("words-cpp"),
        .version = rl_text("0.1.0"),
        .description = rl_text("Prefers completions of a target number of words"),
        .config_schema = rl_text(R"({"type": "object", "additionalProperties": false, "properties": {"target": {
            "description": "The number of words that scores highest.", "type": "integer", "minimum": 0, "default": 20}}})"),
        .needs = RL_ALL(needs),
        .stateless = true,
    };
}

bool configure(rl_string config, rl_error *error) {
    Json json(view(config));
    std::optional<std::int64_t> given = default_target;
    bool fits = json.skip("{");
    if (fits && json.skip("\"target\"")) {
        given = json.skip(":") ? json.integer() : std::nullopt;
    }
    if (!fits || !given || *given < 0 || !json.skip("}") || !json.ends()) {
        return rl_fail(error, RL_CONFIG, R"(expected {"target": N}, where N is an integer from 0)");
    }
    target = *given;
    return true;
}

bool score(const rl_batch *batch, rl_scores *scores, rl_error *) {
    std::size_t rows = batch->completions.len;
    auto *rewards = static_cast<rl_maybe_f32 *>(rl_alloc(rows * sizeof(rl_maybe_f32)));
    for (std::size_t row = 0; row < rows; row++) {
        std::int64_t words = count_words(view(batch->completions.ptr[row]));
        std::int64_t distance = words - target_of(*batch, row);
        rewards[row] = {.some = words > 0, .value = static_cast<float>(std::min(distance, -distance))};
    }
    scores->rewards = {rewards, rows};
    return true;
}
