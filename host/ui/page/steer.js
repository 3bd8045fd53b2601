// Buttons that have a running run pause, go on, save, evaluate or stop after its current step.

import { h, fill, toast } from "./dom.js";
import { server } from "./ask.js";

const ACTIONS = {
  pause: ["Pause", "Wait after the current step"],
  continue: ["Continue", "Go on"],
  save: ["Save", "Write a checkpoint after the current step"],
  evaluate: ["Evaluate", "Evaluate after the current step"],
  stop: ["Stop", "Stop after the current step, with a checkpoint"],
};

/** How long a first click on Stop counts. */
const SURE = 4000;

export class Steering {
  constructor(run) {
    Object.assign(this, { run, shown: "" });
    this.element = h("div", { class: "steer", role: "group", "aria-label": "Steer the run", hidden: true });
  }

  /** Shows what can be done now. Buttons stay as long as that is the same, and with them the focus. */
  update() {
    const { about, status } = this.run;
    const state = about.control && server.answers ? status.state : "";
    if (state === this.shown) return;
    this.shown = state;
    this.element.hidden = !["running", "paused"].includes(state);
    const offered = [state === "paused" ? "continue" : "pause", "save", "evaluate", "stop"];
    fill(this.element, offered.map((action) => {
      const [title, what] = ACTIONS[action];
      return h("button", { title: what, onclick: (event) => this.request(action, event.currentTarget) }, title);
    }));
  }

  async request(action, button) {
    if (action === "stop" && button.dataset.sure !== "yes") {
      button.dataset.sure = "yes";
      button.textContent = "Really stop?";
      setTimeout(() => {
        button.dataset.sure = "";
        button.textContent = ACTIONS.stop[0];
      }, SURE);
      return;
    }
    button.disabled = true;
    try {
      await this.run.sent.send("steer", { action }, null, "Sent. The run answers after its current step.");
    } catch (error) {
      toast(error.message, "error");
    }
    button.disabled = false;
  }
}
