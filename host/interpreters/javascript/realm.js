// Where scripts run: a realm with built-ins of its own. What a script does to them, it does to itself, and nothing of this module's realm is
// given to it: what it is called with is made in its realm.

const { newRealm, evaluate, runJobs, setMaxStackSize } = globalThis.__cqjs;

// Half of what WebAssembly's own stack (512 KiB) is enough for; see runtime/runtime.patch.
setMaxStackSize(256 << 10);

/** A function waits for something that never happens. */
export class NeverError extends Error {}

// Evaluated in the realm before the script, so that it sees the built-ins as they were.
const HELPERS = `(function (print) {
  "use strict";
  const { apply, defineProperty } = Reflect;
  const { create } = Object;
  const { parse, stringify } = JSON;
  const OwnArray = Array, OwnPromise = Promise, OwnError = Error;
  const { then } = Promise.prototype, { resolve } = Promise;

  let timers = [];
  let number = 0;
  const setTimer = (callback, delay, values, every) => {
    const due = clock + (+delay > 0 ? +delay : 0);
    const timer = { number: ++number, due, callback, values, every };
    timers[timers.length] = timer;
    return timer.number;
  };
  const clearTimer = (given) => {
    const rest = [];
    for (let i = 0; i < timers.length; i++) if (timers[i].number !== given) rest[rest.length] = timers[i];
    timers = rest;
  };
  // Time passes when everything waits.
  let clock = 0;
  const define = (name, value) => defineProperty(globalThis, name, { value, writable: true, enumerable: false, configurable: true });
  define("setTimeout", (callback, delay, ...values) => setTimer(callback, delay, values, undefined));
  define("setInterval", (callback, delay, ...values) => setTimer(callback, delay, values, +delay > 1 ? +delay : 1));
  define("clearTimeout", clearTimer);
  define("clearInterval", clearTimer);
  define("setImmediate", (callback, ...values) => setTimer(callback, 0, values, undefined));
  define("clearImmediate", clearTimer);

  const printing = (level) => (...values) => print(level, values);
  const console = create(null);
  for (const name of ["log", "info", "debug", "warn", "error"]) console[name] = printing(name === "log" ? "info" : name);
  define("console", console);

  return {
    parse,
    stringify,
    list: (length) => new OwnArray(length),
    record: () => ({}),
    error: (message) => new OwnError(message),
    /** Makes a function of this realm of one of another, which gives its answer by a call. */
    wrap: (inner) => (...values) => {
      let answer;
      const message = inner(values, (given) => { answer = given; });
      if (message !== undefined) throw new OwnError(message);
      return answer;
    },
    watch: (value) => {
      const seen = { state: 0, value: undefined };
      const kept = apply(resolve, OwnPromise, [value]);
      apply(then, kept, [
        (given) => { seen.state = 1; seen.value = given; },
        (given) => { seen.state = 2; seen.value = given; },
      ]);
      return seen;
    },
    /** Calls what is due next. */
    next: () => {
      let first;
      for (let i = 0; i < timers.length; i++) if (first === undefined || timers[i].due < first.due) first = timers[i];
      if (first === undefined) return false;
      clock = first.due > clock ? first.due : clock;
      if (first.every === undefined) clearTimer(first.number);
      else first.due = clock + first.every;
      apply(first.callback, undefined, first.values);
      return true;
    },
    forget: () => { timers = []; },
  };
})`;

export class Realm {
  /** `print` gets what the script prints: the level and the values. */
  constructor(print) {
    const { number, global } = newRealm();
    this.number = number;
    this.global = global;
    this.helpers = evaluate(number, HELPERS, "/helpers.js")(print);
  }

  /** Evaluates a script; `name` is that of the file in stack frames. */
  evaluate(source, name) {
    return evaluate(this.number, source, name);
  }

  parse(json) {
    return this.helpers.parse(json);
  }

  stringify(value) {
    return this.helpers.stringify(value);
  }

  /** Returns a list of the script's realm. */
  list(values) {
    const made = this.helpers.list(values.length);
    for (let at = 0; at < values.length; at++) made[at] = values[at];
    return made;
  }

  /** Returns an object of the script's realm. */
  record(fields) {
    const made = this.helpers.record();
    const own = { writable: true, enumerable: true, configurable: true };
    for (const name of Object.keys(fields)) Object.defineProperty(made, name, { ...own, value: fields[name] });
    return made;
  }

  /** Returns a function of the script's realm. `inner` gets its arguments in a list, and a function that it gives the answer to; it may
   * return the text of an error. */
  wrap(inner) {
    return this.helpers.wrap(inner);
  }

  /** Returns what values are when their promises are kept. Calls `failed` with the place of one that is not, before its error is thrown. */
  settled(values, failed = () => {}) {
    const isPromise = (value) => value !== null && (typeof value === "object" || typeof value === "function") && typeof value.then === "function";
    const waiting = [];
    for (let at = 0; at < values.length; at++) {
      if (isPromise(values[at])) waiting.push({ at, seen: this.helpers.watch(values[at]) });
    }
    if (waiting.length === 0) return values;
    for (let open = waiting; open.length > 0; ) {
      runJobs();
      const broken = open.find(({ seen }) => seen.state === 2);
      if (broken) {
        failed(broken.at);
        throw broken.seen.value;
      }
      open = open.filter(({ seen }) => seen.state === 0);
      if (open.length > 0 && !this.helpers.next()) {
        failed(open[0].at);
        throw new NeverError("the function waits for something that never happens");
      }
    }
    const kept = Array.from(values);
    for (const { at, seen } of waiting) kept[at] = seen.value;
    return kept;
  }

  /** Ends what a call has left behind. */
  rest() {
    runJobs();
    this.helpers.forget();
  }
}
