// Calls of a reward function with a batch.

import { ScriptError } from "./script.js";

/** The function can't be called with this batch. */
export class BatchError extends Error {}

/** What the function returned is no list of scores. */
export class AnswerError extends Error {}

/** The columns of a batch, one entry per completion, each made when it is first asked for. */
class Rows {
  constructor(batch) {
    this.batch = batch;
    this.columns = new Map(batch.columns.map(({ name, values }) => [name, values]));
    // With this column, the rows are conversations: it has the prompt's messages.
    const messages = this.columns.get("prompt")?.map((value) => JSON.parse(value));
    this.columns.delete("prompt");
    this.conversations = messages?.some(Array.isArray) ? messages : undefined;
  }

  spread(values) {
    return Array.from(this.batch.promptOf, (prompt) => values[prompt]);
  }

  column(name) {
    const values = this.columns.get(name);
    return values && this.spread(values.map((value) => JSON.parse(value)));
  }

  prompts() {
    return this.spread(this.conversations ?? this.batch.prompts);
  }

  completions() {
    const { completions, promptOf } = this.batch;
    if (!this.conversations) return completions;
    return completions.map((content, at) =>
      Array.isArray(this.conversations[promptOf[at]]) ? [{ role: "assistant", content }] : content,
    );
  }

  tokenIds() {
    const { tokenIds, offsets } = this.batch;
    return this.batch.completions.map((_, at) => Array.from(tokenIds.slice(offsets[at], offsets[at + 1])));
  }
}

export class Call {
  constructor(script, func, settings) {
    if (func.kind !== "reward") throw new ScriptError(`${func.name} in ${script.name} is no reward`);
    this.func = func;
    this.signature = func.signature;
    this.settings = settings;
    const unknown = Object.keys(settings).find((name) => !(name in this.signature.settings));
    if (unknown !== undefined) {
      const known = Object.keys(this.signature.settings).join(", ") || "none";
      throw new ScriptError(`${func.name} has no setting ${unknown}; it has: ${known}`);
    }
    this.row = undefined;
    this.metrics = new Map();
  }

  /** Returns the scores of a batch. */
  score(batch) {
    this.metrics.clear();
    this.row = undefined;
    const rows = new Rows(batch);
    const missing = this.signature.columns.find((name) => !rows.columns.has(name));
    if (missing !== undefined) {
      const known = [...rows.columns.keys()].join(", ") || "none besides prompt";
      throw new BatchError(`${this.func.name} takes ${missing}, which is no column of the dataset; it has: ${known}`);
    }
    const answer = this.signature.byRow ? this.byRow(batch, rows) : this.whole(batch, rows);
    return this.checked(answer, batch.completions.length);
  }

  given(rows, make) {
    const { signature } = this;
    const names = signature.takesRest ? [...rows.columns.keys()] : [...signature.columns, ...signature.optional, ...Object.keys(signature.settings)];
    const found = {};
    for (const name of names) {
      const values = name in signature.inputs ? undefined : rows.column(name);
      if (values) found[name] = values;
    }
    for (const name of signature.takesRest ? Object.keys(make).filter((name) => this.isSent(name)) : signature.taken) found[name] = make[name]();
    return found;
  }

  isSent(name) {
    return this.signature.readsIds || !this.signature.inputs[name].includes("token_ids");
  }

  whole(batch, rows) {
    const state = () => ({ global_step: Number(batch.step), globalStep: Number(batch.step) });
    const metric = () => (name, value) => this.metrics.set(name, [...(this.metrics.get(name) ?? []), Number(value)]);
    // Accepted and not kept: a reward of rlhost has no way to add to the table of completions.
    const extra = () => () => {};
    const ids = () => rows.tokenIds();
    const make = {
      prompts: () => rows.prompts(),
      completions: () => rows.completions(),
      completion_ids: ids,
      completionIds: ids,
      trainer_state: state,
      trainerState: state,
      log_metric: metric,
      logMetric: metric,
      log_extra: extra,
      logExtra: extra,
    };
    return this.func.call({ ...this.settings, ...this.given(rows, make) });
  }

  byRow(batch, rows) {
    const ids = () => rows.tokenIds();
    const make = { prompt: () => rows.spread(batch.prompts), completion: () => batch.completions, finished: () => batch.finished };
    if (!this.signature.takesRest) Object.assign(make, { token_ids: ids, tokenIds: ids });
    const given = this.given(rows, make);
    const texts = batch.completions;
    const names = Object.keys(given).filter((name) => name !== "completion" || !this.signature.separate);
    const { call } = this.func;
    const { separate } = this.signature;
    const needsRow = names.length > 0 || Object.keys(this.settings).length > 0;
    const answers = [];
    for (let at = 0; at < texts.length; at++) {
      this.row = at;
      if (!needsRow) {
        answers.push(call(texts[at]));
        continue;
      }
      const row = { ...this.settings };
      for (const name of names) row[name] = given[name][at];
      answers.push(separate ? call(texts[at], row) : call(row));
    }
    this.row = undefined;
    return answers;
  }

  checked(answer, count) {
    const { name } = this.func;
    // The runtime runs no jobs after a call of the contract, so a promise would never be kept.
    if ([answer, answer?.[0]].some((value) => typeof value?.then === "function")) {
      throw new AnswerError(`${name} is asynchronous, which functions in JavaScript can't be here: remove async and await`);
    }
    if (answer === null || typeof answer !== "object" || typeof answer[Symbol.iterator] !== "function") {
      throw new AnswerError(`${name} returned ${answer === null ? "null" : typeof answer}, not a list of scores`);
    }
    const scores = Array.from(answer);
    if (scores.length !== count) throw new AnswerError(`${name} returned ${scores.length} scores for ${count} completions`);
    for (let at = 0; at < count; at++) {
      const score = scores[at];
      if (score === null || score === undefined) {
        scores[at] = null;
        continue;
      }
      const number = typeof score === "number" ? score : typeof score === "boolean" ? Number(score) : undefined;
      if (number === undefined) {
        throw new AnswerError(`${name} returned ${JSON.stringify(score)} for completion ${at}, not a number or null`);
      }
      scores[at] = Number.isNaN(number) ? null : number;
    }
    return scores;
  }
}
