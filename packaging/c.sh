# For C: the sources, from which CMake builds and installs.
tarball "$packages/gradscaler-$version.tar.gz" "$work" "gradscaler-$version"
