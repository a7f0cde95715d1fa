# Shared by the commands; sourced, never run. Everything they make is under build/.
set -euo pipefail
if [[ ${1-} == -h || ${1-} == --help ]]; then # the comment at the top of the command; nothing is installed
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
  exit
fi
unset CDPATH # with it "cd ci/.." can change into another project
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export ELIXIR_ERL_OPTIONS=+fnu # file names and output are UTF-8 whatever the locale

say() { printf '\n== %s\n' "$*"; }
die() { printf '%s\n' "$*" >&2; exit 1; }

# step TITLE SECONDS COMMAND...: one of $steps. Says that it begins and about how long it takes, on a terminal the seconds so
# far, and how long it took. What the command prints goes to a log; a failure shows its end.
step() {
  local title=$1 about=$2 began=$SECONDS status log=build/step.log ticker=
  shift 2
  number=$((${number:-0} + 1))
  printf '[%d/%d] %s, about %d s\n' "$number" "$steps" "$title" "$about"
  if [ -t 1 ]; then
    while sleep 1; do printf '\r\033[K%d s' $((SECONDS - began)); done &
    ticker=$!
  fi
  set +e
  (set -e && "$@") >$log 2>&1
  status=$?
  set -e
  [ -z "$ticker" ] || { kill $ticker && wait $ticker 2>/dev/null || printf '\r\033[K'; }
  [ $status -eq 0 ] || { tail -n 20 $log >&2; die "FAILED: $title; all of it: $log"; }
  printf '[%d/%d] done, %d s\n' "$number" "$steps" $((SECONDS - began))
}

python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
  die "python3 must be 3.11 or newer; this is $(python3 --version 2>&1 || echo 'not installed')"

# packages NAME...: installs the Debian packages that are missing.
packages() {
  local missing=() name
  for name; do
    dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local root=()
  [ "$(id -u)" = 0 ] || root=(sudo)
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null || die "as root, install the Debian packages: ${missing[*]}"
  say "installing Debian packages: ${missing[*]}"
  local lock
  exec {lock}>build/apt.lock
  flock $lock # apt-get does not wait for another
  "${root[@]}" apt-get update -qq || die "apt-get update failed: are you root, and is there a network?"
  "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
    >build/apt.log 2>&1 || { tail -5 build/apt.log >&2; die "could not install: ${missing[*]} (build/apt.log)"; }
  exec {lock}>&-
}

# venv SET...: a private virtual environment with these sets of ci/locks; `python` is then its interpreter.
python=build/venv/bin/python
venv() {
  local set missing=() files=() locks
  $python -m pip --version >/dev/null 2>&1 || { packages python3-venv; python3 -m venv --clear build/venv; }
  locks=$(cat ci/locks/*.txt | sha256sum)
  for set; do
    [ "$(cat "build/venv/.has-$set" 2>/dev/null)" = "$locks" ] || { missing+=("$set") files+=(-r "ci/locks/$set.txt"); }
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing Python packages: ${missing[*]}"
  local lock
  exec {lock}>build/pip.lock
  flock $lock
  # Python compiles what it imports, pip all modules of torch and JAX: more than half of the time of installing them.
  locked --no-compile "${files[@]}" || return
  for set in "${missing[@]}"; do echo "$locks" >"build/venv/.has-$set"; done
  exec {lock}>&-
}

# locked OPTION...: what the locks among the options hold is installed, if its hashes are right.
locked() {
  $python -m pip install --quiet --disable-pip-version-check --require-hashes "$@"
}

# NVIDIA's compilers, assemblers and disassembler in build/nvidia: a folder of their own, as other packages bring parts of
# other versions.
nvidia() {
  venv
  cmp -s ci/locks/nvidia.txt build/nvidia/.lock && return
  say "installing NVIDIA's compiler and assemblers"
  rm -rf build/nvidia
  locked --target build/nvidia -r ci/locks/nvidia.txt
  cp ci/locks/nvidia.txt build/nvidia/.lock
}

# The C library, built once for all bindings: GRADSCALER_LIB_DIR is what their builds call its folder.
library() {
  build release gradscaler_static
  mkdir -p build/library
  ln -sf ../release/libgradscaler.a build/library/
}

# Builds the Python binding from this tree into the virtual environment; again only when a source changed.
python_binding() {
  packages python3-dev
  venv build
  library
  local sum
  sum=$(find core include bindings/xla bindings/python CMakeLists.txt -type f -not -path '*cache*/*' -not -path '*/tests/*' \
    -print0 | sort -z | xargs -0 sha256sum | sha256sum)
  [ "$(cat build/venv/.gradscaler 2>/dev/null)" = "$sum" ] && return
  say "building the Python binding"
  rm -rf build/wheel
  # The environment's SWIG comes first in the path: Debian's is too old.
  PATH=$PWD/build/venv/bin:$PATH GRADSCALER_LIB_DIR=$PWD/build/library $python -m pip wheel --quiet \
    --disable-pip-version-check --no-deps --no-build-isolation -w build/wheel \
    --config-settings=cmake.define.GSC_WERROR=ON ./bindings/python
  $python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps build/wheel/*.whl
  echo "$sum" >build/venv/.gradscaler
}

# The programs and the tests in Elixir share this build.
elixir_environment() {
  export MIX_ENV=test MIX_BUILD_PATH=$PWD/build/elixir GRADSCALER_LIB_DIR=$PWD/build/library
}

# Builds the Elixir binding from this tree to build/elixir; make and mix see what changed.
elixir_binding() {
  packages elixir erlang-dev make gcc
  library
  say "building the Elixir binding"
  (
    flock 9
    elixir_environment
    cd bindings/elixir
    mix deps.get >/dev/null && mix compile --warnings-as-errors
  ) 9>build/elixir.lock
}

# Returns whether mix has Hex, Elixir's package manager, which mix does not come with.
has_hex() {
  mkdir -p build/empty
  [ -n "$(cd build/empty && mix run --no-mix-exs -e 'if Code.ensure_loaded?(Hex), do: IO.puts("yes")')" ]
}

# build PRESET [TARGET...]: configures and builds a preset of CMakePresets.json.
build() {
  local preset=$1
  shift
  packages g++ catch2 libffi-dev
  say "building ($preset)"
  (
    flock 9 # one at a time: two would write the same files
    [ build/"$preset"/build.ninja -nt CMakePresets.json ] || cmake --preset "$preset" >build/"$preset".log 2>&1 ||
      { cat build/"$preset".log; return 1; }
    cmake --build build/"$preset" ${1:+--target "$@"} >build/"$preset".log 2>&1 || { grep -v '^\[' build/"$preset".log; return 1; }
  ) 9>build/"$preset".lock
}

# The programs and the tests in Rust share this build.
rust_environment() {
  command -v cargo >/dev/null || packages cargo
  export CARGO_TARGET_DIR=$PWD/build/rust CARGO_NET_OFFLINE=true GRADSCALER_LIB_DIR=$PWD/build/library
}

# Builds the Rust binding's programs, in build/rust/debug and its folder examples.
rust_binding() {
  library
  say "building the Rust binding"
  (rust_environment && cargo build --quiet --workspace --examples --bins --manifest-path bindings/rust/Cargo.toml)
}

rust_minor() {
  rustc --version | sed 's/^rustc 1\.\([0-9]*\).*/\1/'
}

# The words that run the oldest promised Rust's cargo: from rustup, or Debian 12's; none where there is neither.
oldest_rust() {
  if rustup run 1.63.0 true 2>/dev/null; then
    echo rustup run 1.63.0 cargo
    return
  fi
  [ ! -e /etc/debian_version ] || packages rustc cargo >&2
  case $(/usr/bin/rustc --version 2>/dev/null) in
    'rustc 1.63.'*) echo env RUSTC=/usr/bin/rustc RUSTDOC=/usr/bin/rustdoc /usr/bin/cargo ;;
    *) say "NOT RUN: the oldest Rust that is promised, 1.63, is not here; this is $(rustc --version)" >&2 ;;
  esac
}

# vendor CARGO_HOME CRATE...: the folder "vendor" beside it, with these crates, takes the place of the registry for cargo.
vendor() {
  local crate folder
  folder=$(dirname "$1")/vendor
  mkdir -p "$1" "$folder"
  printf '[source.crates-io]\nreplace-with = "vendor"\n[source.vendor]\ndirectory = "vendor"\n' >"$1/config.toml"
  for crate in "${@:2}"; do
    tar -C "$folder" -xzf "$crate"
    printf '{"files": {}, "package": "%s"}' "$(sha256sum <"$crate" | cut -d' ' -f1)" \
      >"$folder/$(basename "$crate" .crate)/.cargo-checksum.json"
  done
}

# Builds the KIND program (replay, parity) of every language.
programs() { # KIND
  build release "$1"
  python_binding
  elixir_binding
  rust_binding
}

# Lists them as NAME=COMMAND in $clients.
clients() { # KIND
  clients=(
    "C=build/release/tests/$1/$1"
    "Python=$python bindings/python/tests/$1.py"
    "Elixir=elixir -pa build/elixir/lib/gradscaler/ebin bindings/elixir/test/clients/$1.exs"
    "Rust=build/rust/debug/$1"
  )
}

# The gradients that the parity test replays: build/parity/steps.bin.
recorded_steps() {
  [ build/parity/steps.bin -nt tests/parity/record.py ] && return
  venv python
  python_binding
  mkdir -p build/parity
  say "recording 200 steps of scaled gradients"
  $python tests/parity/record.py "build/parity/steps.$$"
  mv "build/parity/steps.$$" build/parity/steps.bin
}

# Recorded gradients through the programs of every language: prints their digests, which must be equal.
parity() { # [--json FILE]
  clients parity
  python3 tests/parity/parity.py build/parity/steps.bin "$@" "${clients[@]}"
}

# The digits as the small examples read them, 64 bytes of pixels and one of label each: build/digits.bin.
digits() {
  [ -e build/digits.bin ] && return
  venv python
  $python -c '
from sklearn.datasets import load_digits
d = load_digits()
rows = zip(d.data.astype("uint8"), d.target)
open("build/digits.new", "wb").write(b"".join(bytes(pixels) + bytes([label]) for pixels, label in rows))'
  mv build/digits.new build/digits.bin
}

mkdir -p build
