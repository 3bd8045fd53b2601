// A new run from a checkpoint of this one, with other settings: the command that begins it.

import { h, fill, later, toast } from "./dom.js";
import { ask } from "./ask.js";
import { number } from "./format.js";

export class Fork {
  /** `settings` are the run's, by their keys. */
  constructor(run, settings) {
    Object.assign(this, { run, settings });
    this.step = h("select", { "aria-label": "Checkpoint", onchange: () => this.ask() });
    this.folder = h("input", { type: "text", class: "wide", "aria-label": "Folder of the new run", oninput: later(() => this.ask()) });
    this.rows = h("div", { class: "changes" });
    this.command = h("pre", { class: "outside command", tabindex: "0", "aria-label": "Command" });
    this.problem = h("p", { class: "bad outside", role: "status" });
    const keys = h("datalist", { id: "fork-keys" }, Object.keys(settings).map((value) => h("option", { value })));
    this.form = h("form", { class: "form fork", onsubmit: (event) => event.preventDefault() },
      h("label", { class: "field" }, "checkpoint", this.step), h("label", { class: "field" }, "new folder", this.folder), this.rows, keys,
      h("div", {}, h("button", { type: "button", onclick: () => this.add() }, "Change a setting")),
      this.problem, this.command,
      h("div", {}, h("button", { type: "button", class: "primary", onclick: () => this.copy() }, "Copy the command"), " ", h("span", { class: "muted" }, "It begins with the checkpoint's weights, optimizer and place in the data.")));
    this.element = h("details", { ontoggle: (event) => event.target.open && this.ask() }, h("summary", {}, "Fork from a checkpoint"), this.form);
  }

  add() {
    const value = h("input", { type: "text", "aria-label": "Value", oninput: later(() => this.ask()) });
    const key = h("input", { type: "text", list: "fork-keys", "aria-label": "Setting", placeholder: "setting", oninput: later(() => {
      if (value.value === "" && key.value in this.settings) value.value = this.settings[key.value].replace(/^"(.*)"$/, "$1");
      this.ask();
    }) });
    const remove = h("button", { type: "button", class: "plain", "aria-label": "Remove this setting", onclick: () => (row.remove(), this.ask()) }, "\u00d7");
    const row = h("div", { class: "change" }, key, h("span", { "aria-hidden": "true" }, "="), value, remove);
    this.rows.append(row);
    key.focus();
  }

  /** Asks for the command with what the form has now. */
  async ask() {
    const pairs = [...this.rows.children].map((row) => [...row.querySelectorAll("input")].map((input) => input.value.trim()));
    const set = pairs.filter(([key]) => key !== "").map(([key, value]) => `${key}=${value}`);
    const turn = (this.turn = (this.turn ?? 0) + 1);
    try {
      const { checkpoints, step, folder, command, problem } = await ask("fork", { run: this.run.name, step: this.step.value, folder: this.folder.value.trim(), set });
      if (turn !== this.turn) return;
      fill(this.step, [...checkpoints].reverse().map((value) => h("option", { value, selected: value === step }, `step ${number(value)}`)));
      if (this.folder.value === "") this.folder.value = folder;
      this.problem.textContent = problem ?? (command === null ? "The run has no checkpoint to begin from." : "");
      fill(this.command, command ?? "");
      this.command.hidden = command === null;
    } catch (error) {
      this.problem.textContent = error.message;
    }
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.command.textContent);
      toast("Copied.", "good");
    } catch {
      getSelection().selectAllChildren(this.command);
      toast("Press Ctrl-C: the command is selected.");
    }
  }
}
