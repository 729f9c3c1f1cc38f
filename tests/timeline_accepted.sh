#!/bin/sh
# timeline_accepted.sh DTMC TIMELINE_TOOL PYTHON SOURCE: tests/schedules/simulate.py, which checks and times orders of public schedulers,
# accepts what `--format orders` writes: every named schedule over a grid of ranks, microbatches and chunks, and those of a program,
# `auto` with them. Where a schedule is not defined for the numbers, there is nothing. And it refuses one that is broken.
set -eu
dtmc=$1 tool=$2 python=$3 source=$4
out=$(mktemp -d "${TMPDIR:-/tmp}/dtm-accepted-XXXXXX")
trap 'rm -rf "$out"' EXIT
trap 'exit 1' HUP INT TERM
said() { # NAME COMMAND..: its orders, if there are such
    name=$1
    shift
    "$@" --format orders >"$out/orders" 2>"$out/error" && mv "$out/orders" "$out/$name.txt" && return
    grep -q 'E0902' "$out/error" || { echo "$*:"; cat "$out/error"; exit 1; }
}
for p in 1 2 3 4 5 6 8; do
    for m in 1 2 3 4 7 8 12 16; do
        for s in gpipe 1f1b zbh1 zbv dualpipe dualpipev; do said "${s}_P${p}_M$m" "$tool" $s $p $m; done
        for v in 2 3; do said "interleaved_P${p}_M${m}_V$v" "$tool" interleaved $p $m $v; done
    done
done
sed "/expect {/d; s,\"machines,\"$source/examples/machines," "$source/examples/pipeline.dtm" >"$out/program.dtm"
for p in 2 3 4; do
    for m in 1 2 3 8; do
        for s in interleaved zbv dualpipe auto; do
            said "program_${s}_P${p}_M$m" "$dtmc" timeline "$out/program.dtm" -D S=16 --mesh pp=$p --set schedule=$s \
                --set microbatches=$m
        done
    done
done
rm -f "$out/orders" "$out/error"
"$python" "$source/tests/schedules/simulate.py" "$out"/*.txt >"$out/table" || status=$?
awk -F '\t' -v status="${status:-0}" '
    NR <= 2 { next }
    $2 != "ok" { print; bad++ }
    $2 == "ok" && split($15, fifo, "/") && fifo[2] != "ok" { print; bad++ } # first in, first out by ranks and F or B
    { files++ }
    END { print files " accepted, " bad + 0 " not"; exit bad || status || files < 400 }' "$out/table"
sed 's/F0 F1/F1 F0/' "$out/1f1b_P4_M8.txt" | awk 'NR == 2 { sub(/ B0/, ""); sub(/F0/, "B0 F0") } { print }' >"$out/broken.txt"
if "$python" "$source/tests/schedules/simulate.py" "$out/broken.txt" >"$out/table"; then
    cat "$out/table"
    exit 1
fi
