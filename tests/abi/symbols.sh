#!/bin/sh
# SPDX-License-Identifier: MIT
# The shared library shows these to a linker: the functions of the signature table and nothing else,
# each with the version it came in; the name that programs remember; and that it is never unloaded,
# since a thread pool or a foreign runtime may still be inside it.
#
#     symbols.sh LIBRARY TABLE
set -u
export LC_ALL=C
library=$1
table=$2
scratch=$(mktemp -d) || exit
trap 'rm -rf "$scratch"' EXIT
failed=0

# say CLAIM OFFENDERS: the claim holds where nothing offends it.
say() {
    if [ -z "$2" ]; then
        echo "ok   $1"
    else
        echo "FAIL $1"
        echo "$2" | sed 's/^/     /'
        failed=$((failed + 1))
    fi
}

# missing TEXT PATTERN: complains where no line of the text matches.
missing() {
    echo "$1" | grep -Eq "$2" || echo "no \"$2\" in: $1"
}

# The version nodes themselves are absolute symbols (A).
nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sort > "$scratch/symbols"
sed 's/@.*//' "$scratch/symbols" > "$scratch/exported"
sed -n '/^const function/,$s/^{"\(gsc_[^"]*\)".*/\1/p' "$table" | sort > "$scratch/described"
dynamic=$(readelf -dW "$library")

say "only gsc_ symbols" "$(grep -v '^gsc_' "$scratch/symbols")"
say "each has a version" "$(grep -Ev '@@?GRADSCALER_(CUDA_)?[0-9]+\.[0-9]+$' "$scratch/symbols")"
say "all that is described is exported" "$(comm -13 "$scratch/exported" "$scratch/described")"
say "all that is exported is described" "$(comm -23 "$scratch/exported" "$scratch/described")"
abi=$(sed -n 's/^first = "\(0\.[0-9]*\|[1-9][0-9]*\).*/\1/p' "$(dirname "$0")/../../include/gradscaler.toml")
say "the SONAME" "$(missing "$(echo "$dynamic" | grep SONAME)" '\[libgradscaler\.so\.'"$abi"'\]')"
say "never unloaded" "$(missing "$(echo "$dynamic" | grep FLAGS_1)" 'NODELETE')"
echo "$failed failed"
exit "$failed"
