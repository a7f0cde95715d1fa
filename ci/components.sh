# The builds and tests of ci/test, in the order in which they start; sourced after setup.sh, never run. ci/test reads the
# line above each: the seconds that it takes alone on two processors; `after` these builds; packages of `debian`; sets of
# ci/locks for `python`, and `more_python` with --all; `levels` that run it, as --all does.
level=$1 # quick, default, all
long=$2  # yes, or empty
only=$3  # one test, or empty
order=$4 # random, or empty

# at_least LEVEL
at_least() { case $1 in default) [ "$level" != quick ] ;; all) [ "$level" = all ] ;; esac }

# Each runs tests of one kind; if $only is a test of another, none.
# shellcheck disable=SC2053 # $1 is a pattern
mine() { [ -z "$only" ] || [[ $only == $1 ]]; }

# check NAME COMMAND...
check() {
  mine "$1" || return 0
  "${@:2}" || { echo "CHECK FAILED: $1"; return 1; }
}

# pytests PATH [OPTION...]
pytests() {
  mine "${1%.py}*.py::*" || return 0
  $python -m pytest "${only:-$1}" "${@:2}" --durations 20 --durations-min 5 ${order:+--random-order}
}

# ctests PRESET LABEL [OPTION...]
ctests() {
  [[ $only != *:* ]] || return 0
  ctest --preset "$1" -L "$2" "${@:3}" ${only:+-R "^$only\$"} ${order:+--schedule-random} --no-tests=ignore
}

# cargo_tests [OPTION...]
cargo_tests() {
  [[ $only != *.py::* ]] || return 0
  cargo test --quiet "$@" ${only:+"$only"}
}

# mix_tests COMMAND [OPTION...], in bindings/elixir; one at a time, as they compile to one folder
mix_tests() {
  mine 'test/*.exs:*' || return 0
  flock "$MIX_BUILD_PATH.lock" "$@" ${only:+"$only"}
}

# 130 s; debian g++ catch2 libffi-dev
build_release() {
  if at_least default; then build release; else build release core_tests gradscaler_static; fi
}

# 20 s; after release; debian python3-dev; python build
build_wheel() { python_binding; }
# 20 s; after release; debian elixir erlang-dev make gcc
build_nif() { elixir_binding; }
# 20 s; after release; debian cargo rustfmt
build_crate() { rust_binding; }

# 12 s; debian clang-format make shellcheck; python format; levels quick
test_format() { # layout is decided by the formatters; shell scripts, spelling, workflows; ci/test itself; recipes delete nothing outside their folder; no sentence is torn
  check runner tests/ci/runner_test.py
  check paths tests/ci/paths_test.py
  check comments tests/ci/comments_test.py
  check workflows $python tests/ci/workflows_test.py
  check links bash -c '! git ls-files --stage | grep ^120000' # Windows checks them out as text
  local sources scripts texts
  sources=$(git ls-files '*.c' '*.h' '*.cpp' '*.cu' ':!include' ':!tests/abi/released' | grep -vxF \
    -e core/layout.h -e bindings/elixir/c_src/gradscaler_nif.c)
  scripts=$(git ls-files ci/*.sh packaging/*.sh && git grep -lE '^#!.*[/ ](ba)?sh$' -- bindings ci packaging tests)
  texts=$(git ls-files ':!*.lock' ':!ci/locks' ':!*.json' ':!*.svg' ':!core/cuda/ptx.c')
  check clang-format clang-format --dry-run --Werror $sources
  check ruff $python -m ruff check --quiet --config bindings/python/pyproject.toml . ci/test ci/lock ci/installed
  check ruff-format $python -m ruff format --quiet --check --config bindings/python/pyproject.toml . ci/test ci/lock ci/installed
  # Not what is wrong only without setup.sh: names of others (SC1090, SC2034, SC2154), a cd that can fail (SC2164).
  check shellcheck shellcheck --shell=bash --severity=warning --exclude=SC1090,SC2034,SC2154,SC2164 $scripts
  check codespell $python -m codespell_lib --ignore-words-list \
    arithmetics,childs,datas,factorin,inout,missings,overflw,recomended,reenable,ser $texts
}

# 20 s; debian clang
test_generate() { # the generated files match the manifest and the CUDA kernels
  check generate ci/generate --check
}

# 60 s; after release; levels quick default
test_core() { # Catch2 on every instruction set of this machine
  if at_least default; then ctests release core; else ctests release core -E core_scalar; fi
  local tests=build/release/tests/core/core_tests
  [ -z "$order" ] || check core-in-random-order $tests --order rand --rng-seed time
  $tests '[instruction_sets]' | sed -n 's/^instruction sets/NOTE: &/p'
  if at_least all && [ "$(uname -m)" = x86_64 ] && ! grep -qw avx2 /proc/cpuinfo; then
    packages qemu-user-static
    say "AVX2 under qemu"
    check core-avx2-emulated qemu-x86_64-static -cpu max $tests '[kernels]~[long],[convert],[info],[tensors]~[threads]~[long]'
  fi
}

# 150 s; after wheel; python torch; more_python trainers; levels default
test_torch() { # gradscaler.torch beside torch's own class: call by call, in recipes, and with --all in real programs
  export OMP_NUM_THREADS=1
  if ! at_least all; then
    pytests bindings/python/tests/with_torch -n 2 --ignore bindings/python/tests/with_torch/test_programs.py
    return
  fi
  pytests bindings/python/tests/with_torch -n 2 ${long:+--long}
  LD_LIBRARY_PATH=$PWD/build/release/tests/cuda/emulated pytests bindings/python/tests/with_torch/test_device.py
  say "once more by torch's own operations, as on devices without kernels"
  GSC_TORCH_PATH=torch pytests bindings/python/tests/with_torch/test_{gradscaler,guard,losses,compile,same_as_torch}.py -n 2
  [ -n "$long" ] || pytests bindings/python/tests/with_torch/test_recordings.py -n 2 --long
  say "what ci/gpu does with torch, on the CPU"
  check gpu-torch $python tests/bench/gpu_python.py torch short >/dev/null
  check gpu-train $python tests/bench/gpu_python.py train short >/dev/null
}

# 60 s; after crate; debian pkg-config; levels default
test_rust() { # both crates: layout, tests, training; with --all lints, documentation, the oldest compiler, sanitizers
  rust_environment
  digits
  check digits build/rust/debug/examples/digits build/digits.bin
  local oldest='' build=$PWD/build
  if at_least all; then
    oldest=$(oldest_rust)
    build sanitize_gcc gradscaler_static
  fi
  cd bindings/rust
  check rustfmt cargo fmt --all --check
  cargo_tests
  at_least all || return 0
  if [ "$(rust_minor)" -ge 74 ]; then
    check clippy cargo clippy --quiet --workspace --all-targets -- -D warnings
  else
    say "NOT RUN: clippy, which reads this project's lints from Rust 1.74 on"
  fi
  [ -z "$oldest" ] || check oldest $oldest check --quiet --target-dir "$CARGO_TARGET_DIR/oldest"
  RUSTDOCFLAGS='-D warnings' check doc cargo doc --quiet --no-deps
  # The C core instrumented, the Rust code as it is: its allocations are seen all the same. A target of its own
  # keeps the flags away from build scripts; the default libraries are what the compiler adds the runtime to.
  local host link='-Cdefault-linker-libraries=yes -Clink-arg=-fsanitize=address,undefined'
  host=$(rustc -vV | sed -n 's/^host: //p')
  GRADSCALER_LIB_DIR=$build/sanitize_gcc RUSTFLAGS=$link RUSTDOCFLAGS=$link \
    cargo_tests --target "$host" --target-dir "$CARGO_TARGET_DIR/sanitize"
}

# 30 s; after nif; levels default
test_elixir() { # layout, warnings, tests, and with --all the tests under sanitizers; of Nx where ERL_LIBS or NX_PATH has it
  elixir_environment
  digits
  check digits elixir -pa build/elixir/lib/gradscaler/ebin bindings/elixir/examples/digits.exs build/digits.bin
  local build=$PWD/build
  ! at_least all || build sanitize_gcc gradscaler_static
  cd bindings/elixir
  check mix-format mix format --check-formatted
  mix_tests mix test --warnings-as-errors
  at_least all || return 0
  MIX_BUILD_PATH=$build/elixir-sanitize GRADSCALER_LIB_DIR=$build/sanitize_gcc mix_tests test/sanitize.sh
  if has_hex; then
    MIX_ENV=dev MIX_BUILD_PATH=$build/elixir-docs mix 'do' deps.get, docs --output "$build/elixir-docs/html"
  else
    say "NOT RUN: mix docs, as ExDoc comes with Hex, which is not installed"
  fi
}

# 60 s; after wheel; python python; more_python audit; levels quick default
test_python() { # the wheel, its tests, its stable ABI
  compgen -G 'build/wheel/gradscaler-*-cp311-abi3-*.whl'
  pytests bindings/python/tests -n 2
  digits
  check digits $python bindings/python/examples/digits.py build/digits.bin
  ! at_least all || check stable-abi $python -m abi3audit --strict --assume-minimum-abi3 3.11 build/wheel/*.whl
}

# 60 s; after wheel nif crate; python torch griffe; more_python site browser; levels default
test_docs() { # README and the page of each language: every example runs; with --all guides and references make one site
  pytests tests/docs
  ! at_least all || check site ci/docs --look
}

# 120 s; after wheel nif crate; python python; levels default
test_demo() { # the demo keeps its promises, with every matrix kernel that this processor can run; four languages give the same bits
  check demo ci/demo
  check kernels $python tests/demo/kernels.py --threads 1 ${long:+2}
}

# 40 s; after wheel nif crate; python jax; levels default
test_replay() { # all recordings in every language
  check recordings ci/replay
}

# 5 s; after release; levels default
test_abi() { # recipes in C and C++, foreign clients, clients of older headers and of each release
  ctests release abi
}

# 5 s; after release; python python; levels quick default
test_c() { # the smallest training in C
  digits
  gcc -std=c11 -O2 -Iinclude bindings/c/examples/digits.c build/release/libgradscaler.a -lm -pthread -o build/c-digits
  check digits build/c-digits build/digits.bin
}

# 700 s; after wheel; debian g++ ninja-build pkg-config clang; python python package-tests
test_package() { # packages, each installed in a place of its own, with its smallest program; with --long the packages of all platforms
  recorded_steps
  local kind
  if [ -n "$long" ]; then ci/package; else ci/package --short; fi
  temporary=$(mktemp -d) # not local: the trap runs after this function
  trap 'rm -rf "$temporary"' EXIT
  scratch="$temporary/a (b) ä" # a user's folder can have any name
  mkdir "$scratch"
  for kind in packaging/*.sh; do
    kind=$(basename "$kind" .sh)
    mkdir "$scratch/$kind"
    say "installed: $kind"
    check "$kind" tests/package/"$kind".sh "$PWD/build/packages/$kind" "$scratch/$kind"
  done
  say "what the workflows do with the packages"
  check installed ci/installed python elixir
  check publish-page ci/publish --dry-run page
  check publish-elixir ci/publish --dry-run elixir
  if [ "$(rust_minor)" -ge 90 ]; then check publish-rust ci/publish --dry-run rust; fi
  say "what ci/release refuses"
  check release tests/package/release.sh "$scratch"
}

# 300 s; after wheel nif crate; python python
test_cuda() { # CUDA without a GPU: a stand-in for the driver, the PTX on an emulated device, and assembled for real ones
  local emulated=$PWD/build/release/tests/cuda/emulated cuda=build/nvidia/nvidia build=$PWD/build
  check ptx core/cuda/ptx.py --check
  ctests release cuda
  # A second compiler for the kernels, and the assemblers: only the one of CUDA 12 knows sm_70.
  nvidia
  check assemble-cuda12 $python tests/cuda/ptxas.py $cuda/cuda_nvcc/bin/ptxas sm_70 sm_86
  check assemble-cuda13 $python tests/cuda/ptxas.py $cuda/cu13/bin/ptxas sm_89 sm_100 sm_120
  say "the machine code of sm_75, sm_80 and sm_90: build/gpu_model.txt"
  check model ci/gpu --model --check >build/gpu_model.txt
  $cuda/cu13/bin/nvcc -ptx -arch=compute_75 -fmad=false -Werror all-warnings -Icore -Iinclude \
    -o build/release/nvcc.ptx core/cuda/kernels.cu
  say "what NVIDIA's compiler makes of the kernels, on the emulated device"
  cmake --build build/release --target cuda_nvcc -- --quiet
  LD_LIBRARY_PATH=$build/release/tests/cuda/nvcc check nvcc build/release/tests/cuda/gpu/gpu
  LD_LIBRARY_PATH=$emulated pytests bindings/python/tests/test_cuda.py
  say "ci/gpu, rehearsed with its Python groups"
  LD_LIBRARY_PATH=$emulated PYTHON=$python check rehearsal ci/gpu --short --programs build/release/tests/cuda/gpu \
    --only doctor,scaler,torch,train,cupy,jax build/gpu-report
  (
    elixir_environment
    cd bindings/elixir
    LD_LIBRARY_PATH=$emulated mix_tests mix test --only cuda
  )
  (
    rust_environment
    cd bindings/rust
    LD_LIBRARY_PATH=$emulated GRADSCALER_TEST_CUDA=1 cargo_tests -p gradscaler --test device
  )
}

# 200 s; debian g++ catch2 libffi-dev clang libclang-rt-14-dev
test_sanitize() { # address and undefined behaviour; clang's looks closer
  build sanitize
  ctests sanitize . -E '^cuda\.barriers$' # the code of the device has no sanitizer; cuda.gpu is the host's
}

# 150 s; debian g++ catch2 libffi-dev clang
test_clang() { # the other compiler, warnings as errors; the device's code, which it does not compile, is tested by cuda
  build clang
  ctests clang . -E '^(cuda\.(gpu|short_lists|barriers|rehearsal|model)|core_scalar)$'
}

# 150 s; after wheel; python jax-users torch
test_jax() { # gradscaler.jax: the handler in three versions of JAX's compiler, beside jmp, flax and eFormer, in training, on two devices
  JAX_PLATFORMS=cpu pytests bindings/python/tests/with_jax -n 2 ${long:+--long}
}

# 60 s; after release; debian python3-dev elixir erlang-dev rustc luajit; python build foreign
test_contract() { # what changes of the manifest do: mistakes are refused, additions work in four languages; and clients of cffi, LuaJIT and Zig
  check cffi $python tests/abi/client_cffi.py include/gradscaler.cdef build/release/libgradscaler.so
  check luajit luajit tests/abi/client.lua include/gradscaler.cdef build/release/libgradscaler.so
  mkdir -p build/zig
  (
    export ZIG_GLOBAL_CACHE_DIR=build/zig ZIG_LOCAL_CACHE_DIR=build/zig
    $python -m ziglang translate-c -lc include/gradscaler_cuda.h >build/zig/gradscaler.zig
    check zig $python -m ziglang run -lc --dep gradscaler -Mroot=tests/abi/client.zig -Mgradscaler=build/zig/gradscaler.zig \
      -Lbuild/release -lgradscaler -rpath "$PWD/build/release"
  )
  check mutations $python tests/abi/mutations.py build/contract build/release/libgradscaler.so
}

# 90 s; after wheel nif crate; python python
test_sentences() { # the words of messages are no contract: all but the tests of words passes where they are nonsense
  local build=$PWD/build/scrambled core=build/release/tests/core words='\b(message|why|rest|note)\b'
  check no-reader bash -c "! git grep -nP 'strstr\(|$words(\(\))?\.(r?split\w*|replace|find|contains|removeprefix|strip_prefix|starts_?with)\(|\b(re|Regex|String)\.[a-z_?]+\(.*$words|$words =~' \
    -- core ':!core/error.c' bindings/python/src 'bindings/python/*.[hi]' bindings/elixir/{lib,c_src} bindings/rust/gradscaler{,-sys}/src"
  build release core_tests_scrambled
  mkdir -p "$build"
  cp build/library/libgradscaler.a "$build"
  ar r "$build/libgradscaler.a" $core/CMakeFiles/core_tests_scrambled.dir/__/__/core/error.c.o
  export GRADSCALER_SCRAMBLED=1 GRADSCALER_LIB_DIR=$build
  local tag tags
  for tag in errors formats guard history loss metrics policy reason sentences state; do tags+=",[$tag]~[wording]~[arithmetic]"; done
  check core $core/core_tests_scrambled "${tags#,}"
  rm -rf "$build/python"
  PATH=$PWD/build/venv/bin:$PATH $python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    --target "$build/python" ./bindings/python
  (
    export PYTHONPATH=$build/python
    pytests bindings/python/tests -n 2 --ignore-glob '*/with_*' --ignore bindings/python/tests/test_pictures.py
  )
  (
    cd bindings/elixir
    MIX_ENV=test MIX_BUILD_PATH=$build/elixir mix_tests mix test --exclude wording
  )
  cd bindings/rust/gradscaler
  CARGO_TARGET_DIR=$build/rust CARGO_NET_OFFLINE=true cargo_tests --tests -- --skip wording
}

# 100 s; after release; debian g++ catch2 libffi-dev valgrind
test_thread() { # data races
  build thread core_tests
  check threads build/thread/tests/core/core_tests '[threads]'
  check helgrind valgrind -q --tool=helgrind --error-exitcode=1 build/release/tests/abi/recipe_threads_c99
}

# OSS-Fuzz's build, by the clang of this machine as its builder calls it, and some inputs.
oss_fuzz() {
  local base=$PWD/build/oss-fuzz flags='-O1 -g -fsanitize=address,fuzzer-no-link'
  rm -rf "$base"
  mkdir -p "$base"/{src,work,out}
  ln -s "$PWD" "$base/src/gradscaler"
  CC=clang CXX=clang++ CFLAGS=$flags CXXFLAGS=$flags LIB_FUZZING_ENGINE=-fsanitize=fuzzer SRC=$base/src WORK=$base/work OUT=$base/out \
    tests/fuzz/oss-fuzz/build.sh >"$base/log" 2>&1 || { tail -20 "$base/log"; return 1; }
  "$base/out/fuzz" -runs=2000 "$base/work/seeds" 2>&1 | tail -2
}

# 180 s; debian g++ catch2 libffi-dev clang libclang-rt-14-dev
test_fuzz() { # half a minute of inputs that look for trouble, with --long an hour; OSS-Fuzz's build
  check fuzz ci/fuzz $((${long:+3570} + 30))
  if [ -x build/fuzz/tests/fuzz/fuzz ]; then check oss-fuzz oss_fuzz; fi
}

# 60 s; after wheel; python torch
test_dropins() { # RoundPipe's and Cerebras' scalers: their recordings, random calls beside their own classes, threads, examples
  # The files of the scalers are read from their packages; what those need beside is not there.
  local package
  for package in roundpipe cerebras; do
    if ! locked --no-deps -r ci/locks/$package.txt 2>build/pip.log; then
      grep -q 'No matching distribution' build/pip.log || { cat build/pip.log >&2; return 1; }
      say "NOT RUN: beside $package, which has no package for this Python"
    fi
  done
  OMP_NUM_THREADS=1 pytests bindings/python/tests/dropins -n 2 ${long:+--long}
}

# 40 s; after wheel; python torch jax-users
test_checkpoints() { # theirs to ours to theirs, with the installed scalers of torch, flax, jmp and keras
  OMP_NUM_THREADS=1 pytests bindings/python/tests/checkpoints ${long:+--long}
}

# quietly COMMAND...: what it says of skipped steps is shown only where it fails.
quietly() {
  "$@" 2>build/ranks.log || { cat build/ranks.log >&2; return 1; }
}

# in_parts COMMAND...: a program on 1, 2 and 4 ranks of MPI, which must print the same.
in_parts() {
  local ranks said first=
  for ranks in 1 2 4; do
    said=$(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 quietly mpirun --oversubscribe -np $ranks "$@") || return
    printf '%d: %s\n' $ranks "$said"
    [ "$said" = "${first:=$said}" ] || { say "$ranks ranks do not print what 1 does"; return 1; }
  done
}

# 100 s; after wheel nif; debian openmpi-bin libopenmpi-dev clang; python torch jax mpi
test_ranks() { # several processes agree: training over MPI and Erlang nodes has the same weights on any number of ranks
  export OMP_NUM_THREADS=1
  digits
  mpicc -std=c11 -O2 -Iinclude bindings/c/examples/mpi_digits.c build/release/libgradscaler.a -lm -pthread -o build/c-mpi-digits
  check c-copies in_parts build/c-mpi-digits build/digits.bin copies
  check c-shards in_parts build/c-mpi-digits build/digits.bin shards
  check python in_parts $python -m mpi4py bindings/python/examples/mpi_digits.py build/digits.bin
  # The mpi crate makes its bindings with one that takes longer to compile than all the rest here.
  if [ -n "$long" ]; then
    if [ "$(rust_minor)" -ge 78 ]; then
      CARGO_TARGET_DIR=$PWD/build/rust-ranks cargo build --quiet --locked --release --manifest-path bindings/rust/ranks/Cargo.toml
      check rust in_parts build/rust-ranks/release/gradscaler-ranks build/digits.bin
    else
      say "NOT RUN: the mpi crate needs Rust 1.78 or newer, this is $(rustc --version)"
    fi
  fi
  check elixir quietly elixir -pa build/elixir/lib/gradscaler/ebin bindings/elixir/examples/ranks.exs build/digits.bin
  mpicc -std=c11 -O2 -Iinclude tests/ranks/over_mpi.c build/release/libgradscaler.a -lm -pthread -o build/over_mpi
  pytests tests/ranks ${long:+--long}
}

# 120 s; debian g++ catch2 libffi-dev gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user-static
test_neon() { # the core on 64-bit Arm, cross-compiled and emulated: its kernels, conversions and calls, but what takes long
  if [ "$(uname -m)" = aarch64 ]; then
    say "NEON is this machine's own: core tests it"
    return
  fi
  build neon core_tests
  printf '%s\n' '[kernels]~[long]' '[convert],[info],[tensors]~[threads]~[long]' |
    xargs -P 2 -n 1 qemu-aarch64-static -L /usr/aarch64-linux-gnu build/neon/tests/core/core_tests
}

# 120 s; debian g++ catch2 libffi-dev gcc-riscv64-linux-gnu g++-riscv64-linux-gnu qemu-user-static
test_riscv() { # the core on 64-bit RISC-V, emulated: plain C, where a NaN that goes through arithmetic loses sign and payload
  build riscv core_tests
  # Not what only computes.
  printf '%s\n' '[tensors]~[threads]~[long]' \
    '[convert],[info],[errors],[state],[policy]~[long]~[arithmetic]' |
    xargs -d '\n' -P 2 -n 1 qemu-riscv64-static -L /usr/riscv64-linux-gnu build/riscv/tests/core/core_tests
}

# 60 s; after wheel; debian qemu-user-static wine wine64 libc6-arm64-cross; python python zig
test_platforms() { # other systems and processors: built for all with --long, run under emulators, with this machine's bits
  recorded_steps
  check platforms $python tests/platforms/platforms.py ${long:+--long}
}

# 20 s; after release; debian pkg-config
test_install() { # a user's program against an installed copy
  check install tests/install/test.sh build/release
}

# 20 s; debian cargo
test_rust_targets() { # the crates compile for platforms that this machine is not, as far as rustup has their standard libraries
  local target
  for target in aarch64-unknown-linux-gnu riscv64gc-unknown-linux-gnu powerpc64le-unknown-linux-gnu aarch64-apple-darwin x86_64-pc-windows-gnu; do
    if rustup --quiet target add $target 2>build/rustup.log; then
      DOCS_RS=1 check $target cargo check --quiet --manifest-path bindings/rust/Cargo.toml -p gradscaler --target $target
    else
      say "NOT RUN: $target; rustup does not give its standard library: $(tail -n 1 build/rustup.log)"
    fi
  done
}

# 120 s; debian cargo rustfmt; python python
test_rust_companions() { # half, ndarray, serde, tracing and candle, from the registry; two of them train a model; with --long burn
  if [ "$(rust_minor)" -lt 85 ]; then
    say "NOT RUN: candle needs Rust 1.85 or newer, this is $(rustc --version)"
    return
  fi
  export CARGO_TARGET_DIR=$PWD/build/rust-companions
  digits
  local digits=$PWD/build/digits.bin
  cd bindings/rust/companions
  check rustfmt cargo fmt --all --check
  check clippy cargo clippy --quiet --locked --all-targets -- -D warnings
  cargo_tests --locked
  check half cargo run --quiet --locked -p gradscaler-half --example train
  check candle cargo run --quiet --locked -p gradscaler-candle --example digits "$digits"
  cargo build --quiet --locked -p gradscaler-candle --example loop
  check candle-loop ../../../$python ../../../tests/docs/loops.py docs/rust.md "$CARGO_TARGET_DIR/debug/examples/loop"
  [ -n "$long" ] || return 0
  if [ "$(rust_minor)" -lt 95 ]; then
    say "NOT RUN: burn needs Rust 1.95 or newer, this is $(rustc --version)"
    return
  fi
  cd gradscaler-burn # 250 packages that only it needs
  check burn-rustfmt cargo fmt --check
  check burn-clippy cargo clippy --quiet --locked --all-targets -- -D warnings
  cargo_tests --locked
  check burn cargo run --quiet --locked --example digits "$digits"
}
