// The agent's local API. Everything there can only be read.

/** Milliseconds after which an answer no longer comes. An agent that hangs still takes connections. */
const PATIENCE = 5000;

/** The agent's own words about a question that it does not take. */
export class Refusal extends Error {}

/** The JSON object at a path, with these parameters; those that are empty are left out.
 * Throws a `Refusal` if the agent refuses. */
export async function ask(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined);
  const query = new URLSearchParams(given).toString();
  const { ok, status, text } = await request(query ? `${path}?${query}` : path);
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    throw new Error(`the agent answered ${status}, but not in JSON`);
  }
  if (!ok) {
    throw new Refusal(body.message ?? `the agent answered ${status}`);
  }
  return body;
}

/** The lines of a text answer, whatever its status is. */
export async function lines(path) {
  const { text } = await request(path);
  return text.split("\n").filter((line) => line !== "");
}

async function request(path) {
  try {
    const signal = AbortSignal.timeout(PATIENCE);
    const answer = await fetch(path, { cache: "no-store", credentials: "omit", signal });
    return { ok: answer.ok, status: answer.status, text: await answer.text() };
  } catch {
    throw new Error("the agent does not answer");
  }
}

/** The path of something of a Service, whose name is `namespace/name`. */
export function ofService(path, service) {
  return `${path}/${service.split("/").map(encodeURIComponent).join("/")}`;
}

/** How fast counters grow between one answer and the next. */
export class Rates {
  #before = { at: undefined, counters: new Map() };
  #now = { at: undefined, counters: new Map() };

  /** Begins with an answer of this time, in milliseconds. */
  begin(at) {
    // Two requests at almost the same time get the same answer.
    if (at !== this.#now.at) {
      this.#before = this.#now;
    }
    this.#now = { at, counters: new Map() };
  }

  /** The growth of a counter in a second; undefined if it is new, or has begun anew. */
  of(key, value) {
    this.#now.counters.set(key, value);
    const before = this.#before.counters.get(key);
    const seconds = (this.#now.at - this.#before.at) / 1000;
    return before <= value && seconds > 0 ? (value - before) / seconds : undefined;
  }

  /** The growth of each of several counters, modulo 2^32; undefined if they are new. */
  ofEach(key, values) {
    this.#now.counters.set(key, values);
    const before = this.#before.counters.get(key);
    return before && values.map((value, index) => (value - before[index]) >>> 0);
  }
}
