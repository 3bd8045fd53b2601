// Prefers completions of a target number of words: -|words - target|, none without a word.

const schema = {
  type: "object",
  properties: {
    target: {
      description: "The number of words that scores highest.",
      type: "integer",
      minimum: 0,
      default: 20,
    },
  },
  additionalProperties: false,
};

let target = schema.properties.target.default;

// A thrown value is the contract's error.
const configError = (text) => ({ tag: "config", val: text });

function parse(json) {
  try {
    return JSON.parse(json);
  } catch (error) {
    throw configError(error.message);
  }
}

// \s would match spaces beyond ASCII too.
const countWords = (text) => text.match(/[^ \t\n\r\v\f]+/g)?.length ?? 0;

export const plugin = {
  describe() {
    return {
      name: "words-javascript-component",
      version: "0.1.0",
      description: "Prefers completions of a target number of words",
      configSchema: JSON.stringify(schema),
      needs: ["completion_text", "dataset_columns"],
      stateless: true,
    };
  },

  configure(config) {
    const settings = parse(config);
    if (settings === null || typeof settings !== "object" || Array.isArray(settings)) {
      throw configError("expected an object");
    }
    const { target: given = schema.properties.target.default, ...others } = settings;
    if (Object.keys(others).length > 0) {
      throw configError(`unknown key ${Object.keys(others)[0]}; there is target`);
    }
    if (!Number.isInteger(given) || given < 0) {
      throw configError("target must be an integer from 0");
    }
    target = given;
  },
};

export const reward = {
  score({ columns, promptOf, completions }) {
    const own = columns.find((column) => column.name === "target")?.values.map((json) => JSON.parse(json));
    const rewards = completions.map((completion, row) => {
      const words = countWords(completion);
      if (words === 0) return undefined;
      const value = own?.[promptOf[row]];
      // Not -Math.abs: that of 0 is -0.
      return 0 - Math.abs(words - (Number.isInteger(value) ? value : target));
    });
    return { rewards, metrics: [] };
  },
};
