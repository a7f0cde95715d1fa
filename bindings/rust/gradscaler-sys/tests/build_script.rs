// SPDX-License-Identifier: MIT
//! The build script and its environment: it is compiled and run here as cargo would.
#![allow(missing_docs, clippy::unwrap_used)]
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const HOST: &str = "x86_64-unknown-linux-gnu";
const TARGET: &str = "riscv64gc-unknown-linux-gnu";
const MAJOR: &str = env!("CARGO_PKG_VERSION_MAJOR");
const MINOR: &str = env!("CARGO_PKG_VERSION_MINOR");

/// A folder with the compiled build script, which is gone afterwards.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let scratch = Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        let _ = fs::remove_dir_all(&scratch.0);
        fs::create_dir_all(scratch.0.join("bin")).unwrap();
        let mut compile = Command::new(std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into()));
        compile.args(["--edition=2021", "build.rs", "-o"]);
        let compiled = compile.arg(scratch.0.join("script")).status();
        assert!(compiled.unwrap().success());
        scratch
    }

    /// A tool that writes down its name and its first argument, and makes what it is told to.
    fn tool(&self, name: &str) {
        let (path, log) = (self.0.join("bin").join(name), self.0.join("log"));
        let script = format!(
            "#!/bin/sh\necho {name} $1 >>'{}'\nfor word; do [ \"$last\" = -o ] && : >\"$word\"; last=$word; done\n",
            log.display()
        );
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The names of the tools that were used.
    fn used(&self) -> Vec<String> {
        let log = fs::read_to_string(self.0.join("log")).unwrap_or_default();
        let _ = fs::remove_file(self.0.join("log"));
        let names = log.lines().filter_map(|line| line.split(' ').next());
        let names: BTreeSet<_> = names.map(String::from).collect();
        names.into_iter().collect()
    }

    /// Runs the script for a target; returns whether it succeeds, and what it prints.
    fn run(&self, target: &str, settings: &[(&str, &Path)]) -> (bool, String) {
        let mut script = Command::new(self.0.join("script"));
        let path = format!("{}:/usr/bin:/bin", self.0.join("bin").display());
        script.env_clear().env("PATH", path).env("OUT_DIR", &self.0);
        script.env("HOST", HOST).env("TARGET", target);
        script.env("CARGO_PKG_VERSION_MAJOR", MAJOR);
        script.env("CARGO_PKG_VERSION_MINOR", MINOR);
        let output = script.envs(settings.iter().copied()).output().unwrap();
        let printed = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(printed).unwrap())
    }

    /// Asserts that the script fails, with these words.
    fn fails(&self, target: &str, settings: &[(&str, &Path)], words: &[&str]) {
        let (success, text) = self.run(target, settings);
        let all = words.iter().all(|words| text.contains(words));
        assert!(!success && all, "{text}");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_build_for_another_machine_uses_its_tools() {
    let scratch = Scratch::new("a (b) ä");
    let theirs_by_name = ["their-cc", "their-ar"].map(PathBuf::from);
    let theirs_by_path = theirs_by_name.clone().map(|name| {
        scratch.tool(&name.to_string_lossy());
        scratch.0.join("bin").join(name)
    });
    let (here, theirs) = (["ar", "cc"], ["their-ar", "their-cc"]);
    let riscv = ["riscv64-linux-gnu-ar", "riscv64-linux-gnu-gcc"];
    for name in here.into_iter().chain(riscv) {
        scratch.tool(name);
    }
    for (target, setting, expected) in [
        (HOST, "-", here),
        (HOST, "TOOL", theirs),
        (HOST, "HOST_TOOL", theirs),
        (HOST, "TARGET_TOOL", here),
        (HOST, "TOOL_riscv64gc_unknown_linux_gnu", here),
        (TARGET, "-", riscv),
        (TARGET, "TOOL", theirs),
        (TARGET, "TARGET_TOOL", theirs),
        (TARGET, "TOOL_riscv64gc_unknown_linux_gnu", theirs),
        (TARGET, "TOOL_riscv64gc-unknown-linux-gnu", theirs),
    ] {
        let [cc, ar] = ["CC", "AR"].map(|tool| setting.replace("TOOL", tool));
        for [compiler, archiver] in [&theirs_by_name, &theirs_by_path] {
            let compiler = PathBuf::from(format!("{} -DX -DY", compiler.display()));
            let (success, text) = scratch.run(target, &[(&cc, &compiler), (&ar, archiver)]);
            assert!(success, "{target} {setting}: {text}");
            assert_eq!(scratch.used(), expected, "{target} {setting}");
        }
    }
    // Where no name is usual, the error says what to set.
    let words = ["set CC_aarch64-apple-darwin"];
    scratch.fails("aarch64-apple-darwin", &[], &words);
}

#[test]
fn a_library_of_another_version_is_not_linked() {
    let scratch = Scratch::new("version");
    let [major, minor]: [u32; 2] = [MAJOR, MINOR].map(|number| number.parse().unwrap());
    let needs = format!("but this crate needs {major}.{minor} or a later {major}.x");
    let text = |version: String| format!("\0this version (9.9.9)\0@(#)gradscaler {version}\0of it");
    let setting = ("GRADSCALER_LIB_DIR", scratch.0.as_path());
    // No machine can load these files.
    for file in ["libgradscaler.a", "libgradscaler.so"] {
        let library = scratch.0.join(file);
        for (contents, wrong) in [
            (text(format!("{major}.{}.9", minor - 1)), needs.as_str()),
            (text(format!("{major}.{minor}.0")), ""),
            (text(format!("{major}.{minor}.7")), ""),
            (text(format!("{major}.{}.0", minor + 1)), ""),
            (text(format!("{}.{minor}.0", major + 1)), &needs),
            (text("%s".into()), &needs),
            (
                format!("\0this version ({major}.{minor}.0)\0"),
                "contains no version",
            ),
        ] {
            fs::write(&library, [b"\x7fELF\xff", contents.as_bytes()].concat()).unwrap();
            for target in [HOST, TARGET] {
                if wrong.is_empty() {
                    assert!(scratch.run(target, &[setting]).0, "{contents}");
                } else {
                    let words = [wrong, file, "without GRADSCALER_LIB_DIR"];
                    scratch.fails(target, &[setting], &words);
                }
            }
        }
        fs::remove_file(&library).unwrap();
    }
    scratch.fails(HOST, &[setting], &["which has no libgradscaler"]);
}

#[test]
fn the_feature_system_links_what_pkg_config_finds() {
    let scratch = Scratch::new("system (b) ä");
    let feature = ("CARGO_FEATURE_SYSTEM", Path::new("1"));
    let found = [feature, ("PKG_CONFIG_PATH", &scratch.0)];
    let folder = scratch.0.join("lib");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("libgradscaler.a"), "").unwrap();
    let folder = folder.display();
    let install = |version: &str| {
        let lines = "libdir=${pcfiledir}/lib\nincludedir=${libdir}\n";
        let lines = format!("{lines}Version: {version}\n");
        let file = lines + "Name: gradscaler\nDescription: -\n";
        fs::write(scratch.0.join("gradscaler.pc"), file).unwrap();
    };
    install(&format!("{MAJOR}.{MINOR}.7"));
    let (success, text) = scratch.run(HOST, &found);
    let search = format!("cargo:rustc-link-search=native={folder}\n");
    let links = ["cargo:rustc-link-lib=static=gradscaler", &search];
    let all = links.iter().all(|line| text.contains(line));
    assert!(success && all, "{text}");
    for version in ["99.0.0", "0.0.9"] {
        install(version);
        let words = format!("has version {version}, but this crate needs");
        scratch.fails(HOST, &found, &[&words]);
    }
    // Not installed; no pkg-config; one for another machine, by its usual name.
    let (nowhere, none) = (Path::new("/nowhere"), Path::new("no-such-pkg-config"));
    let riscv = "riscv64-linux-gnu-pkg-config cannot be run";
    for (target, name, value, expected) in [
        (HOST, "PKG_CONFIG_LIBDIR", nowhere, "'gradscaler'"),
        (HOST, "PKG_CONFIG", none, "no-such-pkg-config cannot be run"),
        (TARGET, "PKG_CONFIG_LIBDIR", nowhere, riscv),
    ] {
        let words = [expected, "or build without the feature"];
        scratch.fails(target, &[feature, (name, value)], &words);
    }
}
