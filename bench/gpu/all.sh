#!/bin/sh
# Everything that a GPU has to say, in one run of less than eight minutes: tests first, then rates. What matters most comes first, and each
# part has a limit, so that a part that hangs costs no other.
#
#     sh bench/gpu/all.sh [--build build/release] [--out DIR] [--on real|sim]
#
# DIR gets results.jsonl, a line for each figure, and logs of what was run. With `sim` the simulated GPU runs all of it at small sizes,
# which shows that the script works; its rates say nothing.
#
#     tests      tests/gpu/run --on real: opcodes, plans, programs, operators, golden cases
#     copy       GB/s of the device's own copy, read and written
#     kernels    GB/s at which what is bound by memory moves its operands and results once (kernels.dtm)
#     attention  TFLOP/s forward and backward, by width of heads and length (attention.dtm), causal ones counted as half
#     products   TFLOP/s by cuBLASLt, and of dtm's own kernel (products.dtm)
#     step       tokens/s and the share of the peak of a step of llama-1b.dtm, as a graph and as single launches
#     sanitizer  compute-sanitizer on a program of the tests, where it is installed
set -u
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
build=$source/build/release out=gpu-results on=real
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2; shift ;;
    --out) out=$2; shift ;;
    --on) on=$2; shift ;;
    *) echo "all.sh: there is no \`$1\`; --build DIR, --out DIR, --on real|sim" >&2; exit 2 ;;
    esac
    shift
done
build=$(cd "$build" && pwd) || exit 1
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
packages=$source/build/packages/nvidia/cu13/lib
results=$out/results.jsonl
: >"$results"
begin=$(date +%s)
note() { echo "$(($(date +%s) - begin)) s: $*"; }
line() { echo "$1" | tee -a "$results"; }

note "tests"
timeout ${DTM_TESTS_LIMIT:-170} sh "$source/tests/gpu/run" --build "$build" --on "$on" >"$out/tests.log" 2>&1
[ $? != 124 ] || echo "stopped after 170 s" >>"$out/tests.log"
device=$(sed -n '1s/^on //p' "$out/tests.log")
head -n 1 "$out/tests.log"
grep -q '^passed' "$out/tests.log" || { cat "$out/tests.log"; exit 1; } # there is no device
grep '^FAILED' "$out/tests.log"
line "{\"part\": \"tests\", \"passed\": $(grep -c '^passed' "$out/tests.log"), \"failed\": $(grep -c '^FAILED' "$out/tests.log"), \"whole\": $(grep -q ' passed, ' "$out/tests.log" && echo true || echo false)}"

case $on in
sim) LD_LIBRARY_PATH=$build/tests/gpu/sim/fake:$packages:${LD_LIBRARY_PATH-} small=1 ;;
*) LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}:$packages small= ;;
esac
export LD_LIBRARY_PATH
cd "$out" || exit 1

note "copy"
timeout 30 "$build/bench/gpu/gpu_copy" ${small:+65536} >copy.log 2>&1 && line "$(cat copy.log)" || cat copy.log

# run NAME FILE DATA LIMIT -D.. -- FLAGS..: builds a program of this folder, and runs it on made-up data; NAME.log has its profile
run() {
    name=$1 file=$2 data=$3 limit=$4
    shift 4
    sizes=
    while [ $# -gt 0 ] && [ "$1" != -- ]; do sizes="$sizes $1"; shift; done
    [ $# = 0 ] || shift
    "$build/frontend/dtmc" build "$here/$file" --target cuda $sizes -o "$name.exe" >"$name.log" 2>&1 || { echo "$name: not built"; tail -n 3 "$name.log"; return 1; }
    "$build/tests/make_data" data.safetensors $data || return 1
    timeout "$limit" "./$name.exe" train --local --data data.safetensors --quiet --cache "$out/cache" "$@" >"$name.log" 2>&1 && return
    echo "$name: it failed, or took more than $limit s"
    tail -n 3 "$name.log"
    return 1
}
# operators NAME: phase, operator, milliseconds and the rate, if there is one, of a profile
operators() { awk '/^by operator/ { on = 1; next } on && / ms / { for (i = 1; i <= NF; i++) if ($i == "ms") { rate = $(i + 2); unit = $(i + 3); print $1, $2, $(i - 1), rate + 0, unit } }' "$1.log"; }

note "kernels"
rows=65536
[ -z "$small" ] || rows=8
run kernels kernels.dtm "ids=i32[3,$rows]:0..255" 60 ${small:+-D N=8 -D D=256 -D V=256} -- --steps 3 --profile --no-graph &&
    operators kernels | while read -r phase name ms rate unit; do
        [ "$unit" != GB/s ] || line "{\"part\": \"kernels\", \"operator\": \"$phase $name\", \"ms\": $ms, \"gb_per_s\": $rate}"
    done

note "attention"
for width in 64 128 256; do
    for length in 2048 8192 16384; do
        heads=$((2048 / width)) batch=$((16384 / length))
        [ -z "$small" ] || { [ $length = 2048 ] || continue; length=32 heads=2 batch=1; }
        run "attention-$width-$length" attention.dtm "scale=f32[3,$batch]" 40 -D "B=$batch" -D "S=$length" -D "H=$heads" -D "K=$width" -- --steps 3 --profile --no-graph || continue
        operators "attention-$width-$length" | while read -r phase name ms rate unit; do
            case $phase$name in forwardo*) matmuls=2 ;; backwardd_q* | backwardd_k* | backwardd_v*) matmuls=5 ;; *) continue ;; esac
            line "$(echo "$batch $length $heads $width $matmuls $ms" | awk -v phase="$phase" '{ printf "{\"part\": \"attention\", \"width\": %d, \"length\": %d, \"phase\": \"%s\", \"ms\": %s, \"tflop_per_s\": %.1f}", $4, $2, phase, $6, $1 * $2 * $2 * $3 * $4 * $5 / ($6 * 1e9) }')"
        done
    done
done

note "products"
rows=8192
[ -z "$small" ] || rows=32
for by in library own; do
    flags=
    [ $by = library ] || flags=--generated-products
    run "products-$by" products.dtm "scale=f32[3,$rows]" 40 ${small:+-D M=32 -D N=32 -D D=32} -- --steps 3 --profile --no-graph $flags || continue
    operators "products-$by" | while read -r phase name ms rate unit; do
        [ "$unit" != GFLOP/s ] || line "{\"part\": \"products\", \"by\": \"$by\", \"operator\": \"$phase $name\", \"ms\": $ms, \"tflop_per_s\": $(echo "$rate" | awk '{ printf "%.1f", $1 / 1000 }')}"
    done
done

note "step"
ids='tokens=i32[10,4,2048]:0..128255 targets=i32[10,4,2048]:0..128255'
[ -z "$small" ] || ids='tokens=i32[10,1,16]:0..255 targets=i32[10,1,16]:0..255'
small_step="-D B=1 -D S=16 -D V=256 -D D=64 -D F=64 -D H=4 -D G=2 -D K=16 -D layers=2"
for how in graph eager; do
    flags=
    [ $how = graph ] || flags=--no-graph
    run "step-$how" llama-1b.dtm "$ids" 60 ${small:+$small_step} -- --steps 10 --log "step-$how.jsonl" $flags || continue
    # 6 FLOP a weight and token but for the embedding's, and 12 L H K S of attention, causal or not, as the field counts
    line "$(sed -n 's/.*"tokens_per_s":\([0-9.]*\),"ms":\([0-9.]*\).*/\1 \2/p' "step-$how.jsonl" | tail -n 5 | sort -g | awk -v how=$how -v device="$device" '
        { rate[NR] = $1; ms[NR] = $2 }
        END {
            peak = device ~ /A100/ ? 312 : device ~ /H100|H200|GH200/ ? 989 : device ~ /B200|GB200/ ? 2250 : 0
            flop = 6 * 1235746816 + 12 * 16 * 2048 * 2048
            m = int((NR + 1) / 2)
            printf "{\"part\": \"step\", \"how\": \"%s\", \"tokens_per_s\": %s, \"ms\": %s, \"tflop_per_s\": %.1f, \"mfu\": %s}", how, rate[m], ms[NR + 1 - m],
                   rate[m] * flop * 1e-12, peak ? rate[m] * flop * 1e-12 / peak : "null"
        }')"
done

note "sanitizer"
if command -v compute-sanitizer >/dev/null && [ "$on" = real ]; then
    run sanitizer kernels.dtm "ids=i32[3,64]:0..255" 20 -D N=64 -D D=256 -D V=256 -- --steps 1
    timeout 60 compute-sanitizer --error-exitcode 9 ./sanitizer.exe train --local --data data.safetensors --quiet --steps 1 --no-graph >sanitizer.log 2>&1
    line "{\"part\": \"sanitizer\", \"status\": $?}"
else
    note "no compute-sanitizer"
fi
note "done: $results"
