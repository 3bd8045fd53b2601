// Numbers, times and names as the page shows them.

import { isFrozen } from "./frozen.js";

/** Four significant digits; `config/words.rs` has the same rule. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "\u2013";
  const size = Math.abs(value);
  const trimmed = (text) => {
    const [digits, power] = text.split("e");
    const short = digits.includes(".") ? digits.replace(/\.?0+$/, "") : digits;
    return power === undefined ? short : `${short}e${power.replace("+", "")}`;
  };
  let text;
  if (value === 0) text = "0";
  else if (size < 1e-3 || size >= 1e7) text = trimmed(value.toExponential(2));
  else if (size >= 1000) text = Math.round(value).toLocaleString("en-US");
  else text = trimmed(value.toFixed(Math.max(0, 3 - Math.floor(Math.log10(size)))));
  return text.replaceAll("-", "\u2212");
}

/** The labels of an axis: the same power for all, and enough decimals to tell them apart. */
export function ticks(values, step) {
  const greatest = Math.max(...values.map(Math.abs));
  let [power, suffix] = [0, ""];
  if (greatest >= 1e9 || (greatest > 0 && greatest < 0.01)) {
    power = Math.floor(Math.log10(greatest));
    suffix = `e${power}`;
  } else if (greatest >= 1e6) [power, suffix] = [6, "M"];
  else if (greatest >= 1e4) [power, suffix] = [3, "k"];
  const unit = 10 ** power;
  const whole = (d) => Math.abs((step / unit) * 10 ** d - Math.round((step / unit) * 10 ** d)) < 1e-6;
  const decimals = [0, 1, 2, 3, 4, 5].find(whole) ?? 6;
  return values.map((v) => (v === 0 ? "0" : `${(v / unit).toFixed(decimals)}${suffix}`.replaceAll("-", "\u2212")));
}

/** The labels of an axis of time, as short as they can be told apart. */
export function timeTicks(values, step) {
  const label = (seconds) => {
    const [d, h, m] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
    const s = Number((seconds % 60).toFixed(2));
    // Parts that all labels lack are left out.
    const parts = [[d, "d"], [step < 86400 ? h : 0, "h"], [step < 3600 ? m : 0, "min"], [step < 60 ? s : 0, "s"]].filter(([n]) => n > 0);
    return parts.length === 0 ? "0" : parts.map(([n, unit]) => `${n} ${unit}`).join(" ");
  };
  return values.map(label);
}

export function count(value, one, many = `${one}s`) {
  return `${(value ?? 0).toLocaleString("en-US")} ${value === 1 ? one : many}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "\u2013";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${number(Math.round(seconds * 10) / 10)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A day and a time, in UTC. */
export const moment = (time) => (time ? `${new Date(time * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC` : "");

/** When something happened, from now: in words if it is not long ago. Nobody knows when a file is read. */
export function ago(time) {
  if (!time) return "";
  if (isFrozen) return moment(time);
  const seconds = Date.now() / 1000 - time;
  if (seconds < 5) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h ago`;
  return new Date(time * 1000).toISOString().slice(0, 10);
}

export function clock(time) {
  if (isFrozen) return moment(time);
  return time ? new Date(time * 1000).toLocaleTimeString("en-GB") : "";
}

export function bytes(size) {
  const units = ["B", "kB", "MB", "GB"];
  let unit = 0;
  while (size >= 1000 && unit < 3) [size, unit] = [size / 1000, unit + 1];
  return `${number(size)} ${units[unit]}`;
}

/** The words of an event's kind, and how grave it is. */
export const EVENTS = {
  started: ["started", "quiet"],
  resumed: ["resumed", "resume"],
  forked: ["forked", "resume"],
  plugin_loaded: ["loaded", "quiet"],
  plugin_swapped: ["swapped", "swap"],
  plugin_rolled_back: ["rolled back", "rollback"],
  plugin_refused: ["refused", "refused"],
  settings_refused: ["settings refused", "refused"],
  plugin_error: ["plugin failed", "failure"],
  settings_changed: ["settings changed", "settings"],
  requested: ["requested", "quiet"],
  checkpoint_saved: ["checkpoint", "quiet"],
  checkpoint_kept: ["checkpoint kept", "quiet"],
  checkpoints_removed: ["checkpoints removed", "quiet"],
  checkpoint_failed: ["checkpoint failed", "failure"],
  checkpoint_superseded: ["checkpoint set aside", "quiet"],
  finding: ["sign", "refused"],
  warning: ["warning", "refused"],
  stopped_early: ["stopped early", "resume"],
  failed: ["failed", "failure"],
  stopped: ["stopped", "resume"],
  finished: ["finished", "good"],
};

export const eventName = (kind) => EVENTS[kind]?.[0] ?? kind.replaceAll("_", " ").slice(0, 60);
export const eventTone = (kind) => EVENTS[kind]?.[1] ?? "quiet";
/** Whether a chart marks events of a kind. */
export const isMarked = (kind) => ["swap", "rollback", "refused", "settings", "resume", "failure"].includes(eventTone(kind)) && kind !== "warning" && kind !== "finding";
