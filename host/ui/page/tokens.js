// Tokens of completions, coloured by what is known of them, and the tree of an agent's calls.

import { h, fill } from "./dom.js";
import { count, number } from "./format.js";

/** What tokens can be coloured by: its title, and what colours between -1 and 1 mean. */
export const COLOURINGS = {
  logp: { title: "log-probability", scale: [[0, "likely"], [-0.5, "5 %"], [-1, "unlikely"]] },
  advantage: { title: "advantage", scale: [[-1, "negative"], [0, "none"], [1, "positive"]] },
  trained: { title: "trained on", scale: [[0, "read only"], [1, "trained on"]] },
  ratio: { title: "ratio", scale: [[-1, "two thirds"], [0, "1"], [1, "1.5"]] },
};

/** Log-probability and logarithm of a ratio at which a colour is full. */
const FULL_LOGP = 6;
const FULL_RATIO = Math.log(1.5);

/** Returns the names of the colourings that some of these completions have values for. */
export function colourings(items) {
  const has = {
    logp: (item) => item.per_token.logp.length > 0,
    advantage: (item) => item.per_token.advantage.length > 0 || item.advantage !== null,
    trained: () => true,
    ratio: (item) => item.per_token.ratio.length > 0,
  };
  return Object.keys(has).filter((name) => items.some((item) => item.per_token && has[name](item)));
}

/** Returns the greatest advantage of these completions' tokens, by which all of them are coloured. */
export function greatestAdvantage(items) {
  const sizes = items.map((item) => (item.per_token?.advantage.length > 0 ? item.per_token.advantage : [item.advantage]).reduce((most, value) => Math.max(most, Math.abs(value ?? 0)), 0));
  return Math.max(1e-12, ...sizes);
}

/** Whether a completion is a tree of calls, rather than one text. */
export const isTree = (item) => item.per_token !== null && item.per_token.branches.length > 0;

/** The legend of a colouring. */
export function legend(colouring) {
  const swatch = ([value, text]) => [h("span", { class: "token", vars: vars(value) }, text), " "];
  return h("p", { class: "legend caption" }, COLOURINGS[colouring].scale.map(swatch));
}

/** A completion's tokens: coloured, if a colouring is given, and with branches as a tree. */
export class TokenText {
  constructor(item, colouring, greatest) {
    Object.assign(this, { item, tokens: item.per_token, colouring, greatest, at: null });
    this.replies = [...this.tokens.replies].sort((a, b) => a[0] - b[0]);
    this.readout = h("p", { class: "caption readout", "aria-live": "polite" }, "Point at a token, or use the arrow keys.");
    this.text = h("div", { class: "tokens outside", tabindex: "0", role: "group", "aria-label": "Tokens", onkeydown: (event) => this.key(event), onpointerover: (event) => this.show(event.target.closest("[data-token]")) }, this.tree());
    const { left_out: more } = this.tokens;
    this.element = h("div", {}, this.text, more > 0 ? h("p", { class: "caption" }, `${count(more, "more token")}`) : null, this.readout);
  }

  /** The branches of the tree: each begins within another, whose number and token it names. */
  branches() {
    const starts = [[0, this.tokens.prompt], ...this.tokens.branches.filter(([start]) => start > 0)].sort((a, b) => a[0] - b[0]);
    const all = starts.map(([start, after], i) => ({ start, end: starts[i + 1]?.[0] ?? this.tokens.text.length, after: after - this.tokens.prompt, children: [] }));
    for (const branch of all.slice(1)) {
      const parent = all.findLast((other) => other.start < branch.after && branch.after <= other.end && other !== branch);
      (parent ?? all[0]).children.push(branch);
    }
    return all;
  }

  tree() {
    const all = this.branches();
    if (all.length === 1) return this.run(0, this.tokens.text.length);
    const turn = new Map();
    const of = (branch) => {
      const calls = this.replies.filter(([from]) => from >= branch.start && from < branch.end).length + (branch.start === 0 ? 1 : 0);
      turn.set(branch, turn.size + 1);
      const begins = branch.start === 0 ? "the first call" : branch.after <= 0 ? "another beginning, from the prompt" : `continues from token ${branch.after}`;
      return h("li", {}, h("p", { class: "caption" }, `Branch ${turn.get(branch)}: ${begins}, ${count(calls, "call")}`), h("div", { class: "text pre" }, this.run(branch.start, branch.end)), branch.children.length > 0 ? h("ol", { class: "tree" }, branch.children.map(of)) : null);
    };
    return h("ol", { class: "tree" }, of(all[0]));
  }

  /** A stretch of tokens, replies apart from what was sampled. */
  run(from, to) {
    const parts = [];
    let at = from;
    for (const [start, end] of this.replies.filter(([start, end]) => start >= from && start < to && end > start)) {
      if (start > at) parts.push(this.part(at, start, false));
      parts.push(this.part(start, Math.min(end, to), true));
      at = Math.min(end, to);
    }
    if (at < to) parts.push(this.part(at, to, false));
    return parts;
  }

  part(from, to, isReply) {
    const spans = this.tokens.text.slice(from, to).map((text, i) => h("span", { class: "token", data: { token: from + i }, vars: this.colouring ? vars(this.value(from + i, isReply)) : {} }, text));
    return h("span", { class: isReply ? "reply" : "sampled" }, spans);
  }

  /** What a token's colour says, from -1 to 1; null if nothing is known of it. */
  value(token, isReply) {
    const { logp, ratio } = this.tokens;
    if (this.colouring === "trained") return isReply ? 0 : 1;
    if (isReply) return null;
    const within = (value) => (value === null || value === undefined || !Number.isFinite(value) ? null : Math.max(-1, Math.min(1, value)));
    if (this.colouring === "logp") return within(logp[token] / FULL_LOGP);
    if (this.colouring === "ratio") return within(Math.log(ratio[token]) / FULL_RATIO);
    return within(this.advantage(token) / this.greatest);
  }

  advantage(token) {
    return this.tokens.advantage[token] ?? this.item.advantage;
  }

  key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const last = this.tokens.text.length - 1;
    const next = Math.max(0, Math.min(last, (this.at ?? -1) + step));
    this.show(this.text.querySelector(`[data-token="${next}"]`));
  }

  /** Says what is known of a token. */
  show(element) {
    if (element === null) return;
    this.text.querySelector(".token.at")?.classList.remove("at");
    element.classList.add("at");
    const token = (this.at = Number(element.dataset.token));
    const { text, logp, ratio } = this.tokens;
    const isReply = this.replies.some(([from, to]) => token >= from && token < to);
    const facts = [];
    if (isReply) facts.push("read, not trained on");
    else {
      if (logp.length > 0) facts.push(`log-probability ${number(logp[token])} (${number(100 * Math.exp(logp[token]))} %)`);
      if (this.advantage(token) !== null && this.advantage(token) !== undefined) facts.push(`advantage ${number(this.advantage(token))}`);
      if (ratio.length > 0) facts.push(`ratio ${number(ratio[token])}`);
    }
    fill(this.readout, h("code", { class: "outside" }, JSON.stringify(text[token])), ` token ${token + 1} of ${text.length}: ${facts.join(", ")}`);
  }
}

/** The variables of a colour: how strong it is, on each side. */
function vars(value) {
  if (value === null) return {};
  return value < 0 ? { "--below": -value } : { "--above": value };
}
