// What happened to a run, and the figures that say most, as its report tells them.

import { h, fill } from "./dom.js";
import { count, number } from "./format.js";

const MARKS_AT_ONCE = 10;

/** Parts of the overview, which are filled when the story is there. */
export class Story {
  constructor() {
    this.notes = h("div");
    this.keys = h("section", { "aria-label": "Key metrics", hidden: true });
    this.facts = h("section", { hidden: true });
    this.marks = h("section", { hidden: true });
    this.evaluations = h("section", { hidden: true });
  }

  show(story) {
    if (story === null) return;
    fill(this.notes, story.notes.map((note) => h("p", { class: "notice warn outside" }, note)));
    this.showKeys(story);
    this.showFacts(story);
    this.showMarks(story.marks);
    this.showEvaluations(story);
  }

  showKeys({ key_figures: figures, logged }) {
    this.keys.hidden = figures.length === 0;
    if (this.keys.hidden) return;
    const figure = ({ label, metric, first, last, since }) =>
      h("div", { class: "tile", title: metric }, h("dt", {}, label), h("dd", {}, last), h("dd", { class: "from" }, `from ${first}`, since === null ? "" : ` at step ${since}, since a swap`));
    fill(this.keys, h("dl", { class: "tiles keys" }, figures.map(figure)),
      h("p", { class: "caption" }, `The last logged value of each metric and, below it, the first. ${count(logged.rows, "row")} from step ${number(logged.from)} to ${number(logged.to)}.`));
  }

  showFacts({ state, facts, rewards }) {
    const fact = (name, text, title = "") => [h("dt", {}, name), h("dd", { class: "outside", title: title === text ? null : title }, text)];
    const weighted = rewards.map(([name, weight], i) => [i > 0 ? ", " : "", h("span", { class: "outside" }, name), h("span", { class: "muted" }, ` \u00d7 ${weight}`)]);
    this.facts.hidden = false;
    fill(this.facts, h("h2", {}, "About"), h("dl", { class: "about" },
      fact("State", `${state.word} ${state.detail}`),
      facts.map(({ name, text, title }) => fact(name, text, title)),
      rewards.length > 0 ? [h("dt", {}, "Rewards"), h("dd", {}, weighted)] : null));
  }

  showMarks(marks) {
    this.marks.hidden = marks.length === 0;
    const list = (some) => h("ol", { class: "marks" }, some.map(({ number: n, step, kind, word, text }) =>
      h("li", {}, h("span", { class: `flag ${kind}` }, n), h("span", { class: "muted" }, `step ${number(step)}`), h("span", {}, word), h("span", { class: "outside what" }, text))));
    const rest = marks.slice(MARKS_AT_ONCE);
    fill(this.marks, h("h2", {}, "Marks in the charts"), list(marks.slice(0, MARKS_AT_ONCE)), rest.length > 0 ? h("details", {}, h("summary", {}, `${rest.length} more`), list(rest)) : null);
  }

  showEvaluations({ evaluations, marks }) {
    this.evaluations.hidden = evaluations.length === 0;
    const heading = (title, kind = "number") => h("th", { scope: "col", class: kind }, title);
    const cell = (label, text) => h("td", { class: "number", data: { label } }, text);
    const row = ({ name, first, last, steps }) => h("tr", {}, h("th", { scope: "row", class: "outside" }, name), cell("First", first), cell("Last", last), cell("Steps", steps));
    const hasIntervals = evaluations.some(({ first, last }) => `${first}${last}`.includes("\u00b1"));
    const what = hasIntervals ? "Means over prompts, with 95% confidence intervals over prompts." : "The values of the first and the last evaluation.";
    const swaps = marks.length > 0 ? " After a swap of what a metric depends on, its first evaluation is the first with the new version." : "";
    fill(this.evaluations, h("h2", {}, "Evaluations"), h("p", { class: "caption" }, `${what}${swaps}`),
      h("div", { class: "scroll" }, h("table", { class: "metrics" }, h("thead", {}, h("tr", {}, heading("Metric", ""), heading("First"), heading("Last"), heading("Steps"))), h("tbody", {}, evaluations.map(row)))));
  }
}
