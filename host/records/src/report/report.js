(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const root = document.documentElement;
  const { WHOLE, colour, faded, fit, lineColour, lonely, number, ticks, whenVisible } = drawing;
  const AXIS_WIDTH = 54;
  // Room above the plot for marks' flags.
  const FLAG_HEIGHT = 14;
  // Opacity of a layer; `report.css` has the same for its swatch.
  const LAYER_SHARE = 0.72;
  const drawn = [];
  let smoothing = 1;

  /**
   * Returns the mean of the `over` points around each one. Gaps stay gaps, and no mean crosses a
   * change of plugins.
   */
  function runningMean(values, over) {
    let begin = 0;
    return [...data.breaks, values.length].flatMap((end) => {
      const part = values.slice(begin, end);
      begin = Math.max(begin, end);
      return meansWithin(part, over);
    });
  }

  function meansWithin(values, over) {
    const before = Math.floor(over / 2);
    let [sum, count, from, to] = [0, 0, 0, 0];
    return values.map((value, i) => {
      for (; to < Math.min(values.length, i - before + over); to++) {
        if (values[to] != null) [sum, count] = [sum + values[to], count + 1];
      }
      for (; from < i - before; from++) {
        if (values[from] != null) [sum, count] = [sum - values[from], count - 1];
      }
      return value == null ? value : sum / count;
    });
  }

  /** Returns the edges of the band around a line, if it has one. */
  function band(line, alone) {
    const { y, lo, hi } = data.series[line.series];
    if (line.around !== undefined) {
      const spread = data.series[line.around].y;
      const edge = (sign) => y.map((v, i) => (v == null ? v : spread[i] == null ? null : v + sign * spread[i]));
      return [edge(-1), edge(1)];
    }
    if (line.between !== undefined) {
      const [low, high] = line.between.map((place) => data.series[place]);
      return [low.lo ?? low.y, high.hi ?? high.y];
    }
    return alone && lo !== undefined ? [lo, hi] : null;
  }

  function line(values, name, width, alpha = 1, evaluation = false) {
    const stroke = () => faded(colour(name), alpha);
    // Evaluations are few, and each is worth a point.
    const alone = evaluation ? values.flatMap((v, i) => (v == null ? [] : [i])) : lonely(values);
    const points = { show: alone.length > 0, filter: () => alone, size: evaluation ? 5 : 4, stroke, fill: stroke };
    return { stroke, width, points, live: alpha === 1, dash: evaluation ? [5, 4] : [] };
  }

  /** Returns, for each stretch of a line between its breaks, a function that leaves the values within it. */
  function stretches(l) {
    const starts = [0, ...(l.breaks ?? [])];
    const within = (from, to) => (values) => values.map((v, i) => (i >= from && i < to ? v : null));
    return starts.map((from, i) => (starts.length === 1 ? (values) => values : within(from, starts[i + 1] ?? Infinity)));
  }

  /** Returns an opaque colour as light as a faded one. */
  function mixed(hex, paper, share) {
    const part = (text, i) => parseInt(text.slice(1 + 2 * i, 3 + 2 * i), 16);
    const byte = (i) => Math.round(share * part(hex, i) + (1 - share) * part(paper, i));
    return `#${[0, 1, 2].map((i) => byte(i).toString(16).padStart(2, "0")).join("")}`;
  }

  /** Returns what uPlot draws for a line chart: columns, their style, the bands between them. */
  function linesOf(chart) {
    const [columns, series, bands] = [[data.steps], [{}], []];
    const add = (values, style) => columns.push(values) && series.push(style);
    const alone = chart.lines.filter((l) => !l.evaluation).length === 1;
    // Where the versions of rewards have colours, evaluations are told apart by their dashes.
    const name = (l, era) => lineColour(chart.eras[era]?.colour ?? l.colour);
    for (const l of chart.lines) {
      const edges = l.evaluation ? null : band(l, alone);
      if (edges === null) continue;
      const edge = { width: 0, points: { show: false } };
      stretches(l).forEach((within, era) => {
        edges.forEach((values) => add(within(values), edge));
        bands.push({ series: [series.length - 1, series.length - 2], fill: () => faded(colour(name(l, era)), 0.16) });
      });
    }
    // The first line last, so that it is drawn above lines that coincide with it.
    for (const l of [...chart.lines].reverse()) {
      const { y } = data.series[l.series];
      const smooth = smoothing > 1 && !l.evaluation;
      const shown = smooth ? runningMean(y, smoothing) : y;
      stretches(l).forEach((within, era) => {
        if (smooth) add(within(y), line(within(y), name(l, era), 1, 0.35));
        add(within(shown), line(within(shown), name(l, era), smooth ? 2 : 1.5, 1, l.evaluation));
      });
    }
    return { columns, series, bands };
  }

  /** The same for stacked layers: the tallest first, each covering the previous ones. */
  function layersOf(chart) {
    const [whole, ...parts] = chart.lines.map((l) => data.series[l.series].y);
    const shown = (values) => (smoothing > 1 ? runningMean(values, smoothing) : values);
    const [columns, series] = [[], []];
    let below = data.steps.map(() => 0);
    parts.map(shown).forEach((part, i) => {
      below = below.map((v, at) => (whole[at] == null ? whole[at] : v + (part[at] ?? 0)));
      columns.unshift(below);
      const fill = () => mixed(colour(lineColour(i)), colour("--paper"), LAYER_SHARE);
      series.unshift({ fill, stroke: () => colour("--paper"), width: 0.5, points: { show: false } });
    });
    columns.push(shown(whole));
    series.push(line(whole, "--ink", 1.25));
    return { columns: [data.steps, ...columns], series: [{}, ...series], bands: [] };
  }

  /** Returns the ends of the vertical axis. */
  function range(kind) {
    return (_, least, greatest) => {
      if (least === null || least === undefined) return [0, 1];
      if (kind === "share") return [0, greatest <= 0 ? 1 : Math.min(1, greatest * 1.1)];
      if (kind === "stack") return [0, greatest * 1.05 || 1];
      if (least === greatest) {
        const room = Math.abs(least) * 0.1 || 1;
        return [least - (least === 0 ? 0 : room), greatest + room];
      }
      return uPlot.rangeNum(least, greatest, 0.06, true);
    };
  }

  /** Draws events as lines with numbered flags, and checkpoints as ticks. */
  function marks(container) {
    const DASHES = { swap: [], rollback: [2, 2], settings: [6, 3], refused: [2, 4], resume: [1, 3], failure: [] };
    // Of several marks in one place, the flag has the colour of the gravest.
    const GRAVEST = ["failure", "rollback", "refused", "swap", "settings", "resume"];
    const MOST_TIPS = 6;
    let flags = [];
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    const visible = (u, step) => step >= u.scales.x.min && step <= u.scales.x.max;

    const beneath = (u) => {
      const { ctx, bbox } = u;
      const pixel = devicePixelRatio;
      ctx.save();
      ctx.lineWidth = pixel;
      ctx.strokeStyle = colour("--muted");
      ctx.beginPath();
      for (const step of data.checkpoints.filter((s) => visible(u, s))) {
        const x = Math.round(u.valToPos(step, "x", true));
        ctx.moveTo(x, bbox.top + bbox.height);
        ctx.lineTo(x, bbox.top + bbox.height - 5 * pixel);
      }
      ctx.stroke();
      const seen = data.marks.filter((m) => visible(u, m.step));
      // Too many would hide the curves.
      ctx.globalAlpha = Math.min(1, 20 / seen.length);
      for (const mark of seen) {
        const x = Math.round(u.valToPos(mark.step, "x", true));
        ctx.strokeStyle = colour(`--mark-${mark.kind}`);
        ctx.setLineDash(DASHES[mark.kind].map((d) => d * pixel));
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
      }
      ctx.restore();
    };

    const above = (u) => {
      const { ctx, bbox } = u;
      const pixel = devicePixelRatio;
      ctx.save();
      ctx.font = `600 ${10 * pixel}px system-ui, sans-serif`;
      ctx.textAlign = "center";
      ctx.textBaseline = "middle";
      const at = (mark) => Math.round(u.valToPos(mark.step, "x", true));
      const flag = (marks) => {
        const [first, last] = [marks[0], marks.at(-1)];
        const text = marks.length === 1 ? `${first.number}` : `${first.number}\u2013${last.number}`;
        const width = Math.max(13 * pixel, ctx.measureText(text).width + 6 * pixel);
        const x = (at(first) + at(last)) / 2;
        return { marks, text, x, left: x - width / 2, width };
      };
      // Marks whose flags would cover each other share one.
      flags = [];
      for (const mark of data.marks.filter((m) => visible(u, m.step))) {
        let own = flag([mark]);
        while (flags.length > 0 && flags.at(-1).left + flags.at(-1).width + pixel > own.left) {
          own = flag([...flags.pop().marks, ...own.marks]);
        }
        flags.push(own);
      }
      for (const { marks, text, x, left, width } of flags) {
        const kind = GRAVEST.find((kind) => marks.some((m) => m.kind === kind));
        ctx.fillStyle = colour(`--mark-${kind}`);
        ctx.fillRect(left, bbox.top - FLAG_HEIGHT * pixel, width, FLAG_HEIGHT * pixel);
        ctx.fillStyle = colour("--flag-ink");
        ctx.fillText(text, x, bbox.top - (FLAG_HEIGHT / 2 - 0.5) * pixel);
      }
      ctx.restore();
    };

    const point = (u) => {
      const { left } = u.cursor;
      const distance = (m) => Math.abs(u.valToPos(m.step, "x") - left);
      const touched = left < 0 ? [] : flags.filter(({ marks }) => marks.some((m) => visible(u, m.step) && distance(m) < 7));
      const near = touched.flatMap(({ marks }) => marks);
      tip.hidden = near.length === 0 || !container.matches(":hover");
      if (tip.hidden) return;
      const short = (text) => (text.length > 120 ? `${text.slice(0, 119)}\u2026` : text);
      const shown = near.slice(0, MOST_TIPS).map((m) => `${m.number}  step ${m.step}, ${m.word}: ${short(m.text)}`);
      if (near.length > MOST_TIPS) shown.push(`and ${near.length - MOST_TIPS} more`);
      tip.textContent = shown.join("\n");
      const right = left > u.over.clientWidth / 2;
      tip.style.left = right ? "auto" : `${left + 10}px`;
      tip.style.right = right ? `${u.over.clientWidth - left + 10}px` : "auto";
    };

    return { hooks: { init: (u) => u.over.append(tip), drawClear: beneath, draw: above, setCursor: point } };
  }

  /** Shows values beside a chart's title: those under the cursor, or the last. */
  function readout(figure, chart) {
    const values = [...figure.querySelectorAll(".readout b")];
    const last = values.map((b) => b.textContent);
    const at = document.createElement("span");
    at.className = "at";
    figure.querySelector("figcaption > :first-child").after(at);
    const share = (i, index) => {
      if (chart.kind !== "stack" || i === 0) return "";
      const [whole, part] = [chart.lines[0], chart.lines[i]].map((l) => data.series[l.series].y[index]);
      return whole > 0 && part != null ? ` (${Math.round((100 * part) / whole)}\u00a0%)` : "";
    };
    const text = (i, index) => number(data.series[chart.lines[i].series].y[index]) + share(i, index);
    return (index) => {
      at.textContent = index === null ? "" : `step ${data.steps[index]}`;
      values.forEach((b, i) => (b.textContent = index === null ? last[i] : text(i, index)));
    };
  }

  /** Lets arrow keys move the cursor, and tells screen readers what is under it. */
  function keyboard(plot, chart, title) {
    const end = data.steps.length - 1;
    const MOVES = { ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity };
    plot.tabIndex = 0;
    plot.setAttribute("role", "slider");
    plot.setAttribute("aria-label", `${title}, by step`);
    plot.setAttribute("aria-valuemin", data.steps[0]);
    plot.setAttribute("aria-valuemax", data.steps[end]);
    const say = (index) => {
      const value = (l) => `${l.label} ${number(data.series[l.series].y[index])}`.trim();
      plot.setAttribute("aria-valuenow", data.steps[index]);
      plot.setAttribute("aria-valuetext", `step ${data.steps[index]}: ${chart.lines.map(value).join(", ")}`);
    };
    say(end);
    // The other charts follow.
    const go = (left) => plot.chart.setCursor({ left, top: left }, true, true);
    const leave = () => go(-10);
    plot.addEventListener("keydown", (event) => {
      const u = plot.chart;
      if (event.key === "Escape") return leave();
      const move = MOVES[event.key];
      if (move === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      const index = Math.min(end, Math.max(0, (u.cursor.idx ?? end) + move));
      go(u.valToPos(data.steps[index], "x"));
      say(index);
    });
    plot.addEventListener("blur", leave);
  }

  function draw(plot, chart, show) {
    plot.chart?.destroy();
    const { columns, series, bands } = chart.kind === "stack" ? layersOf(chart) : linesOf(chart);
    const [first, last] = [data.steps[0], data.steps.at(-1)];
    const grid = { stroke: () => colour("--grid"), width: 1 };
    const axis = { stroke: () => colour("--muted"), font: "11px system-ui, sans-serif", grid };
    const options = {
      width: plot.clientWidth,
      height: plot.clientHeight,
      padding: [data.marks.length > 0 ? FLAG_HEIGHT + 2 : 8, 16, 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        drag: { x: true, y: false },
        sync: { key: "steps", setSeries: false, scales: ["x", null] },
        points: { size: (u, i) => (u.series[i].live ? 6 : 0) },
      },
      scales: {
        // The complete run, even if nothing was logged at its ends.
        x: {
          time: false,
          range: (_, min, max) => (min === first && max === last ? [data.from, Math.max(data.to, data.from + 1)] : [min, max]),
        },
        y: { range: range(chart.kind) },
      },
      axes: [
        {
          ...axis,
          size: 26,
          gap: 5,
          ticks: { show: false },
          space: 56,
          incrs: WHOLE,
          values: (_, at, __, ___, step) => ticks(at, step),
        },
        {
          ...axis,
          size: AXIS_WIDTH,
          gap: 4,
          ticks: { show: false },
          space: 30,
          values: (_, at, __, ___, step) => ticks(at, step),
        },
      ],
      series,
      bands,
      plugins: [marks(plot)],
      hooks: { setCursor: [(u) => show(u.cursor.left < 0 ? null : (u.cursor.idx ?? null))] },
    };
    plot.chart = new uPlot(options, columns, plot);
  }

  function begin(chart) {
    const figure = document.getElementById(chart.id);
    const plot = figure.querySelector(".plot");
    figure.classList.add(chart.kind);
    figure.querySelectorAll(".key").forEach((key, i) => {
      // A line of several versions has the colour of the newest.
      const own = chart.eras.at(-1)?.colour ?? chart.lines[i].colour;
      const name = chart.kind !== "stack" ? lineColour(own) : i === 0 ? "--ink" : lineColour(i - 1);
      key.style.setProperty("--key", `var(${name})`);
    });
    figure.querySelectorAll(".era").forEach((era, i) => era.style.setProperty("--key", `var(${lineColour(chart.eras[i].colour)})`));
    const show = readout(figure, chart);
    draw(plot, chart, show);
    keyboard(plot, chart, figure.querySelector("figcaption > :first-child").textContent);
    drawn.push({ plot, again: () => draw(plot, chart, show) });
    new ResizeObserver(() => fit(plot)).observe(plot);
  }

  function repaint() {
    drawn.forEach(({ plot }) => plot.chart.redraw(false));
  }

  /** Leaves the samples that have a text in their prompt or completion, and marks it. */
  function search(input) {
    const samples = [...document.querySelectorAll(".sample")];
    const opened = samples.map((sample) => sample.open);
    const said = document.getElementById("searched");
    const lists = samples.map((sample) => [...sample.querySelectorAll(".completions > li")]);
    const has = (element, wanted) => element !== null && element.textContent.toLowerCase().includes(wanted);
    const look = () => {
      const wanted = input.value.toLowerCase();
      let found = 0;
      samples.forEach((sample, i) => {
        const whole = has(sample.querySelector(".prompt .text"), wanted);
        const fitting = lists[i].filter((li) => whole || has(li, wanted));
        lists[i].forEach((li) => (li.hidden = !fitting.includes(li)));
        sample.hidden = fitting.length === 0;
        sample.open = wanted === "" ? opened[i] : fitting.length > 0;
        found += fitting.length;
      });
      const all = lists.flat().length;
      said.textContent = wanted === "" ? "" : `in ${found} of ${all} completions`;
      highlight(samples.filter((sample) => !sample.hidden), wanted);
    };
    input.closest(".search").hidden = false;
    input.addEventListener("input", look);
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      input.value = "";
      look();
    });
  }

  function highlight(elements, wanted) {
    if (globalThis.Highlight === undefined) return;
    CSS.highlights.delete("found");
    if (wanted === "") return;
    const found = new Highlight();
    for (const text of elements.flatMap((element) => [...element.querySelectorAll(".text")])) {
      const nodes = document.createTreeWalker(text, NodeFilter.SHOW_TEXT);
      while (nodes.nextNode()) {
        const own = nodes.currentNode.data.toLowerCase();
        // Some letters have another length in lower case.
        if (own.length !== nodes.currentNode.data.length) continue;
        for (let at = own.indexOf(wanted); at >= 0; at = own.indexOf(wanted, at + wanted.length)) {
          const range = new Range();
          range.setStart(nodes.currentNode, at);
          range.setEnd(nodes.currentNode, at + wanted.length);
          found.add(range);
        }
      }
    }
    CSS.highlights.set("found", found);
  }

  const wanted = document.getElementById("search");
  if (wanted !== null) search(wanted);

  // A step that has no row of a metric's kind is no gap in its curve.
  for (const series of data.series) {
    const kind = ["epoch", "time"].includes(series.name) ? 3 : series.name.startsWith("eval_") ? 2 : 1;
    for (const values of [series.y, series.lo, series.hi]) {
      values?.forEach((v, i) => {
        if (v === null && (data.rows[i] & kind) === 0) values[i] = undefined;
      });
    }
  }

  if (data.steps.length > 0) {
    document.querySelectorAll(".drawn").forEach((p) => (p.hidden = false));
    const select = document.getElementById("smooth");
    const points = data.steps.length;
    smoothing = points > 1000 ? 30 : points > 200 ? 10 : 1;
    if (select !== null) {
      const about = document.getElementById("smoothed");
      const say = () => {
        about.hidden = smoothing === 1;
        about.querySelector("b").textContent = smoothing;
      };
      select.value = String(smoothing);
      say();
      select.addEventListener("change", () => {
        smoothing = Number(select.value);
        say();
        drawn.forEach(({ again }) => again());
      });
    }
    const open = whenVisible(data.charts, begin);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

    // Paper is white, narrower than most windows, and can't be expanded.
    let closed = [];
    addEventListener("beforeprint", () => {
      closed = [...document.querySelectorAll("details:not([open])")];
      closed.forEach((d) => (d.open = true));
      open();
      root.classList.add("printing");
      drawn.forEach(({ plot }) => plot.chart.setSize({ width: 320, height: 150 }));
    });
    addEventListener("afterprint", () => {
      root.classList.remove("printing");
      closed.forEach((d) => (d.open = false));
      drawn.forEach(({ plot }) => fit(plot));
      repaint();
    });
  }
})();
