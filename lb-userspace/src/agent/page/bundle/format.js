// Numbers and times as people read them.

/** A whole number, or a dash. */
export function count(value) {
  return value === undefined || value === null ? "–" : value.toLocaleString("en");
}

/** A number of things in a second, or a dash. */
export function rate(value) {
  if (value === undefined) {
    return "–";
  }
  const digits = value > 0 && value < 10 ? 1 : 0;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** A short time in microseconds, or a dash. */
export function time(micros) {
  if (micros === undefined) {
    return "–";
  }
  const [number, unit] = micros < 999.5 ? [micros, "µs"] : micros < 999500 ? [micros / 1e3, "ms"] : [micros / 1e6, "s"];
  return `${number.toFixed(number < 9.95 ? 1 : 0)} ${unit}`;
}

/** A number with its noun: `1 flow`, `2 flows`. */
export function some(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** The time of day of seconds since 1970. */
export function timeOfDay(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

/** A time span in seconds. */
export function span(seconds) {
  if (seconds < 120) {
    return `${Math.round(seconds)} s`;
  }
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}
