// Prefers completions of a target number of words: -|words - target|, none without a word.

import type { ContractError, Plugin, Reward } from "./contract";

const DEFAULT_TARGET = 20;

const schema = {
  type: "object",
  properties: {
    target: {
      description: "The number of words that scores highest.",
      type: "integer",
      minimum: 0,
      default: DEFAULT_TARGET,
    },
  },
  additionalProperties: false,
};

let target = DEFAULT_TARGET;

const configError = (val: string): ContractError => ({ tag: "config", val });

function parse(json: string): unknown {
  try {
    return JSON.parse(json);
  } catch (error) {
    throw configError(String(error));
  }
}

const isInteger = (value: unknown): value is number => Number.isInteger(value);

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

// \s would match spaces beyond ASCII too.
const countWords = (text: string): number => text.match(/[^ \t\n\r\v\f]+/g)?.length ?? 0;

export const plugin: Plugin = {
  describe: () => ({
    name: "words-typescript-component",
    version: "0.1.0",
    description: "Prefers completions of a target number of words",
    configSchema: JSON.stringify(schema),
    needs: ["completion_text", "dataset_columns"],
    stateless: true,
  }),

  configure(config) {
    const settings = parse(config);
    if (!isObject(settings)) throw configError("expected an object");
    const { target: given = DEFAULT_TARGET, ...others } = settings;
    const unknown = Object.keys(others)[0];
    if (unknown !== undefined) throw configError(`unknown key ${unknown}; there is target`);
    if (!isInteger(given) || given < 0) throw configError("target must be an integer from 0");
    target = given;
  },
};

export const reward: Reward = {
  score({ columns, promptOf, completions }) {
    const own = columns.find(({ name }) => name === "target")?.values.map((json): unknown => JSON.parse(json));
    const rewards = completions.map((completion, row) => {
      const words = countWords(completion);
      if (words === 0) return undefined;
      const value = own?.[promptOf[row]!];
      // Not -Math.abs: that of 0 is -0.
      return 0 - Math.abs(words - (isInteger(value) ? value : target));
    });
    return { rewards, metrics: [] };
  },
};
