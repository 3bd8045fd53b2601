// Prefers completions of a target number of words: -|words - target|, none without a word.

import { List, Scores, columnNamed, configured, info, stringAt } from "./abi";

export { after, cabi_realloc } from "./abi";

const DEFAULT_TARGET: i64 = 20;

let target = DEFAULT_TARGET;

export function plugin_describe(): usize {
  return info(
    "words-assemblyscript",
    "0.1.0",
    "Prefers completions of a target number of words",
    `{"type": "object", "additionalProperties": false, "properties": {"target": {
      "description": "The number of words that scores highest.", "type": "integer", "minimum": 0, "default": 20}}}`,
    ["completion_text", "dataset_columns"],
    true,
  );
}

/** Just as much JSON as is needed here. */
class Json {
  private at: i32 = 0;
  /** What `readInteger` has read. */
  integer: i64 = 0;

  constructor(private text: string) {}

  /** Skips white space, and then `wanted` where it is there. */
  skip(wanted: string): bool {
    while (this.at < this.text.length && " \t\n\r".includes(this.text.charAt(this.at))) this.at++;
    if (!this.text.startsWith(wanted, this.at)) return false;
    this.at += wanted.length;
    return true;
  }

  readInteger(): bool {
    const negative = this.skip("-");
    const first = this.at;
    let sum: i64 = 0;
    for (; this.at < this.text.length && this.at < first + 16; this.at++) {
      const digit = this.text.charCodeAt(this.at) - 48;
      if (digit < 0 || digit > 9) break;
      sum = sum * 10 + digit;
    }
    this.integer = negative ? -sum : sum;
    return this.at > first && this.at < first + 16;
  }

  ends(): bool {
    return this.skip("") && this.at == this.text.length;
  }
}

export function plugin_configure(address: usize, length: i32): usize {
  const json = new Json(String.UTF8.decodeUnsafe(address, length));
  let fits = json.skip("{");
  let given = DEFAULT_TARGET;
  if (fits && json.skip('"target"')) {
    fits = json.skip(":") && json.skip("") && json.readInteger() && json.integer >= 0;
    given = json.integer;
  }
  if (!fits || !json.skip("}") || !json.ends()) {
    return configured('expected {"target": N}, where N is an integer from 0');
  }
  target = given;
  return configured(null);
}

function countWords(text: List): i64 {
  let words: i64 = 0;
  let inside = false;
  for (let i = 0; i < text.length; i++) {
    const byte = text.at(i);
    const space = byte == 32 || (byte >= 9 && byte <= 13);
    if (!space && !inside) words++;
    inside = !space;
  }
  return words;
}

export function reward_score(
  step: u64,
  seed: u64,
  prompts: usize,
  promptsLength: i32,
  columns: usize,
  columnsLength: i32,
  promptOf: usize,
  rows: i32,
  completions: usize,
  completionsLength: i32,
  finished: usize,
  finishedLength: i32,
  offsets: usize,
  offsetsLength: i32,
  tokenIds: usize,
  tokenIdsLength: i32,
): usize {
  const targets = columnNamed("target", columns, columnsLength);
  const scores = new Scores(rows);
  for (let row = 0; row < rows; row++) {
    const words = countWords(stringAt(completions, row));
    if (words == 0) {
      scores.setNone(row);
      continue;
    }
    let wanted = target;
    if (targets) {
      const json = new Json(stringAt(targets, load<u32>(promptOf + 4 * row)).text());
      if (json.skip("") && json.readInteger() && json.ends()) wanted = json.integer;
    }
    scores.set(row, <f32>min(words - wanted, wanted - words));
  }
  return scores.answer();
}
