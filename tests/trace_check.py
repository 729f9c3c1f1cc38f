#!/usr/bin/env python3
"""Compares a trace of a run (--trace) with the timeline that was drawn before it (dtmc timeline --format json).

usage: trace_check.py TRACE TIMELINE STEPS

On every rank, in each of the steps, the calls must be those of the timeline, under the same names and in the same order, and
so must what is sent. Events of a row lie within each other or apart.
"""
import json
import sys

DRAWN = 1000000  # the process of rank 0 in a drawing; a run's are called by their ranks
EPSILON = 0.002  # microseconds: what is written is rounded


def complete(document):
    return [e for e in document["traceEvents"] if e["ph"] == "X"]


def rows(events):
    result = {}
    for event in events:
        result.setdefault((event["pid"], event["tid"]), []).append(event)
    return result


def check_nesting(key, events):
    open_ends = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        end = event["ts"] + event["dur"]
        while open_ends and open_ends[-1] <= event["ts"] + EPSILON:
            open_ends.pop()
        if open_ends and end > open_ends[-1] + EPSILON:
            sys.exit(f"row {key}: {event['name']} ends after what it lies in")
        open_ends.append(end)


def main():
    trace, timeline = (json.load(open(path)) for path in sys.argv[1:3])
    steps = int(sys.argv[3])
    calls = ("F", "B", "I", "W", "pair")
    wanted, found = rows(complete(timeline)), rows(complete(trace))
    if min(pid for pid, _ in wanted) < DRAWN or max(pid for pid, _ in found) >= DRAWN:
        sys.exit("a drawing and a run have processes in common")
    wanted = {(pid - DRAWN, tid): row for (pid, tid), row in wanted.items()}
    for key, events in found.items():
        check_nesting(key, events)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e.get("name") == "thread_name"}
    ranks = sorted({pid for pid, _ in wanted})
    total = 0
    for rank in ranks:
        if names[rank, 0] != "compute" or names[rank, 1] != "sends":
            sys.exit(f"rank {rank}: rows are called {names}")
        expected = [e["name"] for e in sorted(wanted[rank, 0], key=lambda e: e["ts"]) if e["cat"] in calls]
        did = [e["name"] for e in sorted(found[rank, 0], key=lambda e: e["ts"]) if e["cat"] in calls]
        if did != expected * steps:
            sys.exit(f"rank {rank} did {' '.join(did)}, the timeline has {' '.join(expected)}")
        expected = {e["name"] for e in wanted.get((rank, 1), [])}
        sent = [e for (pid, tid), row in found.items() if pid == rank and tid > 0 for e in row if e["cat"] == "send"]
        if {e["name"] for e in sent} != expected or any(e["args"]["bytes"] <= 0 for e in sent):
            sys.exit(f"rank {rank} sent {sorted(e['name'] for e in sent)}, the timeline has {sorted(expected)}")
        total += len(did)
    if any(e["name"] != f"step {i + 1}" for r in ranks for i, e in enumerate(x for x in found[r, 0] if x["cat"] == "step")):
        sys.exit("steps are not counted from 1")
    print(f"{len(ranks)} ranks, {total} calls in {steps} steps, as in the timeline; {trace['otherData']['dropped']} dropped")


main()
