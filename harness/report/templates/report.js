"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figures");
  const templates = read("templates");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const config = { displayModeBar: false, responsive: true, scrollZoom: false };
  let printing = false;

  const legendOf = (node) => document.querySelector(`form[data-section="${node.id.split("-")[0]}"]`);
  const depthOf = (form) => form?.querySelector("select")?.value;

  function hidden(form, arm) {
    const off = new Set([...form.querySelectorAll("input:not(:checked)")].map((box) => box.value));
    if (arm === "host") return off.has("host");
    const [place, mode] = [arm.slice(0, arm.indexOf(":")), arm.slice(arm.indexOf(":") + 1)];
    return off.has(`mode:${mode}`) || (place === "twin" && off.has("twin"));
  }

  function figureFor(node) {
    const entry = figures[node.id];
    if (!entry || !entry.depths) return entry;
    const depth = depthOf(legendOf(node));
    const found = entry.depths[depth] ? depth : Object.keys(entry.depths).at(-1);
    node.closest("figure").querySelector(".at-depth").textContent = ` at iodepth ${found}`;
    return entry.depths[found];
  }

  // A heat-map cannot be scrolled on paper, so its figures shrink with its fields.
  function fitPaper(map, layout, width) {
    const field = (width - layout.margin.l) / layout.xaxis.range[1];
    const size = Math.max(5, Math.min(11, field / 2.5));
    map.textfont = { size };
    layout.xaxis.tickfont = { size };
    layout.width = width;
  }

  function draw(node) {
    const figure = figureFor(node);
    if (!figure) return;
    const form = legendOf(node);
    const data = figure.data.map((trace) =>
      trace.meta && form ? { ...trace, visible: !hidden(form, trace.meta) } : { ...trace });
    const template = templates[dark.matches && !printing ? "dark" : "light"];
    const layout = { ...structuredClone(figure.layout), template };
    const least = layout.meta?.min_width;
    node.style.minWidth = least && !printing ? `${least}px` : "0";
    if (printing && node.classList.contains("heat")) fitPaper(data[0], layout, 700);
    else if (printing && node.classList.contains("wide")) layout.width = 700;
    else if (printing) Object.assign(layout, { width: 228, height: 220 });
    node.style.height = `${layout.height}px`;
    Plotly.react(node, data, layout, config);
  }

  const all = () => document.querySelectorAll(".plot").forEach(draw);
  document.querySelectorAll("form.legend").forEach((form) => {
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", all);
  });
  dark.addEventListener("change", all);
  addEventListener("beforeprint", () => {
    // On paper, nobody can open a folded part. The evidence of every cell is not printed.
    document.querySelectorAll("#verdicts details, #background details").forEach((part) => { part.open = true; });
    printing = true;
    all();
  });
  addEventListener("afterprint", () => { printing = false; all(); });
  addEventListener("hashchange", reveal);

  function reveal() {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    const proof = target && target.closest("details");
    if (proof) { proof.open = true; proof.scrollIntoView(); }
  }

  document.documentElement.classList.add("scripted");
  all();
  reveal();
})();
