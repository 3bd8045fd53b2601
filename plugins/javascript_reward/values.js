// Values as they pass between judge and cell: JSON, with tags for what JSON has not. Objects with behaviour of their own stay where
// they are and pass as references.

export class Unsupported extends Error {}

// Of a set or map: numbers could be chosen to be slow together.
const MOST_HASHED = 10_000;

const number = (value) => (Number.isFinite(value) && !Object.is(value, -0) ? value : { n: Object.is(value, -0) ? "-0" : String(value) });

const isPlain = (value) => {
  const prototype = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype;
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
  const all = (items) => Array.from(items, (item) => encode(item, refer));
  if (Array.isArray(value)) return { l: all(value) };
  if (value instanceof Map) return { m: Array.from(value, ([k, v]) => [encode(k, refer), encode(v, refer)]) };
  if (value instanceof Set) return { s: all(value) };
  if (value instanceof Date) return { D: number(value.getTime()) };
  if (ArrayBuffer.isView(value) && !(value instanceof DataView)) return { l: all(value) };
  if (!isPlain(value)) return refer(value);
  return { o: Object.keys(value).map((k) => [k, encode(value[k], refer)]) };
}

/** Returns the value that JSON stands for. What does not fit throws. */
export function decode(given, referred) {
  if (given === null || typeof given !== "object") return given;
  const [[tag, inside]] = Object.entries(given);
  const all = (items) => items.map((item) => decode(item, referred));
  switch (tag) {
    case "u":
      return undefined;
    case "n":
      return Number(inside);
    case "i":
      return inside.startsWith("-") ? -BigInt(`0x${inside.slice(1)}`) : BigInt(`0x${inside}`);
    case "l":
      return all(inside);
    case "m":
      if (inside.length > MOST_HASHED) throw new RangeError("too many entries");
      return new Map(inside.map(([k, v]) => [decode(k, referred), decode(v, referred)]));
    case "s":
      if (inside.length > MOST_HASHED) throw new RangeError("too many entries");
      return new Set(all(inside));
    case "D":
      return new Date(decode(inside, referred));
    case "o": {
      const made = {};
      for (const [key, value] of inside) {
        Object.defineProperty(made, key, { value: decode(value, referred), writable: true, enumerable: true, configurable: true });
      }
      return made;
    }
    default:
      return referred(tag, inside);
  }
}
