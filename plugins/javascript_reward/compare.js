// How values are compared, and what tests assert with. Values are data that `decode` made; a function in them stands for something in a
// cell and equals nothing else.

import { Unsupported } from "./values.js";

/** A test failed. */
export class Failed extends Error {}

/** The cell is gone. */
export class Died extends Error {
  constructor(what) {
    super(what);
    this.what = what;
  }
}

/** Tests of no known form, or that ask for something that there is not. */
export class BadTests extends Error {}

const OURS = [Failed, Died, BadTests, Unsupported];
const isObject = (value) => value !== null && typeof value === "object";

/** Compares a value from a cell with one of JSON. `undefined` is null, though not inside of something else. */
export function equal(value, expected, tolerance) {
  return value === undefined ? expected === null : matches(value, expected, tolerance);
}

function matches(value, expected, tolerance) {
  if (typeof value === "bigint") return Number.isInteger(expected) && value === BigInt(expected);
  if (typeof value === "number" && typeof expected === "number") {
    if (value === expected || !Number.isFinite(value) || Number.isInteger(value)) return value === expected;
    return Math.abs(value - expected) <= tolerance * Math.max(Math.abs(value), Math.abs(expected));
  }
  if (!isObject(value) || !isObject(expected)) return value === expected;
  if (value instanceof Set) return Array.isArray(expected) && matches(sorted([...value]), sorted(expected), tolerance);
  if (value instanceof Map) {
    const made = Object.fromEntries(value);
    return Object.keys(made).length === value.size && matches(made, expected, tolerance);
  }
  if (value instanceof Date || Array.isArray(value) !== Array.isArray(expected)) return false;
  if (Array.isArray(value)) return value.length === expected.length && value.every((v, i) => matches(v, expected[i], tolerance));
  const keys = Object.keys(value);
  return (
    keys.length === Object.keys(expected).length &&
    keys.every((key) => Object.hasOwn(expected, key) && matches(value[key], expected[key], tolerance))
  );
}

/** In an order that follows from the values alone. */
function sorted(values) {
  const texts = values.map((value) => [typeof value === "bigint" ? String(value) : String(JSON.stringify(value)), value]);
  return texts.sort(([a], [b]) => (a < b ? -1 : Number(a > b))).map(([, value]) => value);
}

/** Whether two values are deeply and strictly equal. */
export function same(a, b) {
  if (Object.is(a, b)) return true;
  if (!isObject(a) || !isObject(b) || Object.getPrototypeOf(a) !== Object.getPrototypeOf(b)) return false;
  if (Array.isArray(a)) return a.length === b.length && [...a.keys()].every((i) => same(a[i], b[i]));
  if (a instanceof Date) return Object.is(a.getTime(), b.getTime());
  if (a instanceof Set) return a.size === b.size && [...a].every((x) => b.has(x) || (isObject(x) && [...b].some((y) => same(x, y))));
  if (a instanceof Map) return a.size === b.size && [...a].every(([k, v]) => b.has(k) && same(v, b.get(k)));
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => Object.hasOwn(b, key) && same(a[key], b[key]));
}

/** Whether an error is as a test wants it: of a class, named as one of the code's, with a text that fits, or accepted by a function. */
function fits(error, wanted, nameOf) {
  if (wanted === undefined || typeof wanted === "string") return true;
  if (wanted instanceof RegExp) return wanted.test(String(error));
  const name = nameOf(wanted);
  if (name !== undefined) return error.name === name;
  if (typeof wanted === "object") return Object.keys(wanted).every((key) => same(error[key], wanted[key]));
  if (wanted.prototype !== undefined && error instanceof wanted) return true;
  return wanted !== Error && !Object.prototype.isPrototypeOf.call(Error, wanted) && wanted(error) === true;
}

/** Node's `assert`, as far as tests use it. `nameOf` gives the name of what stands for a class of the code's. */
export function assertions(nameOf) {
  const check = (good) => {
    if (!good) throw new Failed("an assertion");
  };
  const throws = (act, wanted) => {
    try {
      act();
    } catch (error) {
      if (OURS.some((kind) => error instanceof kind)) throw error;
      return fits(error, wanted, nameOf);
    }
    return false;
  };
  const assert = (good) => check(good);
  const deep = (a, b) => check(same(a, b));
  const numeric = (a, b) => a === b || (Number.isNaN(a) && Number.isNaN(b));
  return Object.assign(assert, {
    ok: assert,
    strict: assert,
    fail: () => check(false),
    equal: (a, b) => check(numeric(a, b)),
    notEqual: (a, b) => check(!numeric(a, b)),
    strictEqual: (a, b) => check(Object.is(a, b)),
    notStrictEqual: (a, b) => check(!Object.is(a, b)),
    deepEqual: deep,
    deepStrictEqual: deep,
    notDeepEqual: (a, b) => check(!same(a, b)),
    notDeepStrictEqual: (a, b) => check(!same(a, b)),
    match: (text, pattern) => check(typeof text === "string" && pattern.test(text)),
    doesNotMatch: (text, pattern) => check(typeof text === "string" && !pattern.test(text)),
    throws: (act, wanted) => check(throws(act, wanted)),
    doesNotThrow: (act) => act(),
  });
}

/** The text without spaces at lines' ends and without empty lines at its end. */
export const lines = (text) => text.split("\n").map((line) => line.trimEnd()).join("\n").trimEnd();
