// SPDX-License-Identifier: MIT
//! What the build script does with its environment: it is compiled and run here as cargo would.
#![allow(missing_docs, clippy::unwrap_used)]
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const HOST: &str = "x86_64-unknown-linux-gnu";
const TARGET: &str = "riscv64gc-unknown-linux-gnu";

/// A folder with the compiled build script, which is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let scratch = Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        let _ = fs::remove_dir_all(&scratch.0);
        fs::create_dir_all(scratch.0.join("bin")).unwrap();
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
        let mut compile = Command::new(rustc);
        compile
            .args(["--edition=2021", "build.rs", "-o"])
            .arg(scratch.0.join("script"));
        assert!(compile.status().unwrap().success());
        scratch
    }

    /// A tool that writes down its name and its first argument, and makes what it is told to.
    fn tool(&self, name: &str) -> PathBuf {
        let (path, log) = (self.0.join("bin").join(name), self.0.join("log"));
        let script = format!(
            "#!/bin/sh\necho {name} $1 >>{}\nfor word; do [ \"$last\" = -o ] && : >\"$word\"; last=$word; done\n",
            log.display()
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// The names of the tools that were used.
    fn used(&self) -> Vec<String> {
        let log = fs::read_to_string(self.0.join("log")).unwrap_or_default();
        let mut names: Vec<_> = log
            .lines()
            .map(|line| line.split(' ').next().unwrap().into())
            .collect();
        names.sort();
        names.dedup();
        let _ = fs::remove_file(self.0.join("log"));
        names
    }

    fn run(&self, target: &str, settings: &[(&str, &Path)]) -> Output {
        let mut script = Command::new(self.0.join("script"));
        let path = format!("{}:/usr/bin:/bin", self.0.join("bin").display());
        script.env_clear().env("PATH", path).env("OUT_DIR", &self.0);
        script.env("HOST", HOST).env("TARGET", target);
        script.env("CARGO_PKG_VERSION_MAJOR", env!("CARGO_PKG_VERSION_MAJOR"));
        script.env("CARGO_PKG_VERSION_MINOR", env!("CARGO_PKG_VERSION_MINOR"));
        script.envs(settings.iter().copied()).output().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_build_for_another_machine_uses_its_tools() {
    let scratch = Scratch::new("cross");
    let (compiler, archiver) = (scratch.tool("their-cc"), scratch.tool("their-ar"));
    for name in ["cc", "ar", "riscv64-linux-gnu-gcc", "riscv64-linux-gnu-ar"] {
        scratch.tool(name);
    }
    let (here, riscv) = (
        ["ar", "cc"],
        ["riscv64-linux-gnu-ar", "riscv64-linux-gnu-gcc"],
    );
    let theirs = ["their-ar", "their-cc"];
    for (target, cc, ar, expected) in [
        (HOST, "-", "-", here),
        (HOST, "CC", "AR", theirs),
        (HOST, "HOST_CC", "HOST_AR", theirs),
        (HOST, "TARGET_CC", "TARGET_AR", here),
        (
            HOST,
            "CC_riscv64gc_unknown_linux_gnu",
            "AR_riscv64gc_unknown_linux_gnu",
            here,
        ),
        (TARGET, "-", "-", riscv),
        (TARGET, "CC", "AR", theirs),
        (TARGET, "TARGET_CC", "TARGET_AR", theirs),
        (
            TARGET,
            "CC_riscv64gc_unknown_linux_gnu",
            "AR_riscv64gc_unknown_linux_gnu",
            theirs,
        ),
        (
            TARGET,
            "CC_riscv64gc-unknown-linux-gnu",
            "AR_riscv64gc-unknown-linux-gnu",
            theirs,
        ),
    ] {
        let output = scratch.run(target, &[(cc, &compiler), (ar, &archiver)]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{target} {cc}: {text}");
        assert_eq!(scratch.used(), expected, "{target} {cc}");
    }
    // Where no name is usual, the error says what to set.
    let output = scratch.run("aarch64-apple-darwin", &[]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("set CC_aarch64-apple-darwin"),
        "{text}"
    );
}

#[test]
fn a_library_of_another_version_is_not_linked() {
    let scratch = Scratch::new("version");
    let (major, minor) = (
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
    );
    let (major, minor): (u32, u32) = (major.parse().unwrap(), minor.parse().unwrap());
    let needs = format!("but this crate needs {major}.{minor} or a later {major}.x");
    let text = |version: String| format!("\0is new: this version ({version}) ignores it\0");
    let cases = [
        (text(format!("{major}.{}.9", minor - 1)), needs.as_str()),
        (text(format!("{major}.{minor}.0")), ""),
        (text(format!("{major}.{minor}.7")), ""),
        (text(format!("{major}.{}.0", minor + 1)), ""),
        (text(format!("{}.{minor}.0", major + 1)), &needs),
        (text("%s".into()), &needs),
        ("of something else".into(), "contains no version"),
    ];
    // No machine can load these files.
    for file in ["libgradscaler.a", "libgradscaler.so"] {
        let library = scratch.0.join(file);
        for (contents, wrong) in &cases {
            fs::write(
                &library,
                [b"\x7fELF\xff".as_slice(), contents.as_bytes()].concat(),
            )
            .unwrap();
            for target in [HOST, TARGET] {
                let output = scratch.run(target, &[("GRADSCALER_LIB_DIR", &scratch.0)]);
                let text = String::from_utf8_lossy(&output.stderr);
                let says = |words: &str| wrong.is_empty() || text.contains(words);
                assert_eq!(
                    output.status.success(),
                    wrong.is_empty(),
                    "{contents}: {text}"
                );
                assert!(says(wrong) && says(file), "{contents}: {text}");
                assert!(says("without GRADSCALER_LIB_DIR"), "{text}");
            }
        }
        fs::remove_file(&library).unwrap();
    }
    let output = scratch.run(HOST, &[("GRADSCALER_LIB_DIR", &scratch.0)]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains("which has no libgradscaler"),
        "{text}"
    );
}

#[test]
fn the_feature_system_links_what_pkg_config_finds() {
    let scratch = Scratch::new("system");
    let on = Path::new("1");
    let feature = ("CARGO_FEATURE_SYSTEM", on);
    let folder = scratch.0.join("lib");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("libgradscaler.a"), "").unwrap();
    let own = concat!(
        env!("CARGO_PKG_VERSION_MAJOR"),
        ".",
        env!("CARGO_PKG_VERSION_MINOR")
    );
    for (version, wrong) in [
        (format!("{own}.7"), None),
        (
            "99.0.0".into(),
            Some("has version 99.0.0, but this crate needs"),
        ),
        (
            "0.0.9".into(),
            Some("has version 0.0.9, but this crate needs"),
        ),
    ] {
        let file = format!(
            "libdir={0}\nincludedir={0}\nName: gradscaler\nDescription: -\nVersion: {version}\n",
            folder.display()
        );
        fs::write(scratch.0.join("gradscaler.pc"), file).unwrap();
        let output = scratch.run(HOST, &[feature, ("PKG_CONFIG_PATH", &scratch.0)]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), wrong.is_none(), "{text}");
        assert!(text.contains(wrong.unwrap_or_default()), "{text}");
        if wrong.is_none() {
            let said = String::from_utf8_lossy(&output.stdout);
            let search = format!("cargo:rustc-link-search=native={}\n", folder.display());
            assert!(
                said.contains(&search) && said.contains("cargo:rustc-link-lib=static=gradscaler")
            );
        }
    }
    // Not installed; no pkg-config; one for another machine, by its usual name.
    let (nowhere, none) = (Path::new("/nowhere"), Path::new("no-such-pkg-config"));
    for (target, more, expected) in [
        (HOST, ("PKG_CONFIG_LIBDIR", nowhere), "'gradscaler'"),
        (
            HOST,
            ("PKG_CONFIG", none),
            "no-such-pkg-config cannot be run",
        ),
        (
            TARGET,
            ("PKG_CONFIG_LIBDIR", nowhere),
            "riscv64-linux-gnu-pkg-config cannot be run",
        ),
    ] {
        let output = scratch.run(target, &[feature, more]);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && text.contains(expected),
            "{text}"
        );
        assert!(text.contains("or build without the feature"), "{text}");
    }
}

#[test]
fn cargo_of_the_oldest_rust_reads_the_manifest() {
    // Package fields can be inherited since cargo 1.64 only.
    for manifest in ["Cargo.toml", "../gradscaler/Cargo.toml"] {
        // The package alone lacks the second.
        let text = fs::read_to_string(manifest).unwrap_or_else(|_| "\nname = ".into());
        let package = text
            .split("\n[")
            .find(|table| table.contains("name = "))
            .unwrap();
        assert!(!package.contains("workspace"), "{manifest}");
    }
}
