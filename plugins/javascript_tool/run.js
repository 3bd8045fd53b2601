// The cell: runs the model's code and gives what it printed and its last value. The code can change anything here: all it can do is
// say something else.

// Beyond what any setting shows.
const LONGEST_OUTPUT = 50_000;

const evaluate = eval;
const stringify = JSON.stringify;
const { slice } = String.prototype;
const call = Function.prototype.call.bind(Function.prototype.call);
let written = "";

function write(text) {
  if (written.length < LONGEST_OUTPUT) written += call(slice, text, 0, LONGEST_OUTPUT);
}

function shown(value) {
  if (typeof value === "string") return value;
  if (typeof value === "bigint") return `${value}n`;
  if (typeof value !== "object" || value === null) return String(value);
  if (value instanceof Error) return String(value);
  if (value instanceof Map || value instanceof Set) return shown([...value]);
  try {
    return stringify(value) ?? String(value);
  } catch {
    return "[object]";
  }
}

const print = (...values) => write(`${values.map(shown).join(" ")}\n`);

/** Runs code. The answer begins with + if it ran, and with - if it failed. */
export function run(code) {
  Object.assign(globalThis, { print, console: { log: print, info: print, warn: print, error: print, debug: print } });
  try {
    const value = evaluate(code);
    if (value !== undefined) write(`${shown(value)}\n`);
    return `+${written}`;
  } catch (error) {
    let text = "Error";
    try {
      text = shown(error instanceof Error ? `${error.name}: ${error.message}` : `Uncaught ${shown(error)}`);
    } catch {
      // The code's own error may throw when it is read.
    }
    return `-${written}${text}\n`;
  }
}
