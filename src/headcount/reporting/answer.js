// What a model answers: whole, with units off, and pruned, side by side. Each answer has bars, a text, or a number.
"use strict";

function answerNumbers({ whole, off, pruned }, name, write) {
  const one = (answer, how) => made(`b.${how}`, { "data-value": answer[name], title: answer[name] }, write(answer[name]));
  return [one(whole, "whole"), ...(off ? [" → ", one(off, "now"), ` (${signed(off[name] - whole[name])})`] : []), ...(pruned && pruned[name] !== undefined ? [" · pruned ", one(pruned, "cut")] : [])];
}

function answerLegend(units, pruned) {
  const entry = (how, name) => made("li", {}, made(`i.${how}`), name);
  return made("ul.legend", {}, entry("whole", "original"), units.size ? entry("now", units.size === 1 ? `without ${[...units][0]}` : `without ${units.size} units`) : null, pruned ? entry("cut", "pruned model") : null);
}

function answerBars({ whole, off, pruned }, kind) {
  const list = (off ?? whole).bars, best = Math.max(...whole.bars.map(bar => bar.share));
  const old = bar => bar.was ?? whole.bars.find(other => other.name === bar.name)?.share ?? 0;
  const shown = [...list].sort((a, b) => Math.max(old(b), b.share) - Math.max(old(a), a.share)).slice(0, 8);
  if (list.length <= 8 && kind === "classification") shown.splice(0, shown.length, ...list);
  return made("div.bars", {}, ...shown.map(bar => {
    const track = made("div.track");
    const thin = pruned?.bars.find(other => other.name === bar.name);
    for (const [how, value] of [["whole", old(bar)], ...(off ? [["now", bar.share]] : []), ...(thin ? [["cut", thin.share]] : [])]) {
      const filled = made(`i.${how}`, { "data-value": value, title: value });
      filled.style.width = `${Math.max(.4, 100 * value)}%`;
      track.append(filled);
    }
    const row = made(`div.line${old(bar) === best ? ".best" : ""}`, { "data-name": bar.name }, made("span.name", {}, visible(bar.name)), track,
      made("span.number", {}, percent(old(bar)), off ? ` → ${percent(bar.share)}` : ""));
    return row;
  }));
}

function answerTexts({ whole, off, pruned }, steps) {
  const block = (how, name, text, other) => made(`div.text.${how}`, {}, made("small", {}, name), made("p", {}, ...markedWords(text, other)));
  const blocks = [];
  const now = off?.steps ?? whole.steps;
  const tokens = steps.map((token, place) => {
    const fall = Math.max(0, Math.min(1, whole.steps[place] - now[place]));
    const one = made("span.step", { title: `${percent(whole.steps[place])}${off ? ` → ${percent(now[place])}` : ""}`, "data-value": now[place] }, visible(token).replace(/^·(?=.)/, ""));
    one.style.setProperty("--fall", fall.toFixed(3));
    return one;
  });
  blocks.push(block("whole", "original", whole.written, null));
  if (off) blocks.push(block("now", off.written === whole.written ? "the same" : "now", off.written, whole.written));
  if (pruned) blocks.push(block("cut", "pruned model", pruned.written, whole.written));
  blocks.push(made("div.stepline", {}, made("small", {}, off ? "its own tokens, darker where it is less sure now" : "its own tokens"), made("p", {}, ...tokens.flatMap(token => [token, " "]))));
  return made("div.written", {}, ...blocks);
}

// Words that are not in the other text, in order, are marked (longest common subsequence).
function markedWords(text, other) {
  if (other === null || text === other) return [text];
  const a = text.split(/(?<=\s)/), b = other.split(/(?<=\s)/).map(word => word.trim());
  const table = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--) {
    table[i][j] = a[i].trim() === b[j] ? 1 + table[i + 1][j + 1] : Math.max(table[i + 1][j], table[i][j + 1]);
  }
  const parts = [];
  for (let i = 0, j = 0; i < a.length; i++) {
    while (j < b.length && a[i].trim() !== b[j] && table[i][j + 1] === table[i][j]) j++;
    if (j < b.length && a[i].trim() === b[j]) { parts.push(a[i]); j++; } else parts.push(made("mark", {}, a[i]));
  }
  return parts;
}
