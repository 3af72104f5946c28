// One Service: its frontends, endpoints and clients.

import { Rates, ask, ofService } from "./api.js";
import { el, facts, section, show } from "./dom.js";
import { count, rate, time } from "./format.js";
import { Ports } from "./services.js";
import { Table } from "./table.js";
import { columns as flowColumns } from "./flows.js";

/** Connections that are listed. */
const FLOWS = 100;

const FRONTENDS = [
  { name: "Address", of: (frontend) => frontend.address },
  { name: "Kind", of: (frontend) => frontend.kind },
  { name: "Policy", of: (frontend) => frontend.policy },
  { name: "New connections", of: (frontend) => frontend.verdict },
  { name: "Only from", of: (frontend) => (frontend.sourceRanges ?? []).join(", ") },
];

const ENDPOINTS = [
  { name: "Endpoint", of: (endpoint) => endpoint.address },
  { name: "Port", of: (endpoint) => endpoint.servicePort },
  { name: "State", of: (endpoint) => state(endpoint) },
  { name: "New/s", numeric: true, of: (endpoint) => endpoint.rate, show: (endpoint) => rate(endpoint.rate) },
  { name: "Latency", numeric: true, of: (endpoint) => endpoint.latencyUs, show: (endpoint) => time(endpoint.latencyUs) },
  { name: "Failures in a row", numeric: true, of: (endpoint) => endpoint.failures },
  { name: "Connections", numeric: true, of: (endpoint) => endpoint.connections },
];

function state({ ready, avoided }) {
  return `${ready ? "ready" : "terminating"}${avoided ? ", avoided" : ""}`;
}

export function open(main, [namespace, name]) {
  const service = `${namespace}/${name}`;
  const ports = new Ports();
  const rates = new Rates();
  const traffic = section("Traffic");
  const frontends = section("Frontends");
  const endpoints = section("Endpoints");
  const flows = section("Connections");
  main.append(traffic.element, frontends.element, endpoints.element, flows.element);
  const tables = {
    frontends: new Table("Frontends", FRONTENDS),
    endpoints: new Table("Endpoints", ENDPOINTS),
    flows: new Table("Connections", flowColumns),
  };
  let known;
  const again = () => {
    const { plan, all, found, page } = known;
    show(traffic.region, all.map(portFacts));
    const addresses = plan.ports.flatMap((port) => port.frontends.map((frontend) => ({ ...frontend, port })));
    show(frontends.region, plan.ports.map(planFacts), tables.frontends.of(addresses, again));
    show(endpoints.region, tables.endpoints.of(found, again));
    show(flows.region,
      page.truncated ? el("p", {}, `The first ${FLOWS} that were found; `, el("a", { href: `#/flows?service=${encodeURIComponent(service)}` }, "more of them"), ".") : null,
      tables.flows.of(page.items, again));
  };
  return async () => {
    const [plan, traffics, found, page] = await Promise.all([
      ask(ofService("api/v1/services", service)),
      ask("traffic"),
      ask(ofService("traffic", service)),
      ask("flows", { service, limit: FLOWS }),
    ]);
    rates.begin(found.atMs);
    known = {
      plan,
      page,
      all: ports.of(traffics).filter((port) => port.service === service),
      found: found.endpoints.map((endpoint) => ({
        ...endpoint,
        rate: rates.of(`${endpoint.servicePort} ${endpoint.protocol} ${endpoint.address}`, endpoint.connections),
      })),
    };
    again();
  };
}

function portFacts(port) {
  return el("div", {}, el("h3", {}, `${port.servicePort} ${port.protocol}`), facts([
    ["Open", count(port.open)],
    ["Half-open", count(port.halfOpen)],
    ["New per second", rate(port.rates.connections)],
    ["Refused per second", rate(port.rates.refused)],
    ["Endpoints' first answer, p50 and p99", `${time(port.latency.p50)}, ${time(port.latency.p99)}`],
    ["Connections so far", count(port.connections)],
    ["Rejected so far", count(port.rejected)],
    ["Dropped so far", count(port.dropped)],
    ["For want of a flow record", count(port.flowTableFull)],
    ["For want of a source port", count(port.snatPortsExhausted)],
    ["Half-open flows that gave way", count(port.gaveWay)],
  ]));
}

function planFacts(port) {
  const health = port.healthCheck;
  return facts([
    ["Session affinity", port.sessionAffinitySeconds ? `${port.sessionAffinitySeconds} s` : null],
    ["healthCheckNodePort", health ? `${health.port} answers ${health.status}: ${count(health.localEndpoints)} local endpoints` : null],
    ["Left to the node", (port.leftToNode ?? []).join(", ")],
  ]);
}
