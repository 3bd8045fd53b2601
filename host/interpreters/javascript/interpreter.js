// The component: the contract of rlhost's plugins, for the script in the configuration.

import * as host from "rlhost:plugin/host@1.0.0";
import { AnswerError, BatchError, Call } from "./call.js";
import { ALL_NEEDS } from "./signature.js";
import { NeverError } from "./realm.js";
import { Script, ScriptError } from "./script.js";

const properties = {
  script: { type: "object", description: "The script: name, source, function and modules.", default: {} },
  settings: { type: "object", description: "The settings of the function.", default: {} },
};
const schema = { type: "object", properties, additionalProperties: false };

let script;
let call;

// A thrown value is the contract's error.
// Halves of characters can't be passed on.
const failure = (tag, text) => ({ tag, val: text.toWellFormed() });

const LONGEST_LINE = 4000;
const LONGEST_ROW = 240;
const LONGEST_ERROR = 1900;

const shown = (value) => {
  try {
    if (typeof value === "string") return value;
    if (typeof value === "symbol" || typeof value === "function") return String(value);
    if (isError(value)) return `${value}`;
    return script.realm.stringify(value) ?? String(value);
  } catch {
    return `a ${typeof value}`;
  }
};
// What a call printed, of which there may be no end.
const MOST_LINES = 1000;
let printed = 0;

function print(level, values) {
  let text = "";
  for (let at = 0; at < values.length; at++) text += (at > 0 ? " " : "") + shown(values[at]);
  for (const line of text.split("\n")) {
    printed += 1;
    if (printed === MOST_LINES) host.log("warn", `${script?.name ?? "the script"} printed ${MOST_LINES} lines; others of this call are left out`);
    if (printed < MOST_LINES) host.log(level, (line.length > LONGEST_LINE ? `${line.slice(0, LONGEST_LINE)}...` : line).toWellFormed());
  }
}

const isError = (value) => value !== null && typeof value === "object" && typeof value.stack === "string" && typeof value.message === "string";

/** Returns an error with the script's own frames. */
function trace(error, name, text) {
  const at = text === undefined ? "" : `\nat completion ${call.row}: ${JSON.stringify(text.slice(0, LONGEST_ROW))}`;
  let lines = `${name} threw ${shown(error)}`;
  try {
    if (isError(error)) {
      const own = error.stack.split("\n").filter((line) => line.trim() && !OF_GLUE.test(line));
      lines = [`${error.name}: ${error.message}`, ...own].join("\n");
    }
  } catch {
    // What it says of itself can't be read.
  }
  return (lines.length > LONGEST_ERROR ? `${lines.slice(0, LONGEST_ERROR)}\n...` : lines) + at;
}
// Files of the interpreter have paths, a script's have none or relative ones.
const OF_GLUE = /\(\/|\(native\)/;

function load(name, source, modules) {
  if (script?.isOf(name, source, modules)) return;
  call = undefined;
  try {
    script = undefined;
    script = new Script(name, source, modules, print);
  } catch (error) {
    throw failure("config", error instanceof ScriptError ? error.message : trace(error, name));
  }
}

const configured = (work) => {
  try {
    return work();
  } catch (error) {
    throw error instanceof ScriptError ? failure("config", error.message) : error;
  }
};

export const plugin = {
  describe() {
    if (!call) {
      const description = "A reward written in JavaScript";
      return { name: "javascript", version: "1.0.0", description, configSchema: JSON.stringify(schema), needs: ALL_NEEDS, stateless: false };
    }
    const { name, signature, stateless } = call.func;
    const settings = { ...signature.schema(), default: {} };
    const configSchema = JSON.stringify({ ...schema, properties: { ...properties, settings } });
    return { name, version: "1.0.0", description: `${name} of ${script.name}`, configSchema, needs: signature.needs(), stateless };
  },

  configure(config) {
    const { script: given = {}, settings } = JSON.parse(config);
    if (typeof given.source !== "string") throw failure("config", "there is no script: script.source is its text");
    load(given.name || "script.js", given.source, given.modules ?? {});
    configured(() => {
      call = new Call(script, given.function ? script.function(given.function) : script.only(), settings ?? {});
    });
  },
};

function contractError(error, batch) {
  if (error instanceof BatchError) return failure("input", error.message);
  if (error instanceof AnswerError || error instanceof ScriptError) return failure("internal", error.message);
  if (error instanceof NeverError) return failure("internal", `${call.func.name}: ${error.message}`);
  return failure("internal", trace(error, script.name, batch.completions[call.row]));
}

export const reward = {
  score(batch) {
    if (!call) throw failure("config", "there is no script");
    let rewards;
    printed = 0;
    try {
      rewards = call.score(batch);
    } catch (error) {
      throw contractError(error, batch);
    }
    const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
    const metrics = [...call.metrics].map(([name, values]) => ({ name: name.toWellFormed(), value: mean(values), weight: values.length, reduction: "mean" }));
    return { rewards, metrics };
  },
};

// JSON in ASCII, since QuickJS has no TextEncoder.
const bytesOf = (json) =>
  Uint8Array.from(json.replace(/[\u0080-\uffff]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`), (unit) =>
    unit.charCodeAt(0),
  );
const textOf = (bytes) => Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");

function withScript(work) {
  try {
    return script ? work() : undefined;
  } catch (error) {
    throw error instanceof ScriptError ? failure("config", error.message) : failure("internal", trace(error, script.name));
  }
}

export const state = {
  snapshot() {
    return bytesOf(withScript(() => script.snapshot()) ?? "");
  },
  restore(snapshot) {
    withScript(() => script.restore(textOf(snapshot)));
  },
};

const scriptInterface = {
  inspect(name, source, modules) {
    load(name, source, Object.fromEntries(modules.map(({ path, source }) => [path, source])));
    return configured(() =>
      script.functions().map(({ name, signature, stateless, kind }) => ({
        name,
        description: "",
        settingsSchema: JSON.stringify(signature.schema()),
        needs: signature.needs(),
        stateless,
        kind,
        columns: signature.columns,
      })),
    );
  },

  extra() {
    return call ? [...call.extra].map(([name, values]) => ({ name, values })) : [];
  },

  imported() {
    return [];
  },

  bytecode() {
    return [];
  },
};
export { scriptInterface as script };
