# For Elixir: the files of mix.exs, the NIF compiled for each platform (their checksums are among these files), and what
# Hex makes of them, where Hex is.
packages elixir erlang-dev make
elixir=$work/elixir
# As Precompiled in precompiled.exs calls a platform, and as zig does.
platforms=("x86_64-linux-gnu x86_64-linux-gnu.2.17")
[ -n "$short" ] || platforms+=(
  "aarch64-linux-gnu aarch64-linux-gnu.2.17" "x86_64-linux-musl x86_64-linux-musl" "aarch64-linux-musl aarch64-linux-musl"
  "x86_64-macos x86_64-macos" "aarch64-macos aarch64-macos" "x86_64-windows x86_64-windows-gnu")
# The headers say how large a long is, which Windows answers in another way.
headers=$(erl -noshell -eval 'io:put_chars(code:root_dir()), halt().')/usr/include
mkdir -p "$elixir/windows"
cp "$headers"/*.h "$elixir/windows"
sed 's/SIZEOF_LONG 8/SIZEOF_LONG 4/' "$headers/erl_int_sizes_config.h" >"$elixir/windows/erl_int_sizes_config.h"

echo '%{' >"$elixir/checksums"
for platform in "${platforms[@]}"; do
  read -r name target <<<"$platform"
  include=$headers extension=so
  [[ $name != *windows ]] || include=$elixir/windows extension=dll
  folder=$(zig "$target")
  make -C "$clone/bindings/elixir" --silent -j "$(nproc)" CC="${folder@Q}/cc" MIX_APP_PATH="$elixir/$name" \
    ERTS_INCLUDE_DIR="$include" CFLAGS=-Werror LDFLAGS=-s
  file=gradscaler-nif-2.16-$name-$version.$extension
  cp "$elixir/$name/priv/gradscaler_nif.$extension" "$packages/$file"
  printf '  "%s" => "sha256:%s",\n' "$file" "$(sha256sum <"$packages/$file" | cut -d' ' -f1)" >>"$elixir/checksums"
done
# Without a comma after the last.
sed '$ s/,$//' "$elixir/checksums" >"$clone/bindings/elixir/checksums.exs"
echo '}' >>"$clone/bindings/elixir/checksums.exs"

# mix FUNCTION...: in the project, which is not compiled for it.
export MIX_ENV=prod MIX_BUILD_PATH=$elixir/build ELIXIR_ERL_OPTIONS=+fnu
project() { (cd "$clone/bindings/elixir" && mix run --no-compile --no-deps-check --no-start -e "$1"); }
folder=gradscaler-elixir-$version
mkdir "$elixir/$folder"
project 'GradScaler.MixProject.add_sources()'
project 'IO.puts(Enum.join(Mix.Project.config()[:package][:files], "\n"))' | while read -r file; do
  (cd "$clone/bindings/elixir" && cp --parents "$file" "$elixir/$folder")
done
project 'GradScaler.MixProject.remove_sources()'
tarball "$packages/$folder.tar.gz" "$elixir" "$folder"

if has_hex; then
  (cd "$clone/bindings/elixir" && mix hex.build --output "$packages/gradscaler-$version.tar")
else
  say "NOT RUN: mix hex.build, as Hex is not installed"
fi
