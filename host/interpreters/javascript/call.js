// Calls of a reward function with a batch.

import { ScriptError } from "./script.js";
import { BATCH_INPUTS } from "./signature.js";

/** The function can't be called with this batch. */
export class BatchError extends Error {}

/** What the function returned is no list of scores. */
export class AnswerError extends Error {}

/** The columns of a batch in the script's realm, one entry per completion, each made when it is first asked for. */
class Rows {
  constructor(batch, realm) {
    this.batch = batch;
    this.realm = realm;
    this.columns = new Map(batch.columns.map(({ name, values }) => [name, values]));
    // With this column, the rows are conversations: it has the prompt's messages.
    const messages = this.columns.get("prompt")?.map((value) => realm.parse(value));
    this.columns.delete("prompt");
    this.conversations = messages?.some(Array.isArray) ? messages : undefined;
  }

  spread(values) {
    const { promptOf } = this.batch;
    return this.realm.list(Array.from(promptOf, (prompt) => values[prompt]));
  }

  column(name) {
    const values = this.columns.get(name);
    return values && this.spread(values.map((value) => this.realm.parse(value)));
  }

  prompts() {
    return this.spread(this.conversations ?? this.batch.prompts);
  }

  completions() {
    const { completions, promptOf } = this.batch;
    if (!this.conversations) return this.realm.list(completions);
    const shown = (content) => this.realm.list([this.realm.record({ role: "assistant", content })]);
    return this.realm.list(
      completions.map((content, at) => (Array.isArray(this.conversations[promptOf[at]]) ? shown(content) : content)),
    );
  }

  tokenIds() {
    const { tokenIds, offsets } = this.batch;
    return this.realm.list(this.batch.completions.map((_, at) => this.realm.list(tokenIds.slice(offsets[at], offsets[at + 1]))));
  }
}

/** Returns a value as JSON. */
function asJson(value) {
  try {
    return (JSON.stringify(value) ?? "null").toWellFormed();
  } catch {
    return "null";
  }
}

/** Returns why an argument can't be given. */
function elsewhere(name, rows) {
  if (name in BATCH_INPUTS) return "given to functions of a whole batch, which take completions, and not to those of a row";
  return `no column of the dataset; it has: ${[...rows.columns.keys()].join(", ") || "none besides prompt"}`;
}

export class Call {
  constructor(script, func, settings) {
    if (func.kind !== "reward") throw new ScriptError(`${func.name} in ${script.name} is no reward`);
    this.func = func;
    this.realm = script.realm;
    this.signature = func.signature;
    this.settings = settings;
    const unknown = Object.keys(settings).find((name) => !(name in this.signature.settings));
    if (unknown !== undefined) {
      const known = Object.keys(this.signature.settings).join(", ") || "none";
      throw new ScriptError(`${func.name} has no setting ${unknown}; it has: ${known}`);
    }
    this.row = undefined;
    this.metrics = new Map();
    // What the last batch logged beside each completion, as JSON.
    this.extra = new Map();
  }

  /** Returns the scores of a batch. */
  score(batch) {
    this.metrics.clear();
    this.extra.clear();
    this.row = undefined;
    const rows = new Rows(batch, this.realm);
    const missing = this.signature.columns.find((name) => !rows.columns.has(name));
    if (missing !== undefined) {
      throw new BatchError(`${this.func.name} takes ${missing}, which is ${elsewhere(missing, rows)}`);
    }
    try {
      const answer = this.signature.byRow ? this.byRow(batch, rows) : this.whole(batch, rows);
      return this.checked(answer, batch.completions.length);
    } finally {
      this.realm.rest();
    }
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
    const { realm } = this;
    const state = () => realm.record({ global_step: Number(batch.step), globalStep: Number(batch.step) });
    const metric = () => realm.wrap(([name, value]) => this.measured(String(name), Number(value)));
    const extra = () => realm.wrap(([column, values]) => this.logged(String(column), values, batch.completions.length));
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
    const answer = this.func.call(realm.record({ ...this.settings, ...this.given(rows, make) }));
    return realm.settled([answer])[0];
  }

  measured(name, value) {
    this.metrics.set(name, [...(this.metrics.get(name) ?? []), value]);
  }

  /** Keeps a value for each completion, null where JSON has no form for it. Returns what is wrong with them, if anything. */
  logged(name, values, count) {
    const given = Array.isArray(values) ? `${values.length} values` : `${values === null ? "null" : typeof values}, not an array`;
    if (given !== `${count} values`) return `log_extra(${JSON.stringify(name)}, ...) got ${given} for ${count} completions`;
    this.extra.set(name.toWellFormed(), Array.from(values, asJson));
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
      const fields = { ...this.settings };
      for (const name of names) fields[name] = given[name][at];
      const row = this.realm.record(fields);
      answers.push(separate ? call(texts[at], row) : call(row));
    }
    this.row = undefined;
    const kept = this.realm.settled(answers, (at) => {
      this.row = at;
    });
    return kept;
  }

  /** Returns what a function returned as scores. */
  checked(answer, count) {
    const numbers = plainNumbers(answer, count);
    if (numbers) return numbers;
    const { name } = this.func;
    const found = [];
    if (Array.isArray(answer)) {
      if (answer.length !== count) throw new AnswerError(`${name} returned ${answer.length} scores for ${count} completions`);
      for (let at = 0; at < count; at++) found.push(answer[at]);
    } else if (answer === null || typeof answer !== "object" || typeof answer[Symbol.iterator] !== "function") {
      throw new AnswerError(`${name} returned ${answer === null ? "null" : typeof answer}, not a list of scores`);
    } else {
      for (const score of answer) {
        found.push(score);
        if (found.length > count) throw new AnswerError(`${name} returned more than ${count} scores for ${count} completions`);
      }
      if (found.length < count) throw new AnswerError(`${name} returned ${found.length} scores for ${count} completions`);
    }
    return this.realm.settled(found).map((score, at) => this.numberOf(score, at));
  }

  numberOf(score, at) {
    if (score === null || score === undefined) return null;
    const number = typeof score === "number" ? score : typeof score === "boolean" ? Number(score) : undefined;
    if (number === undefined) {
      throw new AnswerError(`${this.func.name} returned ${brief(score)} for completion ${at}, not a number or null`);
    }
    if (Math.abs(number) > LARGEST) throw new AnswerError(`${this.func.name} returned ${number} for completion ${at}, too large for a score`);
    return Number.isNaN(number) ? null : number;
  }
}

/** Returns the scores of an array of numbers in range, for which this is much faster; undefined for any other answer. */
function plainNumbers(answer, count) {
  if (!Array.isArray(answer) || answer.length !== count) return undefined;
  const numbers = new Array(count);
  for (let at = 0; at < count; at++) {
    const score = answer[at];
    if (typeof score !== "number" || !(score >= -LARGEST && score <= LARGEST)) return undefined;
    numbers[at] = score;
  }
  return numbers;
}

const LONGEST_VALUE = 100;

// Scores are passed on as 32-bit numbers.
const LARGEST = 3.4028234663852886e38;

/** Returns a value in few words; nothing of the script's is called. */
function brief(value) {
  if (typeof value === "string") return JSON.stringify(value.slice(0, LONGEST_VALUE));
  if (typeof value === "bigint") return `${value}n`;
  return Array.isArray(value) ? "a list" : typeof value === "object" ? "an object" : `a ${typeof value}`;
}
