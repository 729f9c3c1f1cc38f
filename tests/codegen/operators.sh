#!/bin/sh
# Programs that together use every operator: on one rank and on the meshes that each names, loss, gradient norm,
# gradients and updated weights of the executable are those of the interpreter. One that no program has fails.
#
#     operators.sh --dtmc DTMC --compare COMPARE --oracle ORACLE [--draft] [--cuda FLAGS] [--first] [--sample] [PROGRAM ..]
#
# A mesh is a comment of the program, `# mesh dp=2,tp=2: RULE; RULE`. With --first the first failure is the last run. With
# --sample each program runs on the first of its meshes alone, if it has any. With --cuda executables are for GPUs, and run with FLAGS beside.
set -u
here=$(cd "$(dirname "$0")" && pwd)
dtmc=dtmc compare=compare oracle=oracle draft= flags= first= sample= programs=
while [ $# -gt 0 ]; do
    case $1 in
    --dtmc) dtmc=$2; shift ;;
    --compare) compare=$2; shift ;;
    --oracle) oracle=$2; shift ;;
    --draft) draft=--draft ;;
    --cuda) draft='--target cuda' flags=$2; shift ;;
    --first) first=1 ;;
    --sample) sample=1 ;;
    *) programs="$programs $1" ;;
    esac
    shift
done
all=
[ -n "$programs" ] || { programs=$here/operators/*.dtm; all=yes; }

folder=$(mktemp -d "${TMPDIR:-/tmp}/dtm-operators-XXXXXX")
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' HUP INT TERM
failed=0 passed=0

# run NAME: builds $folder/placed.dtm, trains, compares
run() {
    rm -rf "$folder/run" && mkdir "$folder/run"
    if (cd "$folder" && "$dtmc" build placed.dtm --verify --validate $draft -o program && cd run &&
        timeout 60 ../program train $flags --local --threads 1 --seed 5 --steps 2 --data ../data.safetensors --log log.jsonl \
            --save-grads grads.safetensors --save-weights weights.safetensors && cd .. &&
        "$compare" runs run oracle) >"$folder/log" 2>&1; then
        passed=$((passed + 1))
    else
        grep -q 'libnvrtc is missing' "$folder/log" && exit 77
        failed=$((failed + 1))
        echo "FAILED $1"
        grep -v 'warning\[' "$folder/log" | tail -20
        [ -z "$first" ] || exit 1
    fi
}

for program in $programs; do
    name=$(basename "$program" .dtm)
    cp "$program" "$folder/model.dtm"
    "$dtmc" ir "$program" --after autodiff 2>>"$folder/warnings" >>"$folder/all" || failed=$((failed + 1))
    "$oracle" "$program" "$folder" 2 5 || { failed=$((failed + 1)); continue; }
    sed -n 's/^# mesh //p' "$program" | sed "${sample:+1q}" >"$folder/meshes"
    if [ -z "$sample" ] || [ ! -s "$folder/meshes" ]; then
        { echo 'use "model.dtm"'; echo 'mesh { one = 1 }'; } >"$folder/placed.dtm"
        run "$name one"
    fi
    while IFS=: read -r mesh rules; do
        { echo 'use "model.dtm"'; echo "mesh { $mesh }"; echo "parallel { $rules }"; } >"$folder/placed.dtm"
        run "$name $mesh:$rules"
    done <"$folder/meshes"
done
# The rows that compute; neg is printed as -x, and expand only where its operand needs dimensions (canonicalize).
rows=$(sed -n '/---- elementwise/,/---- known to/s/^OP([A-Z_]*, *"\([a-z_]*\)".*/\1/p' "$here/../../ir/ops.def" |
    sort -u | grep -vxE 'neg|expand')
for name in ${all:+$rows}; do
    grep -q "= $name(" "$folder/all" || { echo "FAILED no program has $name"; failed=$((failed + 1)); }
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
