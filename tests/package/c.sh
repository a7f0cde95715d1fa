#!/usr/bin/env bash
# The packages for C, each installed where nothing else is, and its smallest program: c.sh PACKAGES SCRATCH
set -euo pipefail
packages=$1 scratch=$2
steps=$PWD/build/parity/steps.bin # what tests/parity/record.py recorded
row() { printf '%-30s' "$1"; }
die() { printf '%s\n' "$*" >&2; exit 1; }

tar -C "$scratch" -xzf "$packages"/gradscaler-*.tar.gz
source=$(echo "$scratch"/gradscaler-*)
example=$source/bindings/c/examples
cmake -G Ninja -S "$source" -B "$scratch/build" >/dev/null
cmake --build "$scratch/build" -- --quiet
cmake --install "$scratch/build" --prefix "$scratch/prefix" >/dev/null
cmake -G Ninja -S "$example" -B "$scratch/example" -DCMAKE_PREFIX_PATH="$scratch/prefix" >/dev/null
cmake --build "$scratch/example" --target train_step -- --quiet
row 'sources, CMake'
"$scratch/example/train_step"

# One file: the same bits as those of the sources, whatever a compiler does without being asked.
one=$scratch/one
mkdir "$one"
cp "$packages"/gradscaler.[ch] "$one"
for compiler in gcc clang; do
  for option in -UGSC_NO_CUDA -DGSC_NO_CUDA; do
    $compiler -std=c11 -Wall -Wextra -Wpedantic -Wconversion -Werror $option -fsyntax-only "$one/gradscaler.c"
  done
done
digests() { # OBJECT: on each instruction set that there may be
  local rung
  gcc -O2 -D_POSIX_C_SOURCE=200809L -I"$one" "$source/tests/parity/parity.c" "$1" -o "$1.parity" -pthread -lm
  for rung in '' scalar avx2; do GSC_CPU=$rung "$1.parity" "$steps"; done
}
wanted=$(digests "$(find "$scratch/prefix" -name libgradscaler.a)")
compile() { # COMPILER [FLAG...]: as a user does
  local object=$one/$1.o
  "$@" -O2 -c "$one/gradscaler.c" -o "$object"
  [ "$(digests "$object")" = "$wanted" ] || die "$*: the bits of the one file differ from those of the sources"
  g++ -std=c++17 -I"$one" -x c++ "$example/train_step.c" -x none "$object" -o "$object.step" -pthread -lm
  row "one file, $*"
  "$object.step"
}
compile gcc &
compile clang -DGSC_NO_CUDA
wait $!
row 'one file'
echo "$(stat -c %s "$one/gradscaler.c") bytes; compiled $(size "$one/gcc.o" | awk 'END {print $1}'), without CUDA $(size "$one/clang.o" | awk 'END {print $1}')"
