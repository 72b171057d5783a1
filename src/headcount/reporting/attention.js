// The attention of one head: lines from the tokens that attend to those attended to, and the same as a map.
"use strict";

// Control characters, bidirectional marks and lone surrogates hide or reorder other text: none of them is shown.
const UNSAFE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const clean = text => String(text).replace(UNSAFE, "\ufffd");
const visible = token => clean(token.replaceAll("\n", "⏎").replaceAll("\t", "⇥")).replace(/^ | $/g, "·") || "·";

// An element with attributes and children; texts are texts, never markup.
function made(name, attributes = {}, ...children) {
  const [kind, ...classes] = name.split(".");
  const drawn = ["svg", "path", "text", "rect", "g", "line"].includes(kind);
  const element = drawn ? document.createElementNS("http://www.w3.org/2000/svg", kind) : document.createElement(kind);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.filter(child => child != null).map(child => child instanceof Node ? child : clean(child)));
  return element;
}

// A number of any size: four decimals, or three digits where those say nothing.
function plain(value) {
  const size = Math.abs(value);
  const written = size >= .01 || !size ? size.toFixed(4) : size >= 1e-4 ? size.toPrecision(3) : size.toExponential(1);
  return (value < 0 ? "−" : "") + written;
}
const signed = value => (value < 0 ? "" : "+") + plain(value);
const percent = (share, digits = 1) => (100 * share).toFixed(digits) + "%";

// Weights as they are sent: two bytes each, low byte first, of 65535.
function unpacked({ rows, columns, weights }) {
  const bytes = Uint8Array.from(atob(weights), letter => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const values = Float64Array.from({ length: rows * columns }, (_, i) => view.getUint16(2 * i, true) / 65535);
  return { rows, columns, at: (row, column) => values[row * columns + column] };
}

// Both pictures, which share the token that is looked at: pointing at one side shows only its lines.
function attentionPictures(sent, from, to, label) {
  const map = unpacked(sent);
  const place = made("div.pictures");
  let chosen = null;

  const lines = made("div.lines"), heat = made("div.heat");
  place.append(lines, heat);

  function choose(row) {
    if (row === chosen) return;
    chosen = row;
    drawLines();
    drawMap();
  }

  function drawLines() {
    const step = 21, wide = 420, name = 138, tall = Math.max(map.rows, map.columns) * step + 8;
    const svg = made("svg", { viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": `${label}: lines from the tokens that attend, on the left, to those attended to` });
    const top = (count, i) => 4 + step * (i + .5) + (Math.max(map.rows, map.columns) - count) * step / 2;
    const sums = Array.from({ length: map.columns }, (_, j) => chosen === null ? 0 : map.at(chosen, j));
    for (let i = 0; i < map.rows; i++) {
      if (chosen !== null && chosen !== i) continue;
      const order = Array.from({ length: map.columns }, (_, j) => j).sort((a, b) => map.at(i, b) - map.at(i, a));
      for (const j of order.slice(0, chosen === null ? 8 : map.columns)) {
        const weight = map.at(i, j);
        if (weight < .02) break;
        const [y1, y2] = [top(map.rows, i), top(map.columns, j)];
        svg.append(made("path.tie", { d: `M${name} ${y1}C${name + 60} ${y1} ${wide - name - 60} ${y2} ${wide - name} ${y2}`, "stroke-opacity": Math.min(1, .06 + .94 * weight).toFixed(3), "stroke-width": (.6 + 3 * weight).toFixed(2) }));
      }
    }
    const side = (names, count, x, anchor, attends) => {
      for (let i = 0; i < count; i++) {
        const y = top(count, i), here = attends && i === chosen;
        const group = made(`g.token${here ? ".here" : ""}`, attends ? { onpointerenter: () => choose(i), "data-row": i } : {});
        const box = { x: anchor === "end" ? 0 : wide - name + 4, y: y - step / 2, width: name - 4, height: step };
        group.append(made("rect", box));
        if (!attends && sums[i] >= .005) {
          const shade = made("rect.weight", { ...box, rx: 3, "fill-opacity": (.1 + .75 * sums[i]).toFixed(3) });
          group.append(shade);
        }
        const written = visible(names[i] ?? "?");
        const shown = written.length > 17 ? written.slice(0, 16) + "…" : written;
        group.append(made("text", { x, y: y + 4, "text-anchor": anchor }, shown));
        if (!attends && sums[i] >= .005) group.append(made("text.share", { x: wide, y: y + 4, "text-anchor": "end" }, percent(sums[i], 0)));
        svg.append(group);
      }
    };
    side(from, map.rows, name - 6, "end", true);
    side(to, map.columns, wide - name + 8, "start", false);
    lines.replaceChildren(svg);
  }

  const canvas = made("canvas", { role: "img", "aria-label": `${label}: a map, rows attend to columns` });
  const said = made("p.note");

  function drawMap() {
    const size = Math.max(2, Math.min(21, Math.floor(420 / Math.max(map.rows, map.columns)))), scale = window.devicePixelRatio || 1;
    canvas.width = map.columns * size * scale;
    canvas.height = map.rows * size * scale;
    canvas.style.aspectRatio = `${map.columns} / ${map.rows}`;
    canvas.style.maxWidth = `${map.columns * Math.max(size, 8)}px`;
    const paint = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    paint.scale(scale, scale);
    const colours = ["--s0", "--s1", "--s2", "--s3", "--s4", "--s5", "--s6", "--s7", "--s8"].map(one => style.getPropertyValue(one));
    for (let i = 0; i < map.rows; i++) for (let j = 0; j < map.columns; j++) {
      paint.globalAlpha = chosen === null || chosen === i ? 1 : .35;
      paint.fillStyle = colours[Math.min(8, Math.ceil(8 * Math.sqrt(map.at(i, j)) - .2))] || colours[0];
      paint.fillRect(j * size, i * size, size - (size > 5 ? 1 : 0), size - (size > 5 ? 1 : 0));
    }
  }

  function pointed(event) {
    const box = canvas.getBoundingClientRect();
    const i = Math.min(map.rows - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * map.rows)));
    const j = Math.min(map.columns - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * map.columns)));
    choose(i);
    said.textContent = `${visible(from[i] ?? "?")} → ${visible(to[j] ?? "?")}: ${percent(map.at(i, j))}`;
  }

  const rest = () => {
    choose(null);
    said.textContent = "Rows attend to columns; the stronger the colour, the more (square root).";
  };
  canvas.addEventListener("pointermove", pointed);
  canvas.addEventListener("pointerdown", pointed);
  place.addEventListener("pointerleave", rest);
  // By keyboard: up and down choose the token that attends.
  lines.setAttribute("tabindex", "0");
  lines.addEventListener("keydown", event => {
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key === "Escape") return rest();
    if (!(event.key in moves)) return;
    event.preventDefault();
    choose(Math.min(map.rows - 1, Math.max(0, (chosen ?? (moves[event.key] > 0 ? -1 : map.rows)) + moves[event.key])));
  });
  heat.append(canvas, said);
  rest();
  drawLines();
  drawMap();
  place.redraw = drawMap;
  return place;
}
