// Many charts: which metrics share one, in which order, and the settings of them all.

import { h, fill, later } from "./dom.js";
import { Chart, broken } from "./chart.js";

/** Metrics that are worth a look first, and what they are called. `*` is a name. */
const PLANS = [
  ["Rewards", "Reward", ["reward"]],
  ["Rewards", "Rewards", ["rewards/*/mean"]],
  ["Rewards", "Spread of rewards", ["reward_std"]],
  ["Rewards", "Groups with equal rewards", ["frac_reward_zero_std"], "share"],
  ["Rewards", "Accuracy", ["rewards/accuracies"], "share"],
  ["Rewards", "Margin", ["rewards/margins"]],
  ["Rewards", "Implicit rewards", ["rewards/chosen", "rewards/rejected"]],
  ["Completions", "Length, in tokens", ["completions/mean_length", "completions/mean_terminated_length"]],
  ["Completions", "Cut off at the limit", ["completions/clipped_ratio"], "share"],
  ["Completions", "Shortest and longest", ["completions/min_length", "completions/max_length"]],
  ["Optimisation", "Loss", ["loss"]],
  ["Optimisation", "KL from the reference", ["kl", "objective/kl"]],
  ["Optimisation", "Entropy, per token", ["entropy", "policy/entropy_avg"]],
  ["Optimisation", "Gradient norm", ["grad_norm", "critic_grad_norm"]],
  ["Optimisation", "Learning rate", ["learning_rate", "critic_learning_rate"]],
  ["Optimisation", "Clipped ratios", ["clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"], "share"],
  ["Evaluation", "Evaluation: reward", ["eval_reward"]],
  ["Evaluation", "Evaluation: rewards", ["eval_rewards/*/mean"]],
  ["Evaluation", "Evaluation: loss", ["eval_loss"]],
  ["Speed", "Seconds per step", ["step_time"]],
  ["Speed", "Parts of a step, in seconds", ["time/*"]],
  ["Speed", "Tokens per second", ["perf/throughput", "perf/rollout_throughput"]],
  ["Speed", "Peak memory, in MB", ["perf/peak_memory_mb", "perf/peak_device_memory_mb"]],
  ["Plugins", "Errors of plugins", ["plugins/*/errors"]],
];

/** Metrics that the overview shows. */
export const KEY = ["reward", "rewards/*/mean", "completions/mean_length", "kl", "entropy", "loss", "rewards/accuracies", "eval_reward", "eval_loss"];

const fits = (pattern, name) => {
  if (!pattern.includes("*")) return pattern === name;
  const [start, end] = pattern.split("*");
  return name.startsWith(start) && name.endsWith(end) && name.length > start.length + end.length;
};

const isKey = (name) => KEY.some((pattern) => fits(pattern, name));

/** Returns the charts for these metrics: { section, title, metrics, share }. Of several runs, a chart has one metric. */
export function planned(names, several) {
  const left = new Set(names);
  const charts = [];
  for (const [section, title, patterns, kind] of PLANS) {
    const metrics = patterns.flatMap((pattern) => names.filter((name) => left.has(name) && fits(pattern, name)));
    metrics.forEach((name) => left.delete(name));
    if (metrics.length === 0) continue;
    if (several) metrics.forEach((name) => charts.push({ section, title, metrics: [name], share: kind === "share" }));
    else charts.push({ section, title, metrics, share: kind === "share" });
  }
  for (const name of [...left].sort()) {
    if (name !== "epoch") charts.push({ section: name.startsWith("eval_") ? "Evaluation" : "Everything else", title: name, metrics: [name], share: false });
  }
  const order = ["Rewards", "Completions", "Optimisation", "Evaluation", "Speed", "Plugins", "Everything else"];
  return charts.sort((a, b) => order.indexOf(a.section) - order.indexOf(b.section));
}

/** What a metric is called beside others in its chart. */
function short(name) {
  const middle = /^(?:eval_)?(?:rewards|plugins)\/(.+)\/(?:mean|std|errors)$/.exec(name);
  return middle?.[1] ?? name.split("/").at(-1).replaceAll("_", " ");
}

/** Where a metric of rewards became another: scores of one version are no continuation of another's. */
function swaps(run, metric) {
  const own = /^(?:eval_)?rewards\/(.+)\/[^/]+$/.exec(metric)?.[1];
  if (own === undefined && !/^(eval_)?reward/.test(metric)) return [];
  const isOther = (mark) => (mark.tone === "swap" || mark.tone === "rollback") && (own === undefined || mark.plugin === own);
  return (run.marks ?? []).filter(isOther).map((mark) => mark.x);
}

/** The settings of charts: axis, smoothing, search. Kept for the next time. */
export class Controls {
  constructor(changed, { search = true } = {}) {
    const kept = JSON.parse(localStorage.getItem("charts") ?? "{}");
    this.axis = ["step", "time", "tokens"].includes(kept.axis) ? kept.axis : "step";
    this.smooth = typeof kept.smooth === "number" ? kept.smooth : 0;
    this.wanted = "";
    const told = later(() => {
      localStorage.setItem("charts", JSON.stringify({ axis: this.axis, smooth: this.smooth }));
      changed();
    }, 60);
    const axis = h("select", { onchange: (e) => ((this.axis = e.target.value), told()) },
      [["step", "step"], ["time", "time"], ["tokens", "tokens"]].map(([value, text]) => h("option", { value, selected: value === this.axis }, text)));
    const shown = h("output", {}, this.smooth.toFixed(2));
    const smooth = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: this.smooth, "aria-label": "Smoothing",
      oninput: (e) => ((this.smooth = Number(e.target.value)), (shown.textContent = this.smooth.toFixed(2)), told()) });
    const find = h("input", { type: "search", placeholder: "Search metrics", "aria-label": "Search metrics",
      oninput: (e) => ((this.wanted = e.target.value.trim().toLowerCase()), told()) });
    this.element = h("div", { class: "controls" }, h("label", {}, "Along ", axis), h("label", { class: "smooth" }, "Smoothing ", smooth, shown), search ? find : null);
  }
}

/** A grid of charts of one run or several. Charts are drawn when they come into view. */
export class Curves {
  /** `runs` returns [{ name, label, colour, data, marks }]; `data` is what the server sent of the run. */
  constructor(runs, controls, { key = false, zoomed = null, sync }) {
    Object.assign(this, { runs, controls, key, zoomed, sync });
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
    const runs = this.runs();
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.data?.series ?? {})))];
    const several = runs.length > 1;
    const { wanted, axis } = this.controls;
    let plans = planned(names, several);
    // A single reward's mean is the reward.
    const single = names.filter((name) => fits("rewards/*/mean", name)).length === 1 && names.includes("reward");
    const shown = (plan) => plan.metrics.some(isKey) && !(single && fits("rewards/*/mean", plan.metrics[0]));
    if (this.key && wanted === "") plans = plans.filter(shown);
    if (wanted !== "") plans = plans.filter((plan) => `${plan.title} ${plan.metrics.join(" ")}`.toLowerCase().includes(wanted));
    const layout = `${axis} ${this.key} ${plans.map((plan) => `${plan.section}/${plan.title}/${plan.metrics}`).join()}`;
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
      const text = this.controls.wanted === "" ? "No metrics yet: the first row comes after logging_steps steps." : "No metric has this in its name.";
      this.element.append(h("p", { class: "empty" }, text));
    }
    let section = null;
    let grid = null;
    const flat = this.key && this.controls.wanted === "";
    for (const plan of plans) {
      if (grid === null || (!flat && plan.section !== section)) {
        section = plan.section;
        grid = h("div", { class: "charts" });
        this.element.append(flat ? grid : h("section", {}, h("h2", {}, section), grid));
      }
      const { axis } = this.controls;
      const note = plan.metrics.length === 1 && plan.title.toLowerCase() !== plan.metrics[0] ? plan.metrics[0] : "";
      const chart = new Chart({ title: plan.title, note, axis, share: plan.share, sync: this.sync, zoomed: this.zoomed });
      grid.append(chart.element);
      this.charts.set(chart.element, { chart, plan });
      this.watcher.observe(chart.element);
    }
  }

  draw(element) {
    const { chart, plan } = this.charts.get(element) ?? {};
    if (chart === undefined) return;
    const runs = this.runs();
    const lines = [];
    for (const run of runs) {
      plan.metrics.forEach((metric, i) => {
        const series = run.data?.series?.[metric];
        if (series === undefined) return;
        const several = runs.length > 1;
        const label = several ? run.label : plan.metrics.length > 1 ? short(metric) : "";
        const colour = several ? run.colour : i;
        // Evaluations are few: between them is nothing.
        const sparse = metric.startsWith("eval_");
        const gaps = (values) => (sparse && values ? values.map((v) => v ?? undefined) : values);
        const alone = lines.length < 4 && this.controls.smooth === 0;
        const band = alone && series.lo?.length > 0 ? { lo: gaps(series.lo), hi: gaps(series.hi) } : {};
        lines.push(broken({ label, colour, x: run.data.x, y: gaps(series.y), smooth: sparse ? 0 : this.controls.smooth, ...band }, swaps(run, metric)));
      });
    }
    chart.update(lines, runs.length === 1 ? runs[0].marks ?? [] : runs.flatMap((run) => run.marks ?? []));
  }

  again() {
    for (const { chart } of this.charts.values()) chart.again();
  }
}
