#!/usr/bin/env python3
"""Whether collectives of a run are hidden (--trace): those of its F&B pairs, or those called NAME.

usage: hidden_check.py TRACE SHARE [NAME]

Of the collectives that were started in a pair, or bear the name, at least SHARE must have been carried out beside what their rank
computed for more than half of the time that they took. What a rank computes are the operators of its row `compute` that do not wait.
"""
import json
import sys

CALLS = {"F", "B", "I", "W", "pair", "step", "wait"}


def interval(event):
    return event["ts"], event["ts"] + event["dur"]


def main():
    events = [e for e in json.load(open(sys.argv[1]))["traceEvents"] if e["ph"] == "X"]
    name = sys.argv[3] if len(sys.argv) > 3 else None
    ranks = sorted({e["pid"] for e in events})
    hidden = total = pairs = 0
    for rank in ranks:
        own = [e for e in events if e["pid"] == rank]
        in_pairs = [interval(e) for e in own if e["cat"] == "pair"]
        work = [interval(e) for e in own if e["tid"] == 0 and e["cat"] not in CALLS and e["cat"] != "between ranks"]
        pairs += len(in_pairs)
        for event in own:
            begin, end = interval(event)
            if not event["cat"].startswith("collective"):
                continue
            if event["name"] != name if name else not any(b <= begin and end <= e for b, e in in_pairs):
                continue
            beside = sum(max(0, min(end, e) - max(begin, b)) for b, e in work)
            total += 1
            hidden += beside > 0.5 * (end - begin)
    share = hidden / total if total else 0
    what = f"{total} times {name}" if name else "pairs"
    if not (name or pairs) or share < float(sys.argv[2]):
        sys.exit(f"{what} on {len(ranks)} ranks: {hidden} of {total} collectives are hidden")
    print(f"{what} on {len(ranks)} ranks: of their collectives most are hidden")


main()
