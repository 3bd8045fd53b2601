// A script: its module, its public functions, and the state that it keeps.

import { transform } from "./sucrase.js";
import { Signature, SignatureError } from "./signature.js";

/** The script or what it is asked for is wrong. */
export class ScriptError extends Error {}

const BEFORE = "(function (exports, module, require, console) {";

const TYPED = /\.[mc]?ts$/;
const stemOf = (path) => path.replace(/\.[mc]?[jt]s$/, "");

/** Compiles a module to a function. Lines stay where they are. */
function compiled(path, source) {
  let code;
  try {
    const transforms = TYPED.test(path) ? ["typescript", "imports"] : ["imports"];
    code = transform(source, { transforms, preserveDynamicImport: true, production: true, disableESTransforms: true, filePath: path }).code;
  } catch (error) {
    throw new ScriptError(error.message.replace(/^Error transforming /, ""));
  }
  return (0, eval)(`${BEFORE}${code}\n})`);
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

export class Script {
  constructor(name, source, modules, console) {
    this.name = name.split("/").pop() || "script.js";
    this.source = source;
    this.files = modules;
    this.console = console;
    this.loaded = new Map();
    this.exports = this.run(this.name, source);
  }

  isOf(name, source, modules) {
    const same = this.name === (name.split("/").pop() || "script.js") && this.source === source;
    return same && JSON.stringify(this.files) === JSON.stringify(modules);
  }

  run(path, source) {
    const module = { exports: {} };
    this.loaded.set(path, module);
    compiled(path, source)(module.exports, module, (name) => this.required(path, name), this.console);
    return module.exports;
  }

  required(from, name) {
    const base = /^\.\.?\//.test(name) ? resolved(from, name) : name;
    const endings = ["", ".js", ".ts", ".mjs", "/index.js", "/index.ts"];
    const path = endings.map((ending) => base + ending).find((path) => Object.hasOwn(this.files, path));
    if (path === undefined) {
      const advice = name.startsWith("node:") ? "a script has no modules of Node" : "it did not come with the script";
      throw new ScriptError(`${from} imports ${name}: ${advice}`);
    }
    return this.loaded.get(path)?.exports ?? this.run(path, this.files[path]);
  }

  /** The script's public functions: those that `REWARDS` lists, or all that are exported. */
  functions() {
    const listed = this.exports.REWARDS;
    if (listed) return listed.map((entry) => this.function(typeof entry === "string" ? entry : entry.name));
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

  /** Returns the state as JSON, none if it keeps none. */
  snapshot() {
    if (this.exports.snapshot) return JSON.stringify(this.exports.snapshot());
    return this.exports.STATE === undefined ? "" : JSON.stringify(this.exports.STATE);
  }

  /** Takes over a snapshot, which another version of the script may have made. */
  restore(text) {
    if (!text || !this.keepsState()) return;
    const state = JSON.parse(text);
    if (this.exports.snapshot) {
      if (!this.exports.restore) throw new ScriptError(`${this.name} exports snapshot() and no restore(state)`);
      this.exports.restore(state);
      return;
    }
    // The module's other functions hold the object itself.
    const own = this.exports.STATE;
    if (Array.isArray(own)) own.length = 0;
    else for (const key of Object.keys(own)) delete own[key];
    Object.assign(own, state);
  }
}
