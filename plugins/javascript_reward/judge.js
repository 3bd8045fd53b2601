// The judge: reads tests, has cells run the model's code, and compares. It runs tests, which are the dataset's, but no code of the
// model's, and takes values from cells as it would from a stranger.

import { assertions, BadTests, Died, equal, Failed, lines, same } from "./compare.js";
import { absent, Cell, nameOf, Unparsed } from "./remote.js";
import { asScript } from "./script.js";
import { Unsupported } from "./values.js";

export const COUNTED = ["all_passed", "unparsed", "out_of_time", "out_of_memory"];

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

/** The cells of a row: one for all tests, replaced when a test has ended it, and one for each program. */
class Cells {
  constructor(given) {
    this.given = given;
  }

  /** Returns the cell with the code loaded. */
  get() {
    if (this.cell === undefined || this.cell.isGone) this.cell = new Cell(this.given);
    return this.cell;
  }

  /** Returns what a program did that read this. */
  ran(stdin) {
    const cell = new Cell({ ...this.given, stdin });
    cell.close();
    return cell.loaded;
  }

  close() {
    if (this.cell !== undefined && !this.cell.isGone) this.cell.close();
  }
}

/** Answers a message with a row: its score, unless there is none, and what happened; or what is wrong with its tests. */
export function judge(message) {
  const { row, completion, settings } = JSON.parse(message);
  try {
    const [given, happened] = score(row, completion, settings);
    return JSON.stringify({ score: given, happened });
  } catch (error) {
    return JSON.stringify({ wrong: error instanceof BadTests ? error.message : `the judge fails on it: ${error}` });
  }
}

/** Returns the score, or undefined, and what happened. */
function score(row, completion, settings) {
  const setup = typeof row.setup === "string" ? asScript(row.setup) : "";
  const tests = testsOf(row, setup);
  if (tests.length === 0) return [undefined, []];
  const unparsed = [settings.unparsed_score, ["unparsed"]];
  const code = block(completion, settings.extract);
  if (code === undefined) return unparsed;
  const names = [...new Set(tests.flatMap((test) => test.names ?? []))];
  const cells = new Cells({ code, setup, settings, names });
  let passed = 0;
  const happened = new Set();
  try {
    for (const test of tests) {
      const failed = outcome(test, cells, settings);
      if (failed === undefined) passed += 1;
      else if (failed instanceof Unparsed) return unparsed;
      else if (failed instanceof Died && COUNTED.includes(failed.what)) happened.add(failed.what);
      if (happened.has("out_of_time")) break;
    }
  } finally {
    cells.close();
  }
  if (passed === tests.length) happened.add("all_passed");
  return [settings.scoring === "fraction" ? passed / tests.length : Number(passed === tests.length), [...happened]];
}

/** Returns why a test failed, or undefined. */
function outcome(test, cells, settings) {
  try {
    test.run(cells, settings);
    return undefined;
  } catch (error) {
    if (error instanceof Unsupported) throw new BadTests(error.message);
    if (error instanceof BadTests) throw error;
    return error instanceof Error ? error : new Failed("thrown");
  }
}

/** Returns tests: `run` throws unless they pass, and `names` are what they may want of the code. */
function testsOf(row, setup) {
  let { tests } = row;
  if (typeof tests === "string" && /^\s*[[{]/.test(tests)) {
    try {
      tests = JSON.parse(tests);
    } catch {
      // A text that only begins like JSON.
    }
  }
  if (tests === null || tests === undefined || tests === "") return [];
  if (typeof tests === "string") return [piece(tests, setup)];
  if (Array.isArray(tests.inputs) && Array.isArray(tests.outputs)) {
    const name = tests.fn_name;
    if (tests.inputs.length !== tests.outputs.length) throw new BadTests("inputs and outputs differ in number");
    tests = tests.inputs.map((input, i) =>
      name ? { function: name, args: input, expected: tests.outputs[i] } : { input, output: tests.outputs[i] },
    );
  }
  if (!Array.isArray(tests)) throw new BadTests("expected a text, a list of assertions, or a list of cases");
  return tests.map((test) => (typeof test === "string" ? piece(test, setup) : testCase(test, row)));
}

const WORDS = /[A-Za-z_$][\w$]*/g;

const isName = (name) => {
  try {
    new Function(name, "");
    return true;
  } catch {
    return false;
  }
};

/** What tests find beside the code: the judge's own, which nothing of the code's replaces. */
function surroundings() {
  const assert = assertions(nameOf);
  const modules = { assert, "assert/strict": assert, util: { isDeepStrictEqual: same } };
  const require = (name) => {
    const found = modules[String(name).replace(/^node:/, "")];
    if (found === undefined) throw new BadTests(`a test requires the module ${name}`);
    return found;
  };
  return { assert, console: { assert, log() {}, error() {}, warn() {}, info() {} }, require };
}

/** A test of statements, or an expression that must be true. */
function piece(given, setup) {
  const text = asScript(given);
  const own = surroundings();
  // Every word is a parameter, so how a test is read does not depend on what the code defines.
  const names = [...new Set(`${setup}\n${text}`.match(WORDS) ?? [])].filter(
    (name) => !(name in globalThis) && !(name in own) && !name.startsWith("__") && isName(name),
  );
  const [run, mustBeTrue] = compiled([...Object.keys(own), ...names], text, setup);
  return {
    names,
    run(cells) {
      const cell = cells.get();
      const theirs = names.map((name) => (cell.defines(name) ? cell.remote({ g: name }) : absent(name)));
      const before = new Set(Reflect.ownKeys(globalThis));
      try {
        const value = run(...Object.values(surroundings()), ...theirs);
        if (mustBeTrue && !value) throw new Failed("false");
      } finally {
        // One row's tests leave nothing to the next.
        for (const key of Reflect.ownKeys(globalThis)) if (!before.has(key)) Reflect.deleteProperty(globalThis, key);
      }
    },
  };
}

/** Returns a test as a function, and whether what it gives must be true. What the setup defines is the judge's own: it stands in a
 * block, where it hides parameters. */
function compiled(parameters, text, setup) {
  try {
    // An assertion gives undefined, so only what is no call of one must be true.
    const isAssertion = /^\s*(console\s*\.\s*)?assert\b/.test(text);
    const expression = text.trim().replace(/;+$/, "");
    // Alone first, so that no part of it can be read as anything else.
    new Function(`return (${expression}\n)`);
    return [new Function(...parameters, `{${setup}\n;return (${expression}\n)}`), !isAssertion];
  } catch {
    // Not an expression.
  }
  let run;
  try {
    run = new Function(...parameters, `{${setup}\n;{${text}\n}}`);
  } catch (error) {
    throw new BadTests(`a test does not parse: ${error.message}`);
  }
  if (!/\b(assert|throw)/.test(`${setup}\n${text}`)) throw new BadTests("a test of statements asserts nothing");
  return [run, false];
}

function testCase(test, row) {
  if (test === null || typeof test !== "object") throw new BadTests("a case must be an object");
  if ("expected" in test) {
    const name = test.function ?? test.name ?? row.entryPoint;
    const given = test.args ?? [];
    if (typeof name !== "string" || !/^[A-Za-z_$][\w$]*$/.test(name) || !Array.isArray(given)) {
      throw new BadTests("a case needs a function (its name, or the row's entry_point), args and expected");
    }
    return {
      run(cells, settings) {
        const value = cells.get().get({ op: "function", name }, given);
        if (!equal(value, test.expected, settings.tolerance)) throw new Failed("another value");
      },
    };
  }
  if (typeof test.input === "string" && typeof test.output === "string") {
    return {
      run(cells) {
        const { raised, stdout } = cells.ran(test.input);
        const ended = raised === null || raised === "exit";
        if (!ended || typeof stdout !== "string" || lines(stdout) !== lines(test.output)) throw new Failed("another output");
      },
    };
  }
  throw new BadTests("a case needs function, args and expected, or input and output");
}
