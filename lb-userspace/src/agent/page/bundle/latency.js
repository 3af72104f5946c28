// How soon endpoints have answered.

/** The latency in microseconds that a part of the flows has not exceeded, as if those of a bucket were
 * spread evenly over it; undefined without a flow. `flows` are those of each bucket, which end at
 * `ends`. */
export function quantile(part, flows, ends) {
  const all = flows.reduce((sum, one) => sum + one, 0);
  let wanted = part * all;
  for (const [bucket, one] of flows.entries()) {
    if (one > 0 && wanted <= one) {
      const least = bucket === 0 ? 0 : ends[bucket - 1];
      return least + (ends[bucket] - least) * wanted / one;
    }
    wanted -= one;
  }
  return undefined;
}
