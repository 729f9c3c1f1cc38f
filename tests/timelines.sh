#!/bin/sh
# timelines.sh BIN PAGE [--rewrite]: the drawings and figures of docs/timelines.md are what timeline_tool (in the folder BIN)
# prints: a line `$ timeline_tool ..` in a block of code is run, and what follows it in the block must be its output.
# --rewrite puts it there.
set -eu
bin=$1 page=$2
made=$(mktemp)
trap 'rm -f "$made"' EXIT
PATH=$bin:$PATH awk '
    /^```/ { skip = 0 }
    /^\$ timeline_tool / && !/^```/ {
        print
        skip = 1
        fflush()
        if (system(substr($0, 3)) != 0) exit 1
        next
    }
    skip && /^$/ { print; next }
    !skip { print }
' "$page" >"$made"
if [ "${3:-}" = --rewrite ]; then
    cat "$made" >"$page"
else
    diff -u "$page" "$made"
fi
