// The contract of plugin-sdk/wit/ for a reward, as componentize-qjs maps it to JavaScript.

/** What is thrown where a function of the contract gives an error. */
export interface ContractError {
  tag: "config" | "input" | "unsupported" | "internal";
  val: string;
}

export interface Info {
  name: string;
  version: string;
  description: string;
  configSchema: string;
  needs: ("prompt_text" | "completion_text" | "token_ids" | "dataset_columns")[];
  stateless: boolean;
}

export interface Plugin {
  describe(): Info;
  configure(config: string): void;
}

export interface Column {
  name: string;
  values: string[];
}

export interface Batch {
  step: number;
  /** Rounded to 53 bits. */
  seed: number;
  prompts: string[];
  columns: Column[];
  promptOf: number[];
  completions: string[];
  finished: boolean[];
  offsets: number[];
  tokenIds: number[];
}

export interface Metric {
  name: string;
  value: number;
  weight: number;
  reduction: "mean" | "sum" | "min" | "max";
}

export interface Scores {
  rewards: (number | undefined)[];
  metrics: Metric[];
}

export interface Reward {
  score(batch: Batch): Scores;
}
