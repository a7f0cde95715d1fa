#!/usr/bin/env bash
# Runs the tests with a NIF built with the address and undefined behaviour sanitizers. Arguments go to mix test.
set -euo pipefail
cd "$(dirname "$0")/.."
export MIX_ENV=test MIX_BUILD_PATH=${MIX_BUILD_PATH:-$PWD/_build/sanitize}
export CFLAGS="-g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
export LDFLAGS="-fsanitize=address,undefined"
mix compile --warnings-as-errors
# The BEAM itself is not instrumented: the runtimes come first, and what it leaks on exit is not asked about.
preload=$(${CC:-cc} -print-file-name=libasan.so):$(${CC:-cc} -print-file-name=libubsan.so)
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
exec env LD_PRELOAD="$preload" mix test "$@"
