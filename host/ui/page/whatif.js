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
  const title = what.file?.name ?? (what.settings ? `${plugin.name} with ${JSON.stringify(what.settings)}` : `version ${what.version ?? what.hash}`);
  const close = h("button", { class: "plain", "aria-label": "Close", onclick: () => fill(place) }, "\u00d7");
  const amount = h("select", { "aria-label": "How many completions", onchange: (e) => whatIf(place, run, plugin, what, Number(e.target.value)) }, AMOUNTS.map((value) => h("option", { value, selected: value === newest }, `newest ${value}`)));
  const body = h("div", {}, h("p", { class: "muted" }, "Scoring\u2026"));
  const swap = h("button", { class: "primary", disabled: true, data: { acts: "" }, onclick: () => send(run, plugin, what, swap) }, what.settings ? "Apply to the run" : "Swap it in");
  const running = run.isAlive();
  const note = running ? "The run tries it again, and swaps it in before its next step." : "The run is not running, so nothing can be swapped.";
  fill(place, h("section", { class: "whatif", "aria-label": `What if ${title}` }, h("div", { class: "bar" }, h("h3", {}, "What if ", h("span", { class: "outside" }, title)), amount, swap, h("span", { class: "muted" }, note), close), body));
  try {
    const answer = await act("what-if", { run: run.name, plugin: plugin.name, newest, file: what.file?.name, hash: what.hash, version: what.version, settings: what.settings && JSON.stringify(what.settings) }, what.file ?? null);
    fill(body, shown(answer, plugin));
    swap.disabled = !running;
  } catch (error) {
    fill(body, h("p", { class: "bad" }, "It can't score them:"), h("pre", { class: "outside" }, error.message));
  }
}

async function send(run, plugin, what, button) {
  button.disabled = true;
  try {
    const parameters = { plugin: plugin.name };
    if (what.settings) {
      await run.sent.send("configure", parameters, JSON.stringify({ settings: what.settings }), "Sent. The run tries the settings before it takes them.");
      return;
    }
    const text = "Sent. The run tries it, then swaps it in before its next step.";
    if (what.file) await run.sent.send("swap", { ...parameters, file: what.file.name }, what.file, text);
    else await run.sent.send("roll-back", { ...parameters, hash: what.hash, version: what.version }, null, text);
  } catch (error) {
    button.disabled = false;
    toast(error.message, "error");
  }
}

/** Which settings the answer is of. */
function settings({ settings: own }, plugin) {
  const entries = Object.entries(own ?? {}).map(([key, value]) => `${key} ${typeof value === "string" ? value : JSON.stringify(value)}`);
  if (own === null) return `With the settings that were given to the run's ${plugin.name}; the rest are the file's defaults.`;
  return entries.length === 0 ? "It has no settings." : `With the settings ${entries.join(", ")}.`;
}

function shown(answer, plugin) {
  const { comparison: c } = answer;
  const tile = (title, value, below = "") => h("div", { class: "tile" }, h("dt", {}, title), h("dd", {}, value, below === "" ? null : h("small", {}, below)));
  const change = c.new_mean - c.old_mean;
  const steps = answer.from_step === answer.to_step ? `of step ${number(answer.to_step)}` : `of steps ${number(answer.from_step)} to ${number(answer.to_step)}`;
  return [
    h("p", { class: "muted" }, `${count(answer.completions, "completion")} ${steps}, which version `, h("code", {}, answer.version), " scored.", answer.other_versions > 0 ? ` ${count(answer.other_versions, "completion")} of other versions ${answer.other_versions === 1 ? "is" : "are"} left out.` : ""),
    h("p", { class: "muted outside" }, settings(answer, plugin)),
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

/** A text in a picture. */
function label(x, y, anchor, text, kind = "") {
  const element = svg("text", { x, y, "text-anchor": anchor, class: kind });
  element.textContent = text;
  return element;
}

const WIDTH = 320;

/** Both distributions, one above the other's axis, with how many completions the highest column has. */
function histogram({ low, high, old, new: after }) {
  const [height, middle, tallest] = [156, 70, 56];
  const most = Math.max(1, ...old, ...after);
  const image = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: "histogram", role: "img", "aria-label": `Scores before and after, from ${number(low)} to ${number(high)}` });
  const bar = WIDTH / Math.max(1, old.length);
  const width = (high - low) / Math.max(1, old.length);
  const column = (kind, n, i, up) => {
    const size = (n / most) * tallest;
    const rect = svg("rect", { class: kind, x: (i * bar + 0.5).toFixed(1), width: Math.max(1, bar - 1).toFixed(1), y: (up ? middle - size : middle).toFixed(1), height: size.toFixed(1) });
    rect.append(svg("title"));
    rect.firstChild.textContent = `${count(n, "completion")} from ${number(low + i * width)} to ${number(low + (i + 1) * width)}`;
    image.append(rect);
  };
  old.forEach((n, i) => column("before", n, i, true));
  after.forEach((n, i) => column("after", n, i, false));
  const highest = (all) => `at most ${number(Math.max(0, ...all))} a column`;
  image.append(svg("line", { x1: 0, x2: WIDTH, y1: middle, y2: middle }), label(0, height - 6, "start", number(low)), label(WIDTH / 2, height - 6, "middle", number((low + high) / 2)), label(WIDTH, height - 6, "end", number(high)),
    label(4, 10, "start", `before: ${highest(old)}`, "before"), label(4, height - 20, "start", `after: ${highest(after)}`, "after"));
  return h("figure", { class: "chart" }, h("figcaption", {}, h("h3", {}, "Distribution of scores")), image);
}

/** Each completion's score before and after, on the same scale: on the line, both are the same. */
function scatter(points) {
  const [height, left, below, room] = [156, 40, 18, 6];
  const image = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: "scatter", role: "img", "aria-label": "Each completion's score before (across) and after (up)" });
  if (points.length > 0) {
    const all = points.flat();
    const [low, high] = [Math.min(...all), Math.max(...all)];
    const share = (v) => (high === low ? 0.5 : (v - low) / (high - low));
    const x = (v) => left + room + share(v) * (WIDTH - left - 2 * room);
    const y = (v) => height - below - room - share(v) * (height - below - 2 * room);
    image.append(svg("line", { x1: x(low).toFixed(1), y1: y(low).toFixed(1), x2: x(high).toFixed(1), y2: y(high).toFixed(1) }));
    points.forEach(([before, after]) => image.append(svg("circle", { cx: x(before).toFixed(1), cy: y(after).toFixed(1), r: 2.5 })));
    const middle = (low + high) / 2;
    image.append(label(x(low), height - 4, "start", number(low)), label(x(middle), height - 4, "middle", number(middle)), label(x(high), height - 4, "end", number(high)),
      label(left - 2, y(low) + 3, "end", number(low)), label(left - 2, y(middle) + 3, "end", number(middle)), label(left - 2, y(high) + 3, "end", number(high)));
  }
  return h("figure", { class: "chart" }, h("figcaption", {}, h("h3", {}, "Before (across), after (up)")), image);
}
