// Connections in the kernel's tables.

import { Refusal, ask } from "./api.js";
import { el, show } from "./dom.js";
import { count, span } from "./format.js";
import { Table } from "./table.js";

/** Connections that are asked for. */
const MOST = 200;

const STAGES = ["", "unreplied", "handshake", "established", "half-closed", "closed"];

/** The columns of a table of connections. */
export const columns = [
  { name: "Client", of: (flow) => flow.client },
  { name: "Protocol", of: (flow) => flow.protocol },
  { name: "Frontend", of: (flow) => flow.frontend },
  { name: "Service port", of: (flow) => flow.service ?? "", show: (flow) => flow.service ?? "–" },
  { name: "Endpoint", of: (flow) => flow.endpoint },
  { name: "Stage", of: (flow) => flow.stage },
  { name: "Idle", numeric: true, of: (flow) => flow.idleSeconds, show: (flow) => span(flow.idleSeconds) },
  { name: "Source NAT", of: (flow) => flow.sourceNat ?? "", show: (flow) => flow.sourceNat ?? "no" },
  { name: "Way", of: (flow) => (flow.mode === "forward" ? "past the stack" : "through the stack") },
];

export function open(main, _rest, parameters) {
  const table = new Table("Connections", columns);
  const region = el("div");
  const field = (name, label, placeholder) => el("label", {}, label, " ",
    el("input", { name, placeholder, value: parameters.get(name) ?? "", autocomplete: "off", spellcheck: "false" }));
  const stage = el("label", {}, "Stage ", el("select", { name: "stage" }, STAGES.map((name) => el("option", { value: name }, name || "any"))));
  const submit = (event) => {
    // Browsers do not send it: that is left to the script.
    event.preventDefault();
    asked = filters();
    // If the agent does not answer, the next look says so.
    update().catch(() => {});
  };
  const form = el("form", { onsubmit: submit },
    field("service", "Service", "namespace/name"),
    field("client", "Client", "IP or network"),
    field("endpoint", "Endpoint", "IP or network"),
    stage,
    el("button", { type: "submit" }, "Show"));
  main.append(form, region);
  const filters = () => Object.fromEntries(new FormData(form));
  // What is still being typed is not asked for.
  let asked = filters();
  let page;
  const again = () => show(region,
    el("p", { role: "status" }, page.truncated ? `The first ${count(page.items.length)} that were found; there are more.` : `${count(page.items.length)} found.`),
    table.of(page.items, again));
  const update = async () => {
    try {
      page = await ask("flows", { ...asked, limit: MOST });
    } catch (error) {
      if (!(error instanceof Refusal)) {
        throw error;
      }
      show(region, el("p", { role: "alert", class: "bad" }, `${error.message}.`));
      return;
    }
    again();
  };
  return update;
}
