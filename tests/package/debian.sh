# Sourced by the tests of packages that run where other systems' programs do.

# debian NAME SUITE ARCHITECTURE PACKAGE...: the folder build/roots/NAME with these packages of a Debian and what they depend on,
# unpacked; what this machine has installed stays as it is.
debian() {
  local root=$PWD/build/roots/$1 apt=$PWD/build/roots/$1.apt from deb
  set -e # $(debian ...) is without: a part of a system would be taken for all of it
  if [ ! -d "$root" ]; then
    # All lines are read: apt-get dies of a pipe that is closed.
    from=$(apt-get indextargets --format '$(REPO_URI)' | awk '/\/debian\/$/ && !found++')
    [ -n "$from" ] || die 'apt knows no mirror of Debian: no address that ends in /debian/'
    mkdir -p "$apt"/{lists,cache/archives}/partial
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $from $2 main" >"$apt/list"
    (
      cd "$apt"
      apt=(apt-get -qq -o APT::Architecture="$3" -o APT::Architectures="$3" -o APT::Sandbox::User=root
        -o Dir::State::lists="$apt/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$apt/cache"
        -o Dir::Etc::SourceList="$apt/list" -o Dir::Etc::SourceParts=/dev/null)
      "${apt[@]}" update
      "${apt[@]}" install --yes --download-only --no-install-recommends "${@:4}"
      for deb in cache/archives/*.deb; do dpkg-deb -x "$deb" "$root.new"; done
      [ -e "$root.new/lib" ] || ln -s usr/lib "$root.new/lib"
    ) >&2
    rm -rf "$apt"
    mv "$root.new" "$root"
  fi
  echo "$root"
}
