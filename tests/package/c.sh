#!/usr/bin/env bash
# The packages for C, each installed where nothing else is, and its smallest program: c.sh PACKAGES SCRATCH
set -euo pipefail
packages=${1:?} scratch=${2:?}
steps=$PWD/build/parity/steps.bin # what tests/parity/record.py recorded
row() { printf '%-30s' "$1"; }
die() { printf '%s\n' "$*" >&2; exit 1; }

tar -C "$scratch" -xzf "$packages"/gradscaler-[0-9]*.tar.gz
source=$(echo "$scratch"/gradscaler-[0-9]*)
example=$source/bindings/c/examples
cmake -G Ninja -S "$source" -B "$scratch/build" >/dev/null
cmake --build "$scratch/build" -- --quiet
cmake --install "$scratch/build" --prefix "$scratch/prefix" >/dev/null
cmake -G Ninja -S "$example" -B "$scratch/example" -DCMAKE_PREFIX_PATH="$scratch/prefix" >/dev/null
cmake --build "$scratch/example" --target train_step -- --quiet
row 'sources, CMake'
"$scratch/example/train_step"

# One file: it gives the same bits as the sources, whatever a compiler does without being asked.
one=$scratch/one
mkdir "$one"
cp "$packages"/gradscaler*.[ch] "$one"
for compiler in gcc clang; do
  for option in -UGSC_NO_CUDA -DGSC_NO_CUDA; do
    $compiler -std=c11 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror $option -fsyntax-only "$one/gradscaler.c"
  done
done
digests() { # OBJECT: on each instruction set that there may be
  local name
  gcc -O2 -D_POSIX_C_SOURCE=200809L -I"$one" "$source/tests/parity/parity.c" "$1" -o "$1.parity" -pthread -lm
  for name in '' scalar avx2; do GSC_CPU=$name "$1.parity" "$steps"; done
}
wanted=$(digests "$(find "$scratch/prefix" -name libgradscaler.a)")
compile() { # COMPILER [FLAG...]: as a user does
  local object=$one/$1.o
  "$@" -O2 -c "$one/gradscaler.c" -o "$object"
  [ "$(digests "$object")" = "$wanted" ] || die "$*: the one file gives other bits than the sources"
  g++ -std=c++17 -I"$one" -x c++ "$example/train_step.c" -x none "$object" -o "$object.step" -pthread -lm
  row "one file, $*"
  "$object.step"
}
compile gcc &
compile clang -DGSC_NO_CUDA
wait $!
row 'one file'
echo "$(stat -c %s "$one/gradscaler.c") bytes; compiled $(size "$one/gcc.o" | awk 'END {print $1}'), without CUDA $(size "$one/clang.o" | awk 'END {print $1}')"

# The same program as those do who have gradscaler by Meson and by Conan.
tools=$PWD/build/venv/bin
mkdir -p "$scratch/meson/subprojects/packagefiles"
cp "$example/train_step.c" "$scratch/meson"
cp "$packages/gradscaler.wrap" "$scratch/meson/subprojects"
cp "$packages"/gradscaler-meson-*.tar.gz "$scratch/meson/subprojects/packagefiles"
cat >"$scratch/meson/meson.build" <<'END'
project('user', 'c')
executable('train_step', 'train_step.c', dependencies: dependency('gradscaler'))
END
quietly() { "$@" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; return 1; }; }
CFLAGS=-O0 quietly "$tools/meson" setup "$scratch/meson/build" "$scratch/meson" # not optimised: the code is tested above
quietly ninja -C "$scratch/meson/build"
row Meson
"$scratch/meson/build/train_step"
soname=$(readelf -d "$(find "$scratch/prefix" -name libgradscaler.so)" | sed -n 's/.*SONAME.*\(\[.*\]\)/\1/p')
readelf -d "$scratch/meson/build/train_step" | grep -F "${soname:?}" >/dev/null || die "Meson's library is not $soname, as CMake's is"

export CONAN_HOME=$scratch/conan
quietly "$tools/conan" profile detect
quietly "$tools/conan" create "$source/packaging" --settings build_type=Debug --options '&:cuda=False'
( # where it leaves what it leaves beside a CMakeLists.txt
  cd "$scratch"
  quietly "$tools/conan" install --requires 'gradscaler/[>=0]' --settings build_type=Debug --options 'gradscaler/*:cuda=False' \
    --generator CMakeDeps --generator CMakeToolchain --output-folder conan-user
)
cmake -G Ninja -S "$example" -B "$scratch/conan-user/build" -DCMAKE_BUILD_TYPE=Debug \
  -DCMAKE_TOOLCHAIN_FILE="$scratch/conan-user/conan_toolchain.cmake" >/dev/null
cmake --build "$scratch/conan-user/build" --target train_step -- --quiet
row Conan
"$scratch/conan-user/build/train_step"
echo "NOT RUN: vcpkg, as no package index has its tool; its port is made of the sources above"
