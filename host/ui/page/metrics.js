// The table of all metrics: the first, last, least and greatest value of each, one row for each stretch between swaps.

import { h, fill, later } from "./dom.js";
import { ask } from "./ask.js";
import { count, number } from "./format.js";

const COLUMNS = ["First", "Last", "Least", "Greatest"];

export class MetricsView {
  constructor(run, panel) {
    Object.assign(this, { run, rows: [], wanted: "" });
    this.body = h("tbody");
    this.note = h("span", { class: "muted" });
    const find = h("input", { type: "search", placeholder: "Search metrics", "aria-label": "Search metrics", oninput: (e) => ((this.wanted = e.target.value.trim().toLowerCase()), this.show()) });
    const heading = (title) => h("th", { scope: "col", class: "number" }, title);
    fill(panel, h("div", { class: "bar" }, h("h2", {}, "Metrics"), find, this.note),
      h("p", { class: "caption" }, "A metric has a row for each stretch of steps between changes of the plugins that it depends on."),
      h("div", { class: "scroll" }, h("table", { class: "metrics" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Metric"), COLUMNS.map(heading), heading("Steps"))), this.body)));
  }

  start() {
    this.run.on("story", later(() => this.load(), 50));
    this.load();
  }

  async load() {
    try {
      ({ rows: this.rows } = await ask("metrics", { run: this.run.name }));
      this.show();
    } catch (error) {
      fill(this.body, h("tr", {}, h("td", { class: "bad", colspan: 6 }, error.message)));
    }
  }

  show() {
    const shown = this.rows.filter(({ name }) => name.toLowerCase().includes(this.wanted));
    this.note.textContent = count(new Set(shown.map(({ name }) => name)).size, "metric");
    const cells = ({ values, steps }) => (values === null ? h("td", { class: "muted", colspan: 5 }, "never a finite number")
      : [values.map((value, i) => h("td", { class: "number", data: { label: COLUMNS[i] } }, number(value))), h("td", { class: "number", data: { label: "Steps" } }, `${number(steps[0])} to ${number(steps[1])}`)]);
    const empty = this.rows.length === 0 ? "No metrics have been logged yet." : "No metric has this in its name.";
    fill(this.body, shown.length === 0 ? h("tr", {}, h("td", { class: "empty", colspan: 6 }, empty)) : shown.map((row) => h("tr", {}, h("th", { scope: "row", class: "outside" }, row.name), cells(row))));
  }
}
