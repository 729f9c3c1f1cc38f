#!/bin/sh
# Pipelines of every schedule against the goldens: loss, gradients, norms and weights of gpt (its embedding is tied), llama and
# llama-masked on 2, 3 and 4 ranks with 1 to 8 microbatches, stages alike and not, alone and beside dp = 2, tp = 2 and both.
# Where a schedule is not defined for the numbers, the refusal (E0902) is what is expected.
#
#     schedules_run.sh --build DIR [--every N] [--from K] [--schedules "gpipe .."] [--list]
#
# All of them are thousands of programs: --every N takes each N-th from the K-th on (from 0; a prime N meets all values of
# everything). --list prints which. The last line is `N passed, N refused as they should be, N failed`.
set -u
source=$(cd "$(dirname "$0")/.." && pwd)
build= every=1 from=0 schedules="gpipe 1f1b interleaved zbh1 zbv dualpipe dualpipev" list=
while [ $# -gt 0 ]; do
    case $1 in
    --build) build=$2; shift ;;
    --every) every=$2; shift ;;
    --from) from=$2; shift ;;
    --schedules) schedules=$2; shift ;;
    --list) list=1 ;;
    *) echo "schedules_run: what is $1?" >&2; exit 2 ;;
    esac
    shift
done
export CC="${CC:-sh $source/tests/mesh/cc}"
out=$(mktemp "${TMPDIR:-/tmp}/dtm-schedules-XXXXXX")
trap 'rm -f "$out"' EXIT
trap 'exit 1' HUP INT TERM
passed=0 refused=0 failed=0 index=0

# uneven RANKS CHUNKS: the four layers, as many stages as that; the first have most, and there may be empty ones
uneven() {
    case $(($1 * $2)) in
    2) echo "3, 1" ;;
    3) echo "1, 2, 1" ;;
    4) echo "1, 0, 2, 1" ;;
    6) echo "1, 0, 1, 0, 0, 2" ;;
    8) echo "0, 2, 0, 0, 1, 0, 1, 0" ;;
    esac
}

one() { # CASE SCHEDULE RANKS MICROBATCHES BESIDE STAGES
    case $2 in interleaved) chunks=2 ;; zbv | dualpipev) chunks=2 ;; *) chunks=1 ;; esac
    mesh=pp=$3 stages=
    case $5 in
    dp) mesh=dp=2,$mesh ;;
    tp) mesh=$mesh,tp=2 ;;
    dp.tp) mesh=dp=2,$mesh,tp=2 ;;
    esac
    [ "$6" = even ] || stages=", stages = [$(uneven "$3" $chunks)]"
    what="$1 $mesh --schedule $2 --microbatches $4${stages:+ --stages \"$stages\"}"
    if [ -n "$list" ]; then
        echo "$what"
        return
    fi
    defined=yes
    "$build/tests/timeline_tool" "$2" "$3" "$4" >/dev/null 2>&1 || defined=no
    timeout -k 5 120 sh "$source/tests/golden/check" --dtmc "$build/frontend/dtmc" --compare "$build/tests/compare" "$1" "$mesh" \
        --schedule "$2" --microbatches "$4" --stages "$stages" --draft >"$out" 2>&1
    status=$?
    if [ $defined = yes ] && [ $status = 0 ]; then
        passed=$((passed + 1))
    elif [ $defined = no ] && [ $status != 0 ] && grep -q 'error.E0902' "$out"; then
        refused=$((refused + 1))
    else
        failed=$((failed + 1))
        echo "FAILED ($status): $what"
        tail -n 12 "$out"
    fi
}

for case in gpt llama llama-masked; do
    for schedule in $schedules; do
        for ranks in 2 3 4; do
            for microbatches in 1 2 3 4 5 6 7 8; do
                for beside in alone dp tp dp.tp; do
                    for stages in even uneven; do
                        [ $((index % every)) != "$from" ] || one $case $schedule $ranks $microbatches $beside $stages
                        index=$((index + 1))
                    done
                done
            done
        done
    done
done
[ -z "$list" ] || exit 0
echo "$passed passed, $refused refused as they should be, $failed failed"
[ $failed = 0 ]
