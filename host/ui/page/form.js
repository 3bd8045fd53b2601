// The settings of a plugin as a form, with what its schema says of them.

import { h, fill, toast } from "./dom.js";
import { ask } from "./ask.js";
import { count } from "./format.js";
import { whatIf } from "./whatif.js";

/** A field whose plugin has no schema: what its value tells. */
function guessed(name, value) {
  const kind = { boolean: "switch", number: "number", string: "text" }[typeof value] ?? "json";
  return { name, kind, help: "", default: value, is_optional: false, is_whole: false, minimum: null, maximum: null };
}

/** The weight of a reward, as a field. Its ends are those of the slider; the box takes any. */
const ofWeight = (weight) => ({ name: "weight", kind: "number", help: "what its score counts in the reward", default: weight, is_optional: false, is_whole: false, minimum: Math.min(0, 2 * weight), maximum: Math.max(2, 2 * weight), is_open: true });

/** An input for a field, with a function that reads it; undefined for one that is left empty. */
function input(field, value) {
  const { kind, name } = field;
  const label = { "aria-label": name, name };
  if (kind === "switch") {
    const box = h("input", { ...label, type: "checkbox", checked: value === true });
    return { element: box, read: () => box.checked };
  }
  if (kind === "choice") {
    const choices = field.is_optional || !field.choices.includes(value) ? ["", ...field.choices] : field.choices;
    const select = h("select", label, choices.map((choice) => h("option", { value: choice, selected: choice === (value ?? "") }, choice === "" ? "not set" : choice)));
    return { element: select, read: () => (select.value === "" ? undefined : select.value) };
  }
  if (kind === "number") {
    const { minimum, maximum, is_whole: whole } = field;
    const ends = field.is_open ? { step: "any" } : { min: minimum, max: maximum, step: whole ? 1 : "any" };
    const box = h("input", { ...label, ...ends, type: "number", value: value ?? "" });
    const read = () => (box.value === "" ? undefined : Number(box.value));
    if (minimum === null || maximum === null) return { element: box, read };
    const slider = h("input", { type: "range", min: minimum, max: maximum, step: whole ? 1 : (maximum - minimum) / 100, value: value ?? minimum, "aria-label": `${name}, slider`, oninput: () => (box.value = slider.value) });
    box.oninput = () => (slider.value = box.value);
    return { element: h("span", { class: "slider" }, slider, box), read };
  }
  const text = kind === "text";
  const box = h("input", { ...label, type: "text", value: value === undefined || value === null ? "" : text ? value : JSON.stringify(value) });
  const parse = () => {
    try {
      return JSON.parse(box.value);
    } catch {
      throw new Error(`${name}: ${box.value} is not JSON; a text needs "quotes"`);
    }
  };
  return { element: box, read: () => (box.value === "" && (!text || field.is_optional) ? undefined : text ? box.value : parse()) };
}

/** A plugin's settings: a form if the run can be controlled, else a list. `place` is where a what-if is shown, if it can be tried. */
export class SettingsForm {
  constructor(run, plugin, place) {
    Object.assign(this, { run, plugin, place, inputs: new Map() });
    this.config = plugin.now?.config ?? {};
    const keys = Object.keys(this.config);
    this.hasWeight = plugin.weight !== null;
    this.body = h("div", {});
    const control = run.about.control && run.isAlive();
    if (keys.length === 0 && !(control && (this.hasWeight || plugin.now?.kept))) return;
    const facts = keys.length > 0 ? count(keys.length, "setting") : this.hasWeight ? "weight" : "";
    const open = !control && keys.length <= 6;
    this.element = h("details", { data: { key: `settings ${plugin.name}` }, open, ontoggle: (event) => event.target.open && control && this.form() }, h("summary", {}, "Settings", h("span", { class: "muted" }, facts)), this.body);
    if (!control) fill(this.body, h("dl", { class: "scores" }, Object.entries(this.config).map(([key, value]) => h("div", {}, h("dt", { class: "outside" }, key), h("dd", { class: "outside" }, typeof value === "string" ? value : JSON.stringify(value))))));
  }

  async form() {
    // What is typed stays when it is opened again.
    if (this.body.childElementCount > 0) return;
    const { now, name } = this.plugin;
    fill(this.body, h("p", { class: "muted" }, "Reading its schema\u2026"));
    const known = now?.kept ? await ask("form", { run: this.run.name, plugin: name, hash: now.hash }).catch(() => null) : null;
    const fields = known?.fields ?? Object.entries(this.config).map(([key, value]) => guessed(key, value));
    fill(this.body, h("form", { class: "form", onsubmit: (event) => this.apply(event) },
      this.hasWeight ? this.weight() : null,
      fields.map((field) => this.field(field)),
      h("div", {}, h("button", { class: "primary", data: { acts: "" } }, "Apply to the run"), this.place ? [" ", h("button", { type: "button", data: { acts: "" }, onclick: () => this.tryThem() }, "What if")] : null, " ", h("span", { class: "muted" }, "the run tries them first, then writes them to config.toml"))));
  }

  field(field) {
    const value = this.config[field.name] ?? field.default ?? undefined;
    const own = input(field, value);
    this.inputs.set(field.name, { ...own, before: JSON.stringify(own.read()) });
    return this.row(field, own);
  }

  row(field, own) {
    return h("div", { class: "field" }, h("span", {}, h("span", { class: "outside" }, field.name), field.help === "" ? null : h("small", { class: "outside" }, field.help)), own.element);
  }

  weight() {
    const field = ofWeight(this.plugin.weight);
    const own = input(field, field.default);
    this.weighs = { ...own, before: own.read() };
    return this.row(field, own);
  }

  /** The settings that differ from those of the run; null takes one back to its default. */
  changes() {
    const settings = {};
    for (const [name, { read, before }] of this.inputs) {
      const value = read();
      if (JSON.stringify(value) !== before) settings[name] = value ?? null;
    }
    return settings;
  }

  async apply(event) {
    event.preventDefault();
    try {
      const body = {};
      const settings = this.changes();
      if (Object.keys(settings).length > 0) body.settings = settings;
      const weight = this.weighs?.read();
      if (weight === undefined && this.weighs) throw new Error("weight: type a number");
      if (weight !== this.weighs?.before) body.weight = weight;
      if (Object.keys(body).length === 0) return toast("Nothing has changed.");
      await this.run.sent.send("configure", { plugin: this.plugin.name }, JSON.stringify(body), "Sent. The run tries the settings before it takes them.");
    } catch (error) {
      toast(error.message, "error");
    }
  }

  tryThem() {
    try {
      const settings = this.changes();
      whatIf(this.place, this.run, this.plugin, { hash: this.plugin.now.hash, version: this.plugin.now.version, settings });
    } catch (error) {
      toast(error.message, "error");
    }
  }
}
