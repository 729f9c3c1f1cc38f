#!/bin/sh
# shown.sh BIN [--run] PAGE..: what pages show of dtmc (in the folder BIN) is what it prints. A comment stands before such a block
# of code:
#
#     <!-- file: mlp.dtm -->                          the block is this file, for the commands of this page and those that follow
#     <!-- placed: mlp.dtm -->                        the block takes the place of its sections `mesh` and `parallel`
#     <!-- run -->                                    with --run: each line is a command that works (trainings take two steps)
#     <!-- shown: dtmc ir mlp.dtm --after shard -->   each line of the block comes, in this order, in what the command prints
#
# Commands find `examples` where they run. In a block `...` stands for lines left out, `..` at the end of a line for the rest of it; spaces may differ, and what a line of
# a dump says behind the operator (`@ 7`, `why ".."`, `# local ..`) may be left out.
set -eu
bin=$(cd "$1" && pwd)
shift
run=false
if [ "$1" = --run ]; then run=true; shift; fi
source=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/bin"
printf '#!/bin/sh\nshift\nexec sh %s/tests/mpirun "$@"\n' "$source" >"$folder/bin/mpirun" # mpirun -n N ..
chmod +x "$folder/bin/mpirun"
MPIRUN=${MPIRUN:-$(command -v mpirun || :)}
ln -s "$source/examples" "$folder/examples"
export MPIRUN SOURCE="$source" PATH="$folder/bin:$bin:$PATH"
good=true count=0

check() { # BLOCK OUTPUT
    awk '
        function plain(line, like) {
            if (like !~ /# local/) sub(/ *# local .*/, "", line)
            if (like !~ / why "/) sub(/ *why ".*"/, "", line)
            gsub(/ @ ("[^"]*":)?[0-9]+/, "", line)
            gsub(/[ \t]+/, " ", line)
            sub(/^ /, "", line)
            sub(/ $/, "", line)
            return line
        }
        NR == FNR { out[++n] = $0; next }
        /^ *\.\.\.$/ || /^ *$/ { next }
        {
            cut = $0 ~ /\.\."?$/
            wanted = plain($0, $0)
            sub(/ ?\.\."?$/, "", wanted)
            for (at++; at <= n; at++) {
                is = plain(out[at], $0)
                if (cut ? index(is, wanted) == 1 : is == wanted) break
            }
            if (at > n) { print "not printed, or not in this order: " $0; exit 1 }
        }' "$2" "$1"
}

for page; do
    # a block a file: block.1 has the commands that make it in block.1.is
    rm -f "$folder"/block.*
    awk -v to="$folder/block." '
        /^<!-- ((file|placed|shown): .*|run) -->$/ { is = $0; sub(/^<!-- /, "", is); sub(/ -->$/, "", is); next }
        /^```/ && inside { inside = 0; is = ""; next }
        /^```/ { inside = 1; if (is != "") { n = n + 1; print is >(to n ".is"); printf "" >(to n) } next }
        inside && is != "" { print >(to n) }
        !inside && !/^$/ { is = "" }' "$page"
    n=1
    while [ -e "$folder/block.$n.is" ]; do
        read -r kind rest <"$folder/block.$n.is"
        if [ "$kind" = file: ]; then
            cp "$folder/block.$n" "$folder/$rest"
        elif [ "$kind" = placed: ]; then
            awk 'NR == FNR { block = block $0 "\n"; next }
                /^(mesh|parallel) / { placed = 1 }
                /^train/ { printf "%s\n", block; placed = 0 }
                !placed' "$folder/block.$n" "$folder/$rest" >"$folder/placed"
            mv "$folder/placed" "$folder/$rest"
        elif [ "$kind" = run ]; then
            $run || { n=$((n + 1)); continue; }
            sed 's/ --steps [0-9]*//; s/ train / train --quiet --steps 2 /g' "$folder/block.$n" >"$folder/commands"
            if ! (cd "$folder" && sh -e commands) >"$folder/out" 2>&1; then
                echo "$page: a command does not work:"
                cat "$folder/commands" "$folder/out"
                good=false
            fi
        elif ! (cd "$folder" && sh -c "$rest") >"$folder/out" 2>&1 || ! check "$folder/block.$n" "$folder/out"; then
            echo "$page: $rest"
            cat "$folder/out"
            good=false
        fi
        count=$((count + 1)) n=$((n + 1))
    done
done
echo "$count blocks"
[ "$count" -gt 0 ] && $good
