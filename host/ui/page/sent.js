// What this page has sent to a run, and how the run answered: whichever view is shown then.

import { toast } from "./dom.js";
import { act } from "./ask.js";

/** Answers that are remembered until it is known whether this page asked for them. */
const MOST_EARLY = 50;

export class Sent {
  constructor(run) {
    Object.assign(this, { run, requests: new Map(), early: [] });
  }

  /** Sends something; says that it was sent, and later how the run answered. Throws what the server refuses. */
  async send(route, parameters, body, text) {
    const { request } = await act(route, { run: this.run, ...parameters }, body);
    this.requests.set(request, toast(text));
    // The answer may have come before the request's name.
    this.answered(this.early.splice(0).filter((event) => event.request === request));
  }

  /** Tells of answers to what this page has sent, and of edits of config.toml that were refused, which nobody else reports. */
  answered(events) {
    for (const event of events) {
      const sent = this.requests.get(event.request);
      if (sent === undefined && event.kind !== "settings_refused") {
        if (event.request !== "") this.early = [...this.early, event].slice(-MOST_EARLY);
        continue;
      }
      // Of settings and a weight, each has an answer.
      sent?.remove();
      tell(event);
    }
  }
}

function tell(event) {
  const { kind, plugin, step, text } = event;
  if (kind === "plugin_swapped") toast(`${plugin} was swapped at step ${step}.`, "good");
  else if (kind === "settings_changed") toast(`Changed at step ${step}: ${text}`, "good");
  else if (kind === "plugin_refused") toast(`Refused: ${text}`, "error");
  else if (kind === "settings_refused") toast(`The edit of config.toml was refused: ${text}`, "error");
  else toast(`Step ${step}: ${text}`, text.includes("; refused: ") ? "error" : "good");
}
