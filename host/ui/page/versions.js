// The versions of plugins that were in use, with their settings, and then what changed.

import { h } from "./dom.js";
import { number } from "./format.js";

/** A table of versions; nothing if there are none. */
export function versionsTable(versions) {
  if (versions.length === 0) return null;
  const HEADINGS = [["Plugin", ""], ["Role", ""], ["No.", "number"], ["Version", ""], ["Hash", ""], ["From step", "number"], ["To", "number"], ["Origin", ""], ["Settings, then what changed", ""]];
  const row = (version) => h("tr", {},
    h("th", { scope: "row", class: "outside" }, version.plugin),
    h("td", { data: { label: "role" } }, version.role),
    h("td", { class: "number", data: { label: "no." } }, version.number),
    h("td", { class: "outside", data: { label: "version" } }, version.version === "" ? "\u2013" : version.version),
    h("td", {}, h("code", { title: version.hash }, version.short)),
    h("td", { class: "number", data: { label: "from step" } }, number(version.since)),
    h("td", { class: "number", data: { label: "to" } }, version.until === null ? "the end" : number(version.until)),
    h("td", {}, version.how),
    h("td", { class: "what outside" }, version.settings));
  return h("section", { class: "in-use" }, h("h2", {}, "Versions in use"), h("div", { class: "scroll" },
    h("table", { class: "versions" }, h("thead", {}, h("tr", {}, HEADINGS.map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))), h("tbody", {}, versions.map(row)))));
}
