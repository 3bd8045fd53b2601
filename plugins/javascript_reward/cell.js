// The cell: runs the model's code, calls what it defines and gives the values. It knows nothing of what is expected. The code can
// change anything here, to no avail: whatever it makes the cell say is a value that the judge compares.

import { asScript } from "./script.js";
import { decode, encode } from "./values.js";

const LONGEST_TEXT = 200;
const LONGEST_OUTPUT = 500_000;

const objects = [];
let written = "";
// What the code is asked for by name.
let lookup;
const SCOPE = "$rlhost_scope";
const evaluate = eval;
const parse = JSON.parse;
const stringify = JSON.stringify;

class Exit extends Error {}

const print = (...values) => {
  const shown = (value) => (typeof value === "object" && value !== null ? stringify(value) : String(value));
  write(`${values.map(shown).join(" ")}\n`);
};

function write(text) {
  if (written.length < LONGEST_OUTPUT) written += String(text).slice(0, LONGEST_OUTPUT);
  return true;
}

/** What programs read and write with, of Node and of shells. */
function offer(stdin) {
  const lines = stdin.split("\n");
  if (lines.at(-1) === "") lines.pop();
  const fs = { readFileSync: () => stdin };
  const listen = (on) => (event, heard) => {
    if (event === on) (event === "line" ? lines : [stdin]).forEach((text) => heard(text));
    if (event === "close" || event === "end") heard();
    return interfaced;
  };
  const interfaced = { on: listen("line"), close() {}, question: (_, heard) => heard(lines.shift() ?? "") };
  const modules = { fs, readline: { createInterface: () => interfaced } };
  const exit = () => {
    throw new Exit("exit");
  };
  const standard = { setEncoding() {}, resume() {}, on: listen("data") };
  Object.assign(globalThis, {
    console: { log: print, error() {}, warn() {}, info: print, debug() {}, assert() {} },
    print,
    readline: () => lines.shift() ?? null,
    process: { argv: ["node", "code"], env: {}, exit, stdin: standard, stdout: { write } },
    require(name) {
      const found = modules[String(name).replace(/^node:/, "")];
      if (!found) throw new Error(`there is no module ${name}`);
      return found;
    },
    module: { exports: {} },
  });
  globalThis.exports = globalThis.module.exports;
}

function load({ setup, code: given, stdin, names }) {
  const code = asScript(given);
  try {
    new Function(code);
  } catch (error) {
    if (error instanceof SyntaxError) return { unparsed: true };
  }
  offer(stdin);
  let raised = null;
  try {
    // What `eval` declares with `const` is seen only in there, so a function made in there looks names up.
    globalThis[SCOPE] = (given) => {
      lookup = given;
      delete globalThis[SCOPE];
    };
    evaluate(`${SCOPE}(function () { return eval(arguments[0]); });${setup}\n${code}`);
  } catch (error) {
    raised = error instanceof Exit ? "exit" : "error";
  }
  const has = (name) => {
    try {
      return lookup(`typeof ${name}`) !== "undefined";
    } catch {
      return false;
    }
  };
  return { names: names.filter(has), raised, stdout: written };
}

function refer(value) {
  objects.push(value);
  return { r: [objects.length - 1, typeof value === "function" ? "function" : "object"] };
}

function referred(tag, inside) {
  if (tag === "g") return lookup(inside);
  if (tag !== "r") throw new TypeError("no value");
  return objects[inside];
}

function act(request) {
  const target = request.op === "function" ? named(request.name) : decode(request.target, referred);
  const given = (request.arguments ?? []).map((argument) => decode(argument, referred));
  let value;
  switch (request.op) {
    case "call":
    case "function":
      value = target(...given);
      break;
    case "construct":
      // Whatever it gives, it is an object of the code's.
      return { value: refer(new target(...given)) };
    case "method":
      value = target[request.name](...given);
      break;
    default:
      value = target[request.name];
  }
  // A function that gives nothing may have changed its arguments.
  const changed = value === undefined ? given.map((a) => (Array.isArray(a) ? encode(a, refer) : null)) : [];
  return { value: encode(value, refer), changed };
}

/** A function by its name, which may be an export or a method of a class Solution. */
function named(name) {
  try {
    return lookup(name);
  } catch (error) {
    const exported = globalThis.module?.exports?.[name];
    if (exported) return exported;
    const solution = lookup("new Solution()");
    return solution[name].bind(solution);
  }
}

export function answer(message) {
  const request = parse(message);
  let given;
  try {
    given = request.op === "load" ? load(request) : act(request);
  } catch (error) {
    let raised = "Error";
    let text = "";
    try {
      raised = String(error?.name ?? "Error");
      text = String(error?.message ?? error).slice(0, LONGEST_TEXT);
    } catch {
      // The code's own error may throw when it is read.
    }
    given = { raised, text };
  }
  return stringify(given);
}
