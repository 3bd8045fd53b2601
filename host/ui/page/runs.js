// All runs of the folder: a table, and the curves of those that are chosen.

import { h, fill, sparkline, toast } from "./dom.js";
import { ask } from "./ask.js";
import { ago, count, duration, number, isMarked, eventTone } from "./format.js";
import { Controls, Curves, placeOf } from "./curves.js";
import { COLOURS, lineColour } from "./chart.js";
import { groupLines, groupsOf, groupsTable } from "./comparison.js";
import { address, connection } from "./place.js";

const REFRESH = 3000;
/** How long a comparison of runs that go on is kept, times as long as it took: it reads all of their metrics. */
const REST = 20;
/** How long curves wait for the first comparison. */
const PATIENCE = 1000;
const CHOSEN_AT_FIRST = 5;
const MOST_SETTINGS = 6;

const COLUMNS = [
  { key: "name", title: "Run", of: (run) => run.name, text: true },
  { key: "plugins", title: "Algorithm and rewards", of: (run) => run.plugins.join(" "), text: true },
  { key: "state", title: "Status", of: (run) => run.state, text: true },
  { key: "step", title: "Step", of: (run) => run.step },
  { key: "reward", title: "Reward", of: (run) => run.reward ?? run.eval_reward },
  { key: "length", title: "Length", of: (run) => run.length },
  { key: "rate", title: "Steps/s", of: (run) => run.rate },
  { key: "left", title: "Time left", of: (run) => run.left },
  { key: "started", title: "Started", of: (run) => run.started },
];

export async function runsView(main, about) {
  const view = new Runs(main, about);
  await view.load();
  return view;
}

class Runs {
  constructor(main, about) {
    Object.assign(this, { main, about, runs: [], settings: {}, sort: { key: "started", down: true }, wanted: "" });
    this.chosen = null;
    this.data = new Map();
    this.sparks = new Map();
    this.colours = new Map();
    this.range = {};
    [this.charts, this.compared, this.isAveraged] = [null, null, true];
    this.body = h("tbody");
    this.head = h("thead");
    this.note = h("p", { class: "caption" });
    this.controls = new Controls(() => this.curvesOf(true), { whole: () => this.zoom(null, null) });
    const all = h("button", { onclick: () => {
      this.curves.key = !this.curves.key;
      all.textContent = this.curves.key ? "All metrics" : "Key metrics";
      this.curves.update();
    } }, "All metrics");
    this.curves = new Curves(() => this.lines(), this.controls, { charts: () => this.charts, key: true, sync: "runs", zoomed: (from, to) => this.zoom(from, to) });
    this.differences = h("section", { class: "differences" });
    const average = h("input", { type: "checkbox", checked: true, onchange: (e) => this.average(e.target.checked) });
    this.seeds = h("label", { hidden: true }, average, " Average runs that differ in their seed only");
    this.seeds.box = average;
    this.values = h("div");
    const values = h("details", { open: about.frozen, ontoggle: () => this.compare() }, h("summary", {}, h("h2", {}, "Values")), this.values);
    this.groups = h("section", { hidden: true }, values);
    this.groups.details = values;
    this.omitted = h("p", { class: "caption" });
    this.figures = h("section", { "aria-label": "Curves" }, h("div", { class: "bar" }, h("h2", {}, "Curves"), this.controls.element, this.seeds, all), this.omitted, this.curves.element);
    const find = h("input", { type: "search", placeholder: "Filter runs", "aria-label": "Filter runs", oninput: (e) => ((this.wanted = e.target.value.toLowerCase()), this.table()) });
    this.count = h("span", { class: "muted" });
    fill(main, h("section", {}, h("div", { class: "bar" }, h("h1", {}, about.frozen ? "Comparison" : "Runs"), this.count, find), h("div", { class: "scroll" }, h("table", { class: "runs" }, this.head, this.body)), this.note), this.differences, this.groups, this.figures);
    if (!about.frozen) this.askAgain();
  }

  /** Asks again a while after the last answer: a large folder takes longer than that to be read. */
  askAgain() {
    this.timer = setTimeout(async () => {
      if (!document.hidden) await this.load().catch(() => connection("away"));
      if (!this.left) this.askAgain();
    }, REFRESH);
  }

  leave() {
    clearTimeout(this.timer);
    this.left = true;
    this.curves.destroy();
  }

  again() {
    this.curves.again();
  }

  async load() {
    const answer = await ask("runs");
    if (this.left) return;
    connection("none");
    this.settings = answer.settings;
    const before = new Map(this.runs.map((run) => [run.name, run]));
    this.runs = answer.runs;
    if (this.chosen === null && this.runs.length > 0) {
      const newest = [...this.runs].filter((run) => run.logged !== null).sort((a, b) => (b.started ?? 0) - (a.started ?? 0));
      // A file is about these runs, so all of them are compared that can be told apart.
      const first = this.about.frozen ? this.runs.slice(0, COLOURS) : newest.slice(0, CHOSEN_AT_FIRST);
      this.chosen = new Set(first.map((run) => run.name));
      this.colour();
    }
    this.table();
    const moved = this.runs.filter((run) => before.get(run.name)?.logged !== run.logged).map((run) => run.name);
    const stale = moved.filter((name) => this.chosen?.has(name));
    if (stale.length > 0) await this.curvesOf(false, stale);
    else if (moved.length > 0 || before.size === 0) this.curvesOf(false, []);
    else if (this.isOutdated()) this.compare();
    this.small(moved);
  }

  /** Gives each chosen run a colour that it keeps. */
  colour() {
    for (const name of this.colours.keys()) if (!this.chosen.has(name)) this.colours.delete(name);
    for (const name of this.chosen) {
      if (this.colours.has(name)) continue;
      const taken = new Set(this.colours.values());
      let free = 0;
      while (taken.has(free)) free += 1;
      this.colours.set(name, free);
    }
  }

  table() {
    this.count.textContent = count(this.runs.length, "run");
    if (this.runs.length === 0) {
      fill(this.head);
      this.headings = "";
      fill(this.body, h("tr", {}, h("td", { class: "empty" }, "No run in this folder yet. Start one, as in ", h("code", {}, "rlhost --plugin tldr_length_reward.wasm --output-dir runs/first"), ": it appears here.")));
      this.figures.hidden = true;
      return;
    }
    this.figures.hidden = false;
    // Settings that some runs lack, such as those of a reward, are among those of chosen runs.
    const common = Object.keys(this.settings).filter((key) => this.runs.every((run) => this.settings[key][run.name] !== undefined));
    const keys = common.slice(0, MOST_SETTINGS);
    const columns = COLUMNS.filter(({ key }) => !(this.about.frozen && key === "left"));
    const heading = ({ key, title, text }) => {
      const own = this.sort.key === key;
      const click = () => {
        this.sort = { key, down: own ? !this.sort.down : !text };
        this.table();
      };
      return h("th", { scope: "col", class: text ? "" : "number", "aria-sort": own ? (this.sort.down ? "descending" : "ascending") : null }, h("button", { class: "plain", onclick: click }, title, own ? (this.sort.down ? " \u2193" : " \u2191") : ""));
    };
    const headings = JSON.stringify([this.sort, keys]);
    const at = [...this.head.querySelectorAll("button")].indexOf(document.activeElement);
    if (headings !== this.headings) fill(this.head, h("tr", {}, h("th", { class: "choose" }, h("span", { class: "hidden" }, "Compare")), columns.map(heading), h("th", { scope: "col" }, "Curve"), keys.map((key) => h("th", { scope: "col", class: "setting outside" }, key))));
    if (headings !== this.headings && at >= 0) this.head.querySelectorAll("button")[at]?.focus();
    this.headings = headings;
    const column = COLUMNS.find(({ key }) => key === this.sort.key);
    const shown = this.runs.filter((run) => this.wanted === "" || `${run.name} ${run.state} ${keys.map((key) => this.settings[key][run.name]).join(" ")}`.toLowerCase().includes(this.wanted));
    shown.sort((a, b) => {
      const [x, y] = [column.of(a), column.of(b)];
      if (x === y) return a.name < b.name ? -1 : 1;
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return (x < y ? -1 : 1) * (this.sort.down ? -1 : 1);
    });
    const focused = document.activeElement?.closest?.("tr")?.dataset.run;
    const inBox = document.activeElement?.matches?.("input[type=checkbox]");
    fill(this.body, shown.map((run) => this.row(run, keys)));
    if (focused !== undefined) this.body.querySelector(`tr[data-run="${CSS.escape(focused)}"] ${inBox ? "input" : "a"}`)?.focus();
    if (shown.length === 0) fill(this.body, h("tr", {}, h("td", { class: "empty", colspan: 12 }, "No run fits this filter.")));
    const more = Object.keys(this.settings).length - keys.length;
    this.note.textContent = more > 0 ? `${count(more, "more setting")} differ; choose runs to compare all of theirs.` : "";
  }

  row(run, keys) {
    const chosen = this.chosen?.has(run.name) ?? false;
    const box = h("input", { type: "checkbox", checked: chosen, "aria-label": `Compare ${run.name}`, onchange: (e) => this.choose(run.name, e.target.checked) });
    const key = chosen ? h("i", { class: "swatch", vars: { "--key": `var(${lineColour(this.colourOf(run.name))})` } }) : null;
    const share = run.max_steps ? Math.min(1, (run.step ?? 0) / run.max_steps) : 0;
    const cell = (label, text, kind = "number") => h("td", { class: kind, data: { label } }, text);
    const spark = this.sparks.get(run.name);
    return h("tr", { data: { run: run.name }, class: chosen ? "chosen" : "" },
      h("td", { class: "choose" }, box),
      h("th", { scope: "row", class: "name" }, key, h("a", { href: address(run.name), class: "outside" }, run.name), run.error ? h("span", { class: "bad" }, ` ${run.error}`) : null),
      h("td", { class: "plugins outside", data: { label: "" } }, run.plugins.map((name) => h("span", { class: "plugin-name" }, name))),
      h("td", { data: { label: "Status" } }, h("span", { class: `state ${run.state}` }, run.state)),
      h("td", { class: "number", data: { label: "Step" } }, `${number(run.step)}${run.max_steps ? ` / ${number(run.max_steps)}` : ""}`, h("span", { class: "progress", "aria-hidden": "true" }, h("i", { vars: { "--share": share } }))),
      cell("Reward", number(run.reward ?? run.eval_reward)),
      cell("Length", number(run.length)),
      cell("Steps/s", number(run.rate)),
      this.about.frozen ? null : cell("Time left", run.left === null ? "" : duration(run.left)),
      cell("Started", ago(run.started)),
      h("td", { class: "curve", data: { label: "Reward" } }, spark ? sparkline(spark, { label: "Reward over the steps" }) : null),
      keys.map((key) => h("td", { class: "setting outside", data: { label: key } }, this.settings[key][run.name] ?? "\u2013")));
  }

  choose(name, yes) {
    this.chosen ??= new Set();
    if (yes && this.chosen.size >= COLOURS) toast(`${COLOURS} runs can be compared at once: more could not be told apart. Take one out first.`);
    else if (yes) this.chosen.add(name);
    else this.chosen.delete(name);
    this.colour();
    this.table();
    this.curvesOf(false, yes && !this.data.has(name) ? [name] : []);
  }

  zoom(from, to) {
    this.range = from === null ? {} : { from, to };
    this.controls.zoomed(from !== null);
    this.curvesOf(true);
  }

  /** Asks for the curves of chosen runs: of all, if the axis or the range is another. */
  async curvesOf(all, names = []) {
    // A part of one axis is none of another.
    if (this.controls.axis !== this.drawnAlong) this.range = {};
    this.drawnAlong = this.controls.axis;
    const axis = `${this.controls.axis} ${this.range.from} ${this.range.to}`;
    const wanted = axis !== this.axis ? [...(this.chosen ?? [])] : all ? [] : names;
    this.axis = axis;
    if (wanted.length > 0) {
      try {
        const { runs } = await ask("series", { run: wanted, x: this.controls.axis, points: 400, ...this.range });
        const zoomed = this.range.from !== undefined;
        for (const [name, data] of Object.entries(runs)) this.data.set(name, { ...data, zoomed });
        await this.eventsOf(wanted);
      } catch (error) {
        this.note.textContent = error.message;
      }
    }
    await this.plan();
    // Means are drawn at once, rather than after each run, unless they take long.
    if (this.compared === null) await Promise.race([this.compare(), new Promise((pass) => setTimeout(pass, PATIENCE))]);
    this.curves.update();
    this.differ();
    this.compare();
  }

  /** Asks which charts the chosen runs have, if they have other metrics than before. */
  async plan() {
    const names = [...(this.chosen ?? [])].filter((name) => this.data.has(name));
    const key = JSON.stringify([names.length > 1 ? "several" : names, [...new Set(names.flatMap((name) => Object.keys(this.data.get(name).series)))].sort()]);
    if (key === this.planned) return;
    this.planned = key;
    this.charts = names.length === 0 ? { sections: [], others: [] } : await ask("charts", { run: names }).catch(() => this.charts);
  }

  /** The chosen runs whose curves are there, in an order of their own. */
  drawn() {
    return [...(this.chosen ?? [])].filter((name) => this.data.has(name)).sort();
  }

  /** Whether the means of groups are drawn, which are along steps, and not each run. */
  drawsGroups() {
    return this.isAveraged && this.controls.axis === "step" && this.drawn().length > 1 && this.compared?.has_seeds === true;
  }

  /** The colour of a run's line, or of its group's. */
  colourOf(name) {
    const group = this.drawsGroups() ? groupsOf(this.compared, this.drawn()).findIndex(({ runs }) => runs.includes(name)) : -1;
    return group < 0 ? (this.colours.get(name) ?? 0) : group;
  }

  /** Whether runs that are compared have gone on for a while since. */
  isOutdated() {
    return this.compared !== null && this.loggedSteps() !== this.comparedSteps && Date.now() > this.comparedUntil;
  }

  /** The last steps with metrics of the runs that are drawn. */
  loggedSteps() {
    return this.drawn().map((name) => this.runs.find((run) => run.name === name)?.logged).join();
  }

  /** Compares runs, unless they are compared already. */
  async compareAgain(names) {
    const key = names.join("\n");
    if (key === this.comparedNames && !this.isOutdated()) return;
    [this.comparedNames, this.comparedSteps, this.comparedUntil] = [key, this.loggedSteps(), Infinity];
    const begun = Date.now();
    const compared = await ask("comparison", { run: names }).catch((error) => ({ error }));
    if (key !== this.comparedNames) return;
    this.compared = compared.error === undefined ? compared : null;
    this.comparedUntil = Date.now() + REFRESH + REST * (Date.now() - begun);
    if (this.compared === null) fill(this.values, h("p", { class: "bad" }, compared.error.message));
  }

  /** Shows groups of the chosen runs with their values, if that is open or means are drawn: it reads all of their metrics. */
  async compare() {
    const names = this.drawn();
    this.groups.hidden = names.length < 2;
    // Averages are of several runs that differ in their seed.
    const seeds = this.about.frozen ? (await ask("comparison", {}).catch(() => null))?.has_seeds : this.settings.seed !== undefined;
    const isOffered = names.length > 1 && seeds && this.controls.axis === "step";
    if (!this.groups.hidden && (this.groups.details.open || (isOffered && this.isAveraged))) {
      await this.compareAgain(names);
      if (this.compared !== null) this.showGroups(names);
    }
    this.seeds.hidden = !isOffered || this.compared?.has_seeds === false;
    this.showColours();
  }

  showGroups(names) {
    const averaged = this.drawsGroups();
    const groups = groupsOf(this.compared, names);
    const colour = (group) => (averaged ? groups.indexOf(group) : group.runs.length === 1 ? (this.colours.get(group.runs[0]) ?? null) : null);
    fill(this.values, groupsTable(this.compared, names, colour));
    if (averaged) this.curves.update();
  }

  /** Says what lines are, and gives runs their colours, where that is other than before. */
  showColours() {
    const averaged = this.drawsGroups();
    const left = averaged ? [[this.compared.omitted_groups, "group"], [this.compared.omitted_metrics, "metric"]].filter(([n]) => n > 0) : [];
    const means = averaged ? ["Each line is the mean of the runs that differ in their seed only, in a band from the least to the greatest of them."] : [];
    this.omitted.textContent = [...means, ...left.map(([n, what]) => `${count(n, what)} ${n === 1 ? "has" : "have"} no curve.`)].join(" ");
    const colours = JSON.stringify([...(this.chosen ?? [])].map((name) => [name, this.colourOf(name)]));
    if (colours === this.shownColours) return;
    this.shownColours = colours;
    this.table();
    this.differ();
  }

  /** Draws the means of groups, with bands over their seeds, or each run. */
  average(yes) {
    this.isAveraged = yes;
    this.curves.update();
    this.compare();
  }

  /** Asks for the events of runs, which charts mark if they are few. */
  async eventsOf(names) {
    await Promise.all(names.map(async (name) => {
      const run = await ask("run", { run: name }).catch(() => ({ events: [] }));
      const data = this.data.get(name);
      if (data) data.events = run.events.filter((event) => isMarked(event.kind) && !event.undone && event.step !== null);
    }));
  }

  lines() {
    if (this.drawsGroups()) return groupLines(this.compared, this.drawn(), this.range);
    const chosen = this.runs.filter((run) => this.chosen?.has(run.name) && this.data.has(run.name));
    return chosen.map((run) => {
      const data = this.data.get(run.name);
      const marks = (data.events ?? []).map((event) => ({ x: placeOf(data, event.step, this.controls.axis), step: event.step, kind: event.kind, plugin: event.plugin, again: event.loaded_again, tone: event.loaded_again ? "settings" : eventTone(event.kind), text: `${run.name}: ${event.text}` }));
      return { name: run.name, label: run.name, colour: this.colours.get(run.name) ?? 0, data, marks: marks.filter((mark) => mark.x !== null), changes: marks };
    });
  }

  /** Shows all settings in which the chosen runs differ. */
  async differ() {
    const names = [...(this.chosen ?? [])].filter((name) => this.runs.some((run) => run.name === name));
    const key = JSON.stringify(names.map((name) => [name, this.colourOf(name)]));
    if (key === this.differed) return;
    this.differed = key;
    if (names.length < 2) return fill(this.differences);
    const settings = await ask("settings", { run: names }).catch(() => ({}));
    if (key !== this.differed) return;
    const keys = Object.keys(settings);
    if (keys.length === 0) return fill(this.differences, h("p", { class: "caption" }, "The chosen runs have the same settings."));
    fill(this.differences, h("details", { open: keys.length <= 8 }, h("summary", {}, h("h2", {}, "Settings that differ"), h("span", { class: "muted" }, `${keys.length}`)),
      h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Setting"), names.map((name) => h("th", { scope: "col" }, h("i", { class: "swatch", vars: { "--key": `var(${lineColour(this.colourOf(name))})` } }), h("span", { class: "outside" }, name))))),
        h("tbody", {}, keys.map((own) => h("tr", {}, h("th", { scope: "row" }, h("span", { class: "outside" }, own)), names.map((name) => h("td", { class: "outside" }, settings[own][name] ?? "\u2013")))))))));
  }

  /** Asks for small curves of runs that have moved. */
  async small(names) {
    for (let i = 0; i < names.length; i += 32) {
      const { runs } = await ask("series", { run: names.slice(i, i + 32), metric: ["reward", "loss"], points: 40 });
      for (const [name, data] of Object.entries(runs)) this.sparks.set(name, (data.series.reward ?? data.series.loss)?.y ?? []);
    }
    if (names.length > 0) this.table();
  }
}
