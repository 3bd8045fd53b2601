// One run: its state, and views of its curves, completions, rewards and events, which hear of what is new.

import { h, fill, later, toast } from "./dom.js";
import { ask, follow, server } from "./ask.js";
import { ago, count, duration, number } from "./format.js";
import { Controls, Curves, placeOf } from "./curves.js";
import { CompletionsView } from "./completions.js";
import { Fork } from "./fork.js";
import { EventsView, eventRow } from "./events.js";
import { MetricsView } from "./metrics.js";
import { RewardsView } from "./rewards.js";
import { Sent } from "./sent.js";
import { Steering } from "./steer.js";
import { Story } from "./story.js";
import { address, connection } from "./place.js";

const TABS = [["overview", "Overview"], ["charts", "Charts"], ["metrics", "Metrics"], ["completions", "Completions"], ["rewards", "Rewards"], ["events", "Events"], ["settings", "Settings"]];
const POINTS = 600;

/** How often the story of a run that goes on is asked for again. */
const RETOLD = 5000;

/** How many of the newest events the overview lists. */
const NEWEST_EVENTS = 8;

export async function runView(main, about, name, tab, parameters) {
  const run = new Run(main, about, name);
  await run.load();
  run.show(tab, parameters);
  return run;
}

/** A run and all who want to hear of it. */
class Run {
  constructor(main, about, name) {
    Object.assign(this, { main, about, name, data: null, events: [], status: {}, story: null, charts: null, view: null, range: {}, axis: "step" });
    this.listeners = new Map();
    this.toldSoon = later(() => this.tellStory(), 400);
    this.header = h("header", { class: "run" });
    this.sent = new Sent(name);
    this.steering = new Steering(this);
    this.tabs = h("div", { class: "tabs", role: "tablist", "aria-label": "Views" });
    this.panel = h("div", { id: "panel", role: "tabpanel", tabindex: "-1" });
    document.title = `${name} \u00b7 rlhost`;
  }

  async load() {
    const [about, series] = await Promise.all([ask("run", { run: this.name }), this.series()]);
    this.take(about);
    this.data = series;
    this.tellStory();
    fill(this.main, this.header, this.steering.element, this.tabs, this.panel);
    this.head();
    this.close = follow(() => ({ run: this.name, rows: this.data.rows, generation: this.data.generation, events: this.total }), (news) => this.hear(news), (state) => this.connected(state));
    this.clock = setInterval(() => this.head(), 5000);
    this.retold = setInterval(() => this.isAlive() && !document.hidden && this.tellStory(), RETOLD);
  }

  /** Asks for what the run's report tells, and for which metrics share a chart. */
  async tellStory() {
    try {
      [this.story, this.charts] = await Promise.all([ask("story", { run: this.name }), ask("charts", { run: this.name })]);
      this.head();
      this.tell("story");
    } catch (error) {
      this.charts ??= { sections: [], others: [] };
      this.tell("story");
      if (server.answers) toast(error.message, "error");
    }
  }

  /** Says that the page is live while there is something to hear. */
  connected(state) {
    this.connection = state;
    connection(state === "live" && !this.isAlive() ? "none" : state);
  }

  /** Whether a process is running the run. */
  isAlive() {
    return !this.about.frozen && ["running", "paused"].includes(this.status.state);
  }

  take(about) {
    this.facts = about;
    this.status = about.status;
    this.events = about.events;
    this.total = about.events.length + about.left_out;
  }

  async series() {
    const answer = await ask("series", { run: this.name, x: this.axis, points: POINTS, ...this.range });
    const data = { ...answer.runs[this.name], zoomed: this.range.from !== undefined };
    if (!answer.complete) setTimeout(() => this.reload(), 300);
    return data;
  }

  leave() {
    clearInterval(this.clock);
    clearInterval(this.retold);
    this.close?.();
    this.view?.leave?.();
    document.title = "rlhost";
    connection("none");
  }

  again() {
    this.view?.again?.();
  }

  /** Shows what is known while the server does not answer. */
  away() {
    this.head();
  }

  /** Goes to another view of the same run. */
  go(view, name, tab, parameters) {
    if (view !== "run" || name !== this.name) return false;
    this.show(tab, parameters);
    return true;
  }

  show(tab, parameters) {
    if (this.tab === tab && this.view?.go?.(parameters)) return;
    this.view?.leave?.();
    this.listeners.clear();
    this.tab = tab;
    fill(this.tabs, TABS.map(([own, title]) => h("a", { href: address(this.name, own), role: "tab", "aria-selected": own === tab ? "true" : "false", "aria-current": own === tab ? "page" : null }, title, own === "completions" && this.completions ? h("span", { class: "badge" }, this.completions.toLocaleString("en-US")) : null)));
    this.tabs.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest", inline: "nearest" });
    fill(this.panel);
    const views = { overview: Overview, charts: Charts, metrics: MetricsView, completions: CompletionsView, rewards: RewardsView, events: EventsView, settings: SettingsView };
    this.view = new (views[tab] ?? Overview)(this, this.panel, parameters);
    this.view.start?.();
  }

  on(kind, work) {
    this.listeners.set(kind, [...(this.listeners.get(kind) ?? []), work]);
  }

  tell(kind, value) {
    for (const work of this.listeners.get(kind) ?? []) work(value);
  }

  async reload() {
    try {
      const [about, series] = await Promise.all([ask("run", { run: this.name }), this.series()]);
      const before = this.total;
      this.take(about);
      this.data = series;
      this.head();
      this.sent.answered(this.total > before ? this.events.slice(before - this.total) : []);
      this.tell("rows");
      this.tell("events", this.events);
      this.toldSoon();
    } catch {
      connection("away");
    }
  }

  hear(news) {
    if (news.reload) this.reload();
    if (news.status) {
      this.status = news.status;
      this.head();
      this.connected(this.connection);
      this.tell("status");
    }
    if (news.rows) this.append(news.rows);
    if (news.events) {
      this.events.push(...news.events);
      this.total += news.events.length;
      this.sent.answered(news.events);
      this.toldSoon();
      this.tell("events", news.events);
    }
    if (news.completions) {
      this.completions = news.completions.all;
      const badge = this.tabs.querySelector('[href*="/completions"]');
      if (badge) fill(badge, "Completions", h("span", { class: "badge" }, this.completions.toLocaleString("en-US")));
      // It is wider now.
      if (this.tab === "completions") badge?.scrollIntoView({ block: "nearest", inline: "nearest" });
      this.tell("completions", news.completions);
    }
  }

  /** Adds rows to the curves, or asks for the curves again if points would no longer stand for as many rows. */
  append({ from, steps, times, kinds, values }) {
    const { data } = this;
    if (from !== data.rows) return this.reload();
    data.rows += steps.length;
    const zoomed = this.range.from !== undefined;
    if (zoomed || data.per_point > 1 || this.axis === "tokens" || data.x.length + steps.length > 2 * POINTS) {
      // Not for each row: a point stands for several.
      if (!zoomed && this.waiting === undefined) {
        this.waiting = setTimeout(async () => {
          this.waiting = undefined;
          this.data = await this.series().catch(() => this.data);
          this.tell("rows");
        }, 1500);
      }
      return;
    }
    const before = data.x.length;
    data.x = [...data.x, ...(this.axis === "time" ? times : steps)];
    [data.steps, data.times, data.kinds] = [[...data.steps, ...steps], [...data.times, ...times], [...data.kinds, ...kinds]];
    if (Object.keys(values).some((name) => data.series[name] === undefined)) this.toldSoon();
    for (const [name, added] of Object.entries(values)) {
      data.series[name] ??= { y: Array(before).fill(null) };
      data.series[name].y = [...data.series[name].y, ...added];
    }
    for (const series of Object.values(data.series)) {
      if (series.y.length < data.x.length) series.y = [...series.y, ...Array(data.x.length - series.y.length).fill(null)];
      delete series.lo;
      delete series.hi;
    }
    this.tell("rows");
  }

  async along(axis, range = {}) {
    if (axis === this.axis && range.from === this.range.from && range.to === this.range.to) return;
    [this.axis, this.range] = [axis, range];
    this.data = await this.series().catch(() => this.data);
    this.tell("rows");
  }

  /** Where a step is on the axis of the curves. */
  placeOf(step) {
    return placeOf(this.data, step, this.axis);
  }

  marks() {
    const placed = (this.story?.marks ?? []).map((mark) => ({ ...mark, tone: mark.kind, x: this.placeOf(mark.step) }));
    return placed.filter((mark) => mark.x !== null);
  }

  ticks() {
    return (this.story?.checkpoints ?? []).map((step) => this.placeOf(step)).filter((x) => x !== null);
  }

  /** What curves draw. */
  lines() {
    return [{ name: this.name, label: "", colour: 0, data: this.data, marks: this.marks(), ticks: this.ticks() }];
  }

  head() {
    const { status, facts } = this;
    const share = status.max_steps ? Math.min(1, (status.step ?? 0) / status.max_steps) : 0;
    const tile = (title, value, below = "") => h("div", { class: "tile" }, h("dt", {}, title), h("dd", {}, value, below === "" ? null : h("small", {}, below)));
    const running = this.isAlive();
    this.steering.update();
    const reward = this.story?.key_figures.find(({ metric }) => metric === "reward");
    const from = reward === undefined ? "" : `from ${reward.first}${reward.since === null ? "" : ", since a swap"}`;
    const tiles = [
      tile("Step", number(status.step ?? 0), status.max_steps ? `of ${number(status.max_steps)}` : ""),
      status.reward !== null ? tile("Reward", number(status.reward), from) : tile("Loss", number(status.loss)),
      status.length !== null ? tile("Length", number(status.length), "tokens") : null,
      tile("Speed", number(status.rate), "steps/s"),
      running ? tile("Time left", duration(status.left)) : tile("Took", duration(status.seconds)),
      status.memory_mb !== null ? tile("Memory", number(status.memory_mb), "MB") : null,
    ];
    fill(this.header,
      h("div", { class: "title" }, h("h1", { class: "outside" }, this.name), h("span", { class: `state ${server.answers ? status.state : "unknown"}` }, server.answers ? status.state : `${status.state} when last seen`), h("span", { class: "muted" }, [facts.algorithm, facts.model].filter(Boolean).map((text) => h("span", { class: "outside fact" }, text)), running ? "" : ` ${ago(status.ended)}`)),
      status.max_steps ? h("div", { class: "progress wide", role: "progressbar", "aria-label": "Steps done", "aria-valuemin": 0, "aria-valuemax": status.max_steps, "aria-valuenow": status.step ?? 0 }, h("i", { vars: { "--share": share } })) : null,
      h("dl", { class: "tiles" }, tiles));
  }
}

/** Why the run ended or can't be seen, if that needs words. */
function trouble(run) {
  const { state } = run.status;
  const last = run.events.findLast((event) => event.kind === "failed");
  if (state === "failed" && last) return h("div", { class: "notice bad" }, h("strong", {}, "The run failed. "), h("span", { class: "outside pre" }, last.text), h("p", {}, "Resume it with ", h("code", { class: "outside" }, `rlhost resume ${run.facts.path}`), "."));
  if (state === "interrupted") return h("div", { class: "notice warn" }, "No process is running this run, and it did not say that it ended: it may have been killed. ", h("code", { class: "outside" }, `rlhost resume ${run.facts.path}`), " continues it from its newest checkpoint.");
  if (state === "empty") return h("div", { class: "notice" }, "Nothing has happened yet in this run.");
  return null;
}

/** Signs of why the run does not learn, with their remedies; those that have passed are folded. */
function signs({ findings, enough, rows, last_step: last }) {
  const healthy = `The metrics of ${count(rows, "row")} up to step ${number(last)} show no sign of trouble.`;
  const since = (finding) => (finding.until === null ? ` since step ${number(finding.since)}` : ` from step ${number(finding.since)} to ${number(finding.until)}`);
  const sign = (finding, open) => h("details", { class: "sign", open }, h("summary", {}, h("span", { class: "outside" }, finding.sentence), h("span", { class: "muted" }, since(finding))),
    h("dl", { class: "evidence" }, finding.figures.map((figure) => [h("dt", { class: "outside" }, figure.name), h("dd", { class: "outside" }, figure.value)])),
    finding.advice.length > 0 ? [h("h4", {}, "What to try"), h("ul", {}, finding.advice.map((text) => h("li", { class: "outside" }, text)))] : null);
  const [held, past] = [findings.filter((finding) => finding.until === null), findings.filter((finding) => finding.until !== null)];
  const now = held.length > 0 ? held.map((finding) => sign(finding, held.length === 1)) : h("p", { class: enough ? "good" : "muted" }, enough ? (past.length > 0 ? "No sign of trouble now." : healthy) : "Too early to tell: signs need some steps.");
  return [now, past.length > 0 ? [h("h3", {}, "Past signs"), past.map((finding) => sign(finding, false))] : null];
}

class Overview {
  constructor(run, panel) {
    Object.assign(this, { run });
    this.controls = new Controls(() => (run.along(this.controls.axis, this.controls.axis === run.axis ? run.range : {}), this.curves.update()), { search: false, whole: () => this.zoom(null, null) });
    this.curves = new Curves(() => run.lines(), this.controls, { charts: () => run.charts, key: true, sync: "run", zoomed: (from, to) => this.zoom(from, to) });
    this.trouble = h("div");
    this.signs = h("div", { class: "signs" }, h("p", { class: "muted" }, "Looking\u2026"));
    this.events = h("ol", { class: "events" });
    this.newest = h("div", { class: "newest" });
    this.completions = h("section", { hidden: true }, h("h2", {}, "Newest completions"), this.newest);
    this.listSoon = later(() => this.list(), 300);
    this.story = new Story();
    const { notes, keys, facts, marks, evaluations } = this.story;
    fill(panel, this.trouble, notes, keys, h("div", { class: "split" },
      h("div", {}, h("div", { class: "bar" }, h("h2", {}, "Curves"), this.controls.element), this.curves.element, marks, evaluations),
      h("aside", {}, h("section", {}, h("h2", {}, "Signs"), this.signs), facts, h("section", {}, h("h2", {}, "Newest events"), this.events), this.completions)));
  }

  start() {
    const { run } = this;
    run.along(this.controls.axis, {}).then(() => this.curves.update());
    this.curves.update();
    this.list();
    this.diagnose();
    this.complete();
    fill(this.trouble, trouble(run));
    this.story.show(run.story);
    run.on("rows", () => this.curves.update());
    // A report that is made often is kept for a while, and may lack the newest event.
    run.on("story", () => (this.story.show(run.story), this.curves.update(), this.listSoon()));
    run.on("status", () => fill(this.trouble, trouble(run)));
    run.on("events", (events) => {
      this.listSoon();
      this.curves.update();
      if (events.some((event) => ["finding", "finished", "stopped", "failed"].includes(event.kind))) this.diagnose();
    });
    run.on("completions", () => this.complete());
  }

  leave() {
    this.curves.destroy();
  }

  again() {
    this.curves.again();
  }

  zoom(from, to) {
    this.controls.zoomed(from !== null);
    this.run.along(this.run.axis, from === null ? {} : { from, to });
  }

  /** Lists the newest events; those that say the same are one, as among all events. */
  async list() {
    const { rows } = await ask("events", { run: this.run.name }).catch(() => ({ rows: null }));
    if (rows === null) return;
    const told = rows.filter((event) => event.kind !== "plugin_loaded").sort((a, b) => b.latest - a.latest);
    const all = told.length > NEWEST_EVENTS ? h("li", {}, h("a", { href: address(this.run.name, "events") }, `all ${count(this.run.total, "event")}`)) : null;
    fill(this.events, told.slice(0, NEWEST_EVENTS).map((event) => eventRow(event, true)), all);
  }

  async diagnose() {
    const found = await ask("diagnosis", { run: this.run.name }).catch((error) => ({ error }));
    fill(this.signs, found.error ? h("p", { class: "muted" }, found.error.message) : signs(found));
  }

  /** Shows the newest completions: not more often than they can be read. */
  async complete() {
    if (!this.run.facts.has_completions && !this.run.completions) return;
    if (this.asked && Date.now() - this.asked < 1500) return;
    this.asked = Date.now();
    const page = await ask("completions", { run: this.run.name, limit: 3 }).catch(() => null);
    if (page === null) return;
    this.completions.hidden = page.items.length === 0;
    fill(this.newest, page.items.map((item) => h("a", { class: "glance", href: address(this.run.name, "completions", { id: item.id }) }, h("span", { class: "muted" }, `step ${number(item.step)} \u00b7 reward `, h("b", {}, number(item.reward))), h("span", { class: "outside clamp" }, item.completion))));
  }
}

class Charts {
  constructor(run, panel) {
    this.run = run;
    this.controls = new Controls(() => (run.along(this.controls.axis, this.controls.axis === run.axis ? run.range : {}), this.curves.update()), { whole: () => this.zoom(null, null) });
    this.curves = new Curves(() => run.lines(), this.controls, { charts: () => run.charts, sync: "run", zoomed: (from, to) => this.zoom(from, to) });
    fill(panel, h("div", { class: "bar" }, this.controls.element), this.curves.element);
  }

  start() {
    this.run.on("rows", () => this.curves.update());
    this.run.on("story", () => this.curves.update());
    this.run.along(this.controls.axis, {}).then(() => this.curves.update());
    this.curves.update();
  }

  zoom(from, to) {
    this.controls.zoomed(from !== null);
    this.run.along(this.run.axis, from === null ? {} : { from, to });
  }

  leave() {
    this.curves.destroy();
  }

  again() {
    this.curves.again();
  }
}

/** All settings; those that the user set come first. */
class SettingsView {
  constructor(run, panel) {
    this.run = run;
    this.wanted = "";
    this.body = h("tbody");
    this.note = h("p", { class: "caption warn" });
    this.file = h("section");
    const find = h("input", { type: "search", placeholder: "Search settings", "aria-label": "Search settings", oninput: (e) => ((this.wanted = e.target.value.toLowerCase()), this.show()) });
    fill(panel, h("div", { class: "bar" }, h("h2", {}, "Settings"), find, h("span", { class: "muted" }, "those that you set come first")), this.forking = h("div", {}), this.note, this.file, h("div", { class: "scroll" }, h("table", { class: "config" }, this.body)));
  }

  async start() {
    this.run.on("events", (events) => events.some((event) => event.kind.startsWith("settings_") || event.kind === "plugin_swapped") && this.load());
    await this.load();
  }

  async load() {
    try {
      const { settings, set, note, lines, own: given } = await ask("config", { run: this.run.name });
      this.text(lines, given);
      // A key that was set may have a table.
      const isSet = (key) => set.some((own) => key === own || key.startsWith(`${own}.`));
      this.rows = Object.entries(settings).map(([key, value]) => ({ key, value, own: isSet(key) })).sort((a, b) => b.own - a.own);
      this.note.textContent = note ?? "";
      if (!this.run.about.frozen) this.fork ??= this.forking.appendChild(new Fork(this.run, settings).element);
      this.show();
    } catch (error) {
      fill(this.body, h("tr", {}, h("td", { class: "bad" }, error.message)));
    }
  }

  show() {
    const shown = (this.rows ?? []).filter(({ key, value }) => `${key} ${value}`.toLowerCase().includes(this.wanted));
    fill(this.body, shown.map(({ key, value, own }) => h("tr", { class: own ? "own" : "" }, h("th", { scope: "row", class: "outside" }, key), h("td", { class: "outside" }, value))), shown.length === 0 ? h("tr", {}, h("td", { class: "empty" }, "No setting has this in it.")) : null);
  }

  /** Shows config.toml as it is: what the user set, and all of it with that marked. */
  text(lines, given) {
    if (lines.length === 0) return fill(this.file, h("p", { class: "empty" }, "The run's folder has no config.toml."));
    const code = (label, ...inside) => h("pre", { class: "outside", tabindex: "0", role: "region", "aria-label": label }, inside);
    const whole = lines.map(({ text, set }) => [set ? h("mark", {}, text) : text, "\n"]);
    fill(this.file, given.length > 0 ? [h("p", { class: "caption" }, "What was set in files and by flags. All other keys have their defaults."), code("Keys that were set", given.join("\n"))] : null,
      h("details", {}, h("summary", {}, "config.toml"), code("All of config.toml", whole)));
  }
}
