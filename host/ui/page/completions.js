// Completions: a list that is sorted and selected on the server, and a group side by side.

import { h, fill, later } from "./dom.js";
import { ask } from "./ask.js";
import { count, number } from "./format.js";
import { Chart } from "./chart.js";
import { COLOURINGS, TokenText, colourings, greatestAdvantage, isTree, legend } from "./tokens.js";
import { markFound } from "./found.js";
import { address } from "./place.js";

const PAGE = 40;
const FILTERS = ["sort", "text", "row", "step_from", "step_to", "reward_from", "reward_to", "tokens_from", "tokens_to", "cut_off"];
const SORTS = [["newest", "newest"], ["oldest", "oldest"], ["best", "highest reward"], ["worst", "lowest reward"], ["longest", "longest"], ["shortest", "shortest"], ["advantage", "largest advantage"]];

export class CompletionsView {
  constructor(run, panel, parameters) {
    Object.assign(this, { run, panel, next: 0, loaded: 0, low: null, high: null, colouring: "" });
    this.chosen = parameters.get("id");
    this.filters = {};
    for (const name of FILTERS) this.filters[name] = parameters.get(name) ?? "";
    this.list = h("ol", { class: "completions" });
    this.note = h("p", { class: "muted count" });
    this.more = h("button", { hidden: true, onclick: () => this.page() }, "More");
    this.fresh = h("button", { class: "fresh", hidden: true, onclick: () => this.reload() }, "");
    this.detail = h("section", { class: "detail", "aria-label": "Chosen completion", tabindex: "-1" });
    this.element = h("div", { class: "browse" }, h("div", { class: "side" }, this.form(), this.note, this.fresh, this.list, this.more), this.detail);
    fill(panel, this.element);
  }

  form() {
    const changed = later(() => {
      if (this.left) return;
      // Going back comes back to what was selected here.
      history.replaceState(null, "", address(this.run.name, "completions", { ...this.filters, id: this.chosen }));
      this.reload();
    }, 250);
    const set = (name) => (event) => {
      this.filters[name] = event.target.type === "checkbox" ? (event.target.checked ? "1" : "") : event.target.value.trim();
      changed();
    };
    const field = (name, label, placeholder) => h("input", { type: "text", inputmode: "decimal", "aria-label": label, placeholder, value: this.filters[name], oninput: set(name) });
    const range = (title, name) => h("span", { class: "range" }, h("span", {}, title), field(`${name}_from`, `${title} from`, "from"), field(`${name}_to`, `${title} to`, "to"));
    return h("form", { class: "filters", onsubmit: (event) => event.preventDefault(), role: "search" },
      h("input", { type: "search", class: "wide", placeholder: "Search prompts and completions", "aria-label": "Search prompts and completions", value: this.filters.text, oninput: set("text") }),
      h("label", {}, "Sort ", h("select", { onchange: set("sort") }, SORTS.map(([value, text]) => h("option", { value, selected: value === this.filters.sort }, text)))),
      h("details", { open: ["row", "step_from", "step_to", "reward_from", "reward_to", "tokens_from", "tokens_to", "cut_off"].some((name) => this.filters[name] !== "") }, h("summary", {}, "Filters"),
        h("div", { class: "ranges" }, range("Step", "step"), range("Reward", "reward"), range("Tokens", "tokens"),
          h("span", { class: "range" }, h("span", {}, "Prompt"), (this.rowField = field("row", "Row of the dataset", "row"))),
          h("label", { class: "range" }, h("input", { type: "checkbox", checked: this.filters.cut_off !== "", onchange: set("cut_off") }), "cut off at the limit"))));
  }

  start() {
    this.run.on("completions", ({ all }) => {
      const added = all - (this.all ?? all);
      if (added > 0) {
        this.fresh.hidden = false;
        this.fresh.textContent = `${count(added, "new completion")}: show`;
      } else if (this.all === undefined || this.all === 0) this.reload();
    });
    this.reload();
    if (this.chosen !== null) this.open(this.chosen, false);
    else fill(this.detail, h("p", { class: "empty wide-only" }, "Choose a completion to see its group side by side."));
  }

  /** Goes to another completion or other filters in this view. */
  go(parameters) {
    if (FILTERS.some((name) => (parameters.get(name) ?? "") !== this.filters[name])) return false;
    const id = parameters.get("id");
    if (id !== null && id !== this.chosen) this.open(id, true);
    return true;
  }

  leave() {
    this.history?.destroy();
    markFound([], "");
    this.left = true;
  }

  again() {
    this.history?.again();
  }

  async reload() {
    this.fresh.hidden = true;
    Object.assign(this, { next: 0, loaded: 0, low: null, high: null });
    this.turn = (this.turn ?? 0) + 1;
    fill(this.list);
    await this.page();
  }

  /** Loads the next page; asks again while the server is still reading. */
  async page() {
    const turn = this.turn;
    this.more.hidden = true;
    let found = 0;
    try {
      for (;;) {
        const answer = await ask("completions", { run: this.run.name, offset: this.next, limit: PAGE - found, ...this.filters });
        if (turn !== this.turn || this.left) return;
        found += answer.items.length;
        this.all = answer.all;
        this.show(answer);
        const searching = answer.next !== null && found < PAGE;
        if (!answer.complete && found > 0) this.waitForAll();
        if (!answer.complete && found === 0) await new Promise((resolve) => setTimeout(resolve, 150));
        else if (!searching) break;
        this.next = answer.next ?? this.next;
        if (answer.complete && answer.next === null) break;
      }
    } catch (error) {
      fill(this.note, h("span", { class: "bad" }, error.message));
    }
  }

  /** Waits until the server has read all of a long file, then lists it again. */
  async waitForAll() {
    if (this.waiting || this.left) return;
    this.waiting = true;
    const turn = this.turn;
    for (let complete = false; !complete && !this.left; ) {
      await new Promise((resolve) => setTimeout(resolve, 250));
      const answer = await ask("completions", { run: this.run.name, limit: 1 }).catch(() => null);
      if (answer === null || this.left) break;
      complete = answer.complete;
      if (turn === this.turn && !complete) this.note.textContent = `reading the completions: ${Math.round(100 * answer.share)} %`;
    }
    this.waiting = false;
    if (!this.left) this.reload();
  }

  show({ items, selected, all, recorded = all, next, complete, share }) {
    for (const item of items) {
      if (item.reward === null) continue;
      this.low = Math.min(this.low ?? item.reward, item.reward);
      this.high = Math.max(this.high ?? item.reward, item.reward);
    }
    this.loaded += items.length;
    this.list.append(...items.map((item) => this.item(item)));
    for (const chip of this.list.querySelectorAll(".chip[data-reward]")) chip.style.setProperty("--place", this.place(Number(chip.dataset.reward)));
    this.next = next ?? this.next;
    this.more.hidden = next === null;
    const reading = complete ? "" : ` (${Math.round(100 * share)} % of the file is read)`;
    const searched = this.filters.text !== "" ? `${this.loaded} found${next === null ? "" : " so far"} in ` : "";
    this.note.textContent = all === 0 && complete ? "" : `${searched}${selected === all ? count(all, "completion") : `${selected.toLocaleString("en-US")} of ${count(all, "completion")}`}${reading}${recorded > all ? ` in this file, of ${recorded.toLocaleString("en-US")} that the run recorded` : ""}`;
    if (this.loaded === 0 && complete && next === null) {
      const none = `${this.run.isAlive() ? "No completions yet." : "The run kept no completions."} SFT and training on preferences generate none, and log_completions = none keeps none.`;
      const text = all === 0 ? none : "No completion fits these filters.";
      fill(this.list, h("li", { class: "empty" }, text));
    }
    this.markFound();
  }

  /** Marks what was searched for. */
  markFound() {
    markFound(this.element.querySelectorAll(".clamp, .text"), this.filters.text);
  }

  /** Where a reward is between the least and the greatest that is shown. */
  place(reward) {
    return this.high === this.low ? 0.5 : (reward - this.low) / (this.high - this.low);
  }

  item(item) {
    const go = (event) => {
      event.preventDefault();
      history.replaceState(null, "", address(this.run.name, "completions", { ...this.filters, id: item.id }));
      this.open(String(item.id), true);
    };
    return h("li", {}, h("a", { href: address(this.run.name, "completions", { id: item.id }), class: "item", data: { id: item.id }, "aria-current": String(item.id) === this.chosen ? "true" : null, onclick: go },
      h("span", { class: "chip", data: item.reward === null ? {} : { reward: item.reward } }, number(item.reward)),
      h("span", { class: "facts muted" }, `step ${number(item.step)} \u00b7 prompt ${item.row} \u00b7 ${count(item.tokens, "token")}`, item.turns ? ` \u00b7 ${count(item.turns, "turn")}` : "", item.cut_off ? h("span", { class: "tag refused" }, "cut off") : null, item.failed ? h("span", { class: "tag failure" }, "failed") : null),
      h("span", { class: "clamp outside" }, item.completion.trim() === "" && !item.turns ? h("em", { class: "muted" }, "empty") : item.completion.trim())));
  }

  async open(id, focus) {
    this.chosen = id;
    for (const item of this.list.querySelectorAll(".item")) item.dataset.id === id ? item.setAttribute("aria-current", "true") : item.removeAttribute("aria-current");
    try {
      const group = await ask("group", { run: this.run.name, id });
      if (this.chosen !== id || this.left) return;
      this.group(group, id);
      this.element.classList.add("open");
      if (focus) this.detail.focus({ preventScroll: false });
    } catch (error) {
      fill(this.detail, h("p", { class: "bad" }, error.message));
    }
  }

  group({ step, row, size, items, history }, id) {
    const rewards = items.map((item) => item.reward).filter((value) => value !== null);
    const [low, high] = [Math.min(...rewards), Math.max(...rewards)];
    const sorted = [...items].sort((a, b) => (b.reward ?? -Infinity) - (a.reward ?? -Infinity));
    const first = items[0];
    const versions = Object.entries(first?.plugins ?? {});
    const known = colourings(items);
    if (!known.includes(this.colouring)) this.colouring = "";
    const cards = h("div", { class: "group" });
    const key = h("div", {});
    const show = () => {
      const greatest = greatestAdvantage(items);
      fill(cards, sorted.map((item) => card(item, String(item.id) === id, { low, high, colouring: this.colouring, greatest })));
      fill(key, this.colouring === "" ? null : legend(this.colouring));
    };
    const colour = h("select", { "aria-label": "Colour tokens by", onchange: (event) => ((this.colouring = event.target.value), show()) }, h("option", { value: "" }, "plain text"), known.map((name) => h("option", { value: name, selected: name === this.colouring }, `tokens by ${COLOURINGS[name].title}`)));
    show();
    const follow = h("button", { onclick: () => this.follow(row) }, "Follow this prompt");
    this.history?.destroy();
    this.history = history.length > 1 ? new Chart({ title: "This prompt through the run", note: "mean reward", sync: null }) : null;
    fill(this.detail,
      h("div", { class: "bar" }, h("button", { class: "back", onclick: () => this.element.classList.remove("open") }, "\u2190 List"), h("h2", {}, `Step ${number(step)}, prompt ${row}`), h("span", { class: "muted" }, size > items.length ? `the first ${items.length} of ${count(size, "completion")}` : count(size, "completion")), known.length > 0 ? colour : null, follow),
      h("div", { class: "prompt" }, h("h3", {}, "Prompt"), h("div", { class: "text outside pre" }, first?.prompt ?? "")),
      key,
      cards,
      versions.length > 0 ? h("p", { class: "caption" }, "Made and scored with ", versions.map(([name, version], i) => [i > 0 ? ", " : "", h("span", { class: "outside" }, name), " ", h("code", {}, version)])) : null,
      this.history?.element);
    this.history?.update([{ label: "", colour: 0, x: history.map(([x]) => x), y: history.map(([, y]) => y), steps: history.map(([x]) => x) }], { marks: this.run.axis === "step" ? this.run.marks() : [] });
    this.detail.querySelector(".card.own")?.scrollIntoView({ block: "nearest" });
    this.markFound();
  }

  follow(row) {
    location.hash = address(this.run.name, "completions", { row, sort: "oldest" });
  }
}

/** A completion with what each reward said. */
function card(item, own, { low, high, colouring, greatest }) {
  const place = item.reward === null || high === low ? 0.5 : (item.reward - low) / (high - low);
  const scores = Object.entries(item.rewards);
  const extra = Object.entries(item.extra);
  const fact = (title, value) => h("div", {}, h("dt", { class: "outside" }, title), h("dd", { class: "outside" }, value));
  return h("article", { class: own ? "card own" : "card", "aria-label": `Completion with reward ${number(item.reward)}` },
    h("header", {}, h("span", { class: "chip", vars: { "--place": place } }, number(item.reward)), h("span", { class: "muted" }, `advantage ${number(item.advantage)} \u00b7 ${count(item.tokens, "token")}`), item.cut_off ? h("span", { class: "tag refused" }, "cut off") : null),
    body(item, colouring, greatest),
    scores.length > 1 || extra.length > 0 ? h("dl", { class: "scores" }, scores.map(([name, score]) => fact(name, number(score))), extra.map(([name, value]) => fact(name, value))) : null,
    item.policy_version === null ? null : h("p", { class: "caption" }, `written by policy version ${item.policy_version}`),
    item.error !== "" ? h("p", { class: "bad outside pre" }, item.error) : null,
    item.failed !== "" ? h("p", { class: "bad outside pre" }, item.failed) : null,
    item.output !== "" ? h("details", {}, h("summary", {}, "What its program wrote"), h("div", { class: "text outside pre" }, item.output)) : null);
}

/** What was written: coloured tokens, a tree of calls, turns, or plain text. */
function body(item, colouring, greatest) {
  if (item.per_token !== null && (colouring !== "" || isTree(item))) return new TokenText(item, colouring, greatest).element;
  if (item.messages.length > 0) return turns(item);
  return h("div", { class: "text outside pre" }, item.completion === "" ? h("em", { class: "muted" }, "empty") : item.completion);
}

/** An episode turn by turn. */
function turns(item) {
  return h("ol", { class: "turns" }, item.messages.map((message) => {
    const { turn } = message;
    const own = turn !== null;
    const figures = own ? [["reward", item.turn_rewards[turn]], ["advantage", item.turn_advantages[turn]]].filter(([, value]) => value !== null && value !== undefined) : [];
    return h("li", { class: own ? "turn own" : "turn" }, h("span", { class: "role" }, h("span", { class: "outside" }, message.role), figures.map(([name, value]) => h("span", { class: "muted" }, ` ${name} ${number(value)}`))),
      message.content === "" ? null : h("div", { class: "text outside pre" }, message.content),
      message.calls ? h("div", { class: "text outside pre call" }, message.calls) : null);
  }));
}
