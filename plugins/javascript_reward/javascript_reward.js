// A reward that runs the JavaScript that a model wrote, against tests in a column of the dataset.
//
// Three kinds of instances of this component do it. The one that the host calls passes each row to the judge, a keeper of cells
// (judge.js). The judge opens a cell for the model's code, which it never runs itself; the cell gets the code and the arguments of
// calls, and gives values back (cell.js). The judge compares them with what is expected, which no cell ever sees. If it never ends
// because of what the code answered, it is ended, and the row is as if the code were wrong.

import * as cells from "rlhost:plugin/cells@0.2.0";
import { answer } from "./cell.js";
import { COUNTED, judge } from "./judge.js";
import { reason } from "./remote.js";

// Of the judge: for its tests and the values it compares.
const JUDGE_MB = 32;

const schema = {
  type: "object",
  properties: {
    tests: { description: "The dataset column with the tests.", type: "string", default: "tests" },
    setup: {
      description: "The column with code that runs before the model's, if the dataset has it.",
      type: "string",
      default: "test_setup_code",
    },
    extract: {
      description: "What of a completion is its code: the last fenced block, or the whole text.",
      type: "string",
      enum: ["last_block", "whole"],
      default: "last_block",
    },
    scoring: {
      description: "The share of tests that pass, or 1 if all pass and else 0.",
      type: "string",
      enum: ["fraction", "all"],
      default: "fraction",
    },
    unparsed_score: {
      description: "The score of a completion that has no code or whose code does not parse.",
      type: "number",
      default: 0,
    },
    tolerance: {
      description: "By how much a number may differ from the expected one in cases, as a share of it.",
      type: "number",
      minimum: 0,
      default: 1e-6,
    },
    timeout_ms: {
      description: "Time limit of loading the code and of each call of it. After one that ran out, the row's other tests fail.",
      type: "integer",
      minimum: 10,
      maximum: 60000,
      default: 1000,
    },
    row_timeout_ms: {
      description: "Time limit of a row with all its tests. Those that have not passed by then fail.",
      type: "integer",
      minimum: 100,
      maximum: 600000,
      default: 10000,
    },
    memory_mb: { description: "Memory limit of a test.", type: "integer", minimum: 8, maximum: 4096, default: 64 },
  },
  additionalProperties: false,
  "x-rlhost": { isolated_rows: true },
};

let settings = Object.fromEntries(Object.entries(schema.properties).map(([name, value]) => [name, value.default]));

// A thrown value is the contract's error.
const failure = (tag, val) => ({ tag, val });

export const plugin = {
  describe() {
    return {
      name: "javascript_reward",
      version: "0.1.0",
      description: "Runs the completion's JavaScript code against the row's tests",
      configSchema: JSON.stringify(schema),
      needs: { completionText: true, datasetColumns: true },
      stateless: true,
    };
  },

  configure(config) {
    try {
      settings = { ...settings, ...JSON.parse(config) };
    } catch (error) {
      throw failure("config", error.message);
    }
  },
};

export const inside = {
  answer(message) {
    // Only the host's instance says this, and only to the judge: a cell with the model's code hears from the judge alone.
    return message.startsWith(TO_JUDGE) ? judge(message.slice(TO_JUDGE.length)) : answer(message);
  },
};

const TO_JUDGE = "judge ";
let judging;

/** Returns the score of a row and what happened, or why its tests are wrong. */
function judged(row, completion) {
  try {
    judging ??= cells.openKeeper(JUDGE_MB);
    return JSON.parse(cells.ask(judging, TO_JUDGE + JSON.stringify({ row, completion, settings }), settings.row_timeout_ms));
  } catch (error) {
    judging = undefined;
    const what = reason(error);
    if (what === "refused") throw failure("internal", "the judge could not be opened");
    return { score: 0, happened: COUNTED.filter((name) => name === what) };
  }
}

export const reward = {
  score({ columns, promptOf, completions }) {
    const values = (name) => columns.find((column) => column.name === name)?.values;
    const tests = values(settings.tests);
    if (!tests) throw failure("input", `the dataset has no column "${settings.tests}", which holds the tests (tests)`);
    const of = (column, prompt) => (column ? JSON.parse(column[prompt]) : undefined);
    const [setups, entryPoints] = [values(settings.setup), values("entry_point")];
    const counts = Object.fromEntries(COUNTED.map((name) => [name, 0]));
    let scored = 0;
    const rewards = completions.map((completion, i) => {
      const prompt = promptOf[i];
      const row = { tests: of(tests, prompt), setup: of(setups, prompt), entryPoint: of(entryPoints, prompt) };
      const { score, happened, wrong } = judged(row, completion);
      if (wrong !== undefined) throw failure("input", `prompt ${prompt}, column "${settings.tests}": ${wrong}`);
      scored += score === undefined ? 0 : 1;
      happened.forEach((what) => (counts[what] += 1));
      return score;
    });
    const metric = (name) => ({ name: `javascript_reward/${name}`, value: counts[name] / scored, weight: scored, reduction: "mean" });
    return { rewards, metrics: scored > 0 ? COUNTED.map(metric) : [] };
  },
};
