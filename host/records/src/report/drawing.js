"use strict";

/** What the charts of all pages have in common. */
const drawing = (() => {
  const root = document.documentElement;
  const COLOURS = 8;
  // Distances between the labels of an axis of steps.
  const WHOLE = [1, 2, 5].flatMap((n) => [...Array(9).keys()].map((p) => n * 10 ** p)).sort((a, b) => a - b);

  // Colours change with the colour scheme and in print, so each drawing looks them up.
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const lineColour = (i) => `--line-${(i % COLOURS) + 1}`;

  function faded(hex, alpha) {
    if (alpha === 1) return hex;
    const byte = Math.round(alpha * 255)
      .toString(16)
      .padStart(2, "0");
    return hex + byte;
  }

  /** Formats a number with four significant digits; `words.rs` has the same rule. */
  function number(v) {
    if (v === null || v === undefined) return "\u2013";
    const size = Math.abs(v);
    let text;
    if (v === 0) text = "0";
    else if (size < 1e-3 || size >= 1e7) text = trimmed(v.toExponential(2)).replace("e+", "e");
    else if (size >= 1000) text = Math.round(v).toLocaleString("en-US");
    else text = trimmed(v.toFixed(Math.max(0, 3 - Math.floor(Math.log10(size)))));
    return text.replaceAll("-", "\u2212");
  }

  function trimmed(text) {
    const [digits, power] = text.split("e");
    const short = digits.includes(".") ? digits.replace(/\.?0+$/, "") : digits;
    return power === undefined ? short : `${short}e${power}`;
  }

  /** Formats an axis's labels with the same power and enough decimals to tell them apart. */
  function ticks(values, step) {
    const greatest = Math.max(...values.map(Math.abs));
    let power = 0;
    let suffix = "";
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

  /** Returns the points that no line reaches, because both neighbours are gaps. */
  function lonely(values) {
    const there = values.flatMap((v, i) => (v === undefined ? [] : [i]));
    const has = (at) => values[there[at]] !== null && values[there[at]] !== undefined;
    return there.filter((_, at) => has(at) && !has(at - 1) && !has(at + 1));
  }

  function fit(plot) {
    const { width, height } = plot.chart;
    const wanted = { width: plot.clientWidth, height: plot.clientHeight };
    if (wanted.width > 0 && (wanted.width !== width || wanted.height !== height)) plot.chart.setSize(wanted);
  }

  /** Begins visible charts; those in a collapsed part of the page are begun when it opens. Returns what looks again. */
  function whenVisible(charts, begin) {
    const waiting = new Set(charts);
    const open = () => {
      for (const chart of waiting) {
        if (document.getElementById(chart.id).closest("details:not([open])") === null) {
          waiting.delete(chart);
          begin(chart);
        }
      }
    };
    document.querySelectorAll("details").forEach((d) => d.addEventListener("toggle", open));
    open();
    return open;
  }

  return { COLOURS, WHOLE, colour, faded, fit, lineColour, lonely, number, ticks, whenVisible };
})();
