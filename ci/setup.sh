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
  say "installing Debian packages: ${missing[*]}"
  "${root[@]}" apt-get update -qq || die "apt-get update failed: are you root, and is there a network?"
  DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" \
    >build/apt.log 2>&1 || { tail -5 build/apt.log >&2; die "could not install: ${missing[*]} (build/apt.log)"; }
}

# venv NAME...: a private virtual environment with these packages; `python` is then its interpreter.
python=build/venv/bin/python
venv() {
  local name missing=()
  [ -x $python ] || { packages python3-venv; python3 -m venv build/venv; }
  for name; do
    [ -e "build/venv/.has-$name" ] || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing Python packages: ${missing[*]}"
  $python -m pip install --quiet --disable-pip-version-check "${missing[@]}"
  for name in "${missing[@]}"; do touch "build/venv/.has-$name"; done
}

# The Python binding, built from this tree into the virtual environment; again only when a source changed.
python_binding() {
  packages python3-dev
  venv
  local sum
  sum=$(find core include bindings/python CMakeLists.txt -type f -not -path '*/__pycache__/*' -not -path '*/tests/*' \
    -print0 | sort -z | xargs -0 sha256sum | sha256sum)
  [ "$(cat build/venv/.gradscaler 2>/dev/null)" = "$sum" ] && return
  say "building the Python binding"
  rm -rf build/wheel
  $python -m pip wheel --quiet --disable-pip-version-check --no-deps -w build/wheel ./bindings/python
  $python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps build/wheel/*.whl
  echo "$sum" >build/venv/.gradscaler
}

# The Elixir binding, built from this tree to build/elixir; make and mix see what changed.
elixir_binding() {
  packages elixir erlang-dev make gcc
  export ELIXIR_ERL_OPTIONS=+fnu # file names and output are UTF-8 whatever the locale
  say "building the Elixir binding"
  (cd bindings/elixir && MIX_ENV=prod MIX_BUILD_PATH="$OLDPWD/build/elixir" mix compile --warnings-as-errors)
}

# The Rust binding's programs, which ci/replay and ci/test run: build/rust/release/examples.
rust_examples() {
  say "building the Rust binding"
  CARGO_TARGET_DIR=$PWD/build/rust cargo build --quiet --offline --release --examples --manifest-path bindings/rust/Cargo.toml
}

# The 1,797 digits as the Rust examples read them, 64 bytes of pixels and one of label each: build/digits.bin.
digits() {
  [ -e build/digits.bin ] && return
  venv scikit-learn
  $python -c '
from sklearn.datasets import load_digits
d = load_digits()
rows = zip(d.data.astype("uint8"), d.target)
open("build/digits.bin", "wb").write(b"".join(bytes(pixels) + bytes([label]) for pixels, label in rows))'
}

# build PRESET [TARGET...]: configures and builds a preset of CMakePresets.json.
build() {
  local preset=$1
  shift
  packages g++ catch2 libffi-dev
  say "building ($preset)"
  cmake --preset "$preset" >build/"$preset".log 2>&1 || { cat build/"$preset".log; return 1; }
  cmake --build build/"$preset" ${1:+--target "$@"} -- --quiet
}

mkdir -p build
