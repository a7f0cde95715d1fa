#!/usr/bin/env bash
# Runs ci/release on a copy of this repository that can be released, and on one where all is wrong: release.sh SCRATCH
set -euo pipefail
git -c advice.detachedHead=false clone --quiet . "${1:?}/release"
cd "$1/release"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' include/gradscaler.toml)
released=tests/abi/released/${version%.*}
commit() { git add --all && git -c user.name=nobody -c user.email=nobody commit --quiet --message "$1"; }
die() { printf '%s\n' "$@" >&2; exit 1; }

sed -i "0,/^## .*/s//## $version (2000-01-01)/" CHANGELOG.md
rm "$released/abi.json"
ci/generate --release >/dev/null
sed -i -E 's/^([a-z_]*) = ""/\1 = "the \1"/' packaging/owner.toml
ci/generate >/dev/null
fields=$(sed -n 's/^\([a-z_]*\) = .*/\1/p' packaging/owner.toml)
for field in $fields; do git grep -qF "the $field" -- ':!packaging/owner.toml' || die "ci/generate writes $field nowhere"; done
commit right
said=$(ci/release --quick) || die "$said" "refused, though nothing is wrong"
[[ $said != *FAIL* && $said == *"git tag"* ]] || die "$said" "no word of what to do then"

git tag "v$version"
sed -i 's/ (2000-01-01)//' CHANGELOG.md
sed -i 's/^version = .*/version = "0.0.1"/' bindings/python/pyproject.toml
sed -i 's/"the contact"/""/; s/"the repository"/"the other"/' packaging/owner.toml
echo '/* more */' >>"$released/gradscaler.h"
commit wrong
touch notes
said=$(ci/release --quick 2>&1) && die "$said" "not refused"
[ "$(grep -c '^FAIL' <<<"$said")" = 6 ] && ! grep -q -e '^ok' -e 'git tag' <<<"$said" || die "$said" "not all was found"
[[ $said == *'contact = ""'* ]] || die "$said" "the field that is empty is not named"
sed -n 's/^FAIL /ok    refused:/p' <<<"$said"
