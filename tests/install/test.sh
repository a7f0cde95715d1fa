#!/usr/bin/env bash
# Builds the C example as users do, against an installed copy and with the sources in its own tree: test.sh BUILD_DIR
# shellcheck disable=SC2046,SC2206,SC2207 # the words of pkg-config are arguments
set -euo pipefail
build=$1
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
example=bindings/c/examples
die() { printf '%s\n' "$*" >&2; exit 1; }
row() { printf '%-24s' "$1"; }

cmake --install "$build" --prefix "$prefix" >/dev/null
found() { # NAME FOLDER KIND: by find_package, which looks in the folder
  cmake -G Ninja -S $example -B "$prefix/$1" -DCMAKE_PREFIX_PATH="$2" -Dkind="$3" >/dev/null
  cmake --build "$prefix/$1" -- --quiet
  row "find_package, $1"
  "$prefix/$1/train_step"
}
for kind in gradscaler shared static; do found $kind "$prefix" $kind; done
found 'a build folder' "$(realpath "$build")" gradscaler

mkdir "$prefix/other"
printf '%s\n' 'cmake_minimum_required(VERSION 3.22)' 'project(other C)' 'find_package(gradscaler 0.9 REQUIRED)' >"$prefix/other/CMakeLists.txt"
! cmake -S "$prefix/other" -B "$prefix/other/build" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null 2>&1 ||
  die 'find_package takes a program of 0.9, which has another ABI'

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name gradscaler.pc)")
export PKG_CONFIG_PATH
flags() { pkg-config "$@" gradscaler; }
libdir=$(flags --variable=libdir)
compile() { # NAME COMPILER [FLAG...]: the example, run; flags may hold libraries
  local name=$1
  shift
  "$@" $(flags --cflags) -o "$prefix/program"
  row "$name"
  "$prefix/program"
}
shared=($(flags --libs) "-Wl,-rpath,$libdir")
static=(-DGSC_STATIC "$libdir/libgradscaler.a" -lm -pthread)
c=(gcc -std=c11 $example/train_step.c)
cpp=(g++ -std=c++17 -x c++ $example/train_step.c -x none)
compile 'pkg-config, C11' "${c[@]}" "${shared[@]}"
compile 'pkg-config, C++17' "${cpp[@]}" "${shared[@]}"
compile 'pkg-config --static, which finds the shared library' "${c[@]}" $(flags --static --cflags --libs) "-Wl,-rpath,$libdir"
compile 'pkg-config --static, which is told -static' "${c[@]}" -static $(flags --static --cflags --libs) 2> >(grep -v -e dlopen -e 'In function' >&2)
compile 'static, C11' "${c[@]}" "${static[@]}"
compile 'static, C++17' "${cpp[@]}" "${static[@]}"
compile 'policy only' gcc tests/install/update_only.c "${static[@]}" -s -Wl,--gc-sections
size=$(stat -c %s "$prefix/program")
echo "$size bytes"
((size < 100000)) || die 'a program that only updates should hold no kernels'

# Directories of an installation may be absolute.
cmake -G Ninja -S . -B "$prefix/absolute" -DCMAKE_INSTALL_LIBDIR="$prefix/elsewhere" >/dev/null
libdir=$(PKG_CONFIG_PATH=$prefix/absolute flags --variable=libdir)
[ "$libdir" = "$prefix/elsewhere" ] || die "libdir is $libdir"

# Without a build type, and joined into large files: the library is optimised all the same, and has no warning flags. It
# compiles with those of the project.
cmake -G Ninja -S tests/install -B "$prefix/embedder" -DCMAKE_UNITY_BUILD=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
  -DCMAKE_C_FLAGS='-Wshadow -Werror' >/dev/null
cmake --build "$prefix/embedder" -- --quiet
row add_subdirectory
"$prefix/embedder/train_step"
commands=$(grep -h '"command".*core/' "$prefix/embedder/compile_commands.json")
[[ $commands != *-Wall* ]] || die 'warnings are for those who asked'
! grep -qv -e -O3 <<<"$commands" || die 'not optimised'
exported=$(nm -D --defined-only "$prefix"/embedder/libplugin.so | grep gsc_ || true)
[ -z "$exported" ] || die "a static copy is visible to others: $exported"
[ ! -e "$prefix/embedder/gradscaler/cmake_install.cmake" ] || ! grep -q libgradscaler "$prefix/embedder/gradscaler/cmake_install.cmake" ||
  die 'the library installs itself where it was only included'

# One kind, where it is asked for, and without CUDA: smaller, and it says so.
cmake -G Ninja -S . -B "$prefix/dynamic" -DBUILD_SHARED_LIBS=ON >/dev/null
[[ $(ninja -n -v -C "$prefix/dynamic") != *libgradscaler.a* ]] || die 'BUILD_SHARED_LIBS=ON builds a static library'
cmake -G Ninja -S . -B "$prefix/no-cuda" -DBUILD_SHARED_LIBS=OFF -DGSC_CUDA=OFF -DCMAKE_BUILD_TYPE=Debug >/dev/null
cmake --build "$prefix/no-cuda" -- --quiet
cmake --install "$prefix/no-cuda" --prefix "$prefix/one-kind" >/dev/null
[ -z "$(find "$prefix/no-cuda" "$prefix/one-kind" -name '*.so*')" ] || die 'BUILD_SHARED_LIBS=OFF builds a shared library'
PKG_CONFIG_PATH=$(dirname "$(find "$prefix/one-kind" -name gradscaler.pc)")
compile 'static alone, no CUDA' gcc -std=c11 tests/install/no_cuda.c $(flags --libs)
