// REINFORCE with a batch baseline: every token's advantage is its row's weighted reward less the
// mean over the batch, and the loss is -advantage * logp, averaged over the step's tokens.

#define RLHOST_ALGORITHM
#define RLHOST_ESTIMATOR
#include "rlhost.h"

static const rl_string needs[] = {RL_TEXT("logp"), RL_TEXT("advantage")};

rl_info describe(void) {
    return (rl_info){
        .name = rl_text("reinforce-c"),
        .version = rl_text("0.1.0"),
        .description = rl_text("REINFORCE with the batch's mean reward as baseline"),
        .config_schema = rl_text("{\"type\": \"object\", \"additionalProperties\": false}"),
        .needs = RL_ALL(needs),
        .stateless = true,
    };
}

// Without settings there is nothing that the host's check against the schema leaves to do.
bool configure(rl_string config, rl_error *error) {
    (void)config, (void)error;
    return true;
}

static const rl_string estimated[] = {RL_TEXT("advantage"), RL_TEXT("mask")};

bool describe_data(rl_data *data, rl_error *error) {
    (void)error;
    *data = (rl_data){.source = RL_FROM_EITHER, .shape = RL_COMPLETIONS, .estimates = RL_ALL(estimated)};
    return true;
}

typedef struct {
    bool scored;
    double value;
} total;

static float *zeros(size_t count) {
    float *values = rl_alloc(count * sizeof *values);
    memset(values, 0, count * sizeof *values);
    return values;
}

static rl_column of_tokens(const char *name, float *values, size_t count) {
    return (rl_column){.name = rl_text(name), .unit = RL_TOKEN, .values = {values, count}};
}

bool estimate(const rl_batch *generation, rl_weighted_rewards rewards, rl_estimates *answer, rl_error *error) {
    size_t rows = generation->tokens.len - 1, tokens = generation->mask.len;
    total *totals = rl_alloc(rows * sizeof *totals);
    memset(totals, 0, rows * sizeof *totals);
    // A row's weighted rewards, summed over those that score it.
    for (size_t r = 0; r < rewards.len; r++) {
        const rl_column *scores = rl_scores_of(generation, rewards.ptr[r].name);
        if (!scores) return rl_fail(error, RL_INPUT, "a reward has no scores");
        for (size_t row = 0; row < rows; row++) {
            if (rl_is_missing(scores, row)) continue;
            totals[row].scored = true;
            totals[row].value += (double)rewards.ptr[r].weight * (double)scores->values.ptr[row];
        }
    }
    double sum = 0;
    size_t scored = 0;
    for (size_t row = 0; row < rows; row++) {
        sum += totals[row].value;
        scored += totals[row].scored;
    }

    float *advantages = zeros(tokens), *mask = zeros(tokens);
    for (size_t row = 0; row < rows; row++) {
        if (!totals[row].scored) continue;
        for (size_t token = generation->tokens.ptr[row]; token < generation->tokens.ptr[row + 1]; token++) {
            advantages[token] = (float)(totals[row].value - sum / (double)scored);
            mask[token] = generation->mask.ptr[token];
        }
    }
    rl_column *columns = rl_alloc(2 * sizeof *columns);
    columns[0] = of_tokens("advantage", advantages, tokens);
    columns[1] = of_tokens("mask", mask, tokens);
    answer->columns = (rl_columns){columns, 2};
    return true;
}

bool loss(const rl_batch *batch, rl_gradient *gradient, rl_error *error) {
    const rl_column *logp = rl_column_of(batch, "logp");
    if (!logp) return rl_fail(error, RL_INPUT, "the batch has no log-probabilities");
    // A dataset's completions have no advantages and count alike.
    const rl_column *advantages = rl_column_of(batch, "advantage");
    size_t count = batch->mask.len;
    double share = 1.0 / (double)(batch->scale.tokens ? batch->scale.tokens : 1);
    float *d_logp = zeros(count);
    for (size_t token = 0; token < count; token++) {
        if (!batch->mask.ptr[token]) continue;
        double derivative = -(advantages ? (double)advantages->values.ptr[token] : 1.0) * share;
        gradient->loss += derivative * (double)logp->values.ptr[token];
        d_logp[token] = (float)derivative;
    }
    rl_column *derivatives = rl_alloc(sizeof *derivatives);
    *derivatives = of_tokens("logp", d_logp, count);
    gradient->derivatives = (rl_columns){derivatives, 1};
    return true;
}
