#!/bin/sh
# The house stands as drawn: frontend -> ir <- passes; codegen -> ir, kernels; runtime -> kernels; runtime/plan.h and what
# it includes are the only thing compiler and runtime share. Only dtmc's main (frontend/dtmc) sees every folder.
set -eu
cd "$(dirname "$0")/.."
bad=0

# allow FOLDER PATTERN: files of a folder include of the house only what matches
allow() {
    for file in $(find "$1" -maxdepth "${3:-9}" -name '*.[chly]' ! -name 'test_*' | sort); do
        for header in $(sed -n 's/^# *include "\([^"]*\)".*/\1/p' "$file"); do
            case $header in ir/fault.h) continue ;; */*) ;; *) continue ;; esac # ir/fault.h: seeded faults, for tests
            if ! echo "$header" | grep -qE "^($1|$2)"; then
                echo "$file includes $header"
                bad=1
            fi
        done
    done
}

shared='runtime/(comm/algorithm|sha256)\.h'
allow ir "$shared"
allow frontend 'ir/' 1
allow passes "ir/|$shared"
allow codegen "ir/|kernels/|runtime/plan\.h|$shared"
allow kernels '$'
allow runtime 'kernels/'
exit $bad
