// One chart, drawn by uPlot: lines with bands or stacked layers, marks of events, values under the cursor.

import { h, fill } from "./dom.js";
import { FLAG_HEIGHT, Flags } from "./flags.js";
import { number, duration, ticks, timeTicks, eventName } from "./format.js";

/** How many lines can be told apart by their colours. */
export const COLOURS = 8;
// Opacity of a stacked layer.
const LAYER_SHARE = 0.72;
const WHOLE = [1, 2, 5].flatMap((n) => [...Array(10).keys()].map((p) => n * 10 ** p)).sort((a, b) => a - b);
// Seconds that make round minutes, hours and days.
const OF_TIME = [...WHOLE.slice(0, 3).map((n) => n / 100), 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map((n) => n * 60), ...[1, 2, 3, 6, 12].map((n) => n * 3600), ...WHOLE.map((n) => n * 86400)];
const MOST_TIPS = 5;

/** The CSS variable of a line's colour. */
export const lineColour = (i) => `--line-${(i % COLOURS) + 1}`;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A sample of a line, for legends. */
const swatch = (i, dashed = false) => h("i", { class: dashed ? "swatch dashed" : "swatch", vars: { "--key": `var(${lineColour(i)})` } });

/** An opaque colour as light as a faded one. */
function mixed(hex, paper, share) {
  const part = (text, i) => parseInt(text.slice(1 + 2 * i, 3 + 2 * i), 16);
  const byte = (i) => Math.round(share * part(hex, i) + (1 - share) * part(paper, i));
  return `#${[0, 1, 2].map((i) => byte(i).toString(16).padStart(2, "0")).join("")}`;
}

function faded(hex, alpha) {
  const byte = Math.round(alpha * 255);
  return hex + byte.toString(16).padStart(2, "0");
}

/** Returns values as a moving average, which forgets the older ones; gaps stay gaps, and it begins again at each break. */
export function smoothed(values, share, breaks = []) {
  if (share <= 0) return values;
  let [mean, weight] = [0, 0];
  return values.map((value, i) => {
    if (breaks.includes(i)) [mean, weight] = [0, 0];
    if (value === null || value === undefined) return value;
    mean = share * mean + (1 - share) * value;
    weight = share * weight + (1 - share);
    return mean / weight;
  });
}

/** Breaks a line after steps, where what it measures became another; returns it with a gap at each. */
export function broken(line, places) {
  const inside = places.filter((place) => place >= line.steps[0] && place < line.steps.at(-1));
  if (inside.length === 0) return line;
  const columns = ["y", "lo", "hi"].filter((key) => line[key] !== undefined);
  const out = { ...line, x: [], breaks: [] };
  columns.forEach((key) => (out[key] = []));
  let next = 0;
  line.x.forEach((x, i) => {
    const step = line.steps[i];
    if (next < inside.length && step > inside[next]) {
      while (next < inside.length && step > inside[next]) next += 1;
      // Between the last point before and the first one after.
      out.x.push((line.x[i - 1] + x) / 2);
      columns.forEach((key) => out[key].push(null));
      out.breaks.push(out.x.length);
    }
    out.x.push(x);
    columns.forEach((key) => out[key].push(line[key][i]));
  });
  return out;
}

/** Brings lines that have an axis each onto one, with gaps where one has nothing. */
export function aligned(lines) {
  if (lines.every((line) => line.x === lines[0].x)) return { x: lines[0]?.x ?? [], lines };
  const all = new Set();
  for (const line of lines) for (const x of line.x) if (Number.isFinite(x)) all.add(x);
  const x = [...all].sort((a, b) => a - b);
  const places = new Map(x.map((v, i) => [v, i]));
  const spread = (own, values) => {
    if (values === undefined) return undefined;
    // Undefined is joined over, unlike null.
    const out = Array(x.length);
    own.forEach((v, i) => Number.isFinite(v) && (out[places.get(v)] = values[i]));
    return out;
  };
  return { x, lines: lines.map((line) => ({ ...line, y: spread(line.x, line.y), lo: spread(line.x, line.lo), hi: spread(line.x, line.hi), breaks: (line.breaks ?? []).map((at) => places.get(line.x[at])) })) };
}

/** A chart in a figure of its own. `update` gives it other lines. */
export class Chart {
  /**
   * `title`, `note`; `axis`: step, time or tokens; `kind`: lines, share (values are between 0 and 1) or stack (of the first line);
   * `eras`: the stretches of its lines, with a colour each; `sync`: charts with the same key share their cursor; `zoomed` is called with
   * the ends of a zoom.
   */
  constructor({ title, note = "", axis = "step", kind = "lines", eras = [], sync = null, zoomed = null, tall = false }) {
    this.options = { axis, isOfStretches: eras.length > 0, share: kind === "share", stack: kind === "stack", sync, zoomed, title };
    this.at = h("span", { class: "at" });
    this.readout = h("div", { class: "readout" });
    this.plot = h("div", { class: tall ? "plot tall" : "plot" });
    const name = h("h3", {}, title, note === "" ? null : h("span", { class: "muted" }, ` ${note}`));
    const stretches = eras.length === 0 ? null : h("p", { class: "eras", "aria-label": "Versions of the rewards" }, eras.map((era) => h("span", {}, swatch(era.colour), era.label)));
    this.element = h("figure", { class: "chart" }, h("figcaption", {}, name, this.at, this.readout, stretches), this.plot);
    this.chart = null;
    this.lines = [];
    this.flags = new Flags();
    this.marks = [];
    this.whole = false;
    this.x = [];
    this.observer = new ResizeObserver(() => this.fit());
    this.observer.observe(this.plot);
    this.keyboard();
  }

  destroy() {
    this.observer.disconnect();
    this.chart?.destroy();
    this.chart = null;
  }

  /**
   * `lines` have x, y, and perhaps lo, hi, label, colour (a number), smooth, dash; lines with the same `part` are stretches of one. `marks`
   * have x, tone and text, and perhaps a number; `ticks` are places on the axis, of checkpoints. `whole`: nothing is left out at the ends.
   */
  update(lines, { marks = [], ticks: checkpoints = [], whole = false } = {}) {
    const before = this.lines;
    const { x, lines: all } = aligned(lines);
    const flagged = this.flags.isNeeded;
    [this.x, this.lines, this.marks, this.whole] = [x, all, marks, whole];
    this.flags.take(marks, checkpoints);
    const shape = (list) => list.map((l) => `${l.label}/${l.colour}/${l.lo !== undefined}/${(l.smooth ?? 0) > 0}`).join();
    const same = this.chart !== null && shape(before) === shape(all) && flagged === this.flags.isNeeded;
    const data = this.columns();
    if (same) this.chart.setData(data);
    else if (this.plot.clientWidth > 0) this.draw(data);
    this.read(null);
  }

  /** Draws again, as when the colours have changed. */
  again() {
    if (this.chart !== null) this.draw(this.columns());
  }

  columns() {
    if (this.options.stack) return this.layers();
    const columns = [this.x];
    for (const line of this.lines) {
      if (line.lo !== undefined) columns.push(line.hi, line.lo);
    }
    // The first line last, so that it is drawn above lines that coincide with it.
    for (const line of [...this.lines].reverse()) {
      if ((line.smooth ?? 0) > 0) columns.push(line.y, smoothed(line.y, line.smooth, line.breaks));
      else columns.push(line.y);
    }
    return columns;
  }

  /** The layers of a stack, the tallest first: each covers those before it. The whole comes last. */
  layers() {
    const smooth = (line) => smoothed(line.y, line.smooth ?? 0, line.breaks);
    const [whole, ...parts] = this.lines;
    let below = this.x.map(() => 0);
    const layers = parts.map((part) => {
      const values = smooth(part);
      below = below.map((v, i) => (whole.y[i] === null || whole.y[i] === undefined ? whole.y[i] : v + (values[i] ?? 0)));
      return below;
    });
    return [this.x, ...layers.reverse(), smooth(whole)];
  }

  /** What uPlot is told of the lines of a stack. */
  layerStyles() {
    const layers = this.lines.slice(1).map((line) => ({ fill: () => mixed(colour(lineColour(line.colour)), colour("--paper"), LAYER_SHARE), stroke: () => colour("--paper"), width: 0.5, points: { show: false } }));
    return { series: [{}, ...layers.reverse(), { stroke: () => colour("--ink"), width: 1.25, points: { show: false }, live: true }], bands: [] };
  }

  /** What uPlot is told of lines. */
  lineStyles() {
    const series = [{}];
    const bands = [];
    const shade = (name) => faded(colour(name), 0.15);
    for (const line of this.lines) {
      if (line.lo === undefined) continue;
      const edge = { width: 0, points: { show: false } };
      series.push({ ...edge }, { ...edge });
      bands.push({ series: [series.length - 2, series.length - 1], fill: () => shade(lineColour(line.colour)) });
    }
    const there = (u, i) => [...u.data[i].keys()].filter((at) => u.data[i][at] !== null && u.data[i][at] !== undefined);
    // What no line reaches, since both neighbours are gaps.
    const lone = (u, i) => {
      const own = [...u.data[i].keys()].filter((at) => u.data[i][at] !== undefined);
      const has = (n) => u.data[i][own[n]] !== null && u.data[i][own[n]] !== undefined;
      return own.filter((_, n) => has(n) && !has(n - 1) && !has(n + 1));
    };
    for (const line of [...this.lines].reverse()) {
      const stroke = () => colour(lineColour(line.colour));
      // Evaluations are few, and each is worth a point.
      const points = { show: true, size: line.dash ? 5 : 4, filter: (u, i) => (line.dash ? there(u, i) : lone(u, i)), fill: stroke };
      const dash = line.dash ? [5, 4] : [];
      if ((line.smooth ?? 0) > 0) {
        series.push({ stroke: () => faded(colour(lineColour(line.colour)), 0.28), width: 1, points: { show: false } });
        series.push({ stroke, width: 2, points, dash, live: true });
      } else series.push({ stroke, width: 1.5, points, dash, live: true });
    }
    return { series, bands };
  }

  /** The ends of the horizontal axis: those of the data, and of marks outside of it. */
  ends(low, high) {
    if (low === null) return [0, 1];
    const marked = this.whole && low === this.x[0] && high === this.x.at(-1) ? this.flags.places() : [];
    const [from, to] = [Math.min(low, ...marked), Math.max(high, ...marked)];
    return from === to ? [from - 1, to + 1] : [from, to];
  }

  draw(data) {
    this.chart?.destroy();
    const { axis, isOfStretches, share, stack, sync } = this.options;
    const { series, bands } = stack ? this.layerStyles() : this.lineStyles();
    const grid = { stroke: () => colour("--grid"), width: 1 };
    const look = { stroke: () => colour("--muted"), font: "11px system-ui, sans-serif", grid, ticks: { show: false } };
    const ofTime = axis === "time";
    const along = (u, all, _s, _m, step) => (ofTime ? timeTicks : ticks)(all, step);
    const range = (u, low, high) => {
      if (low === null || low === undefined) return [0, 1];
      if (share) return [0, high <= 0 ? 1 : Math.min(1, high * 1.1)];
      if (stack) return [0, high * 1.05 || 1];
      if (low === high) {
        const room = Math.abs(low) * 0.1 || 1;
        return [low - (low === 0 ? 0 : room), high + room];
      }
      return uPlot.rangeNum(low, high, 0.06, true);
    };
    this.chart = new uPlot(
      {
        width: this.plot.clientWidth,
        height: this.plot.clientHeight,
        // The last label is as wide on both sides of its tick.
        padding: [this.flags.isNeeded ? FLAG_HEIGHT + 2 : 8, ofTime ? 32 : 16, 0, 0],
        legend: { show: false },
        cursor: {
          y: false,
          drag: { x: true, y: false },
          sync: sync === null ? undefined : { key: sync, setSeries: false, scales: ["x", null] },
          points: { size: (u, i) => (u.series[i].live ? 6 : 0) },
          // Of stretches, only the one under the cursor has a value there.
          ...(isOfStretches ? { dataIdx: (u, i, at) => at } : {}),
          focus: { prox: isOfStretches || stack ? -1 : 24 },
        },
        scales: {
          x: {
            time: false,
            range: (u, low, high) => this.ends(low, high),
          },
          y: { range },
        },
        axes: [
          { ...look, space: ofTime ? 84 : 64, incrs: ofTime ? OF_TIME : WHOLE, values: along, size: 26 },
          { ...look, space: 34, size: 52, values: (u, all, _s, _m, step) => ticks(all, step) },
        ],
        series,
        bands,
        hooks: {
          init: [(u) => u.over.append((this.tip = h("div", { class: "tip", hidden: true })))],
          drawClear: [(u) => this.flags.drawLines(u, colour)],
          draw: [(u) => this.flags.drawFlags(u, colour)],
          setCursor: [(u) => this.point(u)],
          setSelect: [(u) => u.select.width > 0 && this.options.zoomed?.(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"))],
          ready: [(u) => u.over.addEventListener("dblclick", () => this.options.zoomed?.(null, null))],
        },
      },
      data,
      this.plot,
    );
  }

  point(u) {
    const { left, idx } = u.cursor;
    this.read(left < 0 ? null : idx);
    const near = left < 0 ? [] : this.flags.near(u, left);
    this.tip.hidden = near.length === 0 || !this.plot.matches(":hover, :focus-within, :focus");
    if (this.tip.hidden) return;
    const short = (text) => (text.length > 140 ? `${text.slice(0, 139)}\u2026` : text);
    const shown = near.slice(0, MOST_TIPS).map((mark) => `${mark.number === undefined ? "" : `${mark.number}  `}${mark.word ?? eventName(mark.kind)}: ${short(mark.text)}`);
    if (near.length > MOST_TIPS) shown.push(`and ${near.length - MOST_TIPS} more`);
    this.tip.textContent = shown.join("\n");
    const right = left > u.over.clientWidth / 2;
    this.tip.style.left = right ? "auto" : `${left + 10}px`;
    this.tip.style.right = right ? `${u.over.clientWidth - left + 10}px` : "auto";
  }

  /** Shows the values at an index, or the last ones. */
  read(index) {
    const { axis } = this.options;
    const lastOf = (line) => line.y?.findLast((v) => v !== null && v !== undefined);
    const near = (line) => {
      if (index === null || index === undefined) return lastOf(line);
      for (let d = 0; d < 4; d++) for (const at of [index - d, index + d]) if (line.y?.[at] !== null && line.y?.[at] !== undefined) return line.y[at];
      return null;
    };
    const x = index === null || index === undefined ? null : this.x[index];
    this.at.textContent = x === null ? "" : axis === "time" ? duration(x) : `${axis === "step" ? "step " : ""}${number(x)}${axis === "tokens" ? " tokens" : ""}`;
    const value = (at) => this.lines.find((line) => line.part === at && near(line) !== null && near(line) !== undefined);
    const parts = [...new Set(this.lines.map((line) => line.part))];
    const one = (part) => {
      // Of stretches, the one under the cursor, or the newest.
      const own = this.lines.filter((line) => line.part === part);
      const line = (index === null || index === undefined ? own.findLast((l) => lastOf(l) !== undefined) : value(part)) ?? own.at(-1);
      return h("span", { class: "key" }, this.options.stack && part === parts[0] ? h("i", { class: "swatch whole" }) : swatch(line.colour, line.dash), line.label === "" ? null : `${line.label} `, h("b", {}, number(near(line))), this.portion(line, near));
    };
    fill(this.readout, parts.slice(0, 12).map(one), parts.length > 12 ? h("span", {}, `and ${parts.length - 12} more`) : null);
  }

  /** How much of a stack a part is. */
  portion(line, near) {
    if (!this.options.stack || line === this.lines[0]) return null;
    const [whole, own] = [near(this.lines[0]), near(line)];
    return whole > 0 && own !== null && own !== undefined ? ` (${Math.round((100 * own) / whole)}\u00a0%)` : null;
  }

  fit() {
    const [width, height] = [this.plot.clientWidth, this.plot.clientHeight];
    if (width === 0) return;
    if (this.chart === null) {
      if (this.lines.length > 0) this.draw(this.columns());
    } else if (width !== this.chart.width || height !== this.chart.height) this.chart.setSize({ width, height });
  }

  /** Lets arrow keys move the cursor, and tells screen readers what is under it. */
  keyboard() {
    const MOVES = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity };
    const { plot } = this;
    plot.tabIndex = 0;
    plot.setAttribute("role", "slider");
    plot.setAttribute("aria-label", `${this.options.title}; arrow keys read values`);
    plot.setAttribute("aria-valuenow", 0);
    plot.addEventListener("keydown", (event) => {
      const u = this.chart;
      const move = MOVES[event.key];
      if (u === null || (move === undefined && event.key !== "Escape") || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape") return u.setCursor({ left: -10, top: -10 }, true, true);
      event.preventDefault();
      const end = this.x.length - 1;
      const index = Math.min(end, Math.max(0, (u.cursor.idx ?? end) + move));
      const left = u.valToPos(this.x[index], "x");
      u.setCursor({ left, top: 10 }, true, true);
      plot.setAttribute("aria-valuenow", this.x[index]);
      plot.setAttribute("aria-valuetext", `${this.x[index]}: ${this.lines.filter((l) => l.y[index] !== undefined).map((l) => `${l.label} ${number(l.y[index])}`).join(", ")}`);
    });
    plot.addEventListener("blur", () => this.chart?.setCursor({ left: -10, top: -10 }, true, true));
  }
}
