# For C: the sources, from which CMake builds and installs; the library as one file and its headers; of these a project for
# Meson and its wrap; a port for vcpkg with the sources in it. The recipe for Conan lies in the sources.
tarball "$packages/gradscaler-$version.tar.gz" "$work" "gradscaler-$version"
python3 "$clone/packaging/amalgamate.py" "$packages"

# As CMakeLists.txt: 0.10, and 1 from 1.0 on.
abi=$(sed -n 's/^first = "\(0\.[0-9]*\|[0-9]*\).*/\1/p' "$clone/include/gradscaler.toml")
stamped() { # FOLDER TO: its files, with the version
  local file
  mkdir "$2"
  for file in "$clone/packaging/$1"/*; do sed "s/@VERSION@/$version/; s/@ABI@/$abi/" "$file" >"$2/${file##*/}"; done
}
meson=gradscaler-meson-$version
stamped meson "$work/$meson"
cp "$packages"/gradscaler*.[ch] "$clone/LICENSE" "$work/$meson"
tarball "$packages/$meson.tar.gz" "$work" "$meson"
cat >"$packages/gradscaler.wrap" <<END
# As subprojects/gradscaler.wrap; the archive goes into subprojects/packagefiles.
[wrap-file]
directory = $meson
source_filename = $meson.tar.gz
source_hash = $(sha256sum <"$packages/$meson.tar.gz" | cut -d' ' -f1)

[provide]
dependency_names = gradscaler
END
mkdir "$work/vcpkg"
stamped vcpkg "$work/vcpkg/gradscaler"
cp "$packages/gradscaler-$version.tar.gz" "$work/vcpkg/gradscaler"
tarball "$packages/gradscaler-vcpkg-$version.tar.gz" "$work/vcpkg" gradscaler
