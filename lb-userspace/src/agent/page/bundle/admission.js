// Priority levels, flow schemas, queues, and who holds seats.

import { ask } from "./api.js";
import { bar, el, section, show } from "./dom.js";
import { count, span } from "./format.js";
import { Table } from "./table.js";

const LEVELS = [
  { name: "Priority level", of: (level) => level.name },
  { name: "Seats", of: (level) => level.inUse, show: (level) => (level.exempt ? `${count(level.inUse)}, exempt` : bar(level.inUse, level.limit, `seats of ${level.name}`)) },
  { name: "Nominal", numeric: true, of: (level) => level.nominal },
  { name: "Between", of: (level) => level.min, show: (level) => (level.exempt ? "–" : `${count(level.min)}–${count(level.max)}`) },
  { name: "Highest", numeric: true, of: (level) => level.highest },
  { name: "Waiting", numeric: true, of: (level) => level.waiting },
  { name: "Refused", numeric: true, of: (level) => level.refused },
  { name: "Queue full", numeric: true, of: (level) => level.queueFull },
  { name: "Over (audit)", numeric: true, of: (level) => level.over },
];

const SCHEMAS = [
  { name: "Flow schema", of: (schema) => schema.name },
  { name: "Priority level", of: (schema) => schema.priorityLevel },
  { name: "Seats each", numeric: true, of: (schema) => schema.seats },
  { name: "Let in", numeric: true, of: (schema) => schema.admitted },
  { name: "Waited", numeric: true, of: (schema) => schema.waited },
  { name: "Mean wait, ms", numeric: true, of: (schema) => schema.meanWaitMs },
  { name: "Refused", numeric: true, of: (schema) => schema.refused },
  { name: "Flow's limit", numeric: true, of: (schema) => schema.flowLimit },
  { name: "Timed out", numeric: true, of: (schema) => schema.timedOut },
];

const QUEUES = [
  { name: "Priority level", of: (queue) => queue.priorityLevel },
  { name: "Queue", numeric: true, of: (queue) => queue.queue },
  { name: "Waiting", numeric: true, of: (queue) => queue.waiting },
  { name: "Seats charged", numeric: true, of: (queue) => queue.seats },
  { name: "First waits for", numeric: true, of: (queue) => queue.oldestMs, show: (queue) => (queue.oldestMs === undefined ? "–" : span(queue.oldestMs / 1000)) },
];

const HOLDERS = [
  { name: "Flow", of: (held) => held.flow },
  { name: "Flow schema", of: (held) => held.flowSchema },
  { name: "Priority level", of: (held) => held.priorityLevel },
  { name: "Connections", numeric: true, of: (held) => held.connections },
  { name: "Limit", numeric: true, of: (held) => held.limit },
  { name: "Seats", numeric: true, of: (held) => held.seats },
  { name: "Handshakes", numeric: true, of: (held) => held.handshakes },
];

const LIMITS = [
  { name: "Limit of", of: (limit) => limit.service ?? "the node" },
  { name: "Connections", of: (limit) => limit.inUse, show: (limit) => (limit.limit === 0 ? `${count(limit.inUse)}, no limit` : bar(limit.inUse, limit.limit, "connections")) },
  { name: "Highest", numeric: true, of: (limit) => limit.highest },
  { name: "Refused", numeric: true, of: (limit) => limit.refused },
  { name: "Slow handshakes", numeric: true, of: (limit) => limit.slowHandshakes },
];

export function open(main) {
  const parts = [
    { ...section("Priority levels"), table: new Table("Priority levels", LEVELS), of: (known) => known.status.priorityLevels },
    { ...section("Flow schemas"), table: new Table("Flow schemas", SCHEMAS), of: (known) => known.status.flowSchemas },
    { ...section("Queues"), table: new Table("Queues with somebody in them", QUEUES, 2), of: (known) => known.queues.items },
    { ...section("Who holds seats"), table: new Table("The largest flows", HOLDERS, 3), of: (known) => known.holders.items },
    { ...section("Limits of connections"), table: new Table("Limits of connections", LIMITS), of: (known) => known.status.connectionLimits },
  ];
  const mode = el("p");
  main.append(mode, ...parts.map((part) => part.element));
  let known;
  const again = () => parts.forEach((part) => show(part.region, part.table.of(part.of(known), again)));
  return async () => {
    const [status, queues, holders] = await Promise.all([ask("status"), ask("queues"), ask("connections")]);
    known = { status, queues, holders };
    mode.textContent = `Connection admission: ${status.admission}.`;
    again();
  };
}
