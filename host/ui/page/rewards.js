// Rewards and other plugins: versions, settings, what each did; and, if the page controls runs, other versions of them.

import { h, fill, toast } from "./dom.js";
import { ask } from "./ask.js";
import { bytes, clock, count, eventName, eventTone, number } from "./format.js";
import { SettingsForm } from "./form.js";
import { versionsTable } from "./versions.js";
import { dropZone, whatIf } from "./whatif.js";

/** Most settings that a row has all of; of more, it has those that changed. */
const MOST_SETTINGS = 6;

/** The settings of a version, in a line. */
function settingsOf({ config }, before) {
  const all = Object.entries(config).filter(([, value]) => value !== null);
  const changed = all.filter(([key, value]) => before !== undefined && JSON.stringify(value) !== JSON.stringify(before.config[key]));
  const shown = all.length <= MOST_SETTINGS ? all : changed;
  return shown.map(([key, value]) => `${key} ${typeof value === "string" ? value : JSON.stringify(value)}`).join(", ");
}

export class RewardsView {
  constructor(run, panel) {
    this.run = run;
    this.cards = new Map();
    this.places = new Map();
    this.list = h("div", { class: "plugins" });
    this.versions = h("div");
    fill(panel, this.list, this.versions);
  }

  start() {
    this.load();
    this.run.on("events", (events) => events.some((event) => event.plugin !== "") && this.load());
    this.run.on("status", () => this.controlled !== this.isControlled() && this.load());
    // Means move with each row, but what a person is editing must stay.
    this.run.on("rows", () => this.figures());
    const versions = () => fill(this.versions, versionsTable(this.run.story?.versions ?? []));
    this.run.on("story", versions);
    versions();
  }

  /** Shows the plugins as they are now. Only the card of one that is another than before is made again, and its form only if its settings are. */
  async load() {
    const turn = (this.turn = (this.turn ?? 0) + 1);
    this.controlled = this.isControlled();
    try {
      const { plugins } = await ask("plugins", { run: this.run.name });
      if (turn !== this.turn) return;
      const focused = document.activeElement;
      const cards = plugins.map((plugin) => this.card(plugin));
      if (plugins.length === 0) fill(this.list, h("p", { class: "empty" }, "This run has loaded no plugin yet."));
      else if (cards.some((card, i) => card !== this.list.children[i]) || this.list.childElementCount !== cards.length) fill(this.list, cards);
      this.figures();
      // Moving what has the focus takes it away.
      if (focused !== document.activeElement && this.list.contains(focused)) focused.focus({ preventScroll: true });
    } catch (error) {
      if (turn === this.turn && this.cards.size === 0) fill(this.list, h("p", { class: "bad" }, error.message));
    }
  }

  /** Returns the card of a plugin, which stays as it is while what it shows is the same. */
  card(plugin) {
    const { mean, std, ...rest } = plugin;
    const is = JSON.stringify([rest, this.isControlled()]);
    const before = this.cards.get(plugin.name);
    if (before?.is === is) return before.element;
    const element = this.plugin(plugin, before);
    const open = new Set([...(before?.element.querySelectorAll("details[open][data-key]") ?? [])].map((d) => d.dataset.key));
    for (const details of element.querySelectorAll("details[data-key]")) if (open.has(details.dataset.key)) details.open = true;
    this.cards.set(plugin.name, { is, element, trial: element.querySelector(".trial"), form: this.made });
    return element;
  }

  isControlled() {
    return this.run.about.control && this.run.isAlive();
  }

  figures() {
    for (const [name, place] of this.places) {
      const last = (metric) => this.run.data.series[metric]?.y.findLast((value) => value !== null && value !== undefined);
      const mean = last(`rewards/${name}/mean`);
      if (mean !== undefined) fill(place, number(mean));
    }
  }

  plugin(plugin, before) {
    const { name, now } = plugin;
    const control = this.isControlled();
    const mean = h("b", {}, number(plugin.mean));
    this.places.set(name, mean);
    const place = before?.trial ?? h("div", { class: "trial", data: { plugin: name } });
    const isReward = plugin.role.startsWith("reward") && plugin.role !== "reward model";
    const facts = [
      now?.stated ? ["declared version", h("span", { class: "outside" }, now.stated)] : null,
      now ? ["version", h("code", {}, now.version)] : null,
      plugin.weight !== null ? ["weight", number(plugin.weight)] : null,
      plugin.mean !== null ? ["mean", mean] : null,
      plugin.std !== null ? ["standard deviation", number(plugin.std)] : null,
      plugin.errors ? ["errors", h("span", { class: "bad" }, number(plugin.errors))] : null,
      plugin.file ? ["file", h("span", { class: "outside" }, plugin.file)] : null,
    ].filter(Boolean);
    return h("section", { class: "plugin", "aria-label": name },
      h("div", { class: "bar" }, h("h2", { class: "outside" }, name), h("span", { class: "pill" }, plugin.role)),
      h("dl", { class: "scores" }, facts.map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value)))),
      (this.made = this.form(plugin, isReward ? place : null, before?.form)).element,
      now?.kept ? this.source(name, now.hash) : null,
      isReward && this.run.about.control ? dropZone(name, (file) => this.tryFile(place, plugin, file)) : null,
      place,
      this.history(plugin, place, control, isReward));
  }

  /** Returns the form of a plugin's settings: the one that is there, with what was typed, while the settings in force are the same. */
  form(plugin, place, before) {
    const is = JSON.stringify([plugin.now?.version, plugin.now?.config, plugin.weight, this.isControlled()]);
    if (before?.is === is) return Object.assign(before, { plugin });
    return Object.assign(new SettingsForm(this.run, plugin, place), { is });
  }

  source(name, hash) {
    const place = h("div", {});
    const show = async (event) => {
      if (!event.target.open || place.childElementCount > 0) return;
      try {
        const { source, bytes: size } = await ask("source", { run: this.run.name, plugin: name, hash });
        fill(place, source === null ? h("p", { class: "muted" }, `Compiled code, ${bytes(size)}; the run has no source of it.`) : h("pre", { class: "outside" }, source));
      } catch (error) {
        fill(place, h("p", { class: "bad" }, error.message));
      }
    };
    return h("details", { data: { key: `source ${name} ${hash}` }, ontoggle: show }, h("summary", {}, "Source"), place);
  }

  history(plugin, place, control, isReward) {
    const now = plugin.now;
    const rows = plugin.history.map((version, i) => {
      const shadow = version.shadow?.old_mean !== undefined ? `newest completions: mean ${number(version.shadow.old_mean)} \u2192 ${number(version.shadow.new_mean)}` : "";
      const isOther = version.version !== now?.version;
      const acts = [];
      if (isReward && this.run.about.control && version.kept) acts.push(h("button", { onclick: () => whatIf(place, this.run, plugin, { hash: version.hash, version: version.version }) }, "What if"));
      if (control && version.kept && isOther && version.kind !== "plugin_refused") acts.push(h("button", { data: { acts: "" }, title: "Its code and its settings", onclick: () => this.rollBack(plugin, version) }, "Roll back to this"));
      return h("tr", { class: version.undone ? "undone" : "" },
        h("td", { class: "number", data: { label: "step" } }, number(version.step)), h("td", {}, h("span", { class: `tag ${eventTone(version.kind)}` }, eventName(version.kind))), h("td", {}, h("code", {}, version.version)),
        h("td", { class: `what outside pre ${version.reason.includes("\n") ? "trace" : ""}` }, version.reason || [settingsOf(version, plugin.history[i + 1]), shadow].filter((text) => text !== "").join("; ")), h("td", { class: "muted" }, clock(version.time)), h("td", { class: "acts" }, version.kept ? this.peek(plugin.name, version.hash) : null, acts));
    });
    return h("details", { data: { key: `history ${plugin.name}` }, open: plugin.history.length > 1 }, h("summary", {}, "Versions", h("span", { class: "muted" }, count(new Set(plugin.history.map((version) => version.version)).size, "version"))),
      h("div", { class: "scroll" }, h("table", { class: "versions" }, h("thead", {}, h("tr", {}, ["Step", "", "Version", "", "Time", ""].map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, rows))));
  }

  /** Shows a version's source in place. */
  peek(name, hash) {
    const show = async (event) => {
      const row = event.target.closest("tr");
      if (row.nextElementSibling?.classList.contains("peek")) return row.nextElementSibling.remove();
      try {
        const { source, bytes: size } = await ask("source", { run: this.run.name, plugin: name, hash });
        row.after(h("tr", { class: "peek" }, h("td", { colspan: 6 }, source === null ? h("span", { class: "muted" }, `Compiled code, ${bytes(size)}; the run has no source of it.`) : h("pre", { class: "outside" }, source))));
      } catch (error) {
        toast(error.message, "error");
      }
    };
    return h("button", { onclick: show }, "Source");
  }

  async tryFile(place, plugin, file) {
    whatIf(place, this.run, plugin, { file });
  }

  async rollBack(plugin, version) {
    try {
      const { name } = plugin;
      await this.run.sent.send("roll-back", { plugin: name, hash: version.hash, version: version.version }, null, `Sent ${version.version}. The run tries it, then swaps it in before its next step.`);
    } catch (error) {
      toast(error.message, "error");
    }
  }
}
