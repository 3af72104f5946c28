// What the agent has attached and filled on this node.

import { ask } from "./api.js";
import { bar, el, facts, section, show } from "./dom.js";
import { count } from "./format.js";
import { Table } from "./table.js";

const DEVICES = [
  { name: "Device", of: (device) => device.name },
  { name: "Role", of: (device) => device.role },
  { name: "Mode", of: (device) => device.mode },
  { name: "Why", of: (device) => device.reason ?? "" },
];

const FLOW_TABLES = [
  { name: "Family", of: (table) => table.family },
  { name: "Records", of: (table) => table.occupied, show: (table) => bar(table.occupied, table.records, `${table.family} records`) },
  { name: "Flows", numeric: true, of: (table) => table.flows },
];

const MAPS = [
  { name: "Map", of: (map) => map.name },
  { name: "Entries", of: (map) => map.entries / Math.max(1, map.capacity), show: (map) => bar(map.entries, map.capacity, map.name) },
  { name: "Setting", of: (map) => map.setting ?? "" },
];

const NOT_PROGRAMMED = [
  { name: "Service port", of: (port) => port.servicePort },
  { name: "Protocol", of: (port) => port.protocol },
  { name: "Family", of: (port) => port.family },
  { name: "Why", of: (port) => port.reason },
  { name: "What to do", of: (port) => port.remedy },
];

export function open(main) {
  const parts = [
    { ...section("Devices"), table: new Table("Devices", DEVICES), of: (status) => status.devices },
    { ...section("Flow tables"), table: new Table("Flow tables", FLOW_TABLES), of: (status) => status.flows ?? [] },
    { ...section("Maps"), table: new Table("Maps", MAPS), of: (status) => status.maps },
    { ...section("Not programmed"), table: new Table("Service ports that are not served as they should be", NOT_PROGRAMMED), of: (status) => status.notProgrammed },
  ];
  const checks = section("The data plane, compared");
  main.append(...parts.map((part) => part.element), checks.element);
  let status;
  const again = () => parts.forEach((part) => show(part.region, part.table.of(part.of(status), again)));
  return async () => {
    status = await ask("status");
    again();
    show(checks.region, verification(status), problems(status));
  };
}

function verification({ verification: seen, testPackets: sent, flowTableSize }) {
  return [
    facts([
      ["Change of the flow tables' size", flowTableSize.change],
      ["Compared last", seen.lastRound ?? "not yet"],
      ["Records", count(seen.records)],
      ["Differences so far", count(seen.differences)],
      ["Within an hour", count(seen.withinAnHour)],
      ["Problem", seen.problem],
      ["Test packets last", sent.lastRound ?? sent.notSent ?? "not yet"],
      ["Test packets to all Services", count(sent.packets)],
      ["Differences with test packets so far", count(sent.differences)],
      ["Problem with test packets", sent.problem],
    ]),
    el("ul", {}, [...seen.latest, ...sent.latest].map(({ at, what }) => el("li", {}, `${at}: ${what}`))),
  ];
}

/** What else the agent complains of, word by word. */
function problems(status) {
  const all = [...status.nodeProblems, ...status.sourceProblems, ...status.admissionProblems, ...status.healthChecks.problems];
  return all.length === 0 ? null : el("ul", { class: "findings" }, all.map((problem) => el("li", { class: "warning" }, problem)));
}
