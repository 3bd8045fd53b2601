// Many charts, which share their axis, its smoothing and a search. Which metrics share a chart is the server's to say.

import { h, fill, later } from "./dom.js";
import { Chart, broken } from "./chart.js";
import { keep, kept } from "./kept.js";

/** Metrics that the overview shows. */
export const KEY = ["reward", "rewards/*/mean", "completions/mean_length", "kl", "entropy", "loss", "rewards/accuracies", "eval_reward", "eval_loss"];

const fits = (pattern, name) => {
  if (!pattern.includes("*")) return pattern === name;
  const [start, end] = pattern.split("*");
  return name.startsWith(start) && name.endsWith(end) && name.length > start.length + end.length;
};

const isKey = (name) => KEY.some((pattern) => fits(pattern, name));

/** The heading of charts of metrics that no other chart has. */
const OTHERS = "Other metrics";

/** Charts under their headings, as a flat list; those of metrics that are always 0 apart. */
function planned({ sections, others }) {
  const under = (section, charts, zero = false) => charts.map((chart) => ({ ...chart, section, zero }));
  const titled = sections.flatMap(({ title, charts, zero }) => [...under(title, charts), ...under(title, zero, true)]);
  return [...titled, ...under(OTHERS, others)];
}

/** Whether a row of a kind, as the server numbers them, has a metric. */
const measures = (kind, metric) => (kind & (["epoch", "time"].includes(metric) ? 3 : metric.startsWith("eval_") ? 2 : 1)) !== 0;

/** Values of a metric in which only what was measured can be a gap. */
function withoutGaps(data, metric, values) {
  if (values === undefined || data.kinds === undefined) return values;
  return values.map((value, i) => (value === null && !measures(data.kinds[i], metric) ? undefined : value));
}

/** The edges of the band around a line, and what they are. */
function band(line, data, alone) {
  const { y, lo, hi } = data.series[line.metric];
  const around = data.series[line.around]?.y;
  if (around !== undefined) {
    const edge = (sign) => y.map((v, i) => (v === null || around[i] === null ? null : v + sign * around[i]));
    return { lo: edge(-1), hi: edge(1) };
  }
  const [low, high] = (line.between ?? []).map((metric) => data.series[metric]);
  if (low !== undefined && high !== undefined) return { lo: low.lo ?? low.y, hi: high.hi ?? high.y };
  return alone && lo?.length > 0 ? { lo, hi } : {};
}

/** Where a step of a run is on the axis of its curves; null if they don't reach it. */
export function placeOf(data, step, axis) {
  if (axis === "step") return step;
  const at = data.steps.findIndex((own) => own >= step);
  // Before what is zoomed in on.
  if (data.zoomed && at === 0 && step < data.steps[0]) return null;
  return at < 0 ? null : (data.x[at] ?? null);
}

/** The stretches of a line between its breaks, each with its colour. */
function stretches(line, breaks, eras) {
  const part = line.steps.map((step) => breaks.filter((at) => at < step).length);
  const within = (values, era) => values?.filter((_, i) => part[i] === era);
  return eras.map(({ colour }, era) => ({ ...line, colour, x: within(line.x, era), steps: within(line.steps, era), y: within(line.y, era), lo: within(line.lo, era), hi: within(line.hi, era) }));
}

/** Where a metric of rewards became another: scores of one version are no continuation of another's. */
function swaps(run, metric) {
  const own = /^(?:eval_)?rewards\/(.+)\/[^/]+$/.exec(metric)?.[1];
  if (own === undefined && !/^(eval_)?reward/.test(metric)) return [];
  // Another weight makes another total, and leaves a reward's own scores.
  const tones = own === undefined ? ["swap", "rollback", "settings"] : ["swap", "rollback"];
  const isOther = (mark) => !mark.again && tones.includes(mark.tone) && (own === undefined || mark.plugin === own);
  return (run.changes ?? []).filter(isOther).map((mark) => mark.step);
}

/** The settings of charts: axis, smoothing, search, kept for the next time; and the way back from a zoom. */
export class Controls {
  constructor(changed, { search = true, whole }) {
    const chosen = JSON.parse(kept("charts") ?? "{}");
    this.axis = ["step", "time", "tokens"].includes(chosen.axis) ? chosen.axis : "step";
    this.smooth = typeof chosen.smooth === "number" ? chosen.smooth : 0;
    this.wanted = "";
    const told = later(() => {
      keep("charts", JSON.stringify({ axis: this.axis, smooth: this.smooth }));
      changed();
    }, 60);
    const axis = h("select", { onchange: (e) => ((this.axis = e.target.value), this.zoomed(false), told()) },
      [["step", "step"], ["time", "time"], ["tokens", "tokens"]].map(([value, text]) => h("option", { value, selected: value === this.axis }, text)));
    const shown = h("output", {}, this.smooth.toFixed(2));
    const smooth = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: this.smooth, "aria-label": "Smoothing",
      oninput: (e) => ((this.smooth = Number(e.target.value)), (shown.textContent = this.smooth.toFixed(2)), told()) });
    const find = h("input", { type: "search", placeholder: "Search metrics", "aria-label": "Search metrics",
      oninput: (e) => ((this.wanted = e.target.value.trim().toLowerCase()), told()) });
    this.whole = h("button", { hidden: true, onclick: whole }, "Whole run");
    this.hint = h("span", { class: "muted wide-only" }, "Drag over a chart to zoom.");
    this.element = h("div", { class: "controls" }, h("label", {}, "Along ", axis), h("label", { class: "smooth" }, "Smoothing ", smooth, shown), search ? find : null, this.whole, this.hint);
  }

  /** Offers the way back from a zoom, if there is one. */
  zoomed(is) {
    this.whole.hidden = !is;
    this.hint.hidden = is;
  }
}

/** A grid of charts of one run or several. Charts are drawn when they come into view. */
export class Curves {
  /**
   * `runs` returns [{ name, label, colour, data, marks, ticks }]; `data` is what the server sent of the run. `charts` returns which metrics
   * share a chart, as the server says; null if it has not said it yet.
   */
  constructor(runs, controls, { charts, key = false, zoomed = null, sync }) {
    Object.assign(this, { runs, plan: charts, controls, key, zoomed, sync });
    this.element = h("div", { class: "sections" });
    this.charts = new Map();
    this.visible = new Set();
    this.watcher = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting) {
          this.visible.add(target);
          this.draw(target);
        } else this.visible.delete(target);
      }
    }, { rootMargin: "200px" });
  }

  destroy() {
    this.watcher.disconnect();
    for (const { chart } of this.charts.values()) chart.destroy();
    this.charts.clear();
  }

  /** Takes other data: draws what is in view. */
  update() {
    const plan = this.plan();
    if (plan === null) return fill(this.element, h("p", { class: "empty" }, "Loading\u2026"));
    const names = new Set(this.runs().flatMap((run) => Object.keys(run.data?.series ?? {})));
    const { wanted, axis } = this.controls;
    let plans = planned(plan).filter((chart) => chart.lines.some((line) => names.has(line.metric)));
    if (this.key && wanted === "") plans = plans.filter((chart) => !chart.zero && chart.section !== OTHERS && chart.lines.some((line) => isKey(line.metric)));
    if (wanted !== "") plans = plans.filter((chart) => `${chart.title} ${chart.lines.map((line) => line.metric).join(" ")}`.toLowerCase().includes(wanted));
    const stretch = (chart) => chart.eras.map((era) => era.label).join();
    const layout = `${axis} ${this.key} ${plans.map((chart) => `${chart.section}/${chart.title}/${chart.zero}/${chart.lines.map((line) => line.metric)}/${stretch(chart)}`).join()}`;
    if (layout !== this.layout) {
      this.layout = layout;
      this.arrange(plans);
    }
    for (const element of this.visible) this.draw(element);
  }

  arrange(plans) {
    this.destroy();
    this.visible.clear();
    fill(this.element);
    if (plans.length === 0) {
      const text = this.controls.wanted === "" ? "No metrics have been logged yet: the first row comes after logging_steps steps." : "No metric has this in its name.";
      this.element.append(h("p", { class: "empty" }, text));
    }
    const flat = this.key && this.controls.wanted === "";
    const place = (charts) => h("div", { class: "charts" }, charts.map((chart) => this.begin(chart)));
    if (flat && plans.length > 0) return this.element.append(place(plans));
    for (const section of new Set(plans.map((chart) => chart.section))) {
      const [shown, zero] = [false, true].map((own) => plans.filter((chart) => chart.section === section && chart.zero === own));
      const folded = zero.length === 0 ? null : h("details", { class: "zero" }, h("summary", {}, `Always 0: ${zero.map((chart) => chart.title).join(", ")}`), place(zero));
      this.element.append(h("section", {}, h("h2", {}, section), shown.length > 0 ? place(shown) : null, folded));
    }
  }

  /** Makes a chart, which is drawn when it comes into view. */
  begin(plan) {
    const { axis } = this.controls;
    const single = plan.lines.filter((line) => !line.evaluation);
    const name = single.length === 1 && plan.title.toLowerCase() !== single[0].metric ? single[0].metric : "";
    const extremes = single.length === 1 && !single[0].around && !single[0].between && this.runs().some((run) => run.data?.per_point > 1) ? "band: minimum to maximum" : "";
    const note = [name, plan.note, extremes].filter((text) => text !== "").join(", ");
    const eras = this.runs().length === 1 ? plan.eras : [];
    const chart = new Chart({ title: plan.title, note, axis, kind: plan.kind, eras, sync: this.sync, zoomed: this.zoomed });
    this.charts.set(chart.element, { chart, plan });
    this.watcher.observe(chart.element);
    return chart.element;
  }

  draw(element) {
    const { chart, plan } = this.charts.get(element) ?? {};
    if (chart === undefined) return;
    const runs = this.runs();
    const lines = runs.flatMap((run) => plan.lines.flatMap((line) => this.lines(run, runs.length > 1, plan, line)));
    if (plan.kind !== "stack" && lines.length > 6 && plan.eras.length === 0) lines.forEach((line) => (delete line.lo, delete line.hi));
    const whole = !runs.some((run) => run.data?.zoomed);
    const drawn = runs.filter((run) => plan.lines.some((line) => run.data?.series?.[line.metric] !== undefined));
    chart.update(lines, { marks: drawn.flatMap((run) => run.marks ?? []), ticks: runs.length === 1 ? runs[0].ticks ?? [] : [], whole });
  }

  /** The line of a run in a chart, in its stretches. */
  lines(run, several, plan, line) {
    const { data } = run;
    const series = data?.series?.[line.metric];
    if (series === undefined) return [];
    const gaps = (values) => withoutGaps(data, line.metric, values);
    const alone = several || plan.lines.filter((other) => !other.evaluation).length === 1;
    const edges = line.evaluation || plan.kind === "stack" ? {} : band(line, data, alone);
    const colour = several ? run.colour : plan.kind === "stack" ? plan.lines.indexOf(line) - 1 : line.colour;
    const whole = {
      label: several ? run.label : line.label, part: several ? run.name : line.metric, colour, dash: line.evaluation === true,
      x: series.x ?? data.x, steps: series.x ?? data.steps, y: gaps(series.y), smooth: line.evaluation || line.metric.startsWith("eval_") ? 0 : this.controls.smooth,
      ...(edges.lo === undefined ? {} : { lo: gaps(edges.lo), hi: gaps(edges.hi) }),
    };
    const breaks = several ? swaps(run, line.metric) : (line.breaks ?? []);
    return plan.eras.length > 0 && !several ? stretches(whole, breaks, plan.eras) : [broken(whole, breaks)];
  }

  again() {
    for (const { chart } of this.charts.values()) chart.again();
  }
}
