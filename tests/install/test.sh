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
  printf 'find_package, %-7s ' $kind
  "$prefix/$kind/train_step"
done

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name gradscaler.pc)")
export PKG_CONFIG_PATH
flags() { pkg-config "$@" gradscaler; }
libdir=$(flags --variable=libdir)
gcc -std=c11 $(flags --cflags) $example/train_step.c -o "$prefix/c11" $(flags --libs) "-Wl,-rpath,$libdir"
printf 'pkg-config, C11       ' && "$prefix/c11"
g++ -std=c++17 $(flags --cflags) -x c++ $example/train_step.c -o "$prefix/cpp17" $(flags --libs) "-Wl,-rpath,$libdir"
printf 'pkg-config, C++17     ' && "$prefix/cpp17"
gcc -std=c11 $(flags --cflags) $example/train_step.c -o "$prefix/static11" "$libdir/libgradscaler.a" -lm -pthread
printf 'libgradscaler.a       ' && "$prefix/static11"
