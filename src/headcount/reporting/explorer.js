// Turn heads off and watch. The live page asks its server; a static one looks up what it holds.
"use strict";

const EFFECT = "effect";
const TITLES = { classification: "Prediction", translation: "Output", causal: "Next token", masked: "Hidden token", embedding: "Embedding", regression: "Score", tagging: "Tags", answering: "Answer" };
const LABELS = { classification: "Text", translation: "Source", causal: "Prompt", masked: "Text", embedding: "Text", answering: "Question" };
const PAIRS = ["classification", "regression", "answering"];  // kinds of models that read two texts
const pause = time => new Promise(done => setTimeout(done, time));
class Gone extends Error {}

function explorer(root) {
  const content = JSON.parse(root.querySelector('script[type="application/json"]').textContent);
  const { live, kind, sites, findings } = content;
  const whole = root.classList.contains("page");  // it is the page itself: its state is in the address
  const siteOf = Object.fromEntries(sites.map(site => [site.name, site]));
  const allHeads = sites.filter(site => site.heads).flatMap(headsOf), known = new Set(allHeads);
  const maps = findings.maps, state = { text: "", pair: null, off: new Set(), head: null, colour: EFFECT, example: null, pruned: false };
  const past = [], future = [];
  let reading = null, effects = {}, measured = false, turn = 0, asked = 0;
  let answers = new Map(), looks = new Map();

  // ------------------------------------------------------------------------------------------------- asking

  async function ask(what, more = {}) {
    const { text, pair } = what === "read" ? state : reading ?? state;  // what is shown, while another text is read
    const body = JSON.stringify({ what, text, pair, ...more });
    for (let attempt = 0; ; attempt++) {
      let answer;
      try {
        answer = await fetch("ask", { method: "POST", headers: { "Content-Type": "application/json" }, body });
      } catch {
        throw new Gone("The server does not answer. Start it again; what is on this page stays.");
      }
      if (answer.status === 429 && attempt < 6) { await pause(150 * 2 ** attempt); continue; }
      const told = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
      if (!answer.ok) throw new Error(told.error);
      return told;
    }
  }

  const key = units => [...units].sort().join(",");
  const held = () => content.texts[state.example];

  async function answerTo(units) {
    const name = key(units);
    if (!name) return reading.answer;
    if (!live) return held().answers[name] ?? null;
    if (!answers.has(name)) answers.set(name, await ask("answer", { off: [...units] }));
    return answers.get(name);
  }

  async function lookAt(head) {
    if (!live) return held().attention[head];
    const name = `${head} ${key(state.off)}`;
    if (!looks.has(name)) looks.set(name, await ask("attention", { head, off: [...state.off] }));
    return looks.get(name);
  }

  async function prunedAnswer() {
    if (!live) return held().pruned ?? null;
    if (!answers.has("pruned")) answers.set("pruned", await ask("pruned"));
    return answers.get("pruned");
  }

  // Runs something that may fail; what it says then is on the page, with a way to try again.
  async function attempt(work) {
    try {
      await work();
      if (!notice.again) return;
      if (work === again) say(""); else await attempt(again);  // something failed before: it may work now
    } catch (error) {
      say(error.message, error instanceof Gone ? "gone" : "bad", () => attempt(again));
    }
  }

  const isRead = () => reading && reading.text === state.text && (reading.pair ?? null) === state.pair;
  const again = () => isRead() ? Promise.all([showAnswer(), showHead(), measured ? null : sweep(turn)]) : readText();

  // ------------------------------------------------------------------------------------------- a text is read

  async function readText() {
    const mine = ++turn;
    root.classList.add("busy");
    try {
      const found = live ? await ask("read") : held();
      if (mine !== turn) return;
      reading = found;
      effects = live ? {} : found.effects;
      measured = !live;
      answers = new Map();
      looks = new Map();
      say(reading.remarks.join("; "));
      remember();
      await Promise.all([showAnswer(), showHead(), live ? sweep(mine) : null]);
      paint();
    } finally {
      if (mine === turn) root.classList.remove("busy");
    }
  }

  async function sweep(mine) {
    for (;;) {
      const told = await ask("effects");
      if (mine !== turn) return;
      effects = told.effects;
      measured = told.done;
      paint();
      if (told.done) return facts();
    }
  }

  function submit() {
    if (!live) return;
    state.text = field.value;
    state.pair = pairField.hidden ? null : pairField.value;
    state.example = label = null;
    paintStepper();
    if (state.text.trim()) attempt(readText);
  }

  async function step(by) {
    const count = live ? content.examples : content.texts.length;
    if (!count) return;
    const next = state.example === null ? (by > 0 ? 0 : count - 1) : (state.example + by + count) % count;
    await attempt(async () => {
      const found = live ? await ask("example", { index: next }) : content.texts[next];
      Object.assign(state, { text: found.text, pair: found.pair ?? null, example: next });
      label = found.label ?? null;
      fill();
      await readText();
    });
  }

  let label = null;

  function fill() {
    field.value = state.text;
    pairField.hidden = state.pair === null;
    pairField.value = state.pair ?? "";
    paintStepper();
  }

  // -------------------------------------------------------------------------------------------- what is off

  function turnOff(units) {
    past.push([...state.off]);
    future.length = 0;
    setOff(units);
  }

  function setOff(units) {
    state.off = new Set(units);
    remember();
    paint();
    attempt(() => Promise.all([showAnswer(), showHead()]));
  }

  const undo = () => { if (past.length) { future.push([...state.off]); setOff(past.pop()); } };
  const redo = () => { if (future.length) { past.push([...state.off]); setOff(future.pop()); } };

  function toggle(units) {
    const all = units.every(unit => state.off.has(unit)), next = new Set(state.off);
    for (const unit of units) {
      const site = siteOf[unit];
      if (site) for (const other of state.off) if (other.startsWith(`${unit}.`)) next.delete(other);  // its neurons
      if (all) next.delete(unit); else next.add(unit);
    }
    turnOff(next);
  }

  function least(share, order) {
    const ordered = order === EFFECT ? [...allHeads].sort((a, b) => Math.abs(effects[a] ?? 0) - Math.abs(effects[b] ?? 0)) : maps.find(map => map.name === order).order;
    return ordered.slice(0, Math.round(ordered.length * share / 100));
  }

  // -------------------------------------------------------------------------------------- state in the address

  function remember() {
    if (!whole) return;
    const told = new URLSearchParams();
    if (state.example !== null) told.set("example", state.example); else if (state.text) told.set("text", state.text);
    if (state.example === null && state.pair !== null) told.set("pair", state.pair);
    if (state.off.size) told.set("off", [...state.off].join(","));
    if (state.head) told.set("head", state.head);
    if (state.colour !== EFFECT) told.set("colour", state.colour);
    if (state.pruned) told.set("pruned", "1");
    const hash = "#" + told.toString().replaceAll("%2C", ",");
    try {
      if (hash !== location.hash) history.replaceState(null, "", hash);
    } catch { /* a notebook's frame has no address of its own */ }
  }

  const isUnit = unit => known.has(unit) || Boolean(siteOf[unit]?.neurons) || /^(\w+\.\d+)\.\d+(-\d+)?$/.test(unit) && Boolean(siteOf[unit.replace(/\.[^.]*$/, "")]?.neurons);

  async function restore() {
    const told = new URLSearchParams(whole ? location.hash.slice(1) : "");
    const example = told.has("example") ? Number(told.get("example")) : null;
    const count = live ? content.examples : content.texts.length;
    state.off = new Set((told.get("off") ?? "").split(",").filter(isUnit));
    state.head = known.has(told.get("head")) ? told.get("head") : state.head ?? allHeads[0];
    state.colour = maps.some(map => map.name === told.get("colour")) ? told.get("colour") : EFFECT;
    state.pruned = told.has("pruned") && Boolean(content.pruned);
    state.example = null;
    label = null;
    await attempt(async () => {
      if (!live || example !== null || (!told.has("text") && content.text === null)) {
        state.example = Number.isInteger(example) && example >= 0 && example < count ? example : 0;
        const found = live ? await ask("example", { index: state.example }) : content.texts[state.example];
        Object.assign(state, { text: found.text, pair: found.pair ?? null });
        label = found.label ?? null;
      } else {
        state.text = told.get("text") ?? content.text;
        state.pair = told.has("text") ? told.get("pair") : content.pair ?? null;
      }
      fill();
      paint();
      await readText();
    });
  }

  // -------------------------------------------------------------------------------------------------- the page

  const field = made("textarea", { rows: 1, id: "text", spellcheck: "false", "aria-label": LABELS[kind] ?? "Text", placeholder: LABELS[kind] ?? "Text", readonly: !live, maxlength: 20000 });
  const pairField = made("textarea", { rows: 1, spellcheck: "false", "aria-label": "Second text", placeholder: "Second text", readonly: !live, hidden: true, maxlength: 20000 });
  const pairButton = made("button.quiet", { type: "button", title: "A second text, for models that compare two", onclick: () => { pairField.hidden = !pairField.hidden; if (!pairField.hidden) { pairField.value ||= " "; pairField.focus(); } submit(); } }, "+ pair");
  const stepper = made("span.stepper");
  const notice = made("p.notice", { role: "status", hidden: true });
  const form = made("form.ask", { onsubmit: event => { event.preventDefault(); submit(); } },
    made("div.fields", {}, field, pairField),
    made("div.buttons", {}, live ? made("button.main", { type: "submit" }, "Read") : null, live && PAIRS.includes(kind) ? pairButton : null, stepper));
  for (const one of [field, pairField]) one.addEventListener("keydown", event => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); submit(); }
  });

  function say(text, how = "", again = null) {
    if (again && notice.again && notice.said === text) return;  // it stands there already
    notice.said = text;
    notice.className = `notice ${how}`;
    notice.hidden = !text;
    notice.again = again;
    notice.replaceChildren(clean(text), ...(again ? [" ", made("button.quiet", { type: "button", onclick: again }, "Try again")] : []));
  }

  const colours = made("select", { "aria-label": "Colour by", onchange: event => { state.colour = event.target.value; remember(); paint(); } },
    ...[[EFFECT, "effect on this text"], ...maps.map(map => [map.name, map.name])].map(([value, name]) => made("option", { value }, name)));
  const orders = [[EFFECT, "effect on this text"], ...maps.filter(map => map.order?.length).map(map => [map.name, map.name])];
  const share = made("input", { type: "number", min: 10, max: 90, step: live ? 1 : 10, value: 40, "aria-label": "Share of heads in percent" });
  const order = made("select", { "aria-label": "Least by" }, ...orders.map(([value, name]) => made("option", { value }, name)));
  order.value = orders.at(-1)[0];
  const undoButton = made("button", { type: "button", onclick: undo, title: "Undo (u)", "aria-label": "Undo" }, "↶");
  const redoButton = made("button", { type: "button", onclick: redo, title: "Redo (y)", "aria-label": "Redo" }, "↷");
  const allOn = made("button", { type: "button", onclick: () => turnOff([]), title: "Everything on (a)" }, "all on");
  const count = made("span.count");
  const sets = findings.sets.map((set, place) => made("button.set", { type: "button", "data-set": place, onclick: () => turnOff(set.units), title: `${set.units.length} units` }, set.name));
  const compare = made("input", { type: "checkbox", onchange: event => { state.pruned = event.target.checked; remember(); attempt(showAnswer); } });
  const grid = headGrid(sites, { toggle, look });
  const { cells, rows } = grid;
  if (Math.max(...sites.filter(site => site.heads).map(site => site.of)) > 16) root.style.setProperty("--left", "40rem");
  const answerPlace = made("section.answer", { "aria-live": "polite" });
  const lookPlace = made("div.look");
  const factList = made("ul.facts");
  const lookTitle = made("h2");
  const help = made("details.keys", {}, made("summary", {}, "Keys"), made("dl", {}, ...[
    ["← ↑ ↓ →", "another head"], ["space", "head off, on"], ["r", "its whole row"], ["f", "the feed-forward layer of its row"],
    ["u, y", "undo, redo"], ["a", "everything on"], ["n, p", "next, previous example"], ["/", "to the text"],
  ].flatMap(([keys, about]) => [made("dt", {}, keys), made("dd", {}, about)])));

  root.append(form, notice,
    made("div.sides", {},
      made("section.heads", { "aria-label": "Heads" },
        made("div.bar", {}, made("label", {}, "Colour ", colours), made("span.steps", {}, undoButton, redoButton, allOn)),
        grid.place, grid.scale,
        made("div.bar", {}, count),
        made("div.bar.off", {}, made("span", {}, "Least"), share, made("span", {}, "% by"), order, made("button", { type: "button", onclick: () => turnOff(least(Number(share.value), order.value)), "data-least": "" }, "Off")),
        sets.length ? made("div.bar.off", {}, made("span", {}, "Turn off"), ...sets) : null,
        help),
      made("div.result", {}, answerPlace, made("section.attention", { "aria-label": "Attention" }, lookTitle, factList, lookPlace))));

  function paint() {
    grid.paint({ map: maps.find(one => one.name === state.colour), effects, measured, off: state.off, head: state.head, moves: kind === "embedding" });
    const heads = [...state.off].filter(unit => known.has(unit)).length, others = state.off.size - heads;
    count.textContent = `${heads} of ${allHeads.length} heads off${others ? `, and ${others} feed-forward ${others === 1 ? "unit" : "units"}` : ""}`;
    undoButton.disabled = !past.length;
    redoButton.disabled = !future.length;
    allOn.disabled = !state.off.size;
    colours.value = state.colour;
    compare.checked = state.pruned;
  }

  function paintStepper() {
    const total = live ? content.examples : content.texts.length;
    stepper.replaceChildren(...(total > 1 || (live && total) ? [
      made("button.quiet", { type: "button", onclick: () => step(-1), title: "Previous example (p)", "aria-label": "Previous example" }, "‹"),
      made("span", {}, state.example === null ? `${total} examples` : `${state.example + 1} of ${total}`),
      made("button.quiet", { type: "button", onclick: () => step(1), title: "Next example (n)", "aria-label": "Next example" }, "›")] : []));
    for (const one of [field, pairField]) { one.style.height = "auto"; one.style.height = `${Math.max(38, one.scrollHeight + 2)}px`; }
  }

  // ------------------------------------------------------------------------------------------------- the answer

  async function showAnswer() {
    const mine = ++asked, units = new Set(state.off);
    const now = units.size ? await answerTo(units) : null;
    const pruned = state.pruned && content.pruned ? await prunedAnswer() : null;
    if (mine !== asked || !reading) return;
    const before = reading.answer, named = { whole: before, off: now, pruned };
    const title = made("h2", {}, TITLES[kind] ?? "Answer", label === null ? null : made("small", {}, ` label: ${label}`));
    const control = content.pruned ? made("label.compare", {}, compare, ` compare with ${content.pruned}`) : null;
    const parts = [made("div.bar", {}, title, control), answerLegend(units, pruned)];
    if (units.size && !now) parts.push(made("p.notice.bad", {}, `This page holds each head, row and feed-forward layer off alone, and the sets above. To combine them: headcount explore ${content.model}`));
    if (before.bars) parts.push(answerBars(named, kind));
    if (before.written !== undefined) parts.push(answerTexts(named, reading.steps));
    if (before.score !== undefined) parts.push(made("p.big", {}, ...answerNumbers(named, "score", plain)));
    parts.push(made("p.measure", {}, `${reading.measure}: `, ...answerNumbers(named, "loss", plain)));
    answerPlace.replaceChildren(...parts);
  }

  // ------------------------------------------------------------------------------------------- the head looked at

  let waiting = 0;

  function look(head) {
    if (head === state.head) return;
    cells.get(state.head)?.classList.remove("here");
    cells.get(state.head)?.setAttribute("tabindex", -1);
    state.head = head;
    cells.get(head).classList.add("here");
    cells.get(head).setAttribute("tabindex", 0);
    clearTimeout(waiting);
    waiting = setTimeout(() => { remember(); attempt(showHead); }, live ? 60 : 0);
  }

  function facts() {
    const head = state.head, effect = effects[head];
    lookTitle.replaceChildren(head ?? "");
    factList.replaceChildren(...[
      effect === undefined ? null : made("li", {}, "without it, on this text: ", made("b", { "data-effect": effect, title: effect }, signed(effect)), ` ${reading.measure}`),
      ...(findings.facts[head] ?? []).map(line => made("li", {}, line))].filter(Boolean));
  }

  async function showHead() {
    const head = state.head;
    if (!head || !reading) return;
    facts();
    const sent = await lookAt(head);
    if (head !== state.head) return;
    const [from, to] = reading.tokens[siteOf[head.replace(/\.[^.]*$/, "")].kind] ?? [[], []];
    if (sent) lookPlace.replaceChildren(attentionPictures(sent, from, to, `attention of ${head}`));
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => lookPlace.firstChild?.redraw?.());

  // -------------------------------------------------------------------------------------------------- by keyboard

  function moved(by) {
    const here = rows.findIndex(row => row.line.includes(state.head)), column = rows[here].line.indexOf(state.head);
    const row = rows[Math.max(0, Math.min(rows.length - 1, here + by[0]))];
    if (!row.line.length) return;
    cells.get(row.line[Math.max(0, Math.min(row.line.length - 1, column + by[1]))]).focus();
  }

  const arrows = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const here = () => rows.find(row => row.line.includes(state.head));
  const commands = {
    u: undo, y: redo, a: () => turnOff([]), n: () => step(1), p: () => step(-1), "/": () => field.focus(),
    r: () => toggle(headsOf(here().site)), f: () => { if (here().after) toggle([here().after.name]); },
  };
  (whole ? document : root).addEventListener("keydown", event => {
    if (event.altKey || event.target.closest("textarea, input, select")) return;
    const letter = event.key.toLowerCase();
    if (event.ctrlKey || event.metaKey) {
      if (letter === "z") { event.preventDefault(); (event.shiftKey ? redo : undo)(); }
      if (letter === "y") { event.preventDefault(); redo(); }
      return;
    }
    if (event.key in arrows && event.target.closest(".grid")) { event.preventDefault(); moved(arrows[event.key]); }
    else if (letter in commands && reading) { event.preventDefault(); commands[letter](); }
  });

  if (whole) addEventListener("hashchange", () => { past.length = future.length = 0; restore(); });
  restore();
}

for (const root of document.querySelectorAll(".explorer")) {
  try {
    explorer(root);
  } catch (error) {
    root.replaceChildren(made("p.notice.bad", {}, "This view cannot be shown: its content is damaged."));
  }
}
