#!/bin/sh
# Trains the models of the benchmark with dtm and with its peers, in interleaved rounds, and prints the table.
#
#   PYTHON=venv/bin/python LLMC=llm.c sh bench/run.sh [ROUNDS [RESULTS]]
#
#   DTMC=build/release/frontend/dtmc   the compiler; by default that of build/release
#   PYTHON=python3                     with torch, jax, optax and numpy
#   LLMC=                              a checkout of github.com/karpathy/llm.c; without it, that row is left out
#   FILTER=.                           runs only what matches: 'dtm|torch-eager', 'llama-small', '^dtm-tp gpt'
#   SECONDS_EACH=3                     of measured steps a row and round, at least three steps
#   PEAK_GFLOPS=                       the matrix peak, where the filter leaves its measurement out
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
python=$(command -v "${PYTHON:-python3}") || exit 1
case $python in /*) ;; *) python=$PWD/$python ;; esac # not realpath: a venv's python is a link
dtmc=$(realpath "${DTMC:-$root/build/release/frontend/dtmc}") llmc=${LLMC:+$(realpath "$LLMC")}
rounds=${1:-3} results=$(realpath -m "${2:-$here/results.jsonl}")
seconds=${SECONDS_EACH:-3} filter=${FILTER:-.}
if [ ! -x "$dtmc" ]; then
    echo "bench: there is no $dtmc: cmake --preset release && cmake --build --preset release, or set DTMC" >&2
    exit 1
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$here/peers" || exit 1
export TORCHINDUCTOR_CACHE_DIR="$tmp/inductor" PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore
gcc -O2 -fopenmp peak.c -ldnnl -o "$tmp/peak" || exit 1
# MKL, which torch links, chooses its code by the processor's maker; with this it takes every processor for Intel's.
echo 'int mkl_serv_intel_cpu_true(void) { return 1; }' >"$tmp/mkl.c"
gcc -shared -fPIC "$tmp/mkl.c" -o "$tmp/mkl.so" || exit 1
: >"$results"

peer() { # peer NAME MODEL COMMAND...
    name=$1 model=$2
    shift 2
    echo "$name $model" | grep -qE "$filter" || return
    "$python" watch.py "$round" 900 "$@" 2>"$tmp/log" >"$tmp/row" || {
        echo "$name $model failed:" >&2
        tail -3 "$tmp/log" >&2
        return
    }
    tee -a "$results" <"$tmp/row"
}
dtm() { # dtm SYSTEM MODEL OPTION...
    name=$1 model=$2
    shift 2
    peer "$name" "$model" "$python" dtm_peer.py --dtmc "$dtmc" --model "$model" --seconds "$seconds" "$@"
}
torch() { # torch MODE MODEL OPTION...
    mode=$1 of=$2
    shift 2
    peer "torch-$mode" "$of" "$python" torch_peer.py --mode "$mode" --model "$of" --seconds "$seconds" "$@"
}
jax() { peer "jax-$1" "$2" "$python" jax_peer.py --mode "$1" --model "$2" --seconds "$seconds"; }
mkl() {
    mode=$1 of=$2
    shift 2
    peer "torch-$mode+mkl" "$of" env LD_PRELOAD="$tmp/mkl.so" SUFFIX=+mkl "$python" torch_peer.py \
        --mode "$mode" --model "$of" --seconds "$seconds" "$@"
}
llm() { [ -z "$llmc" ] || peer llm.c "$1" "$python" llmc_peer.py --llmc "$llmc" --model "$1" --seconds "$seconds"; }

for round in $(seq "$rounds"); do
    for n in 1 2; do
        peer peak onednn env OMP_NUM_THREADS=$n "$tmp/peak"
        peer peak numpy+torch "$python" peak.py $n
        peer peak torch+mkl env LD_PRELOAD="$tmp/mkl.so" SUFFIX=+mkl "$python" peak.py $n
    done
    measured=$("$python" table.py --peak "$results")
    [ "$measured" = nan ] || export PEAK_GFLOPS="$measured"
    for model in llama-small gpt-small llama-110m gpt-124m; do
        dtm dtm $model --mode one
        torch eager $model
        mkl eager $model
        jax jit $model
        torch compile $model
        mkl compile $model
        dtm dtm-dp $model --mode dp
        case $model in
        llama-small)
            for mode in ddp tp; do torch $mode $model; mkl $mode $model; done
            for mode in dp tp; do jax $mode $model; done
            for schedule in gpipe 1f1b; do
                torch pp $model --schedule $schedule
                mkl pp $model --schedule $schedule
                dtm dtm-pp $model --mode pp --schedule $schedule
            done
            dtm dtm-pp $model --mode pp --schedule zbh1
            ;;
        esac
        dtm dtm-tp $model --mode tp
        dtm dtm-dp-local $model --mode dp --local
        dtm dtm-tp-local $model --mode tp --local
        case $model in
        gpt-small) llm $model ;;
        gpt-124m) [ "$round" -gt 1 ] || llm $model ;; # half a minute a step
        esac
    done
done
"$python" table.py "$results"
