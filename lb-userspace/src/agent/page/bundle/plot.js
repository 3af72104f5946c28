// Plots of the last hour.

import { el, svg } from "./dom.js";
import { rate, timeOfDay } from "./format.js";

const WIDTH = 480;
const HEIGHT = 120;
/** The least time that a plot shows, in seconds. */
const SPAN = 600;

/** A plot of series between two times (seconds since 1970). A series has a name and points
 * `[seconds since 1970, value]`. Its text says what those who do not see it have to know. */
export function plot(title, series, [first, now]) {
  const values = series.flatMap((one) => one.points.map(([, value]) => value));
  const top = nice(Math.max(1, ...values));
  const shown = Math.max(SPAN, now - first);
  const x = (at) => WIDTH * (1 - (now - at) / shown);
  const y = (value) => HEIGHT * (1 - value / top);
  const line = (one, index) => svg("polyline", {
    class: `line s${index}`,
    points: one.points.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" "),
  });
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": summary(title, series) },
    svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT / 2, y2: HEIGHT / 2 }),
    series.map(line));
  const legend = series.map((one, index) => el("li", {},
    el("span", { class: `key s${index}`, "aria-hidden": "true" }), ` ${one.name}: ${rate(latest(one))}`));
  return el("figure", {},
    el("figcaption", {}, title),
    el("div", { class: "plot" },
      el("span", { class: "top", "aria-hidden": "true" }, rate(top)),
      drawing,
      el("span", { class: "ends", "aria-hidden": "true" }, el("span", {}, timeOfDay(now - shown)), el("span", {}, timeOfDay(now)))),
    el("ul", { class: "legend" }, legend));
}

function latest(one) {
  return one.points.at(-1)?.[1];
}

function summary(title, series) {
  const each = series.map((one) => {
    const most = Math.max(0, ...one.points.map(([, value]) => value));
    return `${one.name} ${rate(latest(one))} now, ${rate(most)} at most`;
  });
  return `${title}: ${each.join("; ") || "nothing"}`;
}

/** The next number of the kind 1, 2, 5, 10, 20, … */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}
