// What needs attention, and the last hour.

import { ask, lines } from "./api.js";
import { el, facts, section, show } from "./dom.js";
import { count, some, timeOfDay } from "./format.js";
import { plot } from "./plot.js";

/** Reasons that have a line of their own. */
const REASONS = 5;
/** Changes of readiness that are listed. */
const CHANGES = 10;

export function open(main) {
  const attention = section("Attention");
  const now = section("Now");
  const hour = section("The last hour");
  const readiness = section("Readiness");
  main.append(attention.element, now.element, hour.element, readiness.element);
  return async () => {
    const [status, history, checks] = await Promise.all([ask("status"), ask("history"), lines("readyz?verbose")]);
    show(attention.region, findings(status));
    show(now.region, summary(status));
    show(hour.region, plots(history.moments));
    show(readiness.region, ready(checks, history.readiness));
  };
}

/** Each finding with what to do about it, the worst first. */
export function findings({ attention, node }) {
  if (attention.length === 0) {
    return el("p", { class: "good" }, `Nothing needs attention on ${node}.`);
  }
  return el("ul", { class: "findings" }, attention.map((finding) => el("li", { class: finding.level },
    el("strong", {}, `${finding.level === "failure" ? "Failure" : "Warning"} · ${finding.check}: `),
    finding.found,
    finding.remedy ? el("p", { class: "remedy" }, `What to do: ${finding.remedy}`) : null,
    finding.docs ? el("p", { class: "remedy" }, `See ${finding.docs}`) : null)));
}

function summary(status) {
  const flows = (status.flows ?? []).reduce((sum, table) => sum + table.flows, 0);
  return facts([
    ["Node", status.node],
    ["Addresses", status.nodeAddresses.join(", ")],
    ["Services", `${count(status.services)} with ${some(status.servicePorts, "port")}`],
    ["Flows", count(flows)],
    ["Devices", some(status.devices.length, "device")],
    ["Source", status.apiServer ? `${status.source} (${status.apiServer})` : status.source],
    ["In sync since", status.inSyncSince ?? "not yet"],
    ["Last change", status.lastSync],
    ["Admission", status.admission],
    ["Version", status.version],
  ]);
}

function plots(moments) {
  if (moments.length === 0) {
    return el("p", { class: "none" }, "The first figures come within twenty seconds.");
  }
  const times = [moments[0].at, moments.at(-1).at];
  const points = (of) => moments.map((moment) => [moment.at, of(moment)]);
  const total = new Map();
  for (const { refused } of moments) {
    for (const [reason, packets] of Object.entries(refused)) {
      total.set(reason, (total.get(reason) ?? 0) + packets);
    }
  }
  const reasons = [...total].toSorted((a, b) => b[1] - a[1]).slice(0, REASONS).map(([reason]) => reason);
  const refused = reasons.map((reason) => ({
    name: reason,
    points: points((moment) => (moment.refused[reason] ?? 0) / moment.seconds),
  }));
  return el("div", { class: "plots" },
    plot("New connections per second", [{ name: "to endpoints", points: points((moment) => moment.opened / moment.seconds) }], times),
    plot("Refused or dropped packets per second", refused, times),
    plot("Flow tables, flows", [{ name: "flows", points: points((moment) => moment.flows ?? 0) }], times),
    plot("Admission, connections", [
      { name: "with a seat", points: points((moment) => moment.seats) },
      { name: "waiting", points: points((moment) => moment.waiting) },
    ], times));
}

/** The checks of `/readyz`, and when which of them failed. */
function ready(checks, changes) {
  const known = checks.map((line) => line.match(/^\[([+-])\](\S+)/)).filter(Boolean);
  const list = el("ul", { class: "checks" }, known.map(([, sign, name]) => el("li", { class: sign === "+" ? "good" : "bad" },
    `${sign === "+" ? "holds" : "fails"}: ${name}`)));
  const latest = changes.slice(-CHANGES).reverse();
  const past = el("ol", { class: "past" }, latest.map(({ at, failing }) => el("li", {},
    `${timeOfDay(at)}: ${failing.length === 0 ? "ready" : `not ready: ${failing.join(", ")}`}`)));
  return [list, el("h3", {}, "Changes"), past];
}
