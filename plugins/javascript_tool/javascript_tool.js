// An environment in which the model runs JavaScript that it wrote: it calls the tool `run`, reads what the code printed and gave, and
// ends with an answer.
//
// The code runs in a cell: a fresh instance of this component with its own memory and time (run.js). Only what it printed leaves the
// cell, and nothing but the code enters it: the right answer stays here.

import * as cells from "rlhost:plugin/cells@0.2.0";
import { run } from "./run.js";
import { asText } from "./text.js";

const schema = {
  type: "object",
  properties: {
    answer_column: { description: "Dataset column with the right answer: a text or a number.", type: "string", default: "answer" },
    right: { description: "Reward of the right answer.", type: "number", default: 1 },
    wrong: { description: "Reward of a wrong answer.", type: "number", default: 0 },
    call_reward: { description: "Added for each call whose code ran.", type: "number", default: 0 },
    bad_call: { description: "Added for each call that failed: another tool, other arguments, an error, a limit.", type: "number", default: 0 },
    timeout_ms: { description: "Time limit of a call.", type: "integer", minimum: 10, maximum: 60000, default: 1000 },
    memory_mb: { description: "Memory limit of a call.", type: "integer", minimum: 8, maximum: 4096, default: 64 },
    longest_output: { description: "Longest output, in characters; the rest is left out.", type: "integer", minimum: 10, maximum: 50000, default: 2000 },
  },
  additionalProperties: false,
  "x-rlhost": { isolated_rows: true },
};

const TOOL = {
  name: "run",
  description: "Runs JavaScript and returns what it prints with console.log, and the value of its last statement. Each call starts anew.",
  parameters: JSON.stringify({
    type: "object",
    properties: { code: { type: "string", description: "The code." } },
    required: ["code"],
    additionalProperties: false,
  }),
};

const LIMITS = {
  "out-of-time": "Error: it took too long and was stopped.",
  "out-of-memory": "Error: it needed too much memory and was stopped.",
  trapped: "Error: it ended the interpreter.",
};

let settings = Object.fromEntries(Object.entries(schema.properties).map(([name, value]) => [name, value.default]));
// What is known of each open episode.
const playing = new Map();

// A thrown value is the contract's error.
const failure = (tag, val) => ({ tag, val });

export const plugin = {
  describe() {
    return {
      name: "javascript_tool",
      version: "0.1.0",
      description: "Offers a tool that runs JavaScript, and rewards the right answer",
      configSchema: JSON.stringify(schema),
      needs: { datasetColumns: true },
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

export const inside = { answer: run };

/** Returns what the model reads of a call, and whether the code ran. */
function called(call) {
  if (call.name !== TOOL.name) return [`Error: there is no tool ${JSON.stringify(call.name)}; there is ${TOOL.name}.`, false];
  let given;
  try {
    given = JSON.parse(call.arguments);
  } catch (error) {
    return [`Error: the arguments are not JSON: ${error.message}`, false];
  }
  if (typeof given?.code !== "string") return ['Error: the arguments must be {"code": "..."}.', false];
  return ran(given.code);
}

function ran(code) {
  let cell;
  try {
    cell = cells.open(settings.memory_mb);
    // Whatever the code made of the cell, its answer is a text.
    const said = cells.ask(cell, code, settings.timeout_ms);
    return [said.slice(1), said.startsWith("+")];
  } catch (error) {
    const reason = String(error?.payload ?? error?.val ?? error);
    const told = Object.keys(LIMITS).find((name) => reason.includes(name));
    if (!told) throw failure("internal", `a cell could not be opened: ${reason}`);
    return [LIMITS[told], false];
  } finally {
    if (cell !== undefined) cells.close(cell);
  }
}

const withoutCommas = (text) => String(text).replace(/(\d),(?=\d{3})/g, "$1");

/** Returns the last number of a text. */
function numberIn(text) {
  const found = withoutCommas(text).match(/-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g);
  return found ? Number(found.at(-1)) : undefined;
}

/** Returns whether an answer is the right one: by its last number if that is one, else whether it ends with the text. */
function isRight(text, right) {
  const wanted = Number(withoutCommas(right).trim() || NaN);
  if (Number.isFinite(wanted)) {
    const said = numberIn(text);
    return said !== undefined && Math.abs(said - wanted) <= 1e-6 * Math.max(1, Math.abs(wanted));
  }
  const plain = (given) => String(given).trim().replace(/[.!]+$/, "").toLowerCase();
  return plain(text).endsWith(plain(right));
}

function step(turn) {
  const episode = playing.get(turn.episode);
  if (!episode) throw failure("input", `episode ${turn.episode} was never begun, or is over`);
  if (turn.calls.length === 0) {
    if (episode.answer === undefined) return { messages: [], done: true };
    episode.right = isRight(turn.text, episode.answer);
    return { messages: [], done: true, reward: episode.right ? settings.right : settings.wrong };
  }
  let reward = 0;
  const messages = turn.calls.map((call) => {
    const [said, good] = called(call);
    episode.calls += 1;
    episode.failed += good ? 0 : 1;
    reward += good ? settings.call_reward : settings.bad_call;
    return { role: "tool", content: asText(said, settings.longest_output), name: call.name, toolCallId: call.id };
  });
  return { messages, done: false, reward: episode.answer === undefined && reward === 0 ? undefined : reward };
}

export const environment = {
  begin(starts) {
    return starts.map((start) => {
      const column = start.columns.find(([name]) => name === settings.answer_column)?.[1];
      const answer = column === undefined ? undefined : JSON.parse(column) ?? undefined;
      if (answer !== undefined && typeof answer !== "number" && typeof answer !== "string") {
        throw failure("input", `the dataset's column "${settings.answer_column}" must hold texts or numbers`);
      }
      playing.set(start.episode, { answer, calls: 0, failed: 0, right: false });
      return { tools: [TOOL] };
    });
  },

  step: (turns) => turns.map(step),

  finish(episodes) {
    const ended = [...episodes].map((episode) => playing.get(episode)).filter(Boolean);
    episodes.forEach((episode) => playing.delete(episode));
    const mean = (name, value, weight) => ({ name: `javascript_tool/${name}`, value, weight, reduction: "mean" });
    return ended.flatMap(({ answer, calls, failed, right }) => [
      mean("calls", calls, 1),
      ...(calls > 0 ? [mean("failed_calls", failed / calls, calls)] : []),
      ...(answer === undefined ? [] : [mean("right", right ? 1 : 0, 1)]),
    ]);
  },
};
