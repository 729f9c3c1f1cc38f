#!/bin/sh
# timeline_formats.sh DTMC PYTHON FILE: what `dtmc timeline` writes for other programs is well formed: JSON whose events have names,
# times that are not negative and the ranks of the mesh; SVG that an XML parser reads.
set -eu
dtmc=$1 python=$2 file=$3
for schedule in 1f1b zbv dualpipe auto; do
    "$dtmc" timeline "$file" --set schedule=$schedule --format json | "$python" -c '
import json, sys
trace = json.load(sys.stdin)
events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
assert {e["pid"] for e in events} == set(range(1000000, 1000004)), "ranks"
assert all(e["name"] and e["ts"] >= 0 and e["dur"] >= 0 for e in events), "an event"
for rank in range(1000000, 1000004):
    work = sorted((e["ts"], e["dur"]) for e in events if e["pid"] == rank and e["tid"] == 0)
    assert all(a + d <= b + 1e-6 for (a, d), (b, _) in zip(work, work[1:])), "a rank does two things at once"
assert 0 <= trace["otherData"]["bubble"] < 1
'
    "$dtmc" timeline "$file" --set schedule=$schedule --format svg | "$python" -c '
import sys, xml.etree.ElementTree as tree
root = tree.parse(sys.stdin).getroot()
assert root.tag.endswith("svg") and len(root.findall(".//{*}rect")) > 4 * 8 * 2
'
done
