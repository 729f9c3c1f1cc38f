#!/bin/sh
# What `dtmc` takes to compile examples/llama3-405b.dtm on { pp = 16, dp = 128, tp = 8 }, 32 microbatches, and
# examples/deepseek-v3-dense.dtm as it is, up to plan and kernels as C: wall time, the least of ROUNDS, and memory. (CC=true: the C compiler, which does not know of layers either, has nothing to do.)
#
#   DTMC=build/release/frontend/dtmc sh bench/compile.sh [ROUNDS]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
dtmc=$(realpath "${DTMC:-$root/build/release/frontend/dtmc}")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
{
    sed '/^mesh/d; /^parallel/,/^}/d; s/^dim B = 2048/dim B = 4096/; s,"models,"'"$root"'/examples/models,; s,"machines,"'"$root"'/examples/machines,' \
        "$root/examples/llama3-405b.dtm"
    echo 'mesh { pp = 16, dp = 128, tp = 8 }'
    echo 'parallel { pp splits layer with schedule = 1f1b, microbatches = 32; dp splits B; tp splits H, G, F, V, S }'
} >"$tmp/big.dtm"
echo '| program | schedule | layers | seconds | of the processor | MB |'
echo '|---|---|---:|---:|---:|---:|'
row() { # NAME FILE SCHEDULE LAYERS OPTION..
    name=$1 file=$2 schedule=$3 layers=$4
    shift 4
    for round in $(seq "$rounds"); do
        CC=true /usr/bin/time -f "%e %U %S %M" "$dtmc" build "$file" --set schedule="$schedule" "$@" -o "$tmp/out" 2>&1 >/dev/null | tail -n 1
    done | sort -g | awk -v n="$name" -v s="$schedule" -v l="$layers" 'NR == 1 { printf "| %s | %s | %d | %.2f | %.2f | %.0f |\n", n, s, l, $1, $2 + $3, $4 / 1024 }'
}
rounds=${1:-5}
for schedule in 1f1b interleaved dualpipev auto; do
    for layers in 126 252; do
        [ $schedule$layers = auto252 ] || row llama3-405b "$tmp/big.dtm" $schedule $layers -D layers=$layers # by auto nothing fits of 252
    done
    row deepseek-v3-dense "$root/examples/deepseek-v3-dense.dtm" $schedule 61
done
