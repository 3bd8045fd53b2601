"use strict";

(() => {
  const data = JSON.parse(document.getElementById("comparison-data").textContent);
  const root = document.documentElement;
  const COLOURS = 8;
  const DASHES = [[], [7, 3], [2, 3]];
  const drawn = [];
  let smoothing = 1;

  // Colours change with the colour scheme and in print, so each drawing looks them up.
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const lineColour = (group) => `--line-${(group % COLOURS) + 1}`;
  const faded = (hex, alpha) => hex + Math.round(alpha * 255).toString(16).padStart(2, "0");

  /** Formats a number with four significant digits; `words.rs` has the same rule. */
  function number(v) {
    if (v === null || v === undefined) return "\u2013";
    const size = Math.abs(v);
    const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
    let text;
    if (v === 0) text = "0";
    else if (size < 1e-3 || size >= 1e7) {
      const [digits, power] = v.toExponential(2).replace("e+", "e").split("e");
      text = `${trimmed(digits)}e${power}`;
    } else if (size >= 1000) text = Math.round(v).toLocaleString("en-US");
    else text = trimmed(v.toFixed(Math.max(0, 3 - Math.floor(Math.log10(size)))));
    return text.replaceAll("-", "\u2212");
  }

  /** Formats an axis's labels with the same power and enough decimals to tell them apart. */
  function ticks(values, step) {
    const greatest = Math.max(...values.map(Math.abs));
    let [power, suffix] = [0, ""];
    if (greatest >= 1e9 || (greatest > 0 && greatest < 0.01)) {
      power = Math.floor(Math.log10(greatest));
      suffix = `e${power}`;
    } else if (greatest >= 1e6) [power, suffix] = [6, "M"];
    else if (greatest >= 1e4) [power, suffix] = [3, "k"];
    const unit = 10 ** power;
    const isWhole = (d) => Math.abs((step / unit) * 10 ** d - Math.round((step / unit) * 10 ** d)) < 1e-6;
    const decimals = [0, 1, 2, 3, 4, 5].find(isWhole) ?? 6;
    return values.map((v) => (v === 0 ? "0" : `${(v / unit).toFixed(decimals)}${suffix}`.replaceAll("-", "\u2212")));
  }

  /** Returns the mean of the `over` points around each one. No mean crosses a gap, at which plugins change. */
  function runningMean(values, over) {
    if (over === 1) return values;
    const before = Math.floor(over / 2);
    let begin = 0;
    return values.map((value, i) => {
      if (value === null) {
        begin = i + 1;
        return null;
      }
      let [sum, count] = [0, 0];
      for (let at = Math.max(begin, i - before); at < Math.min(values.length, i - before + over); at++) {
        if (values[at] === null) break;
        [sum, count] = [sum + values[at], count + 1];
      }
      return sum / count;
    });
  }

  /** Returns the points that no line reaches, because both neighbours are gaps. */
  function lonely(values) {
    // What another group alone has steps for is undefined, and no gap.
    const next = (i, by) => {
      for (i += by; i >= 0 && i < values.length && values[i] === undefined; i += by);
      return values[i] ?? null;
    };
    return values.flatMap((v, i) => (v !== null && v !== undefined && next(i, -1) === null && next(i, 1) === null ? [i] : []));
  }

  /** Returns what uPlot draws: columns, their style, the bands between them, and the column of each line. */
  function shapes(chart) {
    const tables = chart.lines.map((l) => {
      const columns = [l.x, runningMean(l.y, smoothing)];
      if (l.lo.length > 0) columns.push(l.lo, l.hi);
      return columns;
    });
    const columns = uPlot.join(tables);
    const [series, bands, places] = [[{}], [], []];
    chart.lines.forEach((l) => {
      const values = columns[series.length];
      places.push(series.length);
      const stroke = () => colour(lineColour(l.group));
      const alone = lonely(values);
      const points = { show: alone.length > 0, filter: () => alone, size: 5, stroke, fill: stroke };
      series.push({ stroke, width: 1.5, dash: DASHES[Math.floor(l.group / COLOURS)], points, live: true });
      if (l.lo.length > 0) {
        const edge = { width: 0, points: { show: false } };
        bands.push({ series: [series.length + 1, series.length], fill: () => faded(colour(lineColour(l.group)), 0.14) });
        series.push({ ...edge }, { ...edge });
      }
    });
    return { columns, series, bands, places };
  }

  function range(_, least, greatest) {
    if (least === null || least === undefined) return [0, 1];
    if (least === greatest) {
      const room = Math.abs(least) * 0.1 || 1;
      return [least - room, greatest + room];
    }
    return uPlot.rangeNum(least, greatest, 0.06, true);
  }

  function draw(plot, chart, show) {
    plot.chart?.destroy();
    const { columns, series, bands, places } = shapes(chart);
    const grid = { stroke: () => colour("--grid"), width: 1 };
    const axis = { stroke: () => colour("--muted"), font: "11px system-ui, sans-serif", grid, ticks: { show: false } };
    const values = (_, at, __, ___, step) => ticks(at, step);
    const whole = [1, 2, 5].flatMap((n) => [...Array(9).keys()].map((p) => n * 10 ** p)).sort((a, b) => a - b);
    const options = {
      width: plot.clientWidth,
      height: plot.clientHeight,
      padding: [8, 16, 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        drag: { x: true, y: false },
        sync: { key: "steps", setSeries: false, scales: ["x", null] },
        points: { size: (u, i) => (u.series[i].live ? 6 : 0) },
      },
      scales: { x: { time: false }, y: { range } },
      axes: [
        { ...axis, size: 26, gap: 5, space: 56, incrs: whole, values },
        { ...axis, size: 54, gap: 4, space: 30, values },
      ],
      series,
      bands,
      hooks: {
        setCursor: [
          (u) => {
            const index = u.cursor.left < 0 ? null : (u.cursor.idx ?? null);
            show(index === null ? null : { step: columns[0][index], values: places.map((place) => columns[place][index]) });
          },
        ],
      },
    };
    plot.chart = new uPlot(options, columns, plot);
  }

  /** Shows values beside a chart's title: those under the cursor, or the last. */
  function readout(figure) {
    const values = [...figure.querySelectorAll(".readout b")];
    const last = values.map((b) => b.textContent);
    const at = document.createElement("span");
    at.className = "at";
    figure.querySelector("figcaption > :first-child").after(at);
    return (under) => {
      at.textContent = under === null ? "" : `step ${Math.round(under.step)}`;
      values.forEach((b, i) => (b.textContent = under === null ? last[i] : number(under.values[i])));
    };
  }

  function begin(chart) {
    const figure = document.getElementById(chart.id);
    const plot = figure.querySelector(".plot");
    const show = readout(figure);
    draw(plot, chart, show);
    drawn.push({ plot, again: () => draw(plot, chart, show) });
    new ResizeObserver(() => fit(plot)).observe(plot);
  }

  function fit(plot) {
    const { width, height } = plot.chart;
    const wanted = { width: plot.clientWidth, height: plot.clientHeight };
    if (wanted.width > 0 && (wanted.width !== width || wanted.height !== height)) plot.chart.setSize(wanted);
  }

  /** Draws visible charts; those in a collapsed part of the page are drawn when it opens. */
  const waiting = new Set(data.charts.filter((chart) => chart.lines.length > 0));
  function open() {
    for (const chart of waiting) {
      if (document.getElementById(chart.id).closest("details:not([open])") === null) {
        waiting.delete(chart);
        begin(chart);
      }
    }
  }
  document.querySelectorAll("details").forEach((d) => d.addEventListener("toggle", open));
  open();

  document.getElementById("smooth")?.addEventListener("change", (event) => {
    smoothing = Number(event.target.value);
    drawn.forEach(({ again }) => again());
  });
  const repaint = () => drawn.forEach(({ plot }) => plot.chart.redraw(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

  // Paper is white, and narrower than most windows.
  addEventListener("beforeprint", () => {
    root.classList.add("printing");
    drawn.forEach(({ plot }) => plot.chart.setSize({ width: 320, height: 170 }));
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    drawn.forEach(({ plot }) => fit(plot));
    repaint();
  });
})();
