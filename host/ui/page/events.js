// The events of a run. Those that say the same are one, with how often it happened.

import { h, fill, later } from "./dom.js";
import { ask } from "./ask.js";
import { clock, count, eventName, eventTone, number } from "./format.js";

/** The line of a traceback that names the error, with the plugin: the one after what is indented or, as in JavaScript, the one before it. */
function errorLine({ plugin, text }) {
  const lines = text.split("\n").filter((line) => line.trim() !== "");
  const indented = lines.findLastIndex((line) => /^\s/.test(line));
  if (indented < 0) return text;
  const after = lines[indented + 1];
  return after === undefined ? lines[0] : plugin === "" ? after : `${plugin}: ${after}`;
}

/** An event of the newest, or of those that say the same; in brief, a traceback is the line that names the error. */
export function eventRow(event, brief = false) {
  const times = event.count > 1 ? h("b", { class: "times" }, ` \u00d7 ${event.count}`) : null;
  const until = event.count > 1 && event.until !== "" ? h("span", { class: "muted" }, ` (${event.count} times, ${event.until})`) : null;
  return h("li", { class: `event ${event.undone ? "undone" : ""}` },
    h("span", { class: "when muted", title: event.time ? new Date(event.time * 1000).toISOString() : "" }, clock(event.time)),
    h("span", { class: "step muted" }, event.step === null ? "" : `step ${number(event.step)}`),
    h("span", { class: `tag ${eventTone(event.kind)}` }, eventName(event.kind), times),
    h("span", { class: `what outside pre ${!brief && event.text.includes("\n") ? "trace" : ""}`, title: brief ? event.text : null }, brief ? errorLine(event) : event.text, until, event.undone ? h("span", { class: "muted" }, " (undone by a resume)") : null));
}

export class EventsView {
  constructor(run, panel) {
    Object.assign(this, { run, rows: [] });
    this.list = h("ol", { class: "events all" });
    this.kind = h("select", { "aria-label": "Kind", onchange: () => this.show() });
    fill(panel, h("div", { class: "bar" }, h("h2", {}, "Events"), this.kind), this.list);
  }

  start() {
    this.run.on("events", later(() => this.load(), 300));
    this.load();
  }

  async load() {
    try {
      ({ rows: this.rows } = await ask("events", { run: this.run.name }));
      const [kinds, chosen] = [[...new Set(this.rows.map((event) => event.kind))], this.kind.value];
      fill(this.kind, h("option", { value: "" }, "all kinds"), kinds.map((kind) => h("option", { value: kind, selected: kind === chosen }, eventName(kind))));
      this.show();
    } catch (error) {
      fill(this.list, h("li", { class: "bad" }, error.message));
    }
  }

  show() {
    const shown = this.rows.filter((event) => this.kind.value === "" || event.kind === this.kind.value);
    const gap = (event) => (event.left_out > 0 ? h("li", { class: "muted" }, `${count(event.left_out, "event")} omitted; events.jsonl has them`) : null);
    fill(this.list, shown.reverse().map((event) => [eventRow(event), gap(event)]), shown.length === 0 ? h("li", { class: "empty" }, "No events yet.") : null);
  }
}
