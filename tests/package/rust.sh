#!/usr/bin/env bash
# The crates, used by a program that has nothing but them, no network and no registry: rust.sh PACKAGES SCRATCH
# With the newest and the oldest Rust, each compiling the core; then with an installed library, by both settings.
packages=$(realpath -e "$1") && scratch=$(realpath -e "$2") || exit
source "$(dirname "$0")/../../ci/setup.sh"
export CARGO_HOME=$scratch/cargo CARGO_NET_OFFLINE=true
unset CARGO_TARGET_DIR GRADSCALER_LIB_DIR
crates=("$packages"/gradscaler-*.crate)
[ -e "${crates[0]}" ] || { say "NOT RUN: there are no crates"; exit; }

oldest=$(oldest_rust)
prefix=$scratch/../c/prefix # where c.sh installed the library
if [ ! -d "$prefix" ]; then
  prefix=$scratch/prefix
  cmake -S . -B "$scratch/build" >/dev/null
  cmake --build "$scratch/build" --parallel >/dev/null
  cmake --install "$scratch/build" --prefix "$prefix" >/dev/null
fi

vendor "$CARGO_HOME" "${crates[@]}"
mkdir -p "$scratch/user/src"
cp "$scratch"/vendor/gradscaler-[0-9]*/examples/train_step.rs "$scratch/user/src/main.rs"
cd "$scratch/user"
# user FEATURES CARGO...: builds and runs the program.
user() {
  printf '[package]\nname = "user"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\ngradscaler = { version = "%s", features = [%s] }\n' \
    "$version" "$1" >Cargo.toml
  rm -f Cargo.lock # an old version cannot read a new version's
  "${@:2}" run --quiet --release --target-dir "target$((++count))"
}
count=0 version=$(basename "$scratch"/vendor/gradscaler-[0-9]* | sed 's/gradscaler-//')
row() { printf '%-24s' "$1"; }

row "$(rustc --version | cut -d' ' -f1-2)"
user '' cargo
if [ -n "$oldest" ]; then
  row 'rustc 1.63'
  CFLAGS=-O0 user '' $oldest
fi

# Without the library, and with one too old, the feature says so; with it there is nothing to compile.
refused() { # TEXT: what the build says
  if user '"system"' cargo >log 2>&1 || ! grep -qF "$1" log; then
    cat log >&2
    die "the build should have said: $1"
  fi
}
export PKG_CONFIG_LIBDIR=$scratch/none
refused 'the feature `system` links an installed gradscaler, which pkg-config does not find'
mkdir "$scratch/none"
printf 'Name: gradscaler\nDescription: -\nVersion: 0.1.2\n' >"$scratch/none/gradscaler.pc"
refused 'the gradscaler of pkg-config has version 0.1.2, but this crate needs'
unset PKG_CONFIG_LIBDIR
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name gradscaler.pc)")
export PKG_CONFIG_PATH LD_LIBRARY_PATH=${PKG_CONFIG_PATH%/pkgconfig}
row 'feature "system"'
CC=false user '"system"' cargo
# grep reads all of it: with -q it may end before ldd, which then fails.
ldd target$count/release/user | grep "$LD_LIBRARY_PATH/libgradscaler.so" >/dev/null || die 'it is not linked with the installed library'
row GRADSCALER_LIB_DIR
CC=false GRADSCALER_LIB_DIR=$LD_LIBRARY_PATH user '' cargo
