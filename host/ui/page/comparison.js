// Runs side by side: groups of those that differ in their seed only, with the last and the best value of each metric.

import { h } from "./dom.js";
import { number } from "./format.js";
import { lineColour } from "./chart.js";

const NAMES_AT_ONCE = 4;

/** A mean, with its deviation if it is of several runs. */
const spread = ({ mean, deviation }) => (deviation === null ? number(mean) : `${number(mean)} \u00b1 ${number(deviation)}`);

/** The groups that have one of these runs. */
export const groupsOf = (comparison, names) => comparison.groups.filter((group) => group.runs.some((name) => names.includes(name)));

/** The part of a curve between two steps. */
function part(curve, from, to) {
  const within = (_, i) => curve.x[i] >= from && curve.x[i] <= to;
  return Object.fromEntries(Object.entries(curve).map(([key, values]) => [key, values.filter(within)]));
}

/** The groups as what charts draw: a line each, with a band over the seeds; of a zoom, the part between its ends. */
export function groupLines(comparison, names, { from, to }) {
  const zoomed = from !== undefined;
  const curves = (group) => (zoomed ? Object.fromEntries(Object.entries(group.curves).map(([metric, curve]) => [metric, part(curve, from, to)])) : group.curves);
  const data = (group) => ({ x: [], steps: [], series: curves(group), per_point: 1, breaks: [], zoomed });
  return groupsOf(comparison, names).map((group, i) => ({ name: group.name, label: group.name, colour: i, data: data(group), marks: [] }));
}

/** A table of groups with their values. `colour` returns the colour of a group's line, if it has one. */
export function groupsTable(comparison, names, colour) {
  const { key_metrics: metrics, has_seeds: seeds } = comparison;
  const heading = (title, kind = "") => h("th", { scope: "col", class: kind }, title);
  const value = ({ values }, metric) => {
    const own = values[metric];
    if (own === undefined) return h("td", { class: "number" }, "\u2013");
    return h("td", { class: "number" }, spread(own.last), own.best === null ? null : h("small", { class: "best" }, `best ${spread(own.best)}`));
  };
  const runs = ({ runs: all }) => {
    const more = all.length > NAMES_AT_ONCE ? all.length - NAMES_AT_ONCE + 1 : 0;
    const shown = all.slice(0, all.length - more);
    return [shown.map((name, i) => [h("span", { class: "outside" }, i + 1 < shown.length ? `${name},` : name), " "]), more > 0 ? `and ${more} more` : null];
  };
  const swatch = (group) => (colour(group) === null ? null : h("i", { class: "swatch", vars: { "--key": `var(${lineColour(colour(group))})` } }));
  const row = (group) => h("tr", {}, h("th", { scope: "row" }, swatch(group), h("span", { class: "outside" }, group.name)),
    h("td", {}, runs(group)), h("td", {}, group.seeds), h("td", { class: "number" }, group.steps), h("td", {}, group.states), metrics.map((metric) => value(group, metric)));
  const caption = `The last logged value of each metric and, where one end is better, the best one. ${seeds ? "Runs that differ in their seed only are one group, with the mean \u00b1 the standard deviation of their values. " : ""}Of a reward, only values since the last change of what decides it count.`;
  return [h("p", { class: "caption" }, caption), comparison.notes.map((note) => h("p", { class: "notice warn outside" }, note)),
    h("div", { class: "scroll" }, h("table", { class: "groups" }, h("thead", {}, h("tr", {}, heading("Group"), heading("Runs"), heading("Seeds"), heading("Last logged step", "number"), heading("State"), metrics.map((metric) => heading(metric, "number outside")))), h("tbody", {}, groupsOf(comparison, names).map(row))))];
}
