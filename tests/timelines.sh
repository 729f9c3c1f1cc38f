#!/bin/sh
# timelines.sh BIN PAGE.. [--rewrite]: the drawings and figures of docs/timelines.md and README.md are what timeline_tool and dtmc
# (in the folders BIN, with colons between) print: a line `$ timeline_tool ..` or `$ dtmc timeline ..` in a block of code is run, in
# the folder of the sources, and what follows it in the block must be its output.
# --rewrite puts it there.
set -eu
bin=$1
shift
cd "$(dirname "$0")/.."
made=$(mktemp)
trap 'rm -f "$made"' EXIT
rewrite=false same=true
for page; do [ "$page" != --rewrite ] || rewrite=true; done
for page; do
    [ "$page" != --rewrite ] || continue
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
    if $rewrite; then cat "$made" >"$page"; else diff -u "$page" "$made" || same=false; fi
done
$same
