#!/usr/bin/env bash
# The packages for C, each installed where nothing else is, and its smallest program: c.sh PACKAGES SCRATCH
set -euo pipefail
packages=$1 scratch=$2
row() { printf '%-24s' "$1"; }

tar -C "$scratch" -xzf "$packages"/gradscaler-*.tar.gz
source=$(echo "$scratch"/gradscaler-*)
cmake -G Ninja -S "$source" -B "$scratch/build" >/dev/null
cmake --build "$scratch/build" -- --quiet
cmake --install "$scratch/build" --prefix "$scratch/prefix" >/dev/null
cmake -G Ninja -S "$source/bindings/c/examples" -B "$scratch/example" -DCMAKE_PREFIX_PATH="$scratch/prefix" >/dev/null
cmake --build "$scratch/example" --target train_step -- --quiet
row 'sources, CMake'
"$scratch/example/train_step"
