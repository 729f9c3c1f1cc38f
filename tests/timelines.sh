#!/bin/sh
# timelines.sh BIN PAGE [--rewrite]: the drawings and figures of docs/timelines.md are what timeline_tool and dtmc (in the folders
# BIN, with colons between) print: a line `$ timeline_tool ..` or `$ dtmc timeline ..` in a block of code is run, in the folder of
# the sources, and what follows it in the block must be its output.
# --rewrite puts it there.
set -eu
bin=$1 page=$2
cd "$(dirname "$0")/.."
made=$(mktemp)
trap 'rm -f "$made"' EXIT
PATH=$bin:$PATH awk '
    /^```/ { skip = 0 }
    /^\$ (timeline_tool|dtmc timeline) / && !/^```/ {
        if (skip && blank) print ""
        print
        skip = 1
        blank = 0
        fflush()
        if (system(substr($0, 3)) != 0) exit 1
        next
    }
    skip { blank = /^$/; next }
    { print }
' "$page" >"$made"
if [ "${3:-}" = --rewrite ]; then
    cat "$made" >"$page"
else
    diff -u "$page" "$made"
fi
