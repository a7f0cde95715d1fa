// SPDX-License-Identifier: MIT
//! Compiles the C core with the system's compiler, or links the library that GRADSCALER_LIB_DIR
//! names. Written without the `cc` crate, so that the crate builds where there is no registry.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// The numerics need the first line: without contraction the bits are the same everywhere.
const FLAGS: &[&str] = &[
    "-std=c11",
    "-ffp-contract=off",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-D_POSIX_C_SOURCE=200809L",
    "-Iinclude",
    "-Icore",
];

/// A tight loop that crosses a cache line can run several times slower; not every compiler can help.
const FLAGS_WHERE_ACCEPTED: &[&str] = &["-falign-functions=64", "-falign-loops=64"];

fn main() {
    for name in ["GRADSCALER_LIB_DIR", "CC", "AR", "CFLAGS"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    for path in ["build.rs", "core", "include"] {
        println!("cargo:rerun-if-changed={path}");
    }
    if env::var_os("DOCS_RS").is_some() {
        return; // documentation needs no library
    }
    if let Some(directory) = env::var_os("GRADSCALER_LIB_DIR") {
        link_system(Path::new(&directory));
    } else {
        build_core(&PathBuf::from(
            env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"),
        ));
    }
}

fn link_system(directory: &Path) {
    let shared = ["libgradscaler.so", "libgradscaler.dylib"];
    let kind = if shared.iter().any(|name| directory.join(name).exists()) {
        "dylib"
    } else if directory.join("libgradscaler.a").exists() {
        "static"
    } else {
        panic!(
            "GRADSCALER_LIB_DIR is {}, which has no libgradscaler",
            directory.display()
        );
    };
    println!("cargo:rustc-link-search=native={}", directory.display());
    println!("cargo:rustc-link-lib={kind}=gradscaler");
    link_dependencies();
}

/// What the core itself needs: the C library's mathematics, threads, and loading of libraries.
fn link_dependencies() {
    println!("cargo:rustc-link-lib=m");
    println!("cargo:rustc-link-lib=pthread");
    println!("cargo:rustc-link-lib=dl");
}

fn build_core(out: &Path) {
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut flags: Vec<String> = FLAGS.iter().map(|flag| flag.to_string()).collect();
    flags.extend(
        FLAGS_WHERE_ACCEPTED
            .iter()
            .filter(|flag| accepts(&compiler, flag, out))
            .map(|flag| flag.to_string()),
    );
    flags.extend(
        env::var("CFLAGS")
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_string),
    );

    let sources = sources(Path::new("core"));
    assert!(
        !sources.is_empty(),
        "there are no C sources in core/: a link that was not followed?"
    );
    let objects: Vec<PathBuf> = (0..sources.len())
        .map(|i| out.join(format!("{i}.o")))
        .collect();
    let jobs = env::var("NUM_JOBS")
        .ok()
        .and_then(|jobs| jobs.parse().ok())
        .unwrap_or(1)
        .max(1);
    for (sources, objects) in sources.chunks(jobs).zip(objects.chunks(jobs)) {
        let compile = |(source, object)| {
            spawn(
                command(&compiler)
                    .args(&flags)
                    .arg("-c")
                    .arg(source)
                    .arg("-o")
                    .arg(object),
            )
        };
        let running: Vec<Child> = sources.iter().zip(objects).map(compile).collect();
        running.into_iter().for_each(finish);
    }
    archive(&objects, &out.join("libgradscaler.a"));
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static=gradscaler");
    println!(
        "cargo:include={}",
        fs::canonicalize("include")
            .expect("include/ is here")
            .display()
    );
    link_dependencies();
}

/// Every C file below a directory, in a fixed order.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("the directory of the C core can be read");
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().map_or(false, |extension| extension == "c") {
            found.push(path);
        }
    }
    found
}

/// Replaces the archive of an earlier build, which may have other members.
fn archive(objects: &[PathBuf], library: &Path) {
    let _ = fs::remove_file(library);
    let archiver = env::var("AR").unwrap_or_else(|_| "ar".into());
    finish(spawn(
        command(&archiver).arg("crs").arg(library).args(objects),
    ));
}

/// Whether the compiler takes a flag without a warning.
fn accepts(compiler: &str, flag: &str, out: &Path) -> bool {
    let empty = out.join("empty.c");
    fs::write(&empty, "").expect("OUT_DIR can be written");
    command(compiler)
        .args(["-Werror", flag, "-c"])
        .arg(&empty)
        .arg("-o")
        .arg(out.join("empty.o"))
        .output()
        .map_or(false, |output| output.status.success())
}

/// CC may carry arguments, as in "ccache gcc".
fn command(words: &str) -> Command {
    let mut words = words.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("cc"));
    command.args(words);
    command
}

fn spawn(command: &mut Command) -> Child {
    command.spawn().unwrap_or_else(|error| {
        panic!("{command:?} cannot be run: {error}. The C core needs a C compiler: install one, or set CC.")
    })
}

fn finish(mut child: Child) {
    let status = child.wait().expect("the compiler can be waited for");
    assert!(
        status.success(),
        "compiling the C core failed ({status}); its messages are above"
    );
}
