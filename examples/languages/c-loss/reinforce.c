// REINFORCE with a batch baseline: every token's advantage is its row's weighted reward less the
// mean over the batch, and the loss is -advantage * logp, averaged over the step's tokens.

#define RLHOST_POLICY
#include "rlhost.h"

rl_info describe(void) {
    return (rl_info){
        .name = rl_text("reinforce-c"),
        .version = rl_text("0.1.0"),
        .description = rl_text("REINFORCE with the batch's mean reward as baseline"),
        .config_schema = rl_text("{\"type\": \"object\", \"additionalProperties\": false}"),
        .stateless = true,
    };
}

// Without settings there is nothing that the host's check against the schema leaves to do.
bool configure(rl_string config, rl_error *error) {
    (void)config, (void)error;
    return true;
}

typedef struct {
    bool scored;
    double value;
} total;

// A row's weighted rewards, summed over the columns that score it.
static total total_of(const rl_rollouts *rollouts, size_t row) {
    total sum = {};
    for (size_t c = 0; c < rollouts->rewards.len; c++) {
        const rl_reward_column *column = &rollouts->rewards.ptr[c];
        rl_maybe_f32 reward = column->values.ptr[row];
        if (!reward.some) continue;
        sum.scored = true;
        sum.value += (double)column->weight * (double)reward.value;
    }
    return sum;
}

bool estimate(const rl_rollouts *rollouts, rl_advantages *answer, rl_error *error) {
    (void)error;
    size_t rows = rollouts->prompt_of.len, tokens = rollouts->mask.len;
    total *totals = rl_alloc(rows * sizeof *totals);
    double sum = 0;
    size_t scored = 0;
    for (size_t row = 0; row < rows; row++) {
        totals[row] = total_of(rollouts, row);
        sum += totals[row].value;
        scored += totals[row].scored;
    }

    float *advantages = rl_alloc(tokens * sizeof *advantages);
    uint8_t *mask = rl_alloc(tokens);
    for (size_t row = 0; row < rows; row++) {
        for (size_t token = rollouts->offsets.ptr[row]; token < rollouts->offsets.ptr[row + 1]; token++) {
            advantages[token] = totals[row].scored ? (float)(totals[row].value - sum / (double)scored) : 0;
            mask[token] = totals[row].scored ? rollouts->mask.ptr[token] : 0;
        }
    }
    answer->advantages.ptr = advantages;
    answer->advantages.len = tokens;
    answer->mask.some = true;
    answer->mask.value.ptr = mask;
    answer->mask.value.len = tokens;
    return true;
}

bool loss(const rl_tokens *tokens, rl_gradient *gradient, rl_error *error) {
    (void)error;
    size_t count = tokens->mask.len;
    double share = 1.0 / (double)(tokens->scale.tokens ? tokens->scale.tokens : 1);
    float *d_logp = rl_alloc(count * sizeof *d_logp);
    for (size_t token = 0; token < count; token++) {
        d_logp[token] = 0;
        if (!tokens->mask.ptr[token]) continue;
        double derivative = -(double)tokens->advantages.ptr[token] * share;
        gradient->loss += derivative * (double)tokens->logp.ptr[token];
        d_logp[token] = (float)derivative;
    }
    gradient->d_logp.ptr = d_logp;
    gradient->d_logp.len = count;
    return true;
}
