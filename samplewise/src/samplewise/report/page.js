"use strict";
(async () => {
  const figures = JSON.parse(document.getElementById("charts").textContent);
  const boxes = [...document.querySelectorAll("input[data-kind]")];
  const clear = "rgba(0, 0, 0, 0)";
  const common = {
    autosize: true,
    margin: { t: 10, r: 12, b: 44, l: 60 },
    paper_bgcolor: clear,
    plot_bgcolor: clear,
    font: { family: "system-ui, sans-serif", size: 12 },
    hovermode: "closest",
    hoverlabel: { namelength: -1 },
    showlegend: false,
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 1, xanchor: "right" },
  };
  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: matchMedia("(hover: none)").matches ? false : "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], // none that sends anything anywhere
    plotlyServerURL: "",
  };
  const logarithmic = document.getElementById("logarithmic"); // a page without curves has none

  document.getElementById("theme").addEventListener("change", (event) => {
    document.documentElement.dataset.theme = event.target.value;
  });

  async function unpackPlotly() {
    const packed = atob(document.getElementById("plotly").textContent);
    const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  const shown = (trace) =>
    boxes.every((box) => box.checked || String(trace.meta[box.dataset.kind] ?? "") !== box.dataset.key);

  const scale = (figure) => (figure.scalable && logarithmic?.checked ? "log" : "linear");

  function draw(place) {
    const figure = figures[place.id];
    for (const trace of figure.data) trace.visible = shown(trace);
    const axes = { automargin: true, zeroline: false, exponentformat: "power" };
    const layout = { ...common, ...figure.layout };
    layout.xaxis = { ...axes, ...layout.xaxis };
    layout.yaxis = { ...axes, type: scale(figure), ...layout.yaxis };
    return Plotly.newPlot(place, figure.data, layout, config);
  }

  const charts = [...document.querySelectorAll(".chart")];
  const drawn = (place) => place.classList.contains("js-plotly-plot");
  const drawOpen = () =>
    Promise.all(charts.filter((place) => !drawn(place) && !place.closest("details:not([open])")).map(draw));

  function toggle() {
    for (const place of charts.filter(drawn)) {
      Plotly.restyle(place, { visible: figures[place.id].data.map(shown) });
    }
  }

  function rescale() {
    for (const place of charts.filter((each) => drawn(each) && figures[each.id].scalable)) {
      Plotly.relayout(place, { "yaxis.type": scale(figures[place.id]), "yaxis.autorange": true });
    }
  }

  // A link to a run opens it.
  function openTarget() {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (target instanceof HTMLDetailsElement) target.open = true;
  }

  // Paper has one width and shows every run; of a single run also its configuration.
  let closed = [];
  function beforePrint() {
    const kind = document.querySelector("details.run") ? "details.run" : "details";
    closed = [...document.querySelectorAll(`${kind}:not([open])`)];
    for (const each of closed) each.open = true;
    drawOpen();
    for (const place of charts) {
      Plotly.relayout(place, { autosize: false, width: 320, height: parseInt(place.style.height) || 230 });
    }
  }
  function afterPrint() {
    for (const each of closed) each.open = false;
    for (const place of charts.filter(drawn)) Plotly.relayout(place, { autosize: true, width: null, height: null });
  }

  try {
    await unpackPlotly();
  } catch {
    for (const place of charts) place.textContent = "This browser is too old to draw the charts.";
    return;
  }
  openTarget();
  await drawOpen();
  for (const box of boxes) box.addEventListener("change", toggle);
  logarithmic?.addEventListener("change", rescale);
  for (const each of document.querySelectorAll("details")) each.addEventListener("toggle", drawOpen);
  addEventListener("hashchange", openTarget);
  addEventListener("beforeprint", beforePrint);
  addEventListener("afterprint", afterPrint);
  document.documentElement.dataset.ready = "";
})();
