#!/usr/bin/env bash
# Installs a build into a temporary prefix and compiles the C example against it: test.sh BUILD_DIR
set -euo pipefail
build=$1
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
example=bindings/c/examples

cmake --install "$build" --prefix "$prefix" >/dev/null
for kind in shared static; do
  cmake -G Ninja -S $example -B "$prefix/$kind" -DCMAKE_PREFIX_PATH="$prefix" -Dkind=$kind >/dev/null
  cmake --build "$prefix/$kind" -- --quiet
  printf '%-24s' "find_package, $kind"
  "$prefix/$kind/train_step"
done

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name gradscaler.pc)")
export PKG_CONFIG_PATH
flags() { pkg-config "$@" gradscaler; }
libdir=$(flags --variable=libdir)
compile() { # NAME COMPILER [FLAG...]: the example, run; flags may hold libraries
  local name=$1
  shift
  "$@" $(flags --cflags) -o "$prefix/program"
  printf '%-24s' "$name"
  "$prefix/program"
}
shared=($(flags --libs) "-Wl,-rpath,$libdir")
static=("$libdir/libgradscaler.a" -lm -pthread)
c=(gcc -std=c11 $example/train_step.c)
cpp=(g++ -std=c++17 -x c++ $example/train_step.c -x none)
compile 'pkg-config, C11' "${c[@]}" "${shared[@]}"
compile 'pkg-config, C++17' "${cpp[@]}" "${shared[@]}"
compile 'static, C11' "${c[@]}" "${static[@]}"
compile 'static, C++17' "${cpp[@]}" "${static[@]}"
