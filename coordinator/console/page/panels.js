// The panels with lists: which they are, and when each reads again.

import { byId, element } from "/dom.js";
import { count } from "/format.js";
import { SNAPSHOTS } from "/overview.js";
import { PagedPanel } from "/paged_panel.js";
import { ageOf, badge } from "/tables.js";

const BROKER_STATES = { live: "good", draining: "warn", fenced: "bad" };

function created(row) {
  return ageOf(row.created_us);
}

function groupName(row) {
  return `${row.stream} / ${row.topic} / ${row.group}`;
}

const TOPICS = [
  { title: "Topic", value: (row) => row.name },
  { title: "Id", value: (row) => String(row.id), isNumber: true },
  { title: "Partitions", value: (row) => count(row.partitions), isNumber: true },
  { title: "Created", value: created, isNumber: true, isExtra: true },
];

const GROUPS = [
  { title: "Group", value: groupName },
  { title: "Lag", value: (row) => `${row.is_whole ? "" : "at least "}${count(row.lag)}`, isNumber: true },
];

const BROKERS = [
  { title: "Broker", value: (row) => row.name },
  { title: "Id", value: (row) => String(row.id), isNumber: true },
  { title: "State", value: (row) => badge(row.state, BROKER_STATES[row.state] ?? "plain") },
  { title: "Rack", value: (row) => row.rack || "–" },
  { title: "Replicas", value: (row) => count(row.replicas), isNumber: true },
  { title: "Endpoints", value: (row) => row.endpoints || "–" },
];

export class Panels {
  constructor(onRefused) {
    this.stream = null;
    this.streams = new PagedPanel({
      id: "panel-streams", path: "/data/streams", rows: "streams", caption: "Streams", isSlim: true,
      columns: this.streamColumns(), empty: "There are no streams.", label: "Filter by name or id",
      onRefused, isCurrent: (row) => row.id === this.stream?.id,
    });
    this.topics = new PagedPanel({
      id: "panel-topics", path: "/data/topics", rows: "topics", caption: "Topics of the stream", isSlim: true,
      columns: TOPICS, empty: "The stream has no topics.", label: "Filter by name or id", onRefused,
      query: () => (this.stream === null ? null : { stream: this.stream.id }),
    });
    this.groups = new PagedPanel({
      id: "panel-groups", path: "/data/groups", rows: "groups", caption: "Groups with the highest lag", isSlim: true,
      columns: GROUPS, empty: "There are no consumer groups.", onRefused,
    });
    this.brokers = new PagedPanel({
      id: "panel-brokers", path: "/data/brokers", rows: "brokers", caption: "Brokers",
      columns: BROKERS, empty: "No broker is registered.", label: "Filter by name or id", onRefused,
    });
    this.snapshots = new PagedPanel({
      id: "panel-snapshots", path: "/data/snapshots", rows: "snapshots", caption: "Snapshots, newest first",
      columns: SNAPSHOTS, empty: "There are no snapshots.", onRefused,
    });
    this.all = [this.streams, this.topics, this.groups, this.brokers, this.snapshots];
    this.choose(null);
  }

  streamColumns() {
    return [
      { title: "Stream", value: (row) => this.chooser(row) },
      { title: "Id", value: (row) => String(row.id), isNumber: true },
      { title: "Topics", value: (row) => count(row.topics), isNumber: true },
      { title: "Created", value: created, isNumber: true, isExtra: true },
    ];
  }

  chooser(row) {
    const made = element("button",
      { type: "button", class: "link", "data-key": row.id, "aria-controls": "panel-topics" }, row.name);
    made.addEventListener("click", () => this.choose(row));
    return made;
  }

  choose(stream) {
    this.stream = stream;
    this.topics.clear();
    const title = stream === null ? "Topics" : `Topics of ${stream.name}`;
    byId("title-topics").textContent = title;
    if (stream === null) {
      this.topics.places.replaceChildren(
        element("p", { class: "empty" }, "Choose a stream to see its topics."));
      return;
    }
    this.topics.begin();
    this.streams.refresh();
  }

  refreshAll() {
    return Promise.all(this.all.map((each) => each.refresh()));
  }

  refreshSlow() {
    return Promise.all([this.groups.refresh(), this.snapshots.refresh()]);
  }

  changed(domains) {
    const isAll = domains.includes("all");
    const wanted = [];
    if (isAll || domains.includes("streams")) wanted.push(this.streams, this.topics, this.brokers);
    if (isAll) wanted.push(this.groups, this.snapshots);
    return Promise.all(wanted.map((each) => each.refresh()));
  }

  clear() {
    for (const each of this.all) each.clear();
    this.choose(null);
  }
}
