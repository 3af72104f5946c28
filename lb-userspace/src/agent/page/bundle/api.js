// The agent's local API. Everything there can only be read.

/** The JSON object at a path, with these parameters; those that are empty are left out.
 * Throws an `Error` with the agent's own words if it refuses. */
export async function ask(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined);
  const query = new URLSearchParams(given).toString();
  const answer = await request(query ? `${path}?${query}` : path);
  let body;
  try {
    body = await answer.json();
  } catch {
    throw new Error(`the agent answered ${answer.status}, but not in JSON`);
  }
  if (!answer.ok) {
    throw new Error(body.message ?? `the agent answered ${answer.status}`);
  }
  return body;
}

/** The lines of a text answer, whatever its status is. */
export async function lines(path) {
  const answer = await request(path);
  return (await answer.text()).split("\n").filter((line) => line !== "");
}

async function request(path) {
  try {
    return await fetch(path, { cache: "no-store", credentials: "omit" });
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
}
