#!/usr/bin/env bash
# The package, used by a project that has nothing but it, without a network: elixir.sh PACKAGES SCRATCH
# It compiles the NIF; takes one that is precompiled, from a folder and a server; refuses one that is damaged.
packages=$(realpath -e "$1") && scratch=$(realpath -e "$2") || exit
source "$(dirname "$0")/../../ci/setup.sh"
source tests/package/debian.sh
root=$PWD
packages elixir make gcc
export MIX_ENV=prod ELIXIR_ERL_OPTIONS=+fnu GRADSCALER_PRECOMPILED=
unset GRADSCALER_SOURCE ERL_LIBS NX_PATH
row() { printf '%-24s' "$1"; }

tar -C "$scratch" -xzf "$packages"/gradscaler-elixir-*.tar.gz
package=$(basename "$scratch"/gradscaler-elixir-*)
precompiled=$(basename "$packages"/gradscaler-nif-*-x86_64-linux-gnu-*.so)
mkdir "$scratch/user" "$scratch/damaged"
cp bindings/elixir/examples/train_step.exs "$scratch/user"
cd "$scratch/user"
cat >mix.exs <<END
defmodule User.MixProject do
  use Mix.Project
  def project, do: [app: :user, version: "0.0.0", deps: [gradscaler: [path: "../$package"]]]
end
END
# user FOLDER: builds there and runs the program; what mix says is in log.
user() { MIX_BUILD_PATH=$scratch/$1 mix run train_step.exs 2>&1 | tee log | sed '$!d'; }
compile() { (cd "$scratch/$package" && MIX_BUILD_PATH=$scratch/$1 mix compile >../user/log 2>&1); } # the package alone
nif() { echo "$scratch/$1/lib/gradscaler/priv/gradscaler_nif.so"; }
says() { grep -qF "$1" log || { cat log >&2; die "mix should have said: $1"; }; }

row 'compiled here'
user compiled
! cmp -s "$(nif compiled)" "$packages/$precompiled" || die 'that is the precompiled one'

export CC=false # from here on nothing can be compiled
if [ "$(uname -m)" != x86_64 ]; then
  say "NOT RUN: precompiled NIFs, as none of them is for this machine"
  exit
fi
row 'precompiled, a folder'
GRADSCALER_PRECOMPILED=$packages user taken
cmp "$(nif taken)" "$packages/$precompiled"
GRADSCALER_PRECOMPILED=/nowhere compile taken # nothing is read for one that is there

python3 -m http.server --bind 127.0.0.1 --directory "$packages" 0 >server.log 2>&1 &
server=$!
trap 'kill $server' EXIT
until port=$(grep -o 'port [0-9]*' server.log); do sleep 0.1; done
row 'precompiled, a server'
GRADSCALER_PRECOMPILED=http://127.0.0.1:${port#port } user served
cmp "$(nif served)" "$packages/$precompiled"

# A damaged or missing file changes nothing.
cp "$packages/$precompiled" "$scratch/damaged"
printf x >>"$scratch/damaged/$precompiled"
cp "$(nif compiled)" before
refused() { # PLACE TEXT
  ! GRADSCALER_PRECOMPILED=$1 compile compiled || die "$1 should have been refused"
  says "$2"
  says 'Nothing was changed.'
  cmp before "$(nif compiled)"
}
refused "$scratch/damaged" 'is not the file of this release: it has sha256:'
refused "$scratch/damaged/none" 'cannot be read: no such file or directory'
refused "http://127.0.0.1:${port#port }/none" 'cannot be read: status 404'

# A machine that no file is for, and back from a precompiled one: the NIF is compiled.
unset CC
row 'another platform'
TARGET_ARCH=sparc64 GRADSCALER_PRECOMPILED=$packages CFLAGS=-O0 compile taken
says "there is no gradscaler-nif-2.16-sparc64-linux-gnu-"
! cmp -s "$(nif taken)" "$packages/$precompiled" || die 'that is still the precompiled one'
user taken

# A newer Erlang than this one, Debian 13's: for this machine, and, if there is a file for it, for 64-bit Arm, emulated.
# newer ARCHITECTURE NIF COMMAND...: the recorded gradients by a command that runs its programs; the bits are those from here.
newer() {
  local otp base=$scratch/newer-$1 architecture=$1 nif=$2 program
  shift 2
  otp=$(echo "$system"/usr/lib/erlang)
  mkdir -p "$base/bin"
  cp -r "$scratch/compiled/lib/gradscaler" "$base"
  cp --remove-destination "$nif" "$base/gradscaler/priv/gradscaler_nif.so"
  # The emulator can only start programs of this machine.
  for program in erl_child_setup inet_gethost; do
    printf '#!/bin/sh\nexec %s "%s" "$@"\n' "$*" "$(echo "$otp"/erts-*/bin/$program)" >"$base/bin/$program"
  done
  chmod +x "$base"/bin/*
  row "Debian 13, $architecture"
  # qemu cannot translate code that is mapped twice.
  found=$(BINDIR=$base/bin ROOTDIR=$otp EMU=beam PROGNAME=erl "$@" "$otp"/erts-*/bin/beam.smp -JMsingle true -S 2:2 -- -root "$otp" -bindir "$base/bin" \
    -progname erl -- -home "$scratch" -- -noshell -elixir_root "$system/usr/lib/elixir/lib" -pa "$system"/usr/lib/elixir/lib/{elixir,logger}/ebin \
    "$base/gradscaler/ebin" -s elixir start_cli -extra "$root/bindings/elixir/test/clients/parity.exs" "$root/build/parity/steps.bin")
  [ "$found" = "$wanted" ] || die "other bits than those from here, $wanted: $found"
  echo 'same bits'
}
cd "$root"
erlang=(erlang-base erlang-crypto elixir libc6 libgcc-s1 libstdc++6 zlib1g libtinfo6 libsystemd0 libssl3t64 libcap2 libzstd1)
wanted=$(elixir -pa "$scratch/compiled/lib/gradscaler/ebin" bindings/elixir/test/clients/parity.exs build/parity/steps.bin)
[ -n "$wanted" ] || die 'parity.exs printed nothing'
system=$(debian erlang-amd64 trixie amd64 "${erlang[@]}")
newer amd64 "$(nif compiled)" "$system/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" --library-path "$system/usr/lib/x86_64-linux-gnu"
arm=$(echo "$packages"/gradscaler-nif-*-aarch64-linux-gnu-*.so)
if [ -e "$arm" ]; then
  packages qemu-user-static
  system=$(debian erlang-arm64 trixie arm64 "${erlang[@]}")
  newer arm64 "$arm" qemu-aarch64-static -L "$system"
fi
