// A panel that shows one page of a long list, with a filter: the replica filters, not the browser.

import { byId, element, forget, problem, show } from "/dom.js";
import { count } from "/format.js";
import { read } from "/requests.js";
import { table } from "/tables.js";

const TYPING_MS = 300;

export class PagedPanel {
  /** `query` returns what else the panel asks for, null while there is nothing to ask. */
  constructor({ id, path, rows, caption, columns, empty, label, query = () => ({}), onRefused,
    isCurrent, isSlim }) {
    Object.assign(this, { path, rows, caption, columns, empty, query, onRefused, isCurrent, isSlim });
    this.panel = byId(id);
    this.places = this.panel.querySelector("[data-table]");
    this.pager = this.panel.querySelector("[data-pager]");
    this.before = [];
    this.page = "";
    this.asked = 0;
    if (label) this.addFilter(id, label);
  }

  addFilter(id, label) {
    this.filter = element("input", { type: "search", id: `${id}-filter`, maxlength: 256, spellcheck: "false", autocomplete: "off" });
    this.panel.querySelector("[data-tools]").append(
      element("label", { for: `${id}-filter` }, label, this.filter));
    this.filter.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.begin(), TYPING_MS);
    });
  }

  begin() {
    this.before = [];
    this.page = "";
    return this.refresh();
  }

  clear() {
    this.asked += 1;
    if (this.filter) this.filter.value = "";
    this.before = [];
    this.page = "";
    forget(this.places);
    if (this.pager) forget(this.pager);
    problem(this.panel, null);
  }

  async refresh() {
    const query = this.query();
    if (query === null) return;
    this.asked += 1;
    const mine = this.asked;
    try {
      const answer = await read(this.path, { ...query, page: this.page, filter: this.filter?.value });
      if (mine === this.asked) this.show(answer);
    } catch (error) {
      if (mine === this.asked) this.refused(error);
    }
  }

  show(answer) {
    problem(this.panel, null);
    const { caption, columns, isCurrent, isSlim } = this;
    const rows = answer[this.rows];
    const empty = this.filter?.value ? `nothing among ${count(answer.looked_at)} looked at` : this.empty;
    const state = rows.map((row) => Boolean(isCurrent?.(row)));
    table(this.places, { caption, columns, rows, empty, isCurrent, state, isSlim });
    this.showPager(answer.next);
  }

  showPager(next) {
    if (!this.pager) return;
    show(this.pager, [this.before.length, Boolean(next)], ([back, hasNext]) => {
      if (!back && !hasNext) return null;
      return [this.button("Previous page", back > 0, () => this.back()),
        this.button("Next page", hasNext, () => this.forward()),
        element("span", { class: "quiet" }, `page ${back + 1}`)];
    });
    this.next = next;
  }

  button(text, isEnabled, act) {
    const made = element("button", { type: "button", disabled: !isEnabled, "data-key": text }, text);
    made.addEventListener("click", act);
    return made;
  }

  forward() {
    this.before.push(this.page);
    this.page = this.next;
    return this.refresh();
  }

  back() {
    this.page = this.before.pop();
    return this.refresh();
  }

  refused(error) {
    if (this.onRefused(error)) return;
    if (error.reason === "MALFORMED_REQUEST" && this.page) {
      this.begin(); // the place to go on from is known no more
      return;
    }
    problem(this.panel, error);
    if (error.reason === "PERMISSION_DENIED") forget(this.places);
  }
}
