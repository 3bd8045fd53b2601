// Rewards and other plugins: versions, settings, what each did; and, if the page controls runs, other versions of them.

import { h, fill, toast } from "./dom.js";
import { act, ask } from "./ask.js";
import { bytes, clock, count, eventName, eventTone, number } from "./format.js";
import { SettingsForm } from "./form.js";
import { versionsTable } from "./versions.js";
import { dropZone, whatIf } from "./whatif.js";

export class RewardsView {
  constructor(run, panel) {
    this.run = run;
    this.list = h("div", { class: "plugins" });
    this.versions = h("div");
    fill(panel, this.list, this.versions);
  }

  start() {
    this.load();
    this.run.on("events", (events) => {
      const changes = events.filter((event) => event.plugin !== "");
      if (changes.length > 0) this.load();
      changes.forEach((event) => this.answered(event));
    });
    // Means move with each row, but what a person is editing must stay.
    this.run.on("rows", () => this.figures());
    const versions = () => fill(this.versions, versionsTable(this.run.story?.versions ?? []));
    this.run.on("story", versions);
    versions();
  }

  async load() {
    try {
      const { plugins } = await ask("plugins", { run: this.run.name });
      const open = new Set([...this.list.querySelectorAll("details[open][data-key]")].map((d) => d.dataset.key));
      const kept = new Map([...this.list.querySelectorAll(".trial")].map((place) => [place.dataset.plugin, place]));
      this.places = new Map();
      fill(this.list, plugins.length === 0 ? h("p", { class: "empty" }, "This run has loaded no plugin yet.") : plugins.map((plugin) => this.plugin(plugin, kept.get(plugin.name))));
      for (const details of this.list.querySelectorAll("details[data-key]")) if (open.has(details.dataset.key)) details.open = true;
    } catch (error) {
      fill(this.list, h("p", { class: "bad" }, error.message));
    }
  }

  figures() {
    for (const [name, place] of this.places ?? []) {
      const last = (metric) => this.run.data.series[metric]?.y.findLast((value) => value !== null && value !== undefined);
      const mean = last(`rewards/${name}/mean`);
      if (mean !== undefined) fill(place, number(mean));
    }
  }

  plugin(plugin, trial) {
    const { name, now } = plugin;
    const control = this.run.about.control && this.run.isAlive();
    const mean = h("b", {}, number(plugin.mean));
    this.places.set(name, mean);
    const place = trial ?? h("div", { class: "trial", data: { plugin: name } });
    const isReward = plugin.role.startsWith("reward") && plugin.role !== "reward model";
    const facts = [
      now?.stated ? ["states version", h("span", { class: "outside" }, now.stated)] : null,
      now ? ["version", h("code", {}, now.version)] : null,
      plugin.weight !== null ? ["weight", number(plugin.weight)] : null,
      plugin.mean !== null ? ["mean", mean] : null,
      plugin.std !== null ? ["standard deviation", number(plugin.std)] : null,
      plugin.errors ? ["errors", h("span", { class: "bad" }, number(plugin.errors))] : null,
      plugin.file ? ["file", h("span", { class: "outside" }, plugin.file)] : null,
    ].filter(Boolean);
    return h("section", { class: "plugin", "aria-label": name },
      h("div", { class: "bar" }, h("h2", { class: "outside" }, name), h("span", { class: "pill" }, plugin.role)),
      h("dl", { class: "scores" }, facts.map(([title, value]) => [h("dt", {}, title), h("dd", {}, value)])),
      new SettingsForm(this.run, plugin, isReward ? place : null).element,
      now?.kept ? this.source(name, now.hash) : null,
      isReward && this.run.about.control ? dropZone(name, (file) => this.tryFile(place, plugin, file)) : null,
      place,
      this.history(plugin, place, control, isReward));
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
    const rows = plugin.history.map((version) => {
      const shadow = version.shadow?.old_mean !== undefined ? `newest completions: mean ${number(version.shadow.old_mean)} \u2192 ${number(version.shadow.new_mean)}` : "";
      const isOther = version.hash !== now?.hash;
      const acts = [];
      if (isReward && this.run.about.control && version.kept) acts.push(h("button", { onclick: () => whatIf(place, this.run, plugin, { hash: version.hash }) }, "What if"));
      if (control && version.kept && isOther && version.kind !== "plugin_refused") acts.push(h("button", { onclick: () => this.rollBack(plugin, version) }, "Roll back to this"));
      return h("tr", { class: version.undone ? "undone" : "" },
        h("td", { class: "number", data: { label: "step" } }, number(version.step)), h("td", {}, h("span", { class: `tag ${eventTone(version.kind)}` }, eventName(version.kind))), h("td", {}, h("code", {}, version.version)),
        h("td", { class: `what outside pre ${version.reason.includes("\n") ? "trace" : ""}` }, version.reason || shadow), h("td", { class: "muted" }, clock(version.time)), h("td", { class: "acts" }, version.kept ? this.peek(plugin.name, version.hash) : null, acts));
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
      const { request } = await act("roll-back", { run: this.run.name, plugin: plugin.name, hash: version.hash });
      this.run.requests = (this.run.requests ?? new Set()).add(request);
      toast(`Sent ${version.version}. The run tries it, then swaps it in before its next step.`);
    } catch (error) {
      toast(error.message, "error");
    }
  }

  /** Says how the run answered what this page sent. */
  answered(event) {
    const own = this.run.requests?.delete(event.request) || event.kind.startsWith("settings_");
    if (!own) return;
    if (event.kind === "plugin_swapped") toast(`${event.plugin} was swapped at step ${event.step}.`, "good");
    else if (event.kind === "plugin_refused" || event.kind === "settings_refused") toast(`Rejected: ${event.text}`, "error");
    else if (event.kind === "settings_changed") toast(`Changed at step ${event.step}: ${event.text}`, "good");
  }
}
