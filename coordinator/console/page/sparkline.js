// The last values of a rate as a small curve, drawn with attributes alone.

import { drawing } from "/dom.js";

const WIDTH = 160;
const HEIGHT = 36;
const MARGIN = 2;
export const POINTS_MAX = 60;

export function sparkline(values, label) {
  const known = values.map((value) => value ?? 0);
  const highest = Math.max(1, ...known);
  const step = WIDTH / (POINTS_MAX - 1);
  const first = POINTS_MAX - known.length;
  const places = known.map((value, index) => {
    const x = ((first + index) * step).toFixed(1);
    const y = (HEIGHT - MARGIN - (value / highest) * (HEIGHT - 2 * MARGIN)).toFixed(1);
    return `${x},${y}`;
  });
  const attributes = {
    class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img",
    "aria-label": label,
  };
  if (places.length < 2) return drawing("svg", attributes);
  const begin = (first * step).toFixed(1);
  return drawing("svg", attributes,
    drawing("path", { class: "area", d: `M${begin},${HEIGHT} L${places.join(" L")} L${WIDTH},${HEIGHT} Z` }),
    drawing("path", { d: `M${places.join(" L")}` }));
}
