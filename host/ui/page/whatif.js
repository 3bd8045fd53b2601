// What would another version of a reward have said of the run's completions? Then it can be swapped in.

import { h, fill, svg, toast } from "./dom.js";
import { act } from "./ask.js";
import { count, number } from "./format.js";

const AMOUNTS = [128, 512, 2048, 8192];

/** A place to drop a plugin's file, or to choose one. */
export function dropZone(name, take) {
  const input = h("input", { type: "file", accept: ".wasm,.py,.js,.ts,.mjs", class: "hidden", "aria-label": `Another version of ${name}`, onchange: () => {
    if (input.files.length > 0) take(input.files[0]);
    input.value = "";
  } });
  const over = (on) => (event) => {
    event.preventDefault();
    zone.classList.toggle("over", on);
  };
  const zone = h("div", { class: "drop", ondragover: over(true), ondragleave: over(false), ondrop: (event) => {
    over(false)(event);
    if (event.dataTransfer.files.length > 0) take(event.dataTransfer.files[0]);
  } }, h("span", {}, h("strong", {}, "What if?"), " Drop another version here (.wasm, .py or .js): it scores the newest completions at once."), h("button", { onclick: () => input.click() }, "Choose a file"), input);
  return zone;
}

/** Asks, and shows the answer. `what` has a `file`, or the `hash` of a version that the run has, and perhaps other `settings`. */
export async function whatIf(place, run, plugin, what, newest = 512) {
  const title = what.file?.name ?? (what.settings ? `${plugin.name} with ${JSON.stringify(what.settings)}` : `version ${what.hash}`);
  const close = h("button", { class: "plain", "aria-label": "Close", onclick: () => fill(place) }, "\u00d7");
  const amount = h("select", { "aria-label": "How many completions", onchange: (e) => whatIf(place, run, plugin, what, Number(e.target.value)) }, AMOUNTS.map((value) => h("option", { value, selected: value === newest }, `newest ${value}`)));
  const body = h("div", {}, h("p", { class: "muted" }, "Scoring\u2026"));
  const swap = h("button", { class: "primary", disabled: true, onclick: () => send(run, plugin, what, swap) }, what.settings ? "Apply to the run" : "Swap it in");
  const running = run.isAlive();
  const note = running ? "The run tries it again, and swaps it in before its next step." : "The run is not running, so nothing can be swapped.";
  fill(place, h("section", { class: "whatif", "aria-label": `What if ${title}` }, h("div", { class: "bar" }, h("h3", {}, "What if ", h("span", { class: "outside" }, title)), amount, swap, h("span", { class: "muted" }, note), close), body));
  try {
    const answer = await act("what-if", { run: run.name, plugin: plugin.name, newest, file: what.file?.name, hash: what.hash, settings: what.settings && JSON.stringify(what.settings) }, what.file ?? null);
    fill(body, shown(answer));
    swap.disabled = !running;
  } catch (error) {
    fill(body, h("p", { class: "bad" }, "It can't score them:"), h("pre", { class: "outside" }, error.message));
  }
}

async function send(run, plugin, what, button) {
  button.disabled = true;
  try {
    const parameters = { run: run.name, plugin: plugin.name };
    if (what.settings) {
      await act("configure", parameters, JSON.stringify({ settings: what.settings }));
      return toast("Sent. The run tries the settings before it takes them.");
    }
    const { request } = what.file ? await act("swap", { ...parameters, file: what.file.name }, what.file) : await act("roll-back", { ...parameters, hash: what.hash });
    run.requests = (run.requests ?? new Set()).add(request);
    toast("Sent. The run tries it, then swaps it in before its next step.");
  } catch (error) {
    button.disabled = false;
    toast(error.message, "error");
  }
}

function shown(answer) {
  const { comparison: c } = answer;
  const tile = (title, value, below = "") => h("div", { class: "tile" }, h("dt", {}, title), h("dd", {}, value, below === "" ? null : h("small", {}, below)));
  const change = c.new_mean - c.old_mean;
  const steps = answer.from_step === answer.to_step ? `of step ${number(answer.to_step)}` : `of steps ${number(answer.from_step)} to ${number(answer.to_step)}`;
  return [
    h("p", { class: "muted" }, `${count(answer.completions, "completion")} ${steps}, which version `, h("code", {}, answer.version), " scored.", answer.other_versions > 0 ? ` ${count(answer.other_versions, "completion")} of other versions ${answer.other_versions === 1 ? "is" : "are"} left out.` : ""),
    h("dl", { class: "tiles" },
      tile("Mean", [number(c.old_mean), " \u2192 ", number(c.new_mean)], `${change >= 0 ? "+" : ""}${number(change)}`),
      tile("Rank correlation", c.rank_correlation === null ? "\u2013" : number(c.rank_correlation), verdict(c.rank_correlation)),
      tile("Scored otherwise", number(answer.differing), `of ${number(c.rows)}`),
      c.one_sided > 0 ? tile("Scored by one only", number(c.one_sided)) : null),
    h("div", { class: "pair" }, histogram(answer.histogram), scatter(answer.points)),
    answer.rows.length > 0 ? [h("h4", {}, "Changed most"), h("div", { class: "scroll" }, h("table", { class: "changed" }, h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "number" }, "Before"), h("th", { scope: "col", class: "number" }, "After"), h("th", { scope: "col" }, "Completion"), h("th", { scope: "col" }, "Step"))),
      h("tbody", {}, answer.rows.map((row) => h("tr", {}, h("td", { class: "number" }, number(row.old)), h("td", { class: "number" }, h("b", {}, number(row.new))), h("td", {}, h("span", { class: "clamp outside", title: row.prompt }, row.completion.trim())), h("td", { class: "muted" }, number(row.step)))))))] : h("p", { class: "good" }, "Every completion has the same score."),
  ];
}

function verdict(correlation) {
  if (correlation === null) return "one of the two scores all alike";
  if (correlation > 0.95) return "nearly the same order";
  if (correlation > 0.6) return "a similar order";
  if (correlation > 0.2) return "a different order";
  return correlation > -0.2 ? "unrelated orders" : "the opposite order";
}

/** Both distributions, one above the other's axis. */
function histogram({ low, high, old, new: after }) {
  const [width, height, middle] = [320, 150, 66];
  const most = Math.max(1, ...old, ...after);
  const image = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "histogram", role: "img", "aria-label": `Scores before and after, from ${number(low)} to ${number(high)}` });
  const bar = width / Math.max(1, old.length);
  old.forEach((n, i) => image.append(svg("rect", { class: "before", x: (i * bar + 0.5).toFixed(1), width: Math.max(1, bar - 1).toFixed(1), y: (middle - (n / most) * 60).toFixed(1), height: ((n / most) * 60).toFixed(1) })));
  after.forEach((n, i) => image.append(svg("rect", { class: "after", x: (i * bar + 0.5).toFixed(1), width: Math.max(1, bar - 1).toFixed(1), y: middle, height: ((n / most) * 60).toFixed(1) })));
  const label = (x, y, anchor, text, kind = "") => {
    const element = svg("text", { x, y, "text-anchor": anchor, class: kind });
    element.textContent = text;
    return element;
  };
  image.append(svg("line", { x1: 0, x2: width, y1: middle, y2: middle }), label(0, height - 6, "start", number(low)), label(width, height - 6, "end", number(high)), label(4, 12, "start", "before", "before"), label(4, height - 24, "start", "after", "after"));
  return h("figure", { class: "chart" }, h("figcaption", {}, h("h3", {}, "Distribution of scores")), image);
}

/** Each completion's score before and after. */
function scatter(points) {
  const [width, height, room] = [320, 150, 8];
  const image = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "scatter", role: "img", "aria-label": "Each completion's score before (across) and after (up)" });
  const ends = (i) => [Math.min(...points.map((p) => p[i])), Math.max(...points.map((p) => p[i]))];
  if (points.length > 0) {
    const [[left, right], [low, high]] = [ends(0), ends(1)];
    const x = (v) => room + (right === left ? 0.5 : (v - left) / (right - left)) * (width - 2 * room);
    const y = (v) => height - room - (high === low ? 0.5 : (v - low) / (high - low)) * (height - 2 * room);
    points.forEach(([before, after]) => image.append(svg("circle", { cx: x(before).toFixed(1), cy: y(after).toFixed(1), r: 2.5 })));
  }
  return h("figure", { class: "chart" }, h("figcaption", {}, h("h3", {}, "Before (across), after (up)")), image);
}
