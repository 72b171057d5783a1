// Every mark of a chart shows its <title>: by mouse, by touch, and by keyboard (Tab to a chart, then the arrow keys).
"use strict";
const tip = document.getElementById("tip");
let shown = null;

for (const mark of document.querySelectorAll("svg.chart .mark")) {
  const title = mark.querySelector("title");
  mark.said = title.textContent;
  mark.setAttribute("aria-label", mark.said.replaceAll("\n", ", "));
  mark.setAttribute("role", "img");
  title.remove();  // or the browser would show it a second time
}

function show(mark) {
  if (mark === shown) return;
  hide();
  shown = mark;
  const [name, ...facts] = mark.said.split("\n");
  const bold = document.createElement("b");
  bold.textContent = name;
  tip.replaceChildren(bold, facts.join("\n"));
  tip.hidden = false;
  const box = mark.getBoundingClientRect(), own = tip.getBoundingClientRect();
  const wide = document.documentElement.clientWidth;
  const left = Math.max(8, Math.min(box.left + box.width / 2 - own.width / 2, wide - own.width - 8));
  const above = box.top - own.height - 8;
  tip.style.left = left + window.scrollX + "px";
  tip.style.top = (above > 4 ? above : box.bottom + 8) + window.scrollY + "px";
  for (const other of same(mark)) other.classList.add("same");
}

function hide() {
  if (!shown) return;
  for (const other of same(shown)) other.classList.remove("same");
  shown = null;
  tip.hidden = true;
}

// The same head in the other pictures of its model.
function same(mark) {
  if (!mark.dataset.head) return [mark];
  const all = mark.closest("article").querySelectorAll(".mark[data-head]");
  return [...all].filter(other => other.dataset.head === mark.dataset.head);
}

document.addEventListener("pointerover", event => {
  const mark = event.target.closest(".mark");
  if (mark) show(mark); else if (event.pointerType === "mouse") hide();
});
document.addEventListener("pointerdown", event => {
  const mark = event.target.closest(".mark");
  if (mark) show(mark); else hide();
});
document.addEventListener("focusin", event => {
  if (event.target.closest(".mark")) show(event.target);
});
document.addEventListener("focusout", hide);

for (const chart of document.querySelectorAll("svg.chart")) {
  const marks = [...chart.querySelectorAll(".mark")];
  if (!marks.length) continue;
  marks.forEach((mark, place) => mark.setAttribute("tabindex", place ? "-1" : "0"));
  const rows = Number(chart.dataset.columns) || 1;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -rows, ArrowDown: rows };
  chart.addEventListener("keydown", event => {
    if (event.key === "Escape") return hide();
    const now = marks.indexOf(event.target), next = now + steps[event.key];
    if (now < 0 || !marks[next]) return;
    event.preventDefault();
    marks[now].setAttribute("tabindex", "-1");
    marks[next].setAttribute("tabindex", "0");
    marks[next].focus();
  });
}
