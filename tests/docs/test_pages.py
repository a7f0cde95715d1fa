# SPDX-License-Identifier: MIT
"""README and the page of each language: every fenced example runs, and prints what its page says.

The programs use what ci/test docs has built: the library, the emulated device, the bindings of Python and Elixir.
"""

import contextlib
import functools
import io
import os
import re
import runpy
import subprocess
import tomllib
from pathlib import Path

import loops
import pytest

ROOT = Path(__file__).parents[2]
RELEASE = ROOT / "build/release"
EMULATED = {"LD_LIBRARY_PATH": f"{RELEASE}/tests/cuda/emulated"}
FIRST, REFERENCE, SKIPPED = "docs/site/index.md", "docs/site/python.md", "docs/skipped.md"
LANGUAGES = map("docs/{}.md".format, ("c", "cuda", "python", "rust", "elixir", "guard"))
PAGES = ("README.md", FIRST, REFERENCE, SKIPPED, *LANGUAGES)


def blocks(page, *languages):
    """The fenced examples of a page in these languages, each with what it prints: a text block after it, or None."""
    found = re.findall(r"^```(\w+)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", (ROOT / page).read_text(), re.M | re.S)
    return [(code, said or None) for language, code, said in found if language in languages]


def programs(language, *pages):
    return [
        pytest.param(code, said, id=f"{page}-{number}")
        for page in pages
        for number, (code, said) in enumerate(blocks(page, language), 1)
    ]


def command(*words, **environment):
    ran = subprocess.run(words, capture_output=True, text=True, env=os.environ | environment, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("code, said", programs("c", FIRST, "docs/c.md", "docs/cuda.md"))
def test_a_program_in_c(code, said, tmp_path):
    (tmp_path / "program.c").write_text(code)
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-DGSC_STATIC", "-Iinclude"]
    libraries = [str(RELEASE / "libgradscaler.a"), "-lm", "-pthread"]
    command("gcc", *flags, f"{tmp_path}/program.c", *libraries, "-o", f"{tmp_path}/program")
    assert command(f"{tmp_path}/program", **EMULATED) == said


@pytest.mark.parametrize("code, said", programs("elixir", FIRST, "docs/elixir.md"))
def test_a_program_in_elixir(code, said, tmp_path):
    (tmp_path / "program.exs").write_text(code)
    assert command("elixir", "-pa", "build/elixir/lib/gradscaler/ebin", f"{tmp_path}/program.exs") == said


@pytest.mark.parametrize("code, said", programs("rust", FIRST, "docs/rust.md"))
def test_a_program_in_rust(code, said, tmp_path):
    ((dependencies, _),) = blocks("docs/rust.md", "toml")
    path = tomllib.loads(dependencies)["dependencies"]["gradscaler"]["path"]
    where = dependencies.replace(path, str(ROOT / path.removeprefix("../gradscaler/")))
    (tmp_path / "Cargo.toml").write_text(f'[package]\nname = "program"\nversion = "0.1.0"\nedition = "2021"\n{where}')
    (tmp_path / "src").mkdir()
    (tmp_path / "src/main.rs").write_text(code)
    built = {"GRADSCALER_LIB_DIR": str(RELEASE), "CARGO_TARGET_DIR": str(ROOT / "build/rust-docs")}
    cargo = ["cargo", "run", "--quiet", "--offline", "--manifest-path", f"{tmp_path}/Cargo.toml"]
    assert command(*cargo, **built, LD_LIBRARY_PATH=str(RELEASE)) == said


@pytest.mark.parametrize("page", [*PAGES[:4], "docs/python.md", "docs/guard.md", "docs/presets.md", "docs/runs.md"])
def test_the_python_of_a_page_runs_from_the_top_to_the_end(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = world() if page in ("README.md", FIRST) else {}
    examples = blocks(page, "python")
    assert examples
    for code, said in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        assert said is None or printed.getvalue() == said
    if page in ("README.md", FIRST):
        scaler = names["scaler"]
        assert scaler.step_was_skipped and scaler.report.cause == "attention.bias"


def test_the_whole_loop_in_c(tmp_path):
    program, library = f"{tmp_path}/loop", str(RELEASE / "libgradscaler.a")
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-DGSC_STATIC", "-Iinclude"]
    command("gcc", *flags, "bindings/c/examples/loop.c", library, "-lm", "-pthread", "-o", program)
    loops.same_files(*loops.check("docs/c.md", loops.command(program), tmp_path))


def test_the_whole_loop_in_elixir(tmp_path):
    library, program = f"{ROOT}/build/elixir/lib/gradscaler/ebin", f"{ROOT}/bindings/elixir/examples/loop.exs"
    loops.same_files(*loops.check("docs/elixir.md", loops.command("elixir", "-pa", library, program), tmp_path))


def world():
    """Returns what README leaves to the reader: a device, a loss and an optimizer."""
    import torch  # noqa: PLC0415

    layers = {name: torch.nn.Linear(4, 4) for name in ("embedding", "attention", "head")}
    model = torch.nn.ModuleDict(layers)
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)
    hidden = model["attention"](model["embedding"](torch.ones(1, 4))).half()  # here the backward pass makes Inf
    loss = model["head"](hidden.float()).sum()
    return {"device": "cpu", "loss": loss, "optimizer": torch.optim.SGD(model.named_parameters(), lr=0.1)}


def test_the_project_with_cmake_is_the_one_that_is_installed_and_built():
    ((lines, _),) = blocks("docs/c.md", "cmake")
    project = (ROOT / "bindings/c/examples/CMakeLists.txt").read_text()
    for line in lines.splitlines():
        words = re.sub(r"gradscaler \d+\.\d+", "gradscaler", line)
        words = words.replace("program", "train_step").replace("gradscaler::gradscaler", "gradscaler::${kind}")
        assert words in re.sub(r"gradscaler \d+\.\d+", "gradscaler", project), line


def test_no_example_is_in_a_language_that_nobody_runs():
    run = {"c", "cmake", "elixir", "python", "rust", "text", "toml"}
    for page in PAGES:
        assert set(re.findall(r"^```(\w+)$", (ROOT / page).read_text(), re.M)) <= run, page


def test_contributing_names_files_and_functions_that_there_are():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    git = functools.partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=False)
    files = git(["git", "ls-files"]).stdout.split()
    for name in set(re.findall(r"`([\w/.-]+/[\w.-]+)`", text)):
        assert any(f"/{file}".endswith(f"/{name}") for file in files) or any((ROOT / name).glob("*")), name
    for name in set(re.findall(r"`(gsc_\w+)`", text)):
        assert git(["git", "grep", "-qw", name, "--", "*.[ch]"]).returncode == 0, name


def test_the_sections_that_sentences_name_are_in_the_guide():
    page = (ROOT / "docs/skipped.md").read_text()
    (named,) = re.findall(r"static void append_page\(.*?\n}\n", (ROOT / "core/reason.c").read_text(), re.S)
    headings = [heading.lower().replace(" ", "-") for heading in re.findall(r"^## (.*)$", page, re.M)]
    sections = re.findall(r'"([a-z-]+)"', named)
    assert len(sections) == 5 and set(sections) <= set(headings)


def test_the_presets_are_those_of_the_library():
    presets = runpy.run_path(str(ROOT / "docs/site/presets.py"))
    assert presets["page"]() == presets["PAGE"].read_text(), "ci/docs writes the table anew"
    drawn = presets["PAGE"].with_suffix(".svg").read_text()
    assert presets["picture"]() == drawn, "ci/docs draws the picture anew"
    for counts in presets["COUNTED"]:
        assert presets["counted"](counts.read_text()) == counts.read_text(), "ci/docs writes the numbers anew"
