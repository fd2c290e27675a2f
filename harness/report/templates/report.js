"use strict";
(async () => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const config = { displayModeBar: false, responsive: true, scrollZoom: false };
  let figures = {}, templates = {}, parts = {};
  let printing = false;

  // Large texts are in the page as gzip in base64.
  async function unpack(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (mark) => mark.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  const legendOf = (node) => document.querySelector(`form[data-section="${node.id.split("-")[0]}"]`);
  const depthOf = (form) => form?.querySelector(".depth select")?.value;
  const scaleOf = (form) => form?.querySelector(".scale select")?.value;

  function hidden(form, arm) {
    const off = new Set([...form.querySelectorAll("input[type=checkbox]:not(:checked)")].map((box) => box.value));
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
    if (!node.offsetParent) {  // hidden, so it has no width: draw it once it is shown
      delete node.dataset.drawn;
      seen.observe(node);
      return;
    }
    const form = legendOf(node);
    const data = figure.data.map((trace) =>
      trace.meta && form ? { ...trace, visible: !hidden(form, trace.meta) } : { ...trace });
    const template = templates[dark.matches && !printing ? "dark" : "light"];
    const layout = { ...structuredClone(figure.layout), template };
    for (const [axis, scales] of Object.entries(layout.meta?.scales ?? {})) Object.assign(layout[axis], scales[scaleOf(form)]);
    const least = layout.meta?.min_width;
    node.style.minWidth = least && !printing ? `${least}px` : "0";
    if (printing && node.classList.contains("heat")) fitPaper(data[0], layout, 700);
    else if (printing && node.classList.contains("wide")) layout.width = 700;
    else if (printing) Object.assign(layout, { width: 228, height: 220 });
    node.style.height = `${layout.height}px`;
    Plotly.react(node, data, layout, config);
    node.dataset.drawn = "";
  }

  const drawn = () => document.querySelectorAll(".plot[data-drawn]").forEach(draw);

  // A chart is drawn, and a part inserted, when it comes near the window.
  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      if (target.dataset.part) insert(target);
      else draw(target);
    }
  }, { rootMargin: "600px" });

  // The charts and tables of a workload are taken away when they are far from the window, so a page of thousands of
  // cells does not grow while somebody reads it. Print needs all of them.
  const inserted = new Map();
  const far = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (isIntersecting || printing || target.contains(document.activeElement)) continue;
      far.unobserve(target);
      target.style.minHeight = `${target.offsetHeight}px`;
      target.querySelectorAll(".plot[data-drawn]").forEach((plot) => Plotly.purge(plot));
      target.replaceChildren();
      target.dataset.part = inserted.get(target);
      inserted.delete(target);
      seen.observe(target);
    }
  }, { rootMargin: "4000px" });

  function watch(root) {
    for (const node of root.querySelectorAll(".plot, [data-part]")) {
      if (node.classList.contains("plot")) node.style.height = `${figureFor(node)?.layout.height ?? 0}px`;
      seen.observe(node);
    }
    root.querySelectorAll("figure.chart").forEach(savableChart);
    root.querySelectorAll("table").forEach(savableTable);
    for (const box of root.querySelectorAll(".scroll")) [box, box.firstElementChild].forEach((each) => sizes.observe(each));
  }

  // What takes the focus is scrolled to below the legend, which stays in view.
  const legends = new ResizeObserver(() => {
    const heights = [...document.querySelectorAll("form.legend")].map((form) => getComputedStyle(form).position === "sticky" ? form.offsetHeight : 0);
    document.documentElement.style.scrollPaddingTop = `${Math.max(0, ...heights)}px`;
  });

  // A table that is wider than its place takes the focus, because the keyboard cannot scroll it otherwise.
  const sizes = new ResizeObserver((entries) => {
    for (const box of new Set(entries.map(({ target }) => target.closest(".scroll")))) {
      const wide = box?.scrollWidth > box?.clientWidth;
      const name = box?.querySelector("caption")?.textContent ?? box?.querySelector("[aria-label]")?.ariaLabel ?? "table";
      for (const [attribute, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", name]]) {
        if (wide) box.setAttribute(attribute, value);
        else box?.removeAttribute(attribute);
      }
    }
  });

  function insert(place) {
    const key = place.dataset.part;
    if (!(key in parts)) return;
    delete place.dataset.part;
    place.innerHTML = parts[key];  // escaped when the page was made, like the rest of it
    place.style.minHeight = "";
    if (key.endsWith("-all")) {
      inserted.set(place, key);
      far.observe(place);
    }
    const form = place.closest(".disk")?.querySelector("form.legend");
    if (form) showMatching(place, wordsOf(form));
    watch(place);
  }

  function insertAll() {
    for (let places; (places = document.querySelectorAll("[data-part]")).length;) places.forEach(insert);
  }

  // --- saving charts and tables ---

  function save(name, type, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    URL.revokeObjectURL(link.href);
  }

  // A spreadsheet would compute a text that begins with one of these marks.
  const computes = (text) => /^([=+@\t\r]|-(?![\d.]))/.test(text) && Number.isNaN(Number(text));
  const field = (text) => `"${(computes(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
  const csv = (rows) => rows.map((row) => row.map((value) => field(String(value ?? "").replaceAll("\u2212", "-"))).join(",")).join("\r\n");

  function button(label, title, act) {
    const made = document.createElement("button");
    Object.assign(made, { type: "button", textContent: label, title, onclick: act });
    return made;
  }

  function savableChart(figure) {
    const node = figure.querySelector(".plot");
    if (!node || !figures[node.id] || figure.querySelector(".save")) return;
    const image = (format) => () => {
      if (!("drawn" in node.dataset)) draw(node);
      Plotly.downloadImage(node, { format, filename: node.id, scale: format === "png" ? 2 : 1 });
    };
    const values = () => {
      const rows = [["series", "x", "y"]];
      for (const { name, x, y, z, hoverinfo } of figureFor(node).data) {
        if (hoverinfo === "skip") continue;
        if (z) z.forEach((line, row) => line.forEach((value, column) => rows.push([y?.[row] ?? row, x?.[column] ?? column, value])));
        else (x ?? []).forEach((value, at) => rows.push([name, value, y[at]]));
      }
      save(`${node.id}.csv`, "text/csv", csv(rows));
    };
    const bar = document.createElement("span");
    bar.className = "save";
    bar.append("save ", button("SVG", "save this chart as SVG", image("svg")), button("PNG", "save this chart as PNG", image("png")),
      button("CSV", "save the values of this chart", values));
    figure.querySelector("figcaption")?.append(bar);
  }

  function savableTable(table) {
    if (table.caption?.querySelector(".save")) return;
    const text = (cell) => cell.innerText.trim().replace(/\s*\n\s*/g, "; ");
    const name = `${(table.caption?.textContent ?? "table").trim().slice(0, 60).replace(/[^\w-]+/g, "-")}.csv`;
    const made = button("CSV", "save this table as CSV", () =>
      save(name, "text/csv", csv([...table.rows].map((row) => [...row.cells].flatMap((cell) => [text(cell), ...Array(cell.colSpan - 1).fill("")])))));
    const bar = document.createElement("span");
    bar.className = "save";
    bar.append(made);
    const outside = table.closest(".scroll") ?? table;
    outside.after(bar);
  }

  // --- the filter of a disk's cells: each word must be in the cell's id or outcome ---

  // The number of a word is whole: qd1 is not in qd16.
  const pattern = (word) => new RegExp(word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&") + (/\d$/.test(word) ? "(?!\\d)" : ""), "i");
  const wordsOf = (form) => form.querySelector("[type=search]").value.split(/\s+/).filter(Boolean).map(pattern);
  const matches = (cell, words) => words.every((word) => word.test(cell));

  function showMatching(root, words) {
    for (const node of root.querySelectorAll("[data-cell], [data-of]")) node.hidden = !matches(node.dataset.cell ?? node.dataset.of, words);
    for (const body of root.querySelectorAll("tbody:has(> [data-cell])")) body.hidden = [...body.rows].every((row) => row.hidden);
  }

  function cellsOf(workload) {
    const place = workload.querySelector('[data-part$="-all"]');
    if (!place) return [...workload.querySelectorAll("[data-cell]")].map((row) => row.dataset.cell);
    return cellsOf[place.dataset.part] ??= [...parts[place.dataset.part].matchAll(/ data-cell="([^"]*)"/g)].map((found) => found[1]);
  }

  function filter(form) {
    const words = wordsOf(form), disk = form.closest(".disk");
    let shown = 0, all = 0;
    for (const workload of disk.querySelectorAll(".workload")) {
      const cells = cellsOf(workload);
      const found = cells.filter((cell) => matches(cell, words)).length;
      workload.hidden = cells.length > 0 && found === 0;
      shown += found;
      all += cells.length;
    }
    showMatching(disk, words);
    disk.classList.toggle("filtered", words.length > 0);
    form.querySelector("output").textContent = words.length ? `${shown} of ${all} cells` : "";
  }

  function setFilter(text) {
    for (const form of document.querySelectorAll("form.legend")) {
      form.querySelector("[type=search]").value = text;
      filter(form);
    }
  }

  // --- links to single cells: #cell=ID, or #cell-ID as in the page itself; to a filter: #filter=WORDS ---

  function address() {
    try {
      return decodeURIComponent(location.hash.slice(1));
    } catch {  // not made by this page
      return "";
    }
  }

  function reveal() {
    const here = address();
    if (here.startsWith("filter=")) setFilter(here.slice(7));
    const name = here.replace(/^cell=(.*)$/, (_, id) => `cell-${id.replace(/[^A-Za-z0-9._-]+/g, "-")}`);
    if (!name) return;
    if (name.startsWith("cell-") && !document.getElementById(name)) document.querySelectorAll('[data-part$="-proofs"]').forEach(insert);
    const target = document.getElementById(name);
    const proof = target?.closest("details");
    if (!proof) return;
    if (proof.hidden) setFilter("");
    proof.querySelectorAll("[data-part]").forEach(insert);
    if (target.dataset.part) insert(target);
    proof.open = true;
    proof.scrollIntoView({ behavior: "instant" });
    proof.querySelector("summary").focus({ preventScroll: true });
  }

  for (const form of document.querySelectorAll("form.legend")) {
    form.addEventListener("submit", (event) => event.preventDefault());
    legends.observe(form);
  }
  try {
    [figures, templates, parts] = (await Promise.all(["figures", "templates", "parts"].map(unpack))).map((text) => JSON.parse(text));
    const library = document.createElement("script");
    library.textContent = await unpack("plotly");
    document.head.append(library);
  } catch (error) {
    const said = document.createElement("p");
    said.className = "banner status";
    said.textContent = `This browser cannot unpack the charts (${error.message}). Use a browser of 2023 or later.`;
    document.querySelector("main").prepend(said);
    return;
  }
  document.addEventListener("change", (event) => { if (event.target.closest("form.legend") && event.target.type !== "search") drawn(); });
  document.addEventListener("input", (event) => {
    const form = event.target.type === "search" && event.target.closest("form.legend");
    if (!form) return;
    filter(form);
    history.replaceState(null, "", event.target.value ? `#filter=${encodeURIComponent(event.target.value)}` : "#");
  });
  dark.addEventListener("change", drawn);
  addEventListener("beforeprint", () => {
    insertAll();
    // On paper, nobody can open a folded part. The evidence of every cell is not printed.
    document.querySelectorAll("#verdicts details, #background details").forEach((part) => { part.open = true; });
    printing = true;
    document.querySelectorAll(".plot").forEach(draw);
  });
  addEventListener("afterprint", () => { printing = false; drawn(); });
  addEventListener("hashchange", reveal);
  document.documentElement.classList.add("scripted");
  watch(document);
  reveal();
})();
