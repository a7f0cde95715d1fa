# What the commands share; sourced, never run. Everything they make is under build/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '\n== %s\n' "$*"; }
die() { printf '%s\n' "$*" >&2; exit 1; }

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

# venv NAME...: a private virtual environment with these packages; `python` is then its interpreter.
python=build/venv/bin/python
venv() {
  local name missing=()
  $python -m pip --version >/dev/null 2>&1 || { packages python3-venv; python3 -m venv --clear build/venv; }
  for name; do
    [ -e "build/venv/.has-$name" ] || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing Python packages: ${missing[*]}"
  # Python compiles what it imports, pip all modules of torch and JAX: more than half of the time of installing them.
  $python -m pip install --quiet --disable-pip-version-check --no-compile "${missing[@]}" || return
  for name in "${missing[@]}"; do touch "build/venv/.has-$name"; done
}

# NVIDIA's compilers, assemblers and disassembler in build/nvidia: a folder of their own, as other packages bring parts of
# other versions.
nvidia() {
  local have=build/nvidia/.has-13.0.88-13.5.37
  venv
  [ -e $have ] && return
  say "installing NVIDIA's compiler and assemblers"
  rm -rf build/nvidia
  $python -m pip install --quiet --disable-pip-version-check --target build/nvidia nvidia-cuda-nvcc-cu12==12.9.86 \
    nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96 \
    nvidia-cuda-nvdisasm==13.5.37
  touch $have
}

# The Python binding, built from this tree into the virtual environment; again only when a source changed.
python_binding() {
  packages python3-dev
  venv
  local sum
  sum=$(find core include bindings/xla bindings/python CMakeLists.txt -type f -not -path '*cache*/*' -not -path '*/tests/*' \
    -print0 | sort -z | xargs -0 sha256sum | sha256sum)
  [ "$(cat build/venv/.gradscaler 2>/dev/null)" = "$sum" ] && return
  say "building the Python binding"
  rm -rf build/wheel
  $python -m pip wheel --quiet --disable-pip-version-check --no-deps -w build/wheel \
    --config-settings=cmake.define.GSC_WERROR=ON ./bindings/python
  $python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps build/wheel/*.whl
  echo "$sum" >build/venv/.gradscaler
}

# The Elixir binding, built from this tree to build/elixir; make and mix see what changed.
elixir_binding() {
  packages elixir erlang-dev make gcc
  export ELIXIR_ERL_OPTIONS=+fnu # file names and output are UTF-8 whatever the locale
  say "building the Elixir binding"
  (
    export MIX_ENV=prod MIX_BUILD_PATH=$PWD/build/elixir
    cd bindings/elixir
    mix deps.get >/dev/null && mix compile --warnings-as-errors
  )
}

# Whether mix has Hex, Elixir's package manager, which mix does not come with.
has_hex() {
  [ -n "$(cd /tmp && mix run --no-mix-exs -e 'if Code.ensure_loaded?(Hex), do: IO.puts("yes")')" ]
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
    cmake --build build/"$preset" ${1:+--target "$@"} -- --quiet
  ) 9>build/"$preset".lock
}

# The Rust binding's programs: build/rust/release/examples.
rust_binding() {
  command -v cargo >/dev/null || packages cargo
  say "building the Rust binding"
  CARGO_TARGET_DIR=$PWD/build/rust cargo build --quiet --offline --release --examples \
    --manifest-path bindings/rust/Cargo.toml
}

rust_minor() {
  rustc --version | sed 's/^rustc 1\.\([0-9]*\).*/\1/'
}

# The words that run cargo of the oldest Rust that is promised: that of rustup, or Debian 12's; none where there is neither.
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

# clients KIND: builds the KIND program (replay, parity) of every language and lists them as NAME=COMMAND in $clients.
clients() {
  build release "$1"
  python_binding
  elixir_binding
  rust_binding
  clients=(
    "C=build/release/tests/$1/$1"
    "Python=$python bindings/python/tests/$1.py"
    "Elixir=elixir -pa build/elixir/lib/gradscaler/ebin bindings/elixir/examples/$1.exs"
    "Rust=build/rust/release/examples/$1"
  )
}

# The gradients that the parity test replays: build/parity/steps.bin.
recorded_steps() {
  [ -e build/parity/steps.bin ] && return
  venv numpy scikit-learn matplotlib ml_dtypes
  python_binding
  mkdir -p build/parity
  say "recording 200 steps of scaled gradients"
  $python tests/parity/record.py build/parity/steps.new
  mv build/parity/steps.new build/parity/steps.bin
}

# Recorded gradients through every language: parity [--json FILE] prints their digests, which must be equal.
parity() {
  clients parity
  recorded_steps
  say "the same gradients in every language"
  python3 tests/parity/parity.py build/parity/steps.bin "$@" "${clients[@]}"
}

# The digits as the small examples read them, 64 bytes of pixels and one of label each: build/digits.bin.
digits() {
  [ -e build/digits.bin ] && return
  venv scikit-learn
  $python -c '
from sklearn.datasets import load_digits
d = load_digits()
rows = zip(d.data.astype("uint8"), d.target)
open("build/digits.bin", "wb").write(b"".join(bytes(pixels) + bytes([label]) for pixels, label in rows))'
}

mkdir -p build
