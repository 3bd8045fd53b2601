// The page's frame: which view is shown, the bar above it, the colour scheme.

import { h, fill } from "./dom.js";
import { ask, server } from "./ask.js";
import { clock, moment } from "./format.js";
import { isFrozen } from "./frozen.js";
import { keep, kept } from "./kept.js";
import { address, place } from "./place.js";
import { runsView } from "./runs.js";
import { runView } from "./run.js";

const main = document.getElementById("main");
const top = document.getElementById("top");
const gone = document.getElementById("gone");
let shown = null;
let about = null;

function scheme() {
  const chosen = kept("scheme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.scheme = chosen;
}

function otherScheme() {
  const root = document.documentElement;
  const dark = root.dataset.scheme ? root.dataset.scheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.scheme = dark ? "light" : "dark";
  keep("scheme", root.dataset.scheme);
  shown?.again?.();
}

/** What may be done here, or when the file was written. */
function means() {
  if (isFrozen) return about === null ? null : h("span", { class: "muted" }, `Written by rlhost ${about.version} on ${moment(about.written)}`);
  if (about?.control) return h("span", { class: "pill control", title: "Started with --control: plugins can be swapped here" }, "control");
  return h("span", { class: "pill", title: "Start rlhost ui with --control to swap plugins here" }, "read only");
}

function bar() {
  const { view, name } = place();
  const state = h("span", { id: "connection", class: "connection", role: "status" });
  const crumbs = [h("a", { href: "#/", class: "brand" }, "rlhost"), h("span", { class: "crumb muted" }, about?.folder ?? "")];
  if (view === "run" && name !== undefined && !about?.single) crumbs.push(h("span", { class: "muted", "aria-hidden": "true" }, "/"), h("span", { class: "crumb outside" }, name));
  fill(top, h("nav", { "aria-label": "Place", class: "crumbs" }, crumbs), h("div", { class: "aside" }, state,
    means(),
    h("button", { class: "plain", onclick: otherScheme, title: "Dark or light", "aria-label": "Switch between dark and light" }, "\u25d0")));
}

/** Says that the server is gone, once, for as long as it is. */
function away() {
  document.body.classList.toggle("away", !server.answers);
  gone.hidden = server.answers;
  if (!server.answers) fill(gone, h("strong", {}, "rlhost ui does not answer. "), `It was stopped, or this machine has no connection to it. What is shown is as it was at ${clock(Date.now() / 1000)}. If you start it again, open the address that it prints then: each start has its own.`);
  // What would be sent can't be.
  for (const button of document.querySelectorAll("button[data-acts]")) {
    if (!server.answers && !button.disabled) [button.disabled, button.dataset.acts] = [true, "away"];
    else if (server.answers && button.dataset.acts === "away") [button.disabled, button.dataset.acts] = [false, ""];
  }
  shown?.away?.();
}

async function show() {
  const { view, name, tab, parameters } = place();
  // A view that can go to another place of its own does, without being made again.
  if (shown?.go?.(view, name, tab, parameters)) return;
  shown?.leave?.();
  shown = null;
  fill(main, h("p", { class: "empty" }, "Loading\u2026"));
  try {
    about ??= await ask("about");
    if (about.single && view === "runs") {
      const [only] = (await ask("runs")).runs;
      if (only) return location.replace(address(only.name));
    }
    bar();
    shown = view === "run" && name ? await runView(main, about, name, tab, parameters) : await runsView(main, about);
  } catch (error) {
    bar();
    fill(main, h("div", { class: "empty" }, h("p", { class: "bad" }, error.message), h("p", {}, h("a", { href: "#/" }, "All runs"), " ", h("button", { onclick: show }, "Try again"))));
  }
}

server.changed = away;
scheme();
main.classList.toggle("frozen", isFrozen);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown?.again?.());
addEventListener("hashchange", show);

// Paper is white.
let before = null;
addEventListener("beforeprint", () => {
  before = document.documentElement.dataset.scheme ?? null;
  document.documentElement.dataset.scheme = "light";
  shown?.again?.();
});
addEventListener("afterprint", () => {
  if (before === null) delete document.documentElement.dataset.scheme;
  else document.documentElement.dataset.scheme = before;
  shown?.again?.();
});

// The library defines what charts need before modules run.
show();
