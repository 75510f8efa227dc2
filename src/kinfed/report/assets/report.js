"use strict";
/* Hover, keyboard, filter and sort. Everything else is in the page already. Names only ever become text, never HTML. */
(() => {
  const byId = (id) => document.getElementById(id);
  const root = document.documentElement;
  const data = JSON.parse(byId("data").textContent);
  const count = data.names.length;
  const TOP = 65535;

  /* ---- Colours ---- */

  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const printing = matchMedia("print");
  let forcedLight = false;

  function isDark() {
    if (forcedLight || printing.matches) return false;
    return root.dataset.scheme ? root.dataset.scheme === "dark" : prefersDark.matches;
  }

  function remembered(value) {
    try {
      if (value === undefined) return localStorage.getItem("kinfed-scheme");
      localStorage.setItem("kinfed-scheme", value);
    } catch { /* a page from a file may not be allowed to remember */ }
    return null;
  }

  function setScheme(scheme) {
    if (scheme === "auto") delete root.dataset.scheme;
    else root.dataset.scheme = scheme;
    byId("scheme").textContent = `Colours: ${scheme}`;
    drawMatrix();
  }

  /* From OKLCH to sRGB: equal steps look equal. */
  function colour(lightness, chroma, hue) {
    const a = chroma * Math.cos((hue * Math.PI) / 180);
    const b = chroma * Math.sin((hue * Math.PI) / 180);
    const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
    const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
    const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
    const linear = [
      4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
      -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
      -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
    ];
    return linear.map((one) => {
      const safe = Math.min(Math.max(one, 0), 1);
      return Math.round(255 * (safe <= 0.0031308 ? 12.92 * safe : 1.055 * safe ** (1 / 2.4) - 0.055));
    });
  }

  /* A ramp of 256 colours of one hue, from the paper's tone to the strongest. */
  function ramp(hue, chroma) {
    const [from, to] = isDark() ? [0.25, 0.93] : [0.975, 0.36];
    return Array.from({ length: 256 }, (_, step) => {
      const share = step / 255;
      // Little colour at both ends, where screens have none to give.
      return colour(from + (to - from) * share, chroma * Math.sin(Math.PI * (0.04 + 0.72 * share)), hue);
    });
  }

  const css = (rgb) => `rgb(${rgb.join(" ")})`;
  const strip = (colours) => `linear-gradient(to right, ${[0, 64, 128, 192, 255].map((at) => css(colours[at])).join(", ")})`;

  /* ---- Numbers ---- */

  function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
    const values = new Uint16Array(bytes.length / 2);
    for (let place = 0; place < values.length; place += 1) values[place] = bytes[2 * place] | (bytes[2 * place + 1] << 8);
    return values;
  }

  const weights = data.matrix ? unpacked(data.matrix) : null; // a method may not tell who counts for whom
  let evidence = null; // unpacked when it is first asked for

  function weightAt(row, column) {
    return row === column ? data.own[row] : (weights[row * count + column] / TOP) * data.top;
  }

  function percent(value) {
    if (value > 0 && value < 1e-6) return "< 0.0001\u00a0%";
    return `${value >= 0.01 || value === 0 ? (100 * value).toFixed(2) : (100 * value).toPrecision(2)}\u00a0%`;
  }

  function distance(code) {
    if (code === 0) return "0";
    const { low, high } = data.distances;
    const value = low * (high / low) ** ((code - 1) / (TOP - 1));
    return value < 1e-4 ? value.toExponential(2) : value.toPrecision(3);
  }

  function cellText(row, column) {
    const told = { row: data.names[row], column: data.names[column], amount: percent(weightAt(row, column)) };
    // All at once, so that a name may hold anything.
    const words = (row === column ? data.ownCell : data.cell).replace(/\{(row|column|amount)\}/g, (_, key) => told[key]);
    if (row === column || !data.distances) return words;
    const { silent } = data.distances;
    if (silent.includes(row) || silent.includes(column)) return `${words} How far apart they are is not known.`;
    evidence ??= { far: unpacked(data.distances.far), chance: unpacked(data.distances.chance) };
    const far = evidence.far[row * count + column];
    const chance = evidence.chance[row * count + column];
    const verdict = far > chance ? "they differ" : "no difference shown";
    return `${words} Squared MMD ${distance(far)}, chance explains up to ${distance(chance)}: ${verdict}.`;
  }

  /* ---- The tip beside the pointer ---- */

  const tip = byId("tip");

  function showTip(text, x, y) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth ? x - box.width - 16 : x + 16;
    tip.style.left = `${Math.max(8, Math.min(left, innerWidth - box.width - 8))}px`;
    tip.style.top = `${Math.max(8, Math.min(y + 16, innerHeight - box.height - 8))}px`;
  }

  function hideTip() {
    tip.hidden = true;
  }

  /* ---- The matrix ---- */

  const canvas = byId("matrix");
  const readout = byId("matrix-readout");
  let cursor = null; // [row, column]
  let picture = null; // the matrix without the cursor

  function drawMatrix() {
    if (!canvas || canvas.clientWidth === 0) return;
    const side = Math.max(1, Math.round(canvas.clientWidth * (devicePixelRatio || 1)));
    const others = ramp(222, 0.09);
    const own = ramp(62, 0.13);
    // Each pixel shows the heaviest of its cells, so that none is lost where there are more cells than pixels.
    const edges = Array.from({ length: count + 1 }, (_, place) => Math.floor((place * side) / count));
    const strongest = new Uint16Array(side * side);
    const itself = new Float32Array(side).fill(-1);
    const agentOf = new Uint32Array(side);
    for (let row = 0; row < count; row += 1) {
      const [top, bottom] = [edges[row], Math.max(edges[row] + 1, edges[row + 1])];
      for (let column = 0; column < count; column += 1) {
        const value = weights[row * count + column];
        if (value === 0) continue;
        const [left, right] = [edges[column], Math.max(edges[column] + 1, edges[column + 1])];
        for (let y = top; y < bottom; y += 1) {
          for (let x = left; x < right; x += 1) {
            if (value > strongest[y * side + x]) strongest[y * side + x] = value;
          }
        }
      }
      for (let y = top; y < bottom; y += 1) {
        itself[y] = Math.max(itself[y], data.own[row]);
        agentOf[y] = row;
      }
    }
    canvas.width = canvas.height = side;
    const context = canvas.getContext("2d");
    picture = context.createImageData(side, side);
    for (let y = 0; y < side; y += 1) {
      for (let x = 0; x < side; x += 1) {
        // The root keeps small weights apart from none.
        const rgb = agentOf[x] === agentOf[y]
          ? own[Math.round(255 * Math.sqrt(Math.min(1, Math.max(0, itself[y]))))]
          : others[Math.round(255 * Math.sqrt(strongest[y * side + x] / TOP))];
        const place = 4 * (y * side + x);
        [picture.data[place], picture.data[place + 1], picture.data[place + 2], picture.data[place + 3]] = [...rgb, 255];
      }
    }
    byId("legend-others").style.background = strip(others);
    byId("legend-own").style.background = strip(own);
    byId("legend-others-top").textContent = percent(data.top);
    drawCursor();
  }

  function drawCursor() {
    if (!picture) return;
    const context = canvas.getContext("2d");
    context.putImageData(picture, 0, 0);
    if (!cursor) return;
    const side = canvas.width;
    const cell = side / count;
    const [row, column] = cursor;
    const ratio = devicePixelRatio || 1;
    context.strokeStyle = isDark() ? "#f0b35c" : "#a2440f";
    context.globalAlpha = 0.5;
    context.lineWidth = ratio;
    context.strokeRect(-5, row * cell, side + 10, cell);
    context.strokeRect(column * cell, -5, cell, side + 10);
    context.globalAlpha = 1;
    context.lineWidth = 2 * ratio;
    const size = Math.max(cell, 7 * ratio);
    context.strokeRect((column + 0.5) * cell - size / 2, (row + 0.5) * cell - size / 2, size, size);
  }

  function moveTo(row, column) {
    const within = (place) => Math.min(count - 1, Math.max(0, place));
    cursor = [within(row), within(column)];
    drawCursor();
    readout.textContent = cellText(...cursor);
  }

  /* The cell under the pointer; of several within its pixel the heaviest, which is the one that is seen. */
  function cellAt(event) {
    const box = canvas.getBoundingClientRect();
    const range = (place, length) => {
      const first = Math.floor((place * count) / length);
      const last = Math.floor(((place + 1 / (devicePixelRatio || 1)) * count) / length - 1e-9);
      return [Math.min(count - 1, Math.max(0, first)), Math.min(count - 1, Math.max(first, last))];
    };
    const [top, bottom] = range(event.clientY - box.top, box.height);
    const [left, right] = range(event.clientX - box.left, box.width);
    if (count <= box.width) return [top, left];
    let best = [top, left];
    for (let row = top; row <= bottom; row += 1) {
      for (let column = left; column <= right; column += 1) {
        if (weightAt(row, column) > weightAt(...best)) best = [row, column];
      }
    }
    return best;
  }

  function openAgent(place) {
    const hash = `#agent-${place}`;
    if (location.hash === hash) openLinked();
    else location.hash = hash;
  }

  function startMatrix() {
    if (!canvas) return;
    document.querySelector(".matrix-frame").hidden = false;
    readout.hidden = false;
    drawMatrix();
    new ResizeObserver(() => requestAnimationFrame(drawMatrix)).observe(canvas);
    canvas.addEventListener("pointermove", (event) => {
      const cell = cellAt(event);
      cursor = cell;
      drawCursor();
      showTip(cellText(...cell), event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerleave", () => {
      hideTip();
      if (document.activeElement !== canvas) cursor = null;
      drawCursor();
    });
    canvas.addEventListener("pointerdown", (event) => {
      moveTo(...cellAt(event));
      if (event.pointerType === "touch") showTip(cellText(...cursor), event.clientX, event.clientY);
    });
    canvas.addEventListener("dblclick", (event) => openAgent(data.agents[cellAt(event)[0]]));
    canvas.addEventListener("focus", () => moveTo(...(cursor ?? [0, 0])));
    canvas.addEventListener("blur", () => {
      cursor = null;
      drawCursor();
    });
    canvas.addEventListener("keydown", (event) => {
      const [row, column] = cursor ?? [0, 0];
      const step = event.shiftKey ? 10 : 1;
      const moves = {
        ArrowUp: [row - step, column],
        ArrowDown: [row + step, column],
        ArrowLeft: [row, column - step],
        ArrowRight: [row, column + step],
        Home: [row, 0],
        End: [row, count - 1],
        PageUp: [row - 10, column],
        PageDown: [row + 10, column],
      };
      if (event.key === "Enter") openAgent(data.agents[row]);
      else if (moves[event.key]) moveTo(...moves[event.key]);
      else return;
      event.preventDefault();
    });
  }

  /* ---- Network and map ---- */

  function startDrawing(drawing, told) {
    if (!drawing) return;
    told.hidden = false;
    const nodes = [...drawing.querySelectorAll(".node")];
    const edges = [...drawing.querySelectorAll(".edge")];
    const nodeOf = new Map(nodes.map((node) => [node.dataset.agent, node]));

    function light(node) {
      for (const one of drawing.querySelectorAll(".lit")) one.classList.remove("lit", "out");
      drawing.classList.toggle("chosen", Boolean(node) && edges.length > 0);
      if (!node) return;
      const agent = node.dataset.agent;
      node.classList.add("lit");
      for (const edge of edges) {
        const { source, target } = edge.dataset;
        if (source !== agent && target !== agent) continue;
        edge.classList.add("lit");
        edge.classList.toggle("out", source === agent);
        nodeOf.get(source === agent ? target : source)?.classList.add("lit");
      }
    }

    function take(node) {
      light(node);
      told.textContent = node.getAttribute("aria-label");
    }

    for (const [place, node] of nodes.entries()) {
      node.addEventListener("pointermove", (event) => showTip(node.getAttribute("aria-label"), event.clientX, event.clientY));
      node.addEventListener("pointerenter", () => take(node));
      node.addEventListener("pointerleave", () => {
        hideTip();
        light(nodes.includes(document.activeElement) ? document.activeElement : null);
      });
      node.addEventListener("focus", () => take(node));
      node.addEventListener("blur", () => light(null));
      node.addEventListener("keydown", (event) => {
        const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -place, End: nodes.length - 1 - place };
        if (!(event.key in steps)) return;
        event.preventDefault();
        const next = nodes[(place + steps[event.key] + nodes.length) % nodes.length];
        node.setAttribute("tabindex", "-1");
        next.setAttribute("tabindex", "0");
        next.focus();
      });
    }
  }

  /* ---- The table of agents ---- */

  function startTable() {
    const table = byId("agents-table");
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const advicePlace = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === "Advice");
    const name = byId("filter-name");
    const advice = byId("filter-advice");
    const names = rows.map((row) => row.cells[0].textContent.toLowerCase());

    function filter() {
      const wanted = name.value.trim().toLowerCase();
      let shown = 0;
      for (const [place, row] of rows.entries()) {
        const fits = names[place].includes(wanted) && (!advice?.value || row.cells[advicePlace].textContent === advice.value);
        row.hidden = !fits;
        shown += fits ? 1 : 0;
      }
      byId("filter-count").textContent = `${shown} of ${rows.length} ${rows.length === 1 ? "agent" : "agents"}`;
    }

    function sortBy(heading, place) {
      const ascending = heading.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      const key = (row) => row.cells[place].dataset.sort;
      const compare = new Intl.Collator(undefined, { numeric: true }).compare;
      const sign = ascending ? 1 : -1;
      const sorted = [...rows].sort((one, two) => {
        if (key(one) === undefined) return sign * compare(one.cells[place].textContent, two.cells[place].textContent);
        const [first, second] = [Number(key(one)), Number(key(two))];
        if (Number.isNaN(first) || Number.isNaN(second)) return Number.isNaN(first) - Number.isNaN(second);
        return sign * (first - second);
      });
      body.append(...sorted);
    }

    for (const [place, heading] of [...table.tHead.rows[0].cells].entries()) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = heading.textContent;
      button.addEventListener("click", () => sortBy(heading, place));
      heading.replaceChildren(button);
    }
    document.querySelector(".filter").hidden = false;
    name.addEventListener("input", filter);
    advice?.addEventListener("change", filter);
    filter();
  }

  /* ---- Links, contents, copy, print ---- */

  function openLinked() {
    const linked = location.hash.startsWith("#agent-") ? byId(location.hash.slice(1)) : null;
    if (!linked) return;
    hideTip();
    for (let one = linked; one; one = one.parentElement.closest("details")) one.open = true;
    linked.scrollIntoView({ block: "start" });
    linked.querySelector("summary").focus({ preventScroll: true });
  }

  function startContents() {
    const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
    const seen = new Set();
    const observer = new IntersectionObserver((entries) => {
      for (const entry of entries) seen[entry.isIntersecting ? "add" : "delete"](entry.target.id);
      const current = [...links.keys()].find((id) => seen.has(id));
      for (const [id, link] of links) {
        if (id === current) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    }, { rootMargin: "-10% 0px -60% 0px" });
    for (const id of links.keys()) observer.observe(byId(id));
  }

  function startCopy() {
    const button = byId("copy");
    if (!button) return;
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(byId("command").textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(byId("command"));
        button.textContent = "Selected";
      }
    });
  }

  const schemes = ["auto", "light", "dark"];
  const schemeButton = byId("scheme");
  schemeButton.hidden = false;
  schemeButton.addEventListener("click", () => {
    const next = schemes[(schemes.indexOf(root.dataset.scheme ?? "auto") + 1) % schemes.length];
    remembered(next);
    setScheme(next);
  });
  const kept = remembered();
  if (schemes.includes(kept) && kept !== "auto") setScheme(kept);

  startMatrix();
  startDrawing(byId("network"), byId("network-readout"));
  startDrawing(byId("map-drawing"), byId("map-readout"));
  startTable();
  startContents();
  startCopy();
  addEventListener("hashchange", openLinked);
  openLinked();
  prefersDark.addEventListener("change", drawMatrix);
  printing.addEventListener("change", drawMatrix);
  addEventListener("beforeprint", () => {
    forcedLight = true;
    drawMatrix();
  });
  addEventListener("afterprint", () => {
    forcedLight = false;
    drawMatrix();
  });
  root.dataset.ready = "true";
})();
