# For Rust: the two crates as cargo packs them.
command -v cargo >/dev/null || packages cargo
# A home of its own, which needs no registry: cargo keeps what it unpacked, and takes it for the same version again.
export CARGO_HOME=$work/cargo CARGO_TARGET_DIR=$work/rust CARGO_NET_OFFLINE=true
cp -r "$clone"/{core,include,LICENSE} "$clone/bindings/rust/gradscaler-sys"
cp "$clone/LICENSE" "$clone/bindings/rust/gradscaler"
if [ "$(rust_minor)" -ge 90 ]; then
  cargo package --quiet --no-verify --manifest-path "$clone/bindings/rust/Cargo.toml"
  cp "$CARGO_TARGET_DIR"/package/gradscaler-*.crate "$packages"
else
  say "NOT RUN: packaging both crates needs cargo 1.90, this is $(cargo --version)"
fi
