// The heads of a model as a grid of switches, coloured by what is known of them: layers down, heads across.
"use strict";

const KINDS = { encoder: "encoder", decoder: "decoder", cross: "cross-attention", text: "text", vision: "vision" };
const ROLES = {  // as ROLE_COLOURS in heads.py
  positional: "r0", syntactic: "r1", rare: "r2", idle: "r3", alignment: "r5", induction: "r5", "previous token": "r0",
  "duplicate token": "r1", retrieval: "r6", copying: "r2", sink: "r3", streaming: "r4",
};
const headsOf = site => site.heads.map(index => `${site.name}.${index}`);

// toggle: turns units off or on. look: shows a head. `paint` colours the grid by a map of a run, or by effects on a text.
function headGrid(sites, { toggle, look }) {
  const attention = sites.filter(site => site.heads), layers = sites.filter(site => site.neurons);
  const heads = attention.flatMap(headsOf).length;
  const place = made("div.grids", { role: "group", "aria-label": "Heads: arrow keys move, space turns off" });
  const scale = made("div.scale");
  const cells = new Map(), rows = [];
  for (const group of new Set(attention.map(site => site.kind))) {
    const its = attention.filter(site => site.kind === group), wide = Math.max(...its.map(site => site.of));
    const grid = made("div.grid", { role: "grid", "aria-label": `${KINDS[group] ?? group} heads` });
    grid.style.setProperty("--heads", wide);
    for (const site of its) {
      const after = layers.find(one => one.kind === `${group}_ffn` && one.layer === site.layer) ?? null;
      const line = [];
      grid.append(made("button.row", { type: "button", title: `Layer ${site.layer}${site.also ? ` and ${site.also.join(", ")}, which share it` : ""}: all heads off or on`, "aria-label": `${site.name}: all heads`, "data-row": site.name, onclick: () => toggle(headsOf(site)) }, String(site.layer)));
      for (let index = 0; index < wide; index++) {
        if (!site.heads.includes(index)) { grid.append(made("span.removed", { title: index < site.of ? "removed from this model" : "" })); continue; }
        const head = `${site.name}.${index}`;
        const cell = made("button.cell", { type: "button", "data-head": head, tabindex: -1, onclick: () => { look(head); toggle([head]); }, onpointerenter: event => { if (event.pointerType === "mouse") look(head); }, onfocus: () => look(head) });
        cells.set(head, cell);
        line.push(head);
        grid.append(cell);
      }
      if (after) {
        const cell = made("button.cell.ffn", { type: "button", "data-unit": after.name, title: `${after.name}: the feed-forward layer`, onclick: () => toggle([after.name]) }, "ffn");
        cells.set(after.name, cell);
        grid.append(cell);
      } else grid.append(made("span"));
      rows.push({ site, after, line });
    }
    place.append(made("div.kind", {}, new Set(attention.map(site => site.kind)).size > 1 ? made("h3", {}, KINDS[group] ?? group) : null, grid));
  }

  function paint(shown) {
    const { map, effects, off, head } = shown, values = map ? map.values : effects;
    const most = Math.max(0, ...Object.values(values).filter(value => typeof value === "number").map(Math.abs));
    for (const [unit, cell] of cells) {
      const value = values[unit], isOff = off.has(unit) || (Boolean(cell.dataset.unit) && [...off].some(one => one.startsWith(`${unit}.`)));
      cell.classList.toggle("off", isOff);
      cell.classList.toggle("here", unit === head);
      cell.setAttribute("aria-pressed", String(isOff));
      if (!cell.dataset.head) continue;
      cell.style.setProperty("--c", `var(--${colourOf(map, value, most)})`);
      const said = value === undefined ? "" : `, ${typeof value === "number" ? signed(value) : value}`;
      cell.setAttribute("aria-label", `${unit}${isOff ? ", off" : ""}${said}`);
      if (typeof value === "number") cell.dataset.value = value; else delete cell.dataset.value;
      cell.setAttribute("tabindex", unit === head ? 0 : -1);
    }
    paintScale(shown, most);
  }

  function colourOf(map, value, most) {
    if (value === undefined || value === null) return "none";
    if (map?.kind === "role") return ROLES[value] ?? "r4";
    if (!most) return "z0";
    if (map?.kind === "importance") return `s${Math.max(0, Math.min(8, Math.round(8 * value / most)))}`;
    // On one text a single head can outweigh all others: the square root shows those too.
    const size = Math.abs(value) / most, level = Math.round(5 * (map ? size : Math.sqrt(size))), worse = map ? map.sign * value < 0 : value > 0;
    return level ? (worse ? "w" : "b") + level : "z0";
  }

  function paintScale({ map, effects, measured, moves }, most) {
    if (map?.kind === "role") {
      const there = [...new Set(Object.values(map.values))];
      return scale.replaceChildren(made("ul.legend", {}, ...there.map(role => {
        const key = made("i");
        key.style.background = `var(--${colourOf(map, role, 1)})`;
        return made("li", {}, key, role);
      })));
    }
    const names = map?.kind === "importance" ? ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"] : ["b5", "b4", "b3", "b2", "b1", "z0", "w1", "w2", "w3", "w4", "w5"];
    const strip = made("div.strip");
    for (const name of names) { const part = made("i"); part.style.background = `var(--${name})`; strip.append(part); }
    let ends = ["0: unimportant", "", `${most.toPrecision(3)}: important`];
    if (map?.kind === "change") ends = ["better without it", "0", `${signed(-map.sign * most)}: worse without it`];
    if (!map) ends = moves ? ["", "0: the same", `${signed(most)}: moves`] : ["surer without it", measured ? "0" : `${Object.keys(effects).length} of ${heads} heads measured …`, `${signed(most)}: less sure without it`];
    scale.replaceChildren(strip, made("div.ends", {}, ...ends.map(end => made("span", {}, end))));
  }

  return { place, scale, cells, rows, paint };
}
