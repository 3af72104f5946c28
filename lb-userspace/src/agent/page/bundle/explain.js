// What happens to a connection's first packet, step by step.

import { ask } from "./api.js";
import { el, show } from "./dom.js";
import { count } from "./format.js";

/** Endpoints that are listed. */
const MOST = 50;

const ORIGINS = { pod: "from a pod of this node", node: "from this node itself", outside: "from outside" };

export function open(main, _rest, parameters) {
  const region = el("div", { role: "status" });
  const field = (name, label, placeholder) => el("label", {}, label, " ",
    el("input", { name, placeholder, required: true, value: parameters.get(name) ?? "", autocomplete: "off", spellcheck: "false" }));
  const form = el("form", { onsubmit: (event) => { event.preventDefault(); explain(); } },
    field("from", "From", "IP"),
    field("to", "To", "IP:PORT/tcp"),
    el("button", { type: "submit" }, "Explain"));
  main.append(
    el("p", {}, "What node-lb would do with the first packet of a connection now. Nothing is sent."),
    form,
    region);
  const explain = async () => {
    try {
      show(region, way(await ask("explain", Object.fromEntries(new FormData(form)))));
    } catch (error) {
      show(region, el("p", { class: "bad" }, `${error.message}.`));
    }
  };
  if (form.checkValidity()) {
    explain();
  }
  // The answer is of the moment of the question.
  return async () => {};
}

/** The steps of a packet's way. Those that it takes are lit; it goes no further than what ends it. */
function way(report) {
  const { verdict } = report;
  const isForwarded = verdict === "forward";
  const waits = verdict === "wait";
  const steps = [
    ["Arrives", true, `over ${report.protocol}, ${ORIGINS[report.origin] ?? report.origin}`],
    ["Service", Boolean(report.service), report.service ? `${report.service}, by its ${report.frontend}` : `no Service has this address and port${left(report)}`],
    ["Admission", Boolean(report.service) && admission(report) !== "", admission(report) || "no limit counts this connection"],
    ["Policy", Boolean(report.policy), report.policy ? `traffic policy ${report.policy}` : "none"],
    ["Endpoint", isForwarded, isForwarded ? endpoints(report) : "none is chosen"],
    ["Rewrite", isForwarded, isForwarded ? (report.sourceNAT ? "destination and source: the endpoint sees the node's address" : "only the destination: the endpoint sees the client's address") : "nothing"],
  ];
  return [
    el("p", { class: isForwarded ? "good" : waits || verdict === "pass" ? "warning" : "bad" }, el("strong", {}, verdict), ` (${report.reason})`),
    el("ol", { class: "way" }, steps.map(([name, lit, text]) => el("li", { class: lit ? "lit" : null }, el("strong", {}, name), ": ", text))),
  ];
}

function left({ leftToNode }) {
  return leftToNode ? `; ${leftToNode} would have it, but the node itself answers there` : "";
}

function admission({ flowSchema, flow, maxConnectionsPerFlow, limits = [] }) {
  const schema = flowSchema ? `flow schema ${flowSchema}${flow ? `, flow ${flow}` : ""}` : "";
  const most = maxConnectionsPerFlow ? `at most ${count(maxConnectionsPerFlow)} for its flow` : "";
  const counts = limits.map(({ service, priorityLevel, limit, inUse, exempt, audited, seats = 1 }) => {
    const whose = priorityLevel ? `priority level ${priorityLevel}` : service ?? "the node";
    const room = limit === 0 ? "no limit" : `of ${count(limit)}`;
    const takes = seats === 1 ? "" : ` seats, takes ${count(seats)}`;
    return `${whose}: ${count(inUse)} ${room}${takes}${exempt ? ", exempt" : ""}${audited ? ", audited" : ""}`;
  });
  return [schema, most, ...counts].filter(Boolean).join("; ");
}

function endpoints({ endpoints: all, weights = [] }) {
  const list = all.slice(0, MOST).map((endpoint, index) => el("li", {}, weights[index] ? `${endpoint}, weight ${weights[index]}` : endpoint));
  const more = all.length - MOST;
  return el("span", {}, `one of ${count(all.length)}`, el("ul", {}, list, more > 0 ? el("li", {}, `and ${count(more)} more`) : null));
}
