// Draws the lines of each figure from the points beside it, by uPlot. A figure that cannot be drawn keeps its drawing.
(() => {
  "use strict";
  const HEIGHT = 240, FONT = "12px system-ui, sans-serif", BAND = "26", BAND_ENDS = new Set(["low", "high"]), NONE = new Set([...BAND_ENDS, "paper"]);
  // A colour as the page shows it: a property that holds light-dark() says so only where it is used.
  const probe = document.createElement("span");
  function property(element, name) {
    probe.style.color = `var(${name})`;
    element.append(probe);
    const colour = getComputedStyle(probe).color;
    probe.remove();
    const [red, green, blue] = colour.match(/[\d.]+/g).map(Number);
    return "#" + [red, green, blue].map(part => Math.round(part).toString(16).padStart(2, "0")).join("");
  }
  const shown = value => Number(value.toPrecision(4)).toString();
  const isLog = panel => panel.log && panel.series.some(series => series.mean.some(value => value > 0));
  const plots = [];

  // The lines of a panel: intervals first, so that they lie under all means, and cut where the axis ends. A step without
  // a point is a gap, and so is on a logarithmic axis what is not positive.
  function linesOf(panel) {
    const [least, most] = panel.view ?? [-Infinity, Infinity];
    return ["high", "low", "mean", "smooth", "paper"].flatMap(part => panel.series.filter(s => s[part]).map(series => {
      let x = series.x, y = series[part];
      if (BAND_ENDS.has(part)) y = y.map(value => (value === null ? null : Math.min(Math.max(value, least), most)));
      if (isLog(panel)) y = y.map(value => (value > 0 ? value : null));
      if (panel.gaps && part !== "paper") {
        const at = new Map(x.map((step, i) => [step, y[i]]));
        x = Array.from({ length: series.x.at(-1) - series.x[0] + 1 }, (_, i) => series.x[0] + i);
        y = x.map(step => at.get(step) ?? null);
      }
      return { series, part, x, y };
    }));
  }

  // Index of the selected point in a series; -1 if the series has no point at that step.
  function pointAt(panel, series, x) {
    if (panel.ticks) return series.x.indexOf(x);
    let best = 0;
    series.x.forEach((value, i) => { if (Math.abs(value - x) < Math.abs(series.x[best] - x)) best = i; });
    return best;
  }

  function row(panel, series, i, colour) {
    const line = document.createElement("tr"), swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.setProperty("--series", colour);
    const cells = [series.label, series.mean[i] === null ? "–" : shown(series.mean[i]),
      series.low && series.low[i] !== null ? `[${shown(series.low[i])}, ${shown(series.high[i])}]` : "",
      series.paper && series.paper[i] !== null ? `paper ${shown(series.paper[i])}` : "",
      panel.ticks ? "" : `at ${shown(series.x[i])}`];
    cells.forEach((text, column) => {
      const cell = line.appendChild(document.createElement(column ? "td" : "th"));
      cell.append(...(column ? [text] : [swatch, text]));
    });
    return line;
  }

  function paragraph(text) {
    const element = document.createElement("p");
    element.textContent = text;
    return element;
  }

  // The values at the cursor, below the panel, so that no line is hidden.
  function tell(u, panel, tip, colour, on) {
    const { idx, left } = u.cursor, there = [];
    if (idx != null && left >= 0) {
      for (const series of panel.series) {
        const i = on(series.key) ? pointAt(panel, series, u.data[0][idx]) : -1;
        if (i >= 0) there.push([series, i]);
      }
    }
    tip.hidden = !there.length;
    if (!there.length) return;
    const table = document.createElement("table");
    table.append(...there.map(([series, i]) => row(panel, series, i, colour(series.key))));
    const seeds = [...new Set(there.map(([series, i]) => (Array.isArray(series.seeds) ? series.seeds[i] : series.seeds)))];
    tip.replaceChildren(paragraph(`${panel.x}: ${shown(u.data[0][idx])}`), table);
    if (seeds.some(Boolean)) tip.append(paragraph(`seeds ${seeds.join(" or ")}`));
    const rightHalf = u.root.getBoundingClientRect().left > innerWidth / 2;
    Object.assign(tip.style, { left: rightHalf ? "auto" : "0", right: rightHalf ? "0" : "auto" });
  }

  function outline(u, x, y, corners, fill, stroke) {
    u.ctx.beginPath();
    corners.forEach(([dx, dy]) => u.ctx.lineTo(x + dx * devicePixelRatio, y + dy * devicePixelRatio));
    u.ctx.closePath();
    Object.assign(u.ctx, { fillStyle: fill, strokeStyle: stroke, lineWidth: 1.6 * devicePixelRatio });
    u.ctx.fill();
    u.ctx.stroke();
  }

  const ARROW = [[0, -10], [4, -3], [1, -3], [1, 5], [-1, 5], [-1, -3], [-4, -3]];

  // The paper's points as open diamonds, a filled triangle at the first step with drafts, and an arrow where an interval
  // continues beyond the axis.
  function marks(u, panel, lines, colour, ground, partOn) {
    u.ctx.save();
    lines.forEach(({ series, part, x, y }, i) => {
      if (!u.series[i + 1].show) return;
      const at = j => [u.valToPos(x[j], "x", true), u.valToPos(y[j], "y", true)];
      if (part === "paper") {
        y.forEach((value, j) => { if (value !== null) outline(u, ...at(j), [[0, -5], [5, 0], [0, 5], [-5, 0]], ground(), colour(series.key)); });
      } else if (BAND_ENDS.has(part)) {
        const up = part === "high" ? 1 : -1, end = panel.view?.[part === "high" ? 1 : 0];
        for (const j of series.cut?.[part] ?? [])
          outline(u, u.valToPos(series.x[j], "x", true), u.valToPos(end, "y", true), ARROW.map(([dx, dy]) => [dx, up * dy]), colour(series.key), ground());
      } else if (part === "mean" && partOn("first")) {
        for (const j of series.first ?? []) {
          const k = x.indexOf(series.x[j]);
          outline(u, ...at(k), [[0, -6], [6, 5], [-6, 5]], colour(series.key), colour(series.key));
        }
      }
    });
    u.ctx.restore();
  }

  function draw(panel, holder, tip, keys) {
    const lines = linesOf(panel), { colour, on, partOn } = keys, ink = () => property(holder, "--muted");
    const ground = () => property(holder, "--page"), lineIndex = (series, part) => lines.findIndex(l => l.series === series && l.part === part) + 1;
    const axis = { stroke: ink, font: FONT, grid: { stroke: () => property(holder, "--line"), width: 1 }, ticks: { stroke: () => property(holder, "--line"), width: 1 } };
    const visible = ({ series, part }) => on(series.key) && (NONE.has(part) ? partOn(part === "paper" ? "paper" : "band") : true);
    const u = new uPlot({
      width: holder.clientWidth || 400, height: HEIGHT, legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false, setScale: false }, points: { size: (_, i) => (lines[i - 1].part === "mean" ? 8 : 0) } },
      scales: {
        x: { time: false, range: (_, low, high) => { const pad = (high - low) * 0.03 || 0.5; return [low - pad, high + pad]; } },
        y: { distr: isLog(panel) ? 3 : 1 },
      },
      axes: [
        { ...axis, label: panel.x, labelFont: FONT, labelSize: 18, size: 32, space: 40, ...(panel.ticks && { splits: () => panel.ticks, values: (_, ticks) => ticks.map(String) }) },
        { ...axis, size: (_, values) => (values ? 16 + 7 * Math.max(...values.map(value => String(value ?? "").length)) : 50) },
      ],
      series: [{}, ...lines.map(line => ({
        show: visible(line), stroke: () => (NONE.has(line.part) ? "transparent" : colour(line.series.key)),
        width: NONE.has(line.part) ? 0 : line.part === "smooth" ? 2.5 : line.series.smooth ? 1 : 1.5,
        alpha: line.series.smooth && line.part === "mean" ? 0.55 : 1, ...(line.part === "paper" && { paths: () => null }),
        points: line.part === "mean" ? { size: 4, width: 0, fill: () => colour(line.series.key), show: line.x.length < 80 } : { show: false },
      }))],
      bands: panel.series.filter(series => series.low).map(series => ({ series: [lineIndex(series, "high"), lineIndex(series, "low")], fill: () => colour(series.key) + BAND })),
      hooks: { draw: [self => marks(self, panel, lines, colour, ground, partOn)], setCursor: [self => tell(self, panel, tip, colour, on)] },
    }, uPlot.join(lines.map(({ x, y }) => [x, y])), holder);
    new ResizeObserver(() => { if (holder.clientWidth) u.setSize({ width: holder.clientWidth, height: HEIGHT }); }).observe(holder);
    read(u, holder);
    const update = () => u.batch(() => lines.forEach((line, i) => u.setSeries(i + 1, { show: visible(line) })));
    return { update, redraw: () => u.redraw() };
  }

  // Keys move the cursor from point to point.
  function read(u, holder) {
    const move = i => u.setCursor({ left: i === null ? -10 : u.valToPos(u.data[0][i], "x"), top: i === null ? -10 : 10 });
    holder.addEventListener("keydown", event => {
      const last = u.data[0].length - 1, at = u.cursor.left >= 0 ? u.cursor.idx : null;
      const next = { ArrowRight: at === null ? 0 : Math.min(at + 1, last), ArrowLeft: at === null ? last : Math.max(at - 1, 0), Home: 0, End: last, Escape: null };
      if (!(event.key in next)) return;
      event.preventDefault();
      move(next[event.key]);
    });
    holder.addEventListener("blur", () => move(null));
  }

  function make(figure, box) {
    const buttons = [...box.querySelectorAll(".keys button")], pressed = button => button.ariaPressed === "true";
    const button = (name, value) => buttons.find(each => each.dataset[name] === String(value));
    const keys = {
      colour: key => property(button("key", key), "--series"), on: key => pressed(button("key", key)),
      partOn: part => !button("part", part) || pressed(button("part", part)),
    };
    const holders = box.querySelectorAll(".plot"), tips = box.querySelectorAll(".tip");
    box.hidden = false;
    const made = JSON.parse(box.querySelector("script").textContent).map((panel, i) => draw(panel, holders[i], tips[i], keys));
    for (const each of buttons) {
      each.addEventListener("click", () => { each.ariaPressed = String(!pressed(each)); made.forEach(plot => plot.update()); });
    }
    plots.push(...made);
    figure.classList.add("made");
  }

  for (const box of document.querySelectorAll(".figure > .plots")) {
    try { make(box.parentElement, box); } catch (error) { box.hidden = true; console.error(box.parentElement.id, error); }
  }
  const redraw = () => plots.forEach(plot => plot.redraw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new MutationObserver(redraw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
})();
