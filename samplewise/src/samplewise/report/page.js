"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("charts").textContent);
  const charts = [...document.querySelectorAll(".chart")];
  const boxes = [...document.querySelectorAll("input[data-kind]")];
  const logarithmic = document.getElementById("logarithmic"); // a page without curves has none
  const whole = document.getElementById("whole");
  for (const figure of Object.values(figures)) figure.start = figure.zoom;
  const margin = { top: 22, right: 14, bottom: 42, left: 62 };

  function add(parent, name, attributes, text) {
    const node = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", name));
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  // Which part of the axis a value is at and back, the round values to name, and how a value is written.
  function axis({ log = false, percent = false, zero = false, whole = false, range = null }, values) {
    const scale = log ? Math.log10 : Number;
    const found = (range ?? values.filter((value) => value !== null && !(log && value <= 0))).map(scale);
    let low = found.reduce((a, b) => Math.min(a, b), zero ? 0 : Infinity);
    let high = found.reduce((a, b) => Math.max(a, b), -Infinity);
    if (!isFinite(high)) [low, high] = [0, 1];
    const room = (range ? 0 : (whole ? 0.02 : 0.04) * (high - low)) || (low === high ? 0.1 * Math.abs(low) || 0.5 : 0);
    [low, high] = [zero ? low : low - room, high + room];
    const marks = [];
    if (log) {
      const step = Math.max(1, Math.ceil((high - low) / 6));
      const digits = high - low < 2.5 ? [1, 2, 5] : [1];
      for (let k = Math.floor(low); k <= high; k += step) marks.push(...digits.map((digit) => digit * 10 ** k));
    } else {
      const unit = 10 ** Math.max(whole ? 0 : -Infinity, Math.floor(Math.log10((high - low) / 7)));
      const step = unit * [1, 2, 5, 10].find((times) => high - low <= 7.001 * times * unit);
      for (let k = Math.ceil(low / step); k * step <= high; k++) marks.push(k * step);
    }
    const at = (value) => (scale(value) - low) / (high - low);
    const possible = (value) => (!percent || (value >= 0 && value <= 1)) && (!whole || value >= 1);
    return {
      at,
      back: (part) => (log ? 10 ** (low + part * (high - low)) : low + part * (high - low)),
      marks: marks.filter((value) => at(value) >= 0 && at(value) <= 1 && possible(value)),
      text: (value) => (percent ? `${Number((100 * value).toPrecision(4))}%` : String(Number(value.toPrecision(5)))),
    };
  }

  const shown = (line) => boxes.every((box) => box.checked || String(line[box.dataset.kind] ?? "") !== box.dataset.key);

  function draw(place) {
    const figure = figures[place.id];
    const { clientWidth: width, clientHeight: height } = place;
    if (!width) return; // within a closed part of the page
    const log = figure.scalable ? logarithmic.checked : (figure.y.log ?? false);
    const lines = figure.lines.filter(shown);
    const range = figure.zoom ?? figure.x.range;
    const seen = (value) => !figure.zoom || (value >= range[0] && value <= range[1]);
    const x = axis({ ...figure.x, range }, lines.flatMap((line) => line.x));
    const y = axis({ ...figure.y, log }, lines.flatMap((line) => line.y.filter((_, i) => seen(line.x[i]))));
    const [wide, high] = [width - margin.left - margin.right, height - margin.top - margin.bottom];
    const across = (value) => Number((x.at(value) * wide).toFixed(1));
    const down = (value) => Number(((1 - y.at(value)) * high).toFixed(1));

    place.replaceChildren();
    place.dataset.scale = log ? "logarithmic" : "linear";
    const svg = add(place, "svg", { viewBox: `0 0 ${width} ${height}` });
    const frame = add(svg, "g", { transform: `translate(${margin.left} ${margin.top})` });
    for (const mark of x.marks) {
      add(frame, "path", { class: "line", d: `M${across(mark)} 0V${high}` });
      add(frame, "text", { class: "xtick", x: across(mark), y: high + 16 }, x.text(mark));
    }
    for (const mark of y.marks) {
      add(frame, "path", { class: "line", d: `M0 ${down(mark)}H${wide}` });
      add(frame, "text", { class: "ytick", x: -6, y: down(mark) + 4 }, y.text(mark));
    }
    add(frame, "text", { class: "xtitle", x: wide / 2, y: high + 35 }, figure.x.title);
    add(frame, "text", { class: "ytitle", transform: `translate(-48 ${high / 2}) rotate(-90)` }, figure.y.title);

    const plot = add(frame, "svg", { width: wide, height: high }); // which cuts off what lies beyond it
    for (const [low, end] of figure.violated ?? []) {
      add(plot, "rect", { class: "violated", x: across(low), y: 0, width: across(end) - across(low), height: high });
    }
    for (const [value, dashes] of figure.rules ?? []) {
      add(plot, "path", { class: "rule", d: `M${across(value)} 0V${high}`, "stroke-dasharray": dashes });
    }
    const points = [];
    for (const line of lines) {
      const own = [];
      let path = "";
      let pen = "M";
      line.x.forEach((value, i) => {
        const level = line.y[i];
        if (level === null || (log && level <= 0)) return void (pen = "M");
        const [left, top] = [across(value), down(level)];
        path += line.steps && pen === "L" ? `H${left}V${top}` : `${pen}${left} ${top}`;
        pen = "L";
        const count = line.counts ? ` (${line.counts[i]})` : "";
        own.push([left, top, `${line.name}: ${figure.x.title} ${x.text(value)}, ${y.text(level)}${count}`]);
      });
      const fill = line.steps ? line.colour : "none";
      add(plot, "path", { class: "trace", d: path, stroke: line.colour, fill, "stroke-dasharray": line.dashes ?? "" });
      for (const [left, top] of own.length === 1 || line.marks ? own : []) {
        add(plot, "text", { class: "point", x: left, y: top, style: `fill: ${line.colour}` }, line.symbol ?? "•");
      }
      points.push(...own);
    }
    if (figure.legend) {
      const legend = add(svg, "text", { class: "legend", x: margin.left, y: 13 });
      for (const line of lines) add(legend, "tspan", { style: `fill: ${line.colour}` }, `■ ${line.name} `);
    }

    const dot = add(plot, "circle", { class: "dot", r: 0 });
    const note = add(svg, "text", { class: "note", x: width - margin.right, y: 13, "aria-live": "polite" });
    const show = ([left, top, text]) => {
      note.textContent = text;
      dot.setAttribute("r", text ? 4 : 0);
      if (text) dot.setAttribute("transform", `translate(${left} ${top})`);
    };
    let reading = -1; // by the arrow keys, of the points in sight
    place.onkeydown = (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") return zoom(null);
      const inSight = points.filter(([left]) => left >= 0 && left <= wide);
      if (!step || !inSight.length) return;
      event.preventDefault();
      reading = (reading + step + inSight.length) % inSight.length;
      show(inSight[reading]);
    };
    const zoom = (range) => {
      figure.zoom = range;
      draw(place);
    };
    const pointer = (event) => {
      const box = svg.getBoundingClientRect();
      return [event.clientX - box.left - margin.left, event.clientY - box.top - margin.top];
    };
    svg.onpointermove = (event) => {
      const [left, top] = pointer(event);
      const far = ([a, b]) => Math.hypot(a - left, b - top);
      const near = points.reduce((best, each) => (far(each) < far(best) ? each : best), [Infinity, Infinity, ""]);
      show(far(near) < 40 ? near : [0, 0, ""]);
    };
    let begun = null;
    svg.onpointerdown = (event) => (begun = pointer(event)[0]);
    svg.onpointerup = (event) => {
      const ends = [begun, pointer(event)[0]].sort((a, b) => a - b);
      if (begun === null || ends[1] - ends[0] < 8) return;
      zoom(ends.map((end) => x.back(end / wide)));
    };
    svg.ondblclick = () => zoom(null);
  }

  const drawAll = () => charts.forEach(draw);

  // A link to a run opens it.
  function openTarget() {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (target instanceof HTMLDetailsElement) target.open = true;
  }

  // Paper shows every run; of a single run also its configuration.
  let closed = [];
  function beforePrint() {
    const kind = document.querySelector("details.run") ? "details.run" : "details";
    closed = [...document.querySelectorAll(`${kind}:not([open])`)];
    for (const each of closed) each.open = true;
    drawAll();
  }

  document.getElementById("theme").addEventListener("change", (event) => {
    document.documentElement.dataset.theme = event.target.value;
  });
  openTarget();
  drawAll();
  const resized = new ResizeObserver((entries) => entries.forEach((entry) => draw(entry.target)));
  for (const place of charts) resized.observe(place);
  for (const box of [...boxes, logarithmic]) box?.addEventListener("change", drawAll);
  whole?.addEventListener("change", () => {
    for (const figure of Object.values(figures)) figure.zoom = whole.checked ? null : figure.start;
    drawAll();
  });
  addEventListener("hashchange", openTarget);
  addEventListener("beforeprint", beforePrint);
  addEventListener("afterprint", () => closed.forEach((each) => (each.open = false)));
  document.documentElement.dataset.ready = "";
})();
