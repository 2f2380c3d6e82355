"use strict";
// Without this script the page can be read; with it, sorted, filtered, switched and saved.

const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
const themeButton = document.getElementById("theme");
const tip = document.getElementById("tip");
const TIP_GAP_PX = 14;
const PNG_SCALE = 2;
// What the style sheet gives to a plot and a picture of it must bring along.
const DRAWN = ["fill", "stroke", "stroke-width", "stroke-linecap", "stroke-linejoin", "paint-order",
  "font-size", "font-family", "text-anchor"];

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : dark.matches;
}

function nameTheme() {
  themeButton.textContent = isDark() ? "Light" : "Dark";
  themeButton.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
}

themeButton.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
});
dark.addEventListener("change", nameTheme);
nameTheme();
themeButton.hidden = false;

// Sorting: a button in each heading; numbers by their raw value, absent ones always last.
function valueOf(row, column) {
  const cell = row.cells[column];
  if (cell.dataset.raw !== undefined) return Number(cell.dataset.raw);
  return cell.classList.contains("number") ? null : cell.textContent;
}

function compare(left, right) {
  if (left === null || right === null) return (left === null) - (right === null);
  return typeof left === "number" ? left - right : left.localeCompare(right);
}

function sort(table, heading) {
  const column = heading.cellIndex;
  const descends = heading.getAttribute("aria-sort") !== "descending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descends ? "descending" : "ascending");
  const body = table.tBodies[0];
  const rows = Array.from(body.rows, (row) => [valueOf(row, column), row]);
  rows.sort(([left], [right]) => {
    const order = compare(left, right);
    return left === null || right === null || !descends ? order : -order;
  });
  body.append(...rows.map(([, row]) => row));
}

for (const heading of document.querySelectorAll("thead th")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...heading.childNodes);
  heading.append(button);
  button.addEventListener("click", () => sort(heading.closest("table"), heading));
}

// Filtering: every word must be in the row.
for (const input of document.querySelectorAll("[data-filter]")) {
  const table = document.getElementById(input.dataset.filter);
  const output = document.querySelector(`[data-count="${input.dataset.filter}"]`);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = Array.from(row.cells, (cell) => cell.textContent).join(" ").toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    output.textContent = `${shown} shown`;
  });
  input.closest(".filter").hidden = false;
}

// What a mark stands for, beside the pointer.
document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest?.("[data-tip]");
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.dataset.tip;
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + TIP_GAP_PX, innerWidth - width - TIP_GAP_PX);
  const below = event.clientY + TIP_GAP_PX;
  tip.style.left = `${Math.max(0, left)}px`;
  tip.style.top = `${below + height < innerHeight ? below : event.clientY - height - TIP_GAP_PX}px`;
});

// Saving: the plot as it is seen, with its colours, drawn on a canvas.
function standalone(svg) {
  const copy = svg.cloneNode(true);
  const copies = copy.querySelectorAll("*");
  svg.querySelectorAll("*").forEach((original, place) => {
    const style = getComputedStyle(original);
    for (const name of DRAWN) copies[place].setAttribute(name, style.getPropertyValue(name));
    copies[place].removeAttribute("class");
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

async function png(figure) {
  const svg = Array.from(figure.querySelectorAll("svg")).find((one) => one.getClientRects().length);
  const { width, height } = svg.viewBox.baseVal;
  const address = URL.createObjectURL(new Blob([standalone(svg)], { type: "image/svg+xml" }));
  try {
    const image = new Image(width * PNG_SCALE, height * PNG_SCALE);
    image.src = address;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.width, image.height];
    const context = canvas.getContext("2d");
    context.fillStyle = getComputedStyle(figure).backgroundColor;
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  } finally {
    URL.revokeObjectURL(address);
  }
}

for (const button of document.querySelectorAll(".save")) {
  button.addEventListener("click", async () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await png(button.closest("figure")));
    link.download = button.dataset.name;
    link.click();
    URL.revokeObjectURL(link.href);
  });
  button.hidden = false;
}
