# For C: the sources, from which CMake builds and installs, and the library as one file and its header.
tarball "$packages/gradscaler-$version.tar.gz" "$work" "gradscaler-$version"
python3 "$clone/packaging/amalgamate.py" "$packages"
