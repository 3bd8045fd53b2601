// A script: its module, its public functions, and the state that it keeps.

import { Realm } from "./realm.js";
import { transform } from "./sucrase.js";
import { Signature, SignatureError } from "./signature.js";

/** The script or what it is asked for is wrong. */
export class ScriptError extends Error {}

const BEFORE = "(function (exports, module, require) {";

const TYPED = /\.[mc]?ts$/;
const stemOf = (path) => path.replace(/\.[mc]?[jt]s$/, "");

/** Compiles a module to a function's text. Lines stay where they are. */
function compiled(path, source) {
  let code;
  try {
    const transforms = TYPED.test(path) ? ["typescript", "imports"] : ["imports"];
    code = transform(source, { transforms, preserveDynamicImport: false, production: true, disableESTransforms: true, filePath: path }).code;
  } catch (error) {
    throw new ScriptError(error.message.replace(/^Error transforming /, ""));
  }
  return `${BEFORE}${code}\n})`;
}

/** Joins a module's folder and what it imports. */
function resolved(from, name) {
  const steps = from.split("/").slice(0, -1);
  for (const step of name.split("/")) {
    if (step === "..") steps.pop();
    else if (step !== ".") steps.push(step);
  }
  return steps.join("/");
}

/** What to use instead of a module that a script can't import. */
const INSTEAD = {
  fetch: "a script has no network; ask a server with a plugin that may (the judge reward)",
  fs: "a script has no files",
  path: "a script has no files",
  child_process: "a script starts no processes",
  worker_threads: "rlhost divides the rows of a stateless function itself (export const STATELESS = true)",
  http: "a script has no network; ask a server with a plugin that may (the judge reward)",
  https: "a script has no network; ask a server with a plugin that may (the judge reward)",
  axios: "a script has no network; ask a server with a plugin that may (the judge reward)",
  openai: "a script has no network; ask a server with a plugin that may (the judge reward)",
  mathjs: "use Math",
};

function advice(name) {
  const bare = name.replace(/^node:/, "");
  if (Object.hasOwn(INSTEAD, bare)) return INSTEAD[bare];
  return name.startsWith("node:") ? "a script has no modules of Node" : "it did not come with the script";
}

/** Returns the items of a list of the script's, whatever it did to lists. */
export function itemsOf(list, most = 1000) {
  const items = [];
  for (let at = 0; at < Math.min(list.length, most); at++) items.push(list[at]);
  return items;
}

export class Script {
  /** `print` gets what the script prints. */
  constructor(name, source, modules, print) {
    this.name = name.split("/").pop() || "script.js";
    this.source = source;
    this.files = modules;
    this.realm = new Realm(print);
    this.loaded = new Map();
    this.exports = this.run(this.name, source);
    this.realm.rest();
  }

  isOf(name, source, modules) {
    const same = this.name === (name.split("/").pop() || "script.js") && this.source === source;
    return same && JSON.stringify(this.files) === JSON.stringify(modules);
  }

  run(path, source) {
    const module = this.realm.record({ exports: this.realm.record({}) });
    this.loaded.set(path, module);
    const require = this.realm.wrap(([name], give) => give(this.required(path, String(name))));
    this.realm.evaluate(compiled(path, source), path)(module.exports, module, require);
    return module.exports;
  }

  required(from, name) {
    const base = /^\.\.?\//.test(name) ? resolved(from, name) : name;
    const endings = ["", ".js", ".ts", ".mjs", "/index.js", "/index.ts"];
    const path = endings.map((ending) => base + ending).find((path) => Object.hasOwn(this.files, path));
    if (path === undefined) throw new ScriptError(`${from} imports ${name}: ${advice(name)}`);
    return this.loaded.get(path)?.exports ?? this.run(path, this.files[path]);
  }

  /** The script's public functions: those that `REWARDS` lists, or all that are exported. */
  functions() {
    const listed = this.exports.REWARDS;
    if (listed) return itemsOf(listed).map((entry) => this.function(typeof entry === "string" ? entry : entry.name));
    const names = Object.keys(this.exports).filter((name) => typeof this.exports[name] === "function");
    return names.filter((name) => !["snapshot", "restore"].includes(name)).map((name) => this.made(name));
  }

  function(name) {
    const known = Object.keys(this.exports).filter((name) => typeof this.exports[name] === "function");
    const found = known.includes(name) || (name === this.defaultName() && known.includes("default") && "default");
    if (!found) throw new ScriptError(`${this.name} exports no function ${name}; it exports: ${known.join(", ") || "none"}`);
    return this.made(found === true ? name : found);
  }

  defaultName() {
    const own = this.exports.default?.name;
    return own && own !== "default" && own !== "_default" ? own : stemOf(this.name);
  }

  made(name) {
    const call = this.exports[name];
    const shown = name === "default" ? this.defaultName() : name;
    try {
      const signature = new Signature(call, [this.source, ...Object.values(this.files)].join("\n"));
      const stateless = Boolean(this.exports.STATELESS);
      return { name: shown, call, signature, stateless, kind: "reward" };
    } catch (error) {
      if (error instanceof SignatureError) throw new ScriptError(`${shown} in ${this.name} can't be a reward: ${error.message}`);
      throw error;
    }
  }

  only() {
    const rewards = this.functions().filter(({ kind }) => kind === "reward");
    if (rewards.length === 1) return rewards[0];
    if (rewards.length === 0) {
      throw new ScriptError(
        `${this.name} has no reward: write export function NAME({ completions }), which returns a score for each completion, or ` +
          `export function NAME(completion), which returns one`,
      );
    }
    const names = rewards.map(({ name }) => name).join(", ");
    throw new ScriptError(`${this.name} has ${rewards.length} rewards (${names}): name one, as in ${this.name}:${rewards[0].name}`);
  }

  keepsState() {
    return this.exports.STATE !== undefined || this.exports.snapshot !== undefined;
  }

  /** Calls a function of the script's, and waits if it is asynchronous. */
  called(name, ...values) {
    return this.realm.settled([this.exports[name](...values)])[0];
  }

  /** Returns the state as JSON, none if it keeps none. */
  snapshot() {
    if (this.exports.snapshot) return this.realm.stringify(this.called("snapshot"));
    return this.exports.STATE === undefined ? "" : this.realm.stringify(this.exports.STATE);
  }

  /** Takes over a snapshot, which another version of the script may have made. */
  restore(text) {
    if (!text || !this.keepsState()) return;
    const state = this.realm.parse(text);
    if (this.exports.snapshot) {
      if (!this.exports.restore) throw new ScriptError(`${this.name} exports snapshot() and no restore(state)`);
      this.called("restore", state);
      return;
    }
    // The module's other functions hold the object itself.
    const own = this.exports.STATE;
    if (Array.isArray(own)) own.length = 0;
    else for (const key of Object.keys(own)) delete own[key];
    Object.assign(own, state);
  }
}
