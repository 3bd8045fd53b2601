(() => {
  const data = JSON.parse(document.getElementById("comparison-data").textContent);
  const root = document.documentElement;
  const { COLOURS, WHOLE, colour, faded, fit, lineColour, lonely, number, ticks, whenVisible } = drawing;
  const DASHES = [[], [7, 3], [2, 3]];
  const drawn = [];
  let smoothing = 1;

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
        { ...axis, size: 26, gap: 5, space: 56, incrs: WHOLE, values },
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

  whenVisible(data.charts.filter((chart) => chart.lines.length > 0), begin);

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
