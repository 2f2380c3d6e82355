// A table from rows and columns. On a narrow screen each cell shows its column's title (data-title).
// The roles are written down, because browsers forget those of a table that is laid out otherwise.

import { element, show } from "/dom.js";
import { age, moment } from "/format.js";

function look(column) {
  return [column.isNumber && "number", column.isExtra && "extra"].filter(Boolean).join(" ") || null;
}

function cell(column, row, isHead) {
  const content = [column.value(row)].flat();
  const attributes = {
    class: look(column),
    "data-title": column.title,
    role: isHead ? "rowheader" : "cell",
    scope: isHead ? "row" : null,
  };
  return element(isHead ? "th" : "td", attributes, ...content);
}

function line(columns, row, isCurrent) {
  const cells = columns.map((column, place) => cell(column, row, place === 0));
  return element("tr", { role: "row", "aria-current": isCurrent(row) ? "true" : null }, ...cells);
}

function heading(column) {
  const attributes = { scope: "col", role: "columnheader", class: look(column) };
  return element("th", attributes, column.title);
}

/**
 * Shows rows in a place; `empty` is what it says without any. `state` is what else the look follows.
 * A table that `isSlim` stays a table on a narrow screen, without its extra columns.
 */
export function table(place, { caption, columns, rows, empty, isCurrent = () => false, state = "", isSlim = false }) {
  show(place, [rows, state], () => {
    if (!rows.length) return element("p", { class: "empty" }, empty);
    return element("table", { role: "table", class: isSlim ? "slim" : null },
      element("caption", {}, caption),
      element("thead", { role: "rowgroup" },
        element("tr", { role: "row" }, ...columns.map(heading))),
      element("tbody", { role: "rowgroup" },
        ...rows.map((row) => line(columns, row, isCurrent))));
  });
}

export function ageOf(microseconds) {
  return element("time", { datetime: moment(microseconds), "data-us": microseconds }, age(microseconds));
}

export function badge(text, kind) {
  return element("span", { class: `badge ${kind}` }, text);
}
