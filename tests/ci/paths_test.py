#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Recipes delete and write only in their own folder, also if the path has spaces, parentheses or quotes."""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["big data", "a (b) ä", "it's $HOME, #1; [x] 'y'"]

# Takes the place of the C compiler: fails if an input is missing, and makes an empty output.
COMPILER = """#!/bin/sh
[ "$1" != -dumpmachine ] || { echo x86_64-linux-gnu; exit; }
for word; do
  case $last in
  -o) out=$word ;;
  -isystem) [ -d "$word" ] || exit 1 ;;
  *)
    case $word in
    -I*) [ -d "${word#-I}" ] || exit 1 ;;
    *.[aco]) [ -f "$word" ] || exit 1 ;;
    esac
    ;;
  esac
  last=$word
done
: >"$out"
"""
# Follows the real ci/setup.sh: only "pages", the step that deletes, runs, and without its tools.
ONLY_PAGES = """
step() { [ "$3" != pages ] || pages; }
elixir() { :; }
cargo() { :; }
python=true
"""


def state(folder):
    """Returns the time of each file below the folder; folders have none."""
    return {path: path.stat().st_mtime_ns if path.is_file() else None for path in folder.rglob("*")}


def run(*command, **options):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, **options)
    return done.returncode, done.stdout + done.stderr


def expect(top, made, deleted, *command, **options):
    """Runs a command and checks which paths below top it made or wrote, and which it deleted; no others."""
    before = state(top)
    status, said = run(*command, **options)
    after = state(top)
    changed = {path for path in after if after[path] != before.get(path, 0)}
    gone = before.keys() - after.keys()
    for what, found, wanted in ("made", changed, made), ("deleted", gone, deleted):
        wrong = [str(path.relative_to(top)) for path in sorted(found ^ wanted)]
        assert not wrong, f"{what} and not wanted, or wanted and not {what}: {wrong}\n{said}"
    assert status == 0, said
    # Clocks of file systems are coarse: without this, a file that is written next can seem as old as these.
    for path, time in after.items():
        if time is not None:
            os.utime(path, ns=(time - 10**11, time - 10**11))


def fill(*folders):
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kept").touch()


def decoys(clone, inside):
    """Makes the folders that a path splits into at its spaces: beside the clone, and relative to a folder inside."""
    first, *others = clone.name.split()
    fill(clone.parent / first, *(inside / word for word in others), *(clone.parent / word for word in others))


def check_makefile(top, clone, compiler):
    """Builds with elixir_make's variables, builds again, and cleans."""
    elixir, app, erts = clone / "bindings/elixir", clone / "_build/test/lib/gradscaler", clone / "erts/include"
    decoys(clone, elixir)
    fill(erts, app, app / "priv")
    shutil.copytree(ROOT / "bindings/elixir/c_src", elixir / "c_src")
    shutil.copy(ROOT / "bindings/elixir/Makefile", elixir)
    for folder in ("include", "core"):
        shutil.copytree(ROOT / folder, clone / folder)
    nif, objects = app / "priv/gradscaler_nif.so", app / "obj"
    sources = ["c_src/gradscaler_nif.c", *(str(path.relative_to(clone)) for path in (clone / "core").rglob("*.c"))]
    made = {objects, nif, *(objects / source.replace("/", "-").replace(".c", ".o") for source in sources)}
    settings = os.environ | {"MIX_APP_PATH": str(app), "ERTS_INCLUDE_DIR": str(erts), "CC": shlex.quote(str(compiler))}
    settings |= {"GRADSCALER_SOURCE": str(clone), "GRADSCALER_LIB_DIR": ""}

    def make(goal, made=(), deleted=(), **more):
        expect(top, set(made), set(deleted), "make", "--silent", "-j2", goal, cwd=elixir, env=settings | more)

    fill(objects)
    make("clean", deleted={objects, objects / "kept"})
    make("all", made)
    make("all")
    (clone / "core/error.c").touch()
    make("all", {objects / "core-error.o", nif})
    make("clean", deleted=made)

    library = clone / "lib/libgradscaler.a"
    fill(library.parent)
    (library.parent / "real.a").touch()
    library.symlink_to("real.a")
    made = {objects, nif, objects / "c_src-gradscaler_nif.o"}
    make("all", made, GRADSCALER_LIB_DIR=str(library.parent))
    library.touch()
    make("all", {nif}, GRADSCALER_LIB_DIR=str(library.parent))
    make("clean", deleted=made)
    for goal in ("all", "clean"):
        status, said = run("make", goal, cwd=elixir, env=settings | {"MIX_APP_PATH": ""})
        assert status == 2 and "MIX_APP_PATH is not set" in said, said


def check_docs(top, clone):
    """Deletes the pages of the run before, with a CDPATH that leads into another project."""
    other = top / "other"
    decoys(clone, clone)
    own = [clone / "build/docs", clone / "build/docs-source"]
    fill(other / "ci", other / "build/docs", other / "build/docs-source", *own)
    (clone / "ci").mkdir()
    shutil.copy(ROOT / "ci/docs", clone / "ci")
    (clone / "ci/setup.sh").write_text((ROOT / "ci/setup.sh").read_text() + ONLY_PAGES)
    deleted = {path for folder in own for path in (folder, folder / "kept")}
    expect(top, set(), deleted, "bash", "ci/docs", cwd=clone, env=os.environ | {"CDPATH": str(other)})


def unquoted(line):
    """Returns whether a variable stands without quotes in a command of the line that deletes or moves."""
    bare = re.sub(r"""'[^']*'|"(\\.|[^"\\])*"|\s#.*""", "_", line)
    return re.search(r"(^|[\s;&|({])(rm|rmdir|mv) [^;&|]*\$", bare)


def check_quotes():
    assert unquoted('  rm -rf $source "$site"') and unquoted("a && mv x $y") and not unquoted('rm -f "$1"/*.whl # $')
    scripts = [*ROOT.glob("packaging/*.sh"), *ROOT.glob("tests/**/*.sh"), *ROOT.glob("bindings/**/test/*.sh")]
    scripts += [path for path in ROOT.glob("ci/*") if path.is_file()]
    for script in scripts:
        for number, line in enumerate(script.read_text().splitlines(), 1):
            assert not unquoted(line), f"{script.relative_to(ROOT)}:{number}: a variable without quotes: {line.strip()}"


check_quotes()
with tempfile.TemporaryDirectory() as scratch:
    compiler = Path(scratch, "cc")
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    for index, name in enumerate(NAMES):
        for check, arguments in (check_makefile, [compiler]), (check_docs, []):
            top = Path(scratch, f"{check.__name__}-{index}")
            check(top, top / name, *arguments)
