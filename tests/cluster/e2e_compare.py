#!/usr/bin/env python3
"""e2e_compare.py A.JSON B.JSON: the results of two proxies side by side, as the Markdown table of docs/e2e.md.

Each file is a results.json of e2e.sh, named after its proxy. Tests that passed with both are counted, and
named below the table; the others are its rows.
"""
import json, os, sys

names = [os.path.basename(path).removesuffix(".json") for path in sys.argv[1:3]]
results = [{t["name"].removeprefix("[sig-network] "): t for t in json.load(open(path))} for path in sys.argv[1:3]]


def says(test):
    if test is None:
        return "not run"
    why = " ".join(test["why"].split())
    return test["result"] + (f" ({why[:160]})" if why else "")


both, rows = [], []
for name in sorted(results[0] | results[1]):
    tests = [r.get(name) for r in results]
    if all(t and t["result"] == "passed" for t in tests):
        both.append(name)
    else:
        rows.append([name, *map(says, tests)])
print("| |", " | ".join(names), "|")
print("|---|---|---|")
for result in ("passed", "failed", "skipped"):
    counts = [sum(t["result"] == result for t in r.values()) for r in results]
    print(f"| {result} |", " | ".join(map(str, counts)), "|")
print(f"\nDifferent, or not passed, in one or both:\n\n| Test | {names[0]} | {names[1]} |\n|---|---|---|")
for row in rows:
    print("|", " | ".join(row), "|")
print(f"\nPassed with both ({len(both)}):\n")
for name in both:
    print("-", name)
