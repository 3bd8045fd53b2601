// The judge: reads tests, has cells run the model's code, and compares. It runs tests, which are the dataset's, but no code of the
// model's, and takes values from cells as it would from a stranger.

import * as cells from "rlhost:plugin/cells@0.2.0";
import { decode, encode, Unsupported } from "./values.js";

export const COUNTED = ["all_passed", "unparsed", "out_of_time", "out_of_memory"];
const FAILURES = { "out-of-time": "out_of_time", "out-of-memory": "out_of_memory" };

export class BadTests extends Error {}
class Failed extends Error {}
class Unparsed extends Error {}
class Died extends Error {
  constructor(failure) {
    super(failure);
    this.what = FAILURES[failure] ?? "trapped";
  }
}

// Patterns would take long on longer lines.
const LONGEST_IMPORT = 300;
const ERRORS = { Error, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError };
// Known to the proxies' handlers alone.
const targets = new WeakMap();
// Of objects in cells.
const methods = new WeakSet();

/** A fresh instance with the code loaded. What it says is not trusted: any oddity is a failed test. */
class Cell {
  constructor(code, setup, settings, { stdin = "", names = [] } = {}) {
    this.timeout = settings.timeout_ms;
    try {
      this.number = cells.open(settings.memory_mb);
    } catch (error) {
      throw new BadTests(`no cell could be opened for it (${reason(error)})`);
    }
    try {
      this.loaded = this.ask({ op: "load", setup, code, stdin, names });
      if (this.loaded.unparsed) throw new Unparsed();
    } catch (error) {
      this.close();
      throw error;
    }
  }

  close() {
    cells.close(this.number);
  }

  ask(request) {
    let text;
    try {
      text = cells.ask(this.number, JSON.stringify(request), this.timeout);
    } catch (error) {
      throw new Died(reason(error));
    }
    const given = JSON.parse(text);
    if (given === null || typeof given !== "object") throw new Failed("no object");
    return given;
  }

  defines(name) {
    return Array.isArray(this.loaded.names) && this.loaded.names.includes(name);
  }

  value(given) {
    return decode(given, (tag, [number, kind]) => {
      if (tag !== "r" || !Number.isInteger(number)) throw new Failed("no reference");
      return this.remote({ r: number }, kind === "function" ? "function" : "object");
    });
  }

  get(request, given = []) {
    const answer = this.ask({ ...request, arguments: given.map((value) => encode(value, refer)) });
    if (answer.raised !== undefined) {
      const Kind = Object.hasOwn(ERRORS, answer.raised) ? ERRORS[answer.raised] : Error;
      throw new Kind(String(answer.text));
    }
    const value = this.value(answer.value);
    if (value === undefined && Array.isArray(answer.changed)) this.writeBack(given, answer.changed);
    return value;
  }

  writeBack(given, changed) {
    given.forEach((value, i) => {
      const now = Array.isArray(value) ? this.value(changed[i] ?? null) : null;
      if (Array.isArray(now)) value.splice(0, value.length, ...now);
    });
  }

  /** Stands for a function or object in the cell. Only objects that a test makes with `new` have members: of one that a call gave,
   * a method could say yes to anything. */
  remote(target, kind) {
    const own = kind === "own";
    const cell = this;
    const made = new Proxy(function () {}, {
      apply: (_, self, given) => cell.get({ op: "call", target }, given),
      construct: (_, given) => cell.constructed(target, given),
      get(_, name) {
        if (!own || typeof name !== "string") return undefined;
        return cell.member(target, name);
      },
      has: () => false,
      ownKeys: () => ["prototype"],
      getPrototypeOf: () => null,
    });
    targets.set(made, target);
    return made;
  }

  constructed(target, given) {
    const answer = this.ask({ op: "construct", target, arguments: given.map((value) => encode(value, refer)) });
    if (answer.raised !== undefined) throw new Error(String(answer.text));
    const number = answer.value?.r?.[0];
    if (!Number.isInteger(number)) throw new Failed("no object");
    return this.remote({ r: number }, "own");
  }

  member(target, name) {
    const value = this.get({ op: "member", target, name });
    if (!targets.has(value)) return value;
    const method = (...given) => this.get({ op: "method", target, name }, given);
    methods.add(method);
    return method;
  }
}

function reason(error) {
  return error?.payload ?? error?.val ?? error?.message ?? error;
}

function refer(value) {
  // Not the test's doing: the code may have made a method of what should be a value.
  if (methods.has(value)) throw new Failed("a method");
  const target = targets.get(value);
  if (target === undefined) throw new Unsupported(`a test passes a ${typeof value} of its own to the code`);
  return target;
}

/** Returns the code of a completion, or undefined. */
function block(text, extract) {
  if (extract === "whole") return text;
  let last;
  let inside;
  for (const line of text.split("\n")) {
    if (line.trimStart().startsWith("```")) {
      if (inside) [last, inside] = [inside.join("\n"), undefined];
      else inside = [];
    } else {
      inside?.push(line);
    }
  }
  return inside ? inside.join("\n") : last;
}

/** Turns a line of a module into one of a script, if it imports or exports. */
function asScript(line) {
  if (line.length > LONGEST_IMPORT) return line;
  if (/^[ \t]*export[ \t]*(\{[^}]*\}|default[ \t]+[\w$]+)[ \t]*;?[ \t\r]*$/.test(line)) return "";
  if (/^[ \t]*export[ \t]/.test(line)) return line.replace(/^[ \t]*export[ \t]+(default[ \t]+)?/, "");
  const [, names, from] = line.match(/^[ \t]*import[ \t]+([\w$*{},\t ]+?)[ \t]+from[ \t]*["']([\w:/.-]+)["'][ \t]*;?[ \t\r]*$/) ?? [];
  if (names === undefined) return line;
  const bound = names.replace(/^\*[ \t]+as[ \t]+/, "").replace(/[ \t]+as[ \t]+/g, ": ");
  return `const ${bound} = require("${from}");`;
}

/** Returns the score, or undefined, and what happened. */
export function score(row, completion, settings) {
  const run = testsOf(row);
  if (run.length === 0) return [undefined, []];
  const unparsed = [settings.unparsed_score, ["unparsed"]];
  const found = block(completion, settings.extract);
  if (found === undefined) return unparsed;
  const code = found.split("\n").map(asScript).join("\n");
  const setup = typeof row.setup === "string" ? row.setup : "";
  let passed = 0;
  const happened = new Set();
  for (const test of run) {
    try {
      test(code, setup, settings);
      passed += 1;
    } catch (error) {
      if (error instanceof Unparsed) return unparsed;
      if (error instanceof Unsupported) throw new BadTests(error.message);
      if (error instanceof BadTests) throw error;
      if (error instanceof Died) {
        if (COUNTED.includes(error.what)) happened.add(error.what);
        if (error.what === "out_of_time") break;
      }
    }
  }
  if (passed === run.length) happened.add("all_passed");
  return [settings.scoring === "fraction" ? passed / run.length : Number(passed === run.length), [...happened]];
}

/** Returns functions of (code, setup, settings), which throw unless their test passes. */
function testsOf(row) {
  let { tests } = row;
  if (typeof tests === "string" && /^\s*[[{]/.test(tests)) {
    try {
      tests = JSON.parse(tests);
    } catch {
      // A text that only begins like JSON.
    }
  }
  if (tests === null || tests === undefined || tests === "") return [];
  if (typeof tests === "string") return [piece(tests)];
  if (Array.isArray(tests.inputs) && Array.isArray(tests.outputs)) {
    const name = tests.fn_name;
    if (tests.inputs.length !== tests.outputs.length) throw new BadTests("inputs and outputs differ in number");
    tests = tests.inputs.map((input, i) =>
      name ? { function: name, args: input, expected: tests.outputs[i] } : { input, output: tests.outputs[i] },
    );
  }
  if (!Array.isArray(tests)) throw new BadTests("expected a text, a list of assertions, or a list of cases");
  return tests.map((test) => (typeof test === "string" ? piece(test) : testCase(test, row)));
}

const WORDS = /[A-Za-z_$][\w$]*/g;

/** A test of statements, or an expression that must be true. */
function piece(text) {
  const own = { assert: assertions(), console: { assert: (given, said) => assertions()(given, said), log() {} } };
  const names = [...new Set(text.match(WORDS) ?? [])].filter((name) => {
    if (name in globalThis || name in own || name.startsWith("__")) return false;
    try {
      new Function(name, "");
      return true;
    } catch {
      return false;
    }
  });
  const declared = (name) => new RegExp(`\\b(?:const|let|var|function|class)\\s+${name.replace(/\$/g, "\\$")}\\b`).test(text);
  return (code, setup, settings) => {
    const cell = new Cell(code, setup, settings, { names });
    try {
      const theirs = names.filter((name) => cell.defines(name) && !declared(name));
      const values = theirs.map((name) => cell.remote({ g: name }, "function"));
      const parameters = [...Object.keys(own), ...theirs];
      const given = [...Object.values(own), ...values];
      const [run, isExpression] = compiled(parameters, text);
      if (!run(...given) && isExpression) throw new Failed("false");
    } finally {
      cell.close();
    }
  };
}

function compiled(parameters, text) {
  try {
    // An assertion gives undefined, so only what is no call of one must be true.
    const isAssertion = /^\s*(console\s*\.\s*)?assert\b/.test(text);
    return [new Function(...parameters, `"use strict"; return (${text.trim().replace(/;+$/, "")}\n)`), !isAssertion];
  } catch {
    // Not an expression.
  }
  try {
    return [new Function(...parameters, text), false];
  } catch (error) {
    throw new BadTests(`a test does not parse: ${error.message}`);
  }
}

/** Node's `assert`, as far as tests use it. */
function assertions() {
  const check = (good) => {
    if (!good) throw new Failed("an assertion");
  };
  const throws = (act) => {
    try {
      act();
    } catch (error) {
      return !(error instanceof Failed || error instanceof Died || error instanceof Unsupported);
    }
    return false;
  };
  const assert = (good) => check(good);
  const deep = (a, b) => check(same(a, b));
  return Object.assign(assert, {
    ok: assert,
    equal: (a, b) => check(a === b || (Number.isNaN(a) && Number.isNaN(b))),
    notEqual: (a, b) => check(a !== b),
    strictEqual: (a, b) => check(Object.is(a, b)),
    notStrictEqual: (a, b) => check(!Object.is(a, b)),
    deepEqual: deep,
    deepStrictEqual: deep,
    notDeepEqual: (a, b) => check(!same(a, b)),
    notDeepStrictEqual: (a, b) => check(!same(a, b)),
    throws: (act) => check(throws(act)),
    doesNotThrow: (act) => act(),
  });
}

function same(a, b) {
  if (Object.is(a, b)) return true;
  if (a === null || b === null || typeof a !== "object" || typeof b !== "object") return false;
  if (Object.getPrototypeOf(a) !== Object.getPrototypeOf(b)) return false;
  if (Array.isArray(a)) return a.length === b.length && a.every((value, i) => same(value, b[i]));
  if (a instanceof Date) return Object.is(a.getTime(), b.getTime());
  if (a instanceof Set) return a.size === b.size && [...a].every((x) => b.has(x) || [...b].some((y) => same(x, y)));
  if (a instanceof Map) return a.size === b.size && [...a].every(([k, v]) => b.has(k) && same(v, b.get(k)));
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && same(a[key], b[key]));
}

function testCase(test, row) {
  if (test === null || typeof test !== "object") throw new BadTests("a case must be an object");
  if ("expected" in test) {
    const name = test.function ?? test.name ?? row.entryPoint;
    const given = test.args ?? [];
    if (typeof name !== "string" || !/^[A-Za-z_$][\w$]*$/.test(name) || !Array.isArray(given)) {
      throw new BadTests("a case needs a function (its name, or the row's entry_point), args and expected");
    }
    return (code, setup, settings) => {
      const cell = new Cell(code, setup, settings);
      try {
        const value = cell.get({ op: "function", name }, given);
        if (!equal(value, test.expected, settings.tolerance)) throw new Failed("another value");
      } finally {
        cell.close();
      }
    };
  }
  if (typeof test.input === "string" && typeof test.output === "string") {
    return (code, setup, settings) => {
      const cell = new Cell(code, setup, settings, { stdin: test.input });
      cell.close();
      const { raised, stdout } = cell.loaded;
      if ((raised !== null && raised !== "exit") || lines(stdout) !== lines(test.output)) throw new Failed("another output");
    };
  }
  throw new BadTests("a case needs function, args and expected, or input and output");
}

/** The text without spaces at lines' ends and without empty lines at its end. */
const lines = (text) => String(text).split("\n").map((line) => line.trimEnd()).join("\n").trimEnd();

/** Compares with a value of JSON. */
function equal(value, expected, tolerance) {
  if (value instanceof Set) return equal([...value].sort(), [...expected].sort(), tolerance);
  if (value instanceof Map) return equal(Object.fromEntries(value), expected, tolerance);
  if (typeof value === "bigint") return typeof expected === "number" && value === BigInt(expected);
  if (typeof value === "number" && typeof expected === "number") {
    if (value === expected || Number.isInteger(value)) return value === expected;
    return Math.abs(value - expected) <= tolerance * Math.max(Math.abs(value), Math.abs(expected));
  }
  if (value === undefined) return expected === null;
  if (value === null || typeof value !== "object") return value === expected;
  if (expected === null || typeof expected !== "object" || Array.isArray(value) !== Array.isArray(expected)) return false;
  const keys = Object.keys(value);
  return (
    keys.length === Object.keys(expected).length &&
    keys.every((key) => Object.hasOwn(expected, key) && equal(value[key], expected[key], tolerance))
  );
}
