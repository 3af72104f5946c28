// Tables that can be put in order and filtered.

import { el } from "./dom.js";
import { count } from "./format.js";

/** Rows that are shown; a filter finds the others. */
const MOST = 200;

/** A table that keeps its order while what is in it changes. */
export class Table {
  #caption;
  #columns;
  #by;
  #down;

  /** A column has a `name`, `of` (a row's value, by which rows are put in order), perhaps `show` (what
   * is shown of that), and is `numeric` or not. The rows begin in the order of column `by`. */
  constructor(caption, columns, by = 0) {
    this.#caption = caption;
    this.#columns = columns;
    this.#by = by;
    this.#down = Boolean(columns[by].numeric);
  }

  /** The table with these rows. `again` shows it again in another order. */
  of(rows, again) {
    if (rows.length === 0) {
      return el("p", { class: "none" }, `${this.#caption}: none.`);
    }
    const { of } = this.#columns[this.#by];
    const sorted = rows.toSorted((a, b) => compare(of(a), of(b)) * (this.#down ? -1 : 1));
    const more = rows.length - MOST;
    return el("div", { class: "table" },
      el("table", {},
        el("caption", {}, this.#caption),
        el("thead", {}, el("tr", {}, this.#columns.map((column, index) => this.#head(column, index, again)))),
        el("tbody", {}, sorted.slice(0, MOST).map((row) => el("tr", {}, this.#columns.map((column, index) => cell(column, row, index)))))),
      more > 0 ? el("p", {}, `${count(more)} more rows; filter to see them.`) : null);
  }

  #head(column, index, again) {
    const sorts = index === this.#by;
    const order = this.#down ? "descending" : "ascending";
    const turn = () => {
      this.#down = sorts ? !this.#down : Boolean(column.numeric);
      this.#by = index;
      again();
    };
    const key = `${this.#caption} ${column.name}`;
    return el("th", { scope: "col", class: column.numeric ? "number" : null, "aria-sort": sorts ? order : null },
      el("button", { type: "button", "data-key": key, onclick: turn }, column.name));
  }
}

function cell(column, row, index) {
  const value = column.of(row);
  const shown = column.show ? column.show(row) : column.numeric ? count(value) : value ?? "";
  const kind = column.numeric ? "number" : null;
  return index === 0 ? el("th", { scope: "row", class: kind }, shown) : el("td", { class: kind }, shown);
}

/** What is not known comes first. */
function compare(a, b) {
  if (typeof a === "string" && typeof b === "string") {
    return a.localeCompare(b, "en", { numeric: true });
  }
  return (a ?? -1) - (b ?? -1);
}

/** A field that filters by words, each of which has to be somewhere in the text of a row. */
export function filterField(label, again) {
  const input = el("input", { type: "search", autocomplete: "off", spellcheck: "false", oninput: () => again() });
  const matches = (text) => {
    const words = input.value.toLowerCase().split(/\s+/);
    const lower = text.toLowerCase();
    return words.every((word) => lower.includes(word));
  };
  return { element: el("label", { class: "filter" }, label, " ", input), matches };
}
