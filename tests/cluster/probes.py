#!/usr/bin/env python3
"""Probes URLs as a load balancer does, ten times a second each with a new connection, until standard input ends.

Prints a line for each URL: how many probes got which answer, and how many none. Exit status 1 if any got none.
"""

import collections
import sys
import threading
import time
import urllib.error
import urllib.request

INTERVAL = 0.1  # seconds
PATIENCE = 1  # seconds, as load balancers have at least


def probe(url, results):
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            results.append(str(answer.status))
    except urllib.error.HTTPError as answer:
        results.append(str(answer.code))
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        results.append(f"no answer: {reason}")


def probes(url, results, ended):
    pending = []
    due = time.monotonic()
    while not ended.wait(max(0, due - time.monotonic())):
        due += INTERVAL
        # A probe that is late does not delay the next one.
        thread = threading.Thread(target=probe, args=(url, results))
        thread.start()
        pending = [thread] + [other for other in pending if other.is_alive()]
    for thread in pending:
        thread.join()


def main(urls):
    ended = threading.Event()
    results = {url: [] for url in urls}
    threads = [threading.Thread(target=probes, args=(url, results[url], ended)) for url in urls]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    sys.stdin.read()
    ended.set()
    for thread in threads:
        thread.join()
    failed = False
    for url in urls:
        counts = collections.Counter(results[url])
        unanswered = sum(count for result, count in counts.items() if not result.isdigit())
        failed |= unanswered > 0 or not counts
        answers = ", ".join(f"{count} x {result}" for result, count in sorted(counts.items()))
        print(f"{'BAD' if unanswered else 'ok':<4} {url}: {answers or 'none'}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main(sys.argv[1:])
