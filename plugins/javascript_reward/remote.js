// A cell as the judge sees it, and what stands for the functions and objects in it.

import * as cells from "rlhost:plugin/cells@0.2.0";
import { BadTests, Died, Failed } from "./compare.js";
import { decode, encode, Unsupported } from "./values.js";

const FAILURES = { "out-of-time": "out_of_time", "out-of-memory": "out_of_memory" };
const ERRORS = { Error, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError };
// Known to the proxies' handlers alone.
const targets = new WeakMap();
// Of objects in cells.
const methods = new WeakSet();

/** The code does not parse. */
export class Unparsed extends Error {}

/** Returns what a failed call of a cell says. */
export function reason(error) {
  const failure = error?.payload ?? error?.val ?? error?.message ?? error;
  return FAILURES[failure] ?? String(failure);
}

/** Returns the name of a function or class of the code's that a test names. */
export const nameOf = (value) => targets.get(value)?.g;

/** A fresh instance with the code loaded. What it says is not trusted: any oddity is a failed test. */
export class Cell {
  constructor({ code, setup, settings, names = [], stdin = "" }) {
    this.timeout = settings.timeout_ms;
    this.isGone = false;
    try {
      this.number = cells.open(settings.memory_mb);
    } catch (error) {
      throw new BadTests(`no cell could be opened for it (${reason(error)})`);
    }
    try {
      this.loaded = this.ask({ op: "load", setup, code, stdin, names });
      if (this.loaded.unparsed === true) throw new Unparsed();
    } catch (error) {
      this.close();
      throw error;
    }
  }

  close() {
    this.isGone = true;
    cells.close(this.number);
  }

  ask(request) {
    let text;
    try {
      text = cells.ask(this.number, JSON.stringify(request), this.timeout);
    } catch (error) {
      this.isGone = true;
      throw new Died(reason(error));
    }
    const given = checked(() => JSON.parse(text));
    if (given === null || typeof given !== "object") throw new Failed("no object");
    return given;
  }

  defines(name) {
    return Array.isArray(this.loaded.names) && this.loaded.names.includes(name);
  }

  value(given) {
    return checked(() =>
      decode(given, (tag, inside) => {
        if (tag !== "r" || !Array.isArray(inside) || !Number.isInteger(inside[0])) throw new Failed("no reference");
        return this.remote({ r: inside[0] });
      }),
    );
  }

  get(request, given = []) {
    const answer = this.ask({ ...request, arguments: given.map((value) => encode(value, refer)) });
    raise(answer);
    const value = this.value(answer.value);
    if (value === undefined && Array.isArray(answer.changed)) this.writeBack(given, answer.changed);
    return value;
  }

  /** A function that gives nothing may have changed the lists it was given. */
  writeBack(given, changed) {
    given.forEach((value, i) => {
      const now = Array.isArray(value) ? this.value(changed[i] ?? null) : null;
      if (!Array.isArray(now)) return;
      value.length = 0;
      for (const item of now) value.push(item);
    });
  }

  /** Stands for a function or object in the cell. Only objects that a test makes with `new` have members: of one that a call gave,
   * a method could say yes to anything. */
  remote(target, isOwn = false) {
    const made = new Proxy(function () {}, {
      apply: (_, self, given) => this.get({ op: "call", target }, given),
      construct: (_, given) => this.constructed(target, given),
      get: (_, name) => (isOwn && typeof name === "string" ? this.member(target, name) : undefined),
      has: () => false,
      ownKeys: () => ["prototype"],
      getPrototypeOf: () => null,
      set: () => false,
      defineProperty: () => false,
      deleteProperty: () => false,
    });
    targets.set(made, target);
    return made;
  }

  constructed(target, given) {
    const answer = this.ask({ op: "construct", target, arguments: given.map((value) => encode(value, refer)) });
    raise(answer);
    const number = answer.value?.r?.[0];
    if (!Number.isInteger(number)) throw new Failed("no object");
    return this.remote({ r: number }, true);
  }

  member(target, name) {
    const value = this.get({ op: "member", target, name });
    if (!targets.has(value)) return value;
    const method = (...given) => this.get({ op: "method", target, name }, given);
    methods.add(method);
    return method;
  }
}

/** Stands for what neither the code nor a test defines. A call of it is a failed test, and no error that a test could wait for. */
export function absent(name) {
  const fail = () => {
    throw new Failed(`${name} is not defined`);
  };
  return new Proxy(function () {}, { apply: fail, construct: fail, get: fail });
}

/** What does not decode is a failed test, and no error that a test could wait for. */
function checked(read) {
  try {
    return read();
  } catch {
    throw new Failed("no value");
  }
}

/** Throws what the code threw. */
function raise({ raised, text }) {
  if (raised === undefined) return;
  const said = typeof text === "string" ? text : "";
  if (typeof raised === "string" && Object.hasOwn(ERRORS, raised)) throw new ERRORS[raised](said);
  const error = new Error(said);
  if (typeof raised === "string") error.name = raised;
  throw error;
}

function refer(value) {
  // Not the test's doing: the code may have made a method of what should be a value.
  if (methods.has(value)) throw new Failed("a method");
  const target = targets.get(value);
  if (target === undefined) throw new Unsupported(`a test passes a ${typeof value} of its own to the code`);
  return target;
}
