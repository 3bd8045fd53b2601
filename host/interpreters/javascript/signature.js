// What a function's parameters say: which inputs it reads, which of them are settings, and how it is called.

export const BATCH_INPUTS = {
  prompts: ["prompt_text", "dataset_columns"],
  completions: ["completion_text", "dataset_columns"],
  completion_ids: ["token_ids"],
  completionIds: ["token_ids"],
  trainer_state: [],
  trainerState: [],
  log_extra: [],
  logExtra: [],
  log_metric: [],
  logMetric: [],
};
// A function of one row gets texts, from conversations too.
export const ROW_INPUTS = {
  prompt: ["prompt_text"],
  completion: ["completion_text"],
  token_ids: ["token_ids"],
  tokenIds: ["token_ids"],
  finished: [],
};
export const ALL_NEEDS = ["prompt_text", "completion_text", "token_ids", "dataset_columns"];

/** A function can't be used as it is written. */
export class SignatureError extends Error {}

const OPEN = "([{";
const CLOSE = ")]}";

/** Returns the index after the string, template or comment that starts here, or the same index if none does. */
function skipped(text, at) {
  const two = text.slice(at, at + 2);
  if (two === "//") return text.indexOf("\n", at) < 0 ? text.length : text.indexOf("\n", at) + 1;
  if (two === "/*") return text.indexOf("*/", at + 2) < 0 ? text.length : text.indexOf("*/", at + 2) + 2;
  const quote = text[at];
  if (quote !== '"' && quote !== "'" && quote !== "`") return at;
  for (let i = at + 1; i < text.length; i++) {
    if (text[i] === "\\") i++;
    else if (text[i] === quote) return i + 1;
  }
  return text.length;
}

/** Splits a bracket's content at commas; returns the parts, without comments, and the index after the closing bracket. */
function parts(text, start) {
  const found = [];
  let depth = 0;
  let part = "";
  for (let at = start + 1; at < text.length; ) {
    const next = skipped(text, at);
    if (next > at) {
      if (text[at] !== "/") part += text.slice(at, next);
      at = next;
      continue;
    }
    const char = text[at];
    if (depth === 0 && CLOSE.includes(char)) {
      if (part.trim()) found.push(part.trim());
      return { found, end: at + 1 };
    }
    if (depth === 0 && char === ",") {
      found.push(part.trim());
      part = "";
    } else {
      depth += OPEN.includes(char) ? 1 : CLOSE.includes(char) ? -1 : 0;
      part += char;
    }
    at++;
  }
  return { found, end: text.length };
}

/** Returns the texts of a function's parameters. */
function parameters(callable) {
  const text = Function.prototype.toString.call(callable);
  const arrow = /^(?:async\s+)?([A-Za-z_$][\w$]*)\s*=>/.exec(text);
  if (arrow) return [arrow[1]];
  const open = text.indexOf("(");
  return open < 0 ? [] : parts(text, open).found;
}

const LITERAL = /^(?:-?[\d.][\w.]*|true|false|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')$/;

/** Returns the value of a default that is a number, a text or a truth value. */
function literal(text) {
  if (LITERAL.test(text)) return (0, eval)(`(${text})`);
  if (!text.startsWith("[")) return undefined;
  const items = parts(text, 0).found;
  return items.every((item) => LITERAL.test(item)) ? (0, eval)(`(${text})`) : undefined;
}

const typeOf = (value) => (Number.isInteger(value) ? "integer" : typeof value);

function schemaOf(value) {
  if (!Array.isArray(value)) return { type: typeOf(value), default: value };
  const types = new Set(value.map(typeOf));
  return { type: "array", ...(types.size === 1 ? { items: { type: [...types][0] } } : {}), default: value };
}

/** Reads the entries of a destructured parameter. */
function entries(pattern) {
  const read = { names: [], defaults: {}, rest: false };
  for (const entry of parts(pattern, 0).found) {
    if (entry.startsWith("...")) {
      read.rest = true;
      continue;
    }
    const name = /^(?:"([^"]+)"|'([^']+)'|([\p{ID_Start}$_][\p{ID_Continue}$]*))/u.exec(entry);
    if (!name) throw new SignatureError(`its parameter ${entry} has no name`);
    const found = name[1] ?? name[2] ?? name[3];
    read.names.push(found);
    const given = /^\s*(?::[^=]*)?=(?![=>])\s*([\s\S]*)$/.exec(entry.slice(name[0].length));
    if (given) read.defaults[found] = given[1].trim();
  }
  return read;
}

/** How a function is called. */
export class Signature {
  constructor(callable, text) {
    this.readsIds = /completion_?ids/i.test(text);
    const [first, second] = parameters(callable);
    if (first === undefined) throw new SignatureError("it has no parameter");
    // (completion), (completion, row) and (completion, { answer }): the completion comes first.
    this.separate = !first.startsWith("{") && /^completion\b/.test(first) && !/^completions\b/.test(first);
    const pattern = this.separate ? second : first;
    const read = pattern?.startsWith("{") ? entries(pattern) : { names: [], defaults: {}, rest: pattern !== undefined };
    const names = new Set(read.names);
    const whole = ["prompts", "completions", "completion_ids", "completionIds"].some((name) => names.has(name));
    this.byRow = this.separate || (names.has("completion") && !whole);
    this.inputs = this.byRow ? ROW_INPUTS : BATCH_INPUTS;
    this.takesRest = read.rest;
    if (!this.byRow && !whole && !read.rest) throw new SignatureError("it takes neither completions nor completion");
    this.taken = read.names.filter((name) => name in this.inputs);
    if (this.separate) this.taken.push("completion");
    this.settings = {};
    this.columns = [];
    this.optional = [];
    for (const name of read.names.filter((name) => !(name in this.inputs))) {
      const text = read.defaults[name];
      const value = text === undefined ? undefined : literal(text);
      if (text === undefined) this.columns.push(name);
      else if (value === undefined) this.optional.push(name);
      else this.settings[name] = schemaOf(value);
    }
    // Bounds and descriptions, which parameters of JavaScript don't have: `f.settings = { target: { minimum: 1 } }`.
    for (const [name, more] of Object.entries(callable.settings ?? {})) {
      if (!(name in this.settings)) throw new SignatureError(`its settings name ${name}, which is no parameter with a default`);
      this.settings[name] = { ...this.settings[name], ...more };
    }
  }

  /** What the host must send. */
  needs() {
    const wanted = new Set(this.taken.flatMap((name) => this.inputs[name]));
    // Token ids are most of a batch's bytes, so they are only sent to scripts that name them.
    if (this.takesRest) ALL_NEEDS.filter((need) => need !== "token_ids" || this.readsIds).forEach((need) => wanted.add(need));
    if (this.columns.length + this.optional.length > 0) wanted.add("dataset_columns");
    return ALL_NEEDS.filter((need) => wanted.has(need));
  }

  schema() {
    return { type: "object", properties: this.settings, additionalProperties: false };
  }
}
