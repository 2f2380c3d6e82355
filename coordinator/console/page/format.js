// Numbers and times in words that fit a column.

const WHOLE = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const TENTHS = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const SPANS = [[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]];

export function count(value) {
  return WHOLE.format(value);
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value < 10 ? TENTHS.format(value) : WHOLE.format(value);
}

export function bytes(value) {
  let left = value;
  let unit = 0;
  while (left >= 1024 && unit < UNITS.length - 1) {
    left /= 1024;
    unit += 1;
  }
  return `${TENTHS.format(left)} ${UNITS[unit]}`;
}

export function age(microseconds) {
  if (!microseconds) return "–";
  const seconds = Math.max(0, Math.round(Date.now() / 1000 - microseconds / 1e6));
  const [size, name] = SPANS.find(([span]) => seconds >= span) ?? [1, "s"];
  return `${Math.floor(seconds / size)} ${name} ago`;
}

/** Brings the ages up to date that are shown somewhere in the page. */
export function renewAges() {
  for (const each of document.querySelectorAll("time[data-us]")) each.textContent = age(Number(each.dataset.us));
}

export function moment(microseconds) {
  return microseconds ? new Date(microseconds / 1000).toISOString() : "";
}
