// All Services, with what comes to them.

import { Rates, ask } from "./api.js";
import { el, show } from "./dom.js";
import { count, rate, some, time } from "./format.js";
import { quantile } from "./latency.js";
import { Table, filterField } from "./table.js";

const COLUMNS = [
  { name: "Service port", of: (port) => port.servicePort, show: (port) => el("a", { href: `#/service/${port.service}`, "data-key": `${port.servicePort} ${port.protocol}` }, port.servicePort) },
  { name: "Protocol", of: (port) => port.protocol },
  { name: "Open", numeric: true, of: (port) => port.open },
  { name: "Half-open", numeric: true, of: (port) => port.halfOpen },
  { name: "New/s", numeric: true, of: (port) => port.rates.connections, show: (port) => rate(port.rates.connections) },
  { name: "Refused/s", numeric: true, of: (port) => port.rates.refused, show: (port) => rate(port.rates.refused) },
  { name: "p50", numeric: true, of: (port) => port.latency.p50, show: (port) => time(port.latency.p50) },
  { name: "p99", numeric: true, of: (port) => port.latency.p99, show: (port) => time(port.latency.p99) },
  { name: "Ready", numeric: true, of: (port) => port.ready, show: (port) => `${count(port.ready)}/${count(port.ready + port.terminating)}` },
  { name: "Failing", numeric: true, of: (port) => port.failing },
  { name: "Connections", numeric: true, of: (port) => port.connections },
];

/** Service ports with how fast their counters grow. */
export class Ports {
  #rates = new Rates();

  of(traffic) {
    this.#rates.begin(traffic.atMs);
    return traffic.servicePorts.map((port) => {
      // With other numbers in the maps it is another one of the same name.
      const key = `${port.servicePort} ${port.protocol} ${port.ids}`;
      const connections = this.#rates.of(`${key} connections`, port.connections);
      const refused = this.#rates.of(`${key} refused`, port.rejected + port.dropped);
      const answered = this.#rates.ofEach(`${key} answered`, port.answered) ?? [];
      const [p50, p99] = [0.5, 0.99].map((part) => quantile(part, answered, traffic.answeredWithinUs));
      return { ...port, rates: { connections, refused }, latency: { p50, p99 } };
    });
  }
}

export function open(main) {
  const ports = new Ports();
  const table = new Table("Service ports", COLUMNS);
  const region = el("div");
  let known = [];
  const again = () => {
    const shown = known.filter((port) => filter.matches(`${port.servicePort} ${port.protocol}`));
    show(region, el("p", {}, `${some(shown.length, "service port")} of ${count(known.length)}.`), table.of(shown, again));
  };
  const filter = filterField("Filter by name", again);
  main.append(filter.element, region);
  return async () => {
    known = ports.of(await ask("traffic"));
    again();
  };
}
