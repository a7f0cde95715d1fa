#!/usr/bin/env bash
# OSS-Fuzz's build: it has compilers and sanitizers in CC, CXX, CFLAGS and CXXFLAGS, the engine in LIB_FUZZING_ENGINE.
set -eu
export CFLAGS="$CFLAGS -DGSC_SANITIZED"
cmake -G Ninja -S "$SRC/gradscaler" -B "$WORK/build" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DGSC_TESTS=ON -DGSC_WERROR=OFF \
  -DGSC_FUZZ_ENGINE="$LIB_FUZZING_ENGINE"
cmake --build "$WORK/build" --target fuzz
cp "$WORK/build/tests/fuzz/fuzz" "$OUT/"
python3 "$SRC/gradscaler/tests/fuzz/seeds.py" "$WORK/seeds"
(cd "$WORK/seeds" && python3 -m zipfile -c "$OUT/fuzz_seed_corpus.zip" ./*)
printf '[libfuzzer]\nmax_len = 1024\nlen_control = 0\n' >"$OUT/fuzz.options"
