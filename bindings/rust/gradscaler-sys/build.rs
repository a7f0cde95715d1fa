// SPDX-License-Identifier: MIT
//! Compiles the C core with the system's compiler, or links an installed library: from the folder
//! GRADSCALER_LIB_DIR, or with the feature `system` the one that pkg-config finds. Written without
//! the crates `cc` and `pkg-config`, so that it builds where there is no registry.

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
    "-ffunction-sections",
    "-fdata-sections",
    "-DGSC_STATIC",
    "-D_POSIX_C_SOURCE=200809L",
];

/// A tight loop that crosses a cache line can run several times slower; not every compiler can help.
const FLAGS_WHERE_ACCEPTED: &[&str] = &["-falign-functions=64", "-falign-loops=64"];

fn main() {
    println!("cargo:rerun-if-env-changed=GRADSCALER_LIB_DIR");
    for path in ["build.rs".into(), folder("core"), folder("include")] {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    if env::var_os("DOCS_RS").is_some() {
        return; // documentation needs no library
    }
    if let Some(directory) = env::var_os("GRADSCALER_LIB_DIR") {
        let library = link_installed(Path::new(&directory), "GRADSCALER_LIB_DIR");
        println!("cargo:rerun-if-changed={}", library.display());
        check_version(&library);
    } else if env::var_os("CARGO_FEATURE_SYSTEM").is_some() {
        link_system();
    } else {
        build_core(&PathBuf::from(variable("OUT_DIR")));
    }
}

/// The folder of this name in the package; in a clone, which has it once for all languages, the repository's.
fn folder(name: &str) -> PathBuf {
    let packed = PathBuf::from(name);
    if packed.is_dir() {
        packed
    } else {
        Path::new("../../..").join(name)
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// Returns whether the library is for another kind of machine than this one.
fn is_cross() -> bool {
    variable("TARGET") != variable("HOST")
}

/// Returns the environment's setting of a tool, for the target first, as the `cc` crate has it.
fn setting(name: &str) -> Option<String> {
    let target = variable("TARGET");
    let kind = if is_cross() { "TARGET" } else { "HOST" };
    let names = [
        format!("{name}_{target}"),
        format!("{name}_{}", target.replace('-', "_")),
        format!("{kind}_{name}"),
        name.to_string(),
    ];
    for name in &names {
        println!("cargo:rerun-if-env-changed={name}");
    }
    names.iter().find_map(|name| env::var(name).ok())
}

/// A tool of the environment; otherwise the system's, or, for another machine, by the name that Linux distributions
/// give it: aarch64-linux-gnu-gcc.
fn tool(name: &str, native: &str, cross: &str) -> String {
    setting(name).unwrap_or_else(|| {
        if !is_cross() {
            return native.to_string();
        }
        let target = variable("TARGET");
        match target.split('-').collect::<Vec<_>>()[..] {
            [machine, _, "linux", libc] => {
                let machine = machine.trim_end_matches("gc"); // riscv64gc
                format!("{machine}-linux-{libc}-{cross}")
            }
            _ => panic!("for {target} on {}, set {name}_{target}", variable("HOST")),
        }
    })
}

/// The library that pkg-config knows.
fn link_system() {
    for name in [
        "PKG_CONFIG_PATH",
        "PKG_CONFIG_LIBDIR",
        "PKG_CONFIG_SYSROOT_DIR",
    ] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let version = pkg_config("--modversion");
    require(
        &version,
        "the gradscaler of pkg-config",
        "the feature `system`",
    );
    println!("cargo:include={}", pkg_config("--variable=includedir"));
    let directory = pkg_config("--variable=libdir");
    link_installed(Path::new(&directory), "the libdir of pkg-config");
}

/// Returns pkg-config's answer about the library, without the backslashes that a shell would need.
fn pkg_config(question: &str) -> String {
    let tool = tool("PKG_CONFIG", "pkg-config", "pkg-config");
    let answer = command(&tool).args([question, "gradscaler"]).output();
    let wrong = match answer {
        Ok(answer) if answer.status.success() => {
            let answer = String::from_utf8_lossy(&answer.stdout);
            let quoted = [("\\ ", " "), ("\\(", "("), ("\\)", ")")];
            let plain = |text: String, (from, to): (&str, &str)| text.replace(from, to);
            return quoted.into_iter().fold(answer.trim().to_string(), plain);
        }
        Ok(answer) => String::from_utf8_lossy(&answer.stderr).trim().to_string(),
        Err(error) => format!("{tool} cannot be run: {error}"),
    };
    panic!(
        "the feature `system` links an installed gradscaler, which pkg-config does not find: install \
         it, name the folder of its gradscaler.pc in PKG_CONFIG_PATH or the library's folder in \
         GRADSCALER_LIB_DIR, or build without the feature, which compiles it.\n{wrong}"
    );
}

/// Links the library of a folder; returns its file.
fn link_installed(directory: &Path, origin: &str) -> PathBuf {
    let kinds = [("so", "dylib"), ("dylib", "dylib"), ("a", "static")];
    let files = kinds.map(|(end, kind)| (directory.join(format!("libgradscaler.{end}")), kind));
    let found = files.into_iter().find(|(file, _)| file.exists());
    let (library, kind) = found.unwrap_or_else(|| {
        panic!(
            "{origin} is {}, which has no libgradscaler",
            directory.display()
        )
    });
    println!("cargo:rustc-link-search=native={}", directory.display());
    println!("cargo:rustc-link-lib={kind}=gradscaler");
    link_dependencies();
    library
}

/// Reads the version behind the mark that the library contains for this and for the tool `what`. The file is not
/// loaded: it can be for another machine, and loading runs its code.
fn check_version(library: &Path) {
    let bytes = fs::read(library).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
    let mark = b"@(#)gradscaler ";
    let start = bytes.windows(mark.len()).position(|window| window == mark);
    let start = start.unwrap_or_else(|| {
        panic!(
            "{} contains no version, so it is older than 0.10 or not gradscaler; without \
             GRADSCALER_LIB_DIR the crate compiles the library",
            library.display()
        )
    });
    let version = bytes[start + mark.len()..].split(|byte| *byte == 0).next();
    let version = String::from_utf8_lossy(version.unwrap_or_default());
    require(
        &version,
        &library.display().to_string(),
        "GRADSCALER_LIB_DIR",
    );
}

/// Refuses a library that is older than the declarations, which lacks some of them, and a library of another
/// major version, which has others.
fn require(found: &str, library: &str, setting: &str) {
    let own = |name| variable(name).parse::<u32>().expect("cargo gives numbers");
    let major = own("CARGO_PKG_VERSION_MAJOR");
    let minor = own("CARGO_PKG_VERSION_MINOR");
    let mut numbers = found.split('.').map(|number| number.parse::<u32>().ok());
    let mut number = || numbers.next().flatten();
    assert!(
        number() == Some(major) && number() >= Some(minor),
        "{library} has version {found}, but this crate needs {major}.{minor} or a later {major}.x: install \
         one, or build without {setting}, which compiles the library"
    );
}

/// Links what the core itself needs: the C library's mathematics, threads, and loading of libraries.
fn link_dependencies() {
    for library in ["m", "pthread", "dl"] {
        println!("cargo:rustc-link-lib={library}");
    }
}

fn build_core(out: &Path) {
    let compiler = tool("CC", "cc", "gcc");
    let accepted = FLAGS_WHERE_ACCEPTED.iter();
    let accepted = accepted.filter(|flag| accepts(&compiler, flag, out));
    let own = setting("CFLAGS").unwrap_or_default();
    let flags: Vec<&str> = FLAGS.iter().chain(accepted).copied().collect();

    let (core, include) = (folder("core"), folder("include"));
    assert!(
        core.is_dir(),
        "this is neither a clone of the repository nor a package that ci/package made: it has no core/"
    );
    let sources = sources(&core);
    let numbers = 0..sources.len();
    let objects: Vec<PathBuf> = numbers.map(|i| out.join(format!("{i}.o"))).collect();
    let jobs = env::var("NUM_JOBS").unwrap_or_default();
    let jobs = jobs.parse::<usize>().unwrap_or(1).max(1);
    for (sources, objects) in sources.chunks(jobs).zip(objects.chunks(jobs)) {
        let compile = |(source, object)| {
            let mut compile = command(&compiler);
            compile.args(&flags).arg("-I").arg(&include);
            compile.arg("-I").arg(&core).args(own.split_whitespace());
            spawn(compile.arg("-c").arg(source).arg("-o").arg(object))
        };
        let running: Vec<Child> = sources.iter().zip(objects).map(compile).collect();
        running.into_iter().for_each(finish);
    }
    archive(&objects, &out.join("libgradscaler.a"));
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static=gradscaler");
    let include = fs::canonicalize(include).expect("include/ is beside core/");
    println!("cargo:include={}", include.display());
    link_dependencies();
}

/// Every C file below a directory, in a fixed order.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("the directory of the C core can be read");
    let mut entries: Vec<_> = entries.map(|it| it.expect("an entry").path()).collect();
    entries.sort();
    let mut found = Vec::new();
    for path in entries {
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
    let archiver = tool("AR", "ar", "ar");
    let mut archive = command(&archiver);
    finish(spawn(archive.arg("crs").arg(library).args(objects)));
}

/// Returns whether the compiler takes a flag without a warning.
fn accepts(compiler: &str, flag: &str, out: &Path) -> bool {
    let empty = out.join("empty.c");
    fs::write(&empty, "").expect("OUT_DIR can be written");
    let mut compile = command(compiler);
    compile.args(["-Werror", flag, "-c"]).arg(&empty);
    let done = compile.arg("-o").arg(out.join("empty.o")).output();
    done.map_or(false, |output| output.status.success())
}

/// Returns the command of a setting such as CC: a program and its arguments, as in "ccache gcc". The path of a
/// program can have spaces.
fn command(words: &str) -> Command {
    let words = words.trim();
    let ends = words.match_indices(' ').map(|(at, _)| at);
    let mut ends: Vec<usize> = ends.chain([words.len()]).collect();
    ends.sort_by_key(|end| !Path::new(&words[..*end]).is_file()); // files first
    let (program, arguments) = words.split_at(ends[0]);
    let mut command = Command::new(program);
    command.args(arguments.split_whitespace());
    command
}

fn spawn(command: &mut Command) -> Child {
    command.spawn().unwrap_or_else(|error| {
        panic!("{command:?} cannot be run: {error}. The C core needs a C compiler: install one, or set CC, or CC_{}.", variable("TARGET"))
    })
}

fn finish(mut child: Child) {
    let status = child.wait().expect("the compiler can be waited for");
    assert!(
        status.success(),
        "compiling the C core failed ({status}); its messages are above"
    );
}
