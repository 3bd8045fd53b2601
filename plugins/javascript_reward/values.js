// Values as they pass between judge and cell: JSON, with tags for what JSON has not. Objects with behaviour of their own stay where
// they are and pass as references.

export class Unsupported extends Error {}

// Of a set or map: numbers could be chosen to be slow together.
const MOST_HASHED = 10_000;
const DEEPEST = 200;
const MOST_DIGITS = 20_000;
// What finite JSON numbers can't say.
const NUMBERS = { "-0": -0, NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity };

// Taken before the code that a cell runs can replace them.
const { defineProperty, getPrototypeOf, hasOwn, is, keys } = Object;
const { isArray, from } = Array;
const [Plain, Dates, Maps, Sets, View] = [Object.prototype, Date, Map, Set, DataView];
const { isView } = ArrayBuffer;
const { isFinite } = Number;

// Functions of these names in an object that a call gave would answer in the place of the engine's own: `includes` with yes, `valueOf`
// with another number each time.
const KINDS = [Object, Array, String, Number, BigInt, Date, RegExp, Set, Map, Promise, Function, Uint8Array, getPrototypeOf(Uint8Array)];
const OWN = new Set(KINDS.flatMap((kind) => Object.getOwnPropertyNames(kind.prototype)).concat("toJSON"));
["push", "pop", "shift", "unshift", "add", "get", "set", "delete", "clear"].forEach((name) => OWN.delete(name));

const number = (value) => (isFinite(value) && !is(value, -0) ? value : { n: is(value, -0) ? "-0" : `${value}` });

const isPlain = (value) => {
  const prototype = getPrototypeOf(value);
  return prototype === null || prototype === Plain;
};

/** Returns a value as JSON can hold it. `refer` gives what stands for a function or an object of a class. */
export function encode(value, refer) {
  switch (typeof value) {
    case "undefined":
      return { u: 0 };
    case "number":
      return number(value);
    case "bigint":
      return { i: value.toString(16) };
    case "string":
    case "boolean":
      return value;
    case "object":
      break;
    default:
      return refer(value);
  }
  if (value === null) return null;
  const all = (items) => from(items, (item) => encode(item, refer));
  if (isArray(value)) return { l: all(value) };
  if (value instanceof Maps) return { m: from(value, ([k, v]) => [encode(k, refer), encode(v, refer)]) };
  if (value instanceof Sets) return { s: all(value) };
  if (value instanceof Dates) return { D: number(value.getTime()) };
  if (isView(value) && !(value instanceof View)) return { l: all(value) };
  if (!isPlain(value)) return refer(value);
  return { o: keys(value).map((k) => [k, encode(value[k], refer)]) };
}

const wrong = (what) => {
  throw new TypeError(what);
};
const list = (given) => (isArray(given) ? given : wrong("no list"));
const pair = (given) => (list(given).length === 2 ? given : wrong("no pair"));
const hashed = (given) => (list(given).length <= MOST_HASHED ? given : wrong("too many entries"));

function bigint(text) {
  if (typeof text !== "string" || text.length > MOST_DIGITS || !/^-?[0-9a-f]+$/.test(text)) wrong("no integer");
  return text[0] === "-" ? -BigInt(`0x${text.slice(1)}`) : BigInt(`0x${text}`);
}

/** Returns the value that JSON stands for. `referred` gives what a reference stands for. Whatever is not exactly as `encode` writes it
 * throws. */
export function decode(given, referred, depth = 0) {
  if (given === null || typeof given === "string" || typeof given === "boolean") return given;
  if (typeof given === "number") return isFinite(given) ? given : wrong("no number");
  if (isArray(given) || depth > DEEPEST) wrong(depth > DEEPEST ? "nested too deeply" : "no tag");
  const tags = keys(given);
  if (tags.length !== 1) wrong("no single tag");
  const [tag] = tags;
  const inside = given[tag];
  const next = (item) => decode(item, referred, depth + 1);
  switch (tag) {
    case "u":
      return undefined;
    case "n":
      return typeof inside === "string" && hasOwn(NUMBERS, inside) ? NUMBERS[inside] : wrong("no number");
    case "i":
      return bigint(inside);
    case "l":
      return list(inside).map(next);
    case "m":
      return new Map(hashed(inside).map((entry) => pair(entry).map(next)));
    case "s":
      return new Set(hashed(inside).map(next));
    case "D": {
      const time = next(inside);
      return typeof time === "number" ? new Date(time) : wrong("no time");
    }
    case "o": {
      const made = {};
      for (const entry of list(inside)) {
        const [key, value] = pair(entry);
        if (typeof key !== "string" || hasOwn(made, key)) wrong("no key");
        const decoded = next(value);
        if (typeof decoded === "function" && OWN.has(key)) wrong("a function in the place of the engine's own");
        defineProperty(made, key, { value: decoded, writable: true, enumerable: true, configurable: true });
      }
      return made;
    }
    default:
      return referred(tag, inside);
  }
}
