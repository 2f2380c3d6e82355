// What every status says: the cluster, its rates, alarms, replicas, and the replica that answers.

import { byId, element, problem, show } from "/dom.js";
import { bytes, count, moment, rate } from "/format.js";
import { POINTS_MAX, sparkline } from "/sparkline.js";
import { ageOf, badge, table } from "/tables.js";

const RATES = [
  ["commands", "commands/s"],
  ["entries", "log entries/s"],
  ["reads", "reads/s here"],
];
const ROLES = { primary: "lead", standby: "warn" };
const STATUSES = { normal: "good", "view change": "warn", recovering: "warn", halted: "bad",
  removed: "warn" };
const PANELS = ["panel-overview", "panel-replicas", "panel-here"];

const history = new Map(RATES.map(([name]) => [name, []]));

function fact(name, value, isLong = false) {
  return element("div", { class: isLong ? "long" : null },
    element("dt", {}, name), element("dd", {}, value));
}

function facts(status) {
  return [
    fact("Primary", `replica ${status.primary}`),
    fact("View", count(status.view)),
    fact("Revision", count(status.revision)),
    fact("Last op", count(status.op)),
    fact("Client sessions", count(status.sessions)),
    fact("Feature level", count(status.feature_level)),
    fact("Epoch", count(status.epoch)),
    fact("Cluster id", status.cluster, true),
  ];
}

function rateCard([name, title], values) {
  const now = values.at(-1);
  const label = `${title}: now ${rate(now)}, highest ${rate(Math.max(0, ...values))} of late`;
  return element("div", { class: "rate" },
    element("div", { class: "name" }, title),
    element("div", { class: "value" }, rate(now)),
    sparkline(values, label));
}

function takeRates(rates) {
  for (const [name, values] of history) {
    if (rates[name] === null) continue;
    values.push(rates[name]);
    if (values.length > POINTS_MAX) values.shift();
  }
}

const REPLICAS = [
  { title: "Replica", value: (row) => String(row.id) },
  { title: "Role", value: (row) => badge(row.role, ROLES[row.role] ?? "plain") },
  { title: "State", value: (row) => state(row) },
  { title: "View", value: (row) => count(row.view), isNumber: true },
  { title: "Commit", value: (row) => count(row.commit), isNumber: true },
  { title: "Lag", value: (row) => count(row.lag), isNumber: true },
  { title: "Snapshot", value: (row) => count(row.generation), isNumber: true },
  { title: "Level", value: (row) => (row.level_max ? count(row.level_max) : "–"), isNumber: true },
  { title: "Heard", value: (row) => heard(row), isNumber: true },
  { title: "Address", value: (row) => row.address || "–" },
];

function isAway(row) {
  return row.link !== "" && row.link !== "connected";
}

function state(row) {
  if (isAway(row)) return [badge("away", "bad"), element("span", { class: "note" }, row.link)];
  const shown = badge(row.status, STATUSES[row.status] ?? "plain");
  return row.unfit ? [shown, element("span", { class: "note" }, row.unfit)] : shown;
}

function heard(row) {
  if (row.link === "") return "here";
  return `${count(Math.round(row.heard_ms / 1000))} s ago`;
}

const SERVICES = [
  { title: "Service", value: (row) => row.name },
  { title: "State", value: (row) => badge(row.connected ? "connected" : "away", row.connected ? "good" : "bad") },
  { title: "Revision", value: (row) => count(row.revision), isNumber: true, isExtra: true },
  { title: "Restarts", value: (row) => count(row.restarts), isNumber: true },
];

function room(disk) {
  if (disk.size_bytes === null) return fact(`Disk ${disk.name}`, "no answer");
  const used = disk.size_bytes - disk.free_bytes;
  const label = `disk ${disk.name}: ${bytes(disk.free_bytes)} free of ${bytes(disk.size_bytes)}`;
  return element("div", {},
    element("dt", {}, `Disk ${disk.name}, free`),
    element("dd", {}, `${bytes(disk.free_bytes)} of ${bytes(disk.size_bytes)}`,
      element("meter", { min: 0, max: disk.size_bytes, high: disk.size_bytes * 0.85, value: used, "aria-label": label })));
}

function alarms(found) {
  if (!found.length) return element("p", { class: "empty" }, "No alarms.");
  return found.map((each) => element("div", { class: "alarm" },
    badge(each.kind, "bad"), element("span", {}, each.message),
    element("time", { datetime: moment(each.since_us) }, `since ${moment(each.since_us).slice(11, 19)} UTC`)));
}

/** Shows a status, or why there is none. */
export function showStatus(status) {
  for (const id of PANELS) problem(byId(id), status.error);
  const isKnown = status.error === undefined;
  byId("panel-alarms").hidden = !isKnown;
  if (!isKnown) return;
  takeRates(status.rates);
  byId("description").textContent = status.description;
  show(byId("facts"), [status.primary, status.view, status.revision, status.op, status.sessions],
    () => facts(status));
  byId("rates").replaceChildren(...RATES.map((each) => rateCard(each, history.get(each[0]))));
  show(byId("alarms"), status.alarms, alarms);
  table(byId("panel-replicas").querySelector("[data-table]"), {
    caption: "Replicas of the cluster", columns: REPLICAS, rows: status.replicas,
    empty: "no replica is known", isCurrent: (row) => row.link === "",
  });
  showHere(status);
}

function showHere(status) {
  const { here } = status;
  show(byId("here"), here, () => [
    fact("Replica", String(here.id)), fact("Version", here.version), ...here.disks.map(room)]);
  table(byId("panel-here").querySelector("[data-table]"), {
    caption: "Domain services of this replica", columns: SERVICES, rows: status.services,
    empty: "no service is known", isSlim: true,
  });
}

export function forgetRates() {
  for (const values of history.values()) values.length = 0;
}

const SNAPSHOT_STATES = { completed: "good", created: "warn", failed: "bad" };

export const SNAPSHOTS = [
  { title: "Generation", value: (row) => count(row.generation) },
  { title: "State", value: (row) => [badge(row.state, SNAPSHOT_STATES[row.state] ?? "plain"),
    row.failure ? element("span", { class: "note" }, row.failure) : null] },
  { title: "Revision", value: (row) => count(row.revision), isNumber: true },
  { title: "Entities", value: (row) => count(row.entities), isNumber: true },
  { title: "Size", value: (row) => bytes(row.size_bytes), isNumber: true },
  { title: "Kept", value: (row) => row.retention },
  { title: "Age", value: (row) => ageOf(row.created_us), isNumber: true },
];
