# SPDX-License-Identifier: MIT
"""docs/checkpoints.md: its Python runs, its table has every key. Tested programs have examples of other languages."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

import gradscaler

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/checkpoints.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", GUIDE, re.M | re.S)
TESTED = [
    ("checkpoints", "c", "bindings/c/examples/recipes/checkpoint.c"),
    ("checkpoints", "elixir", "bindings/elixir/lib/grad_scaler/checkpoint.ex"),
    ("checkpoints", "rust", "bindings/rust/gradscaler/src/checkpoint.rs"),
    ("ranks", "c", "bindings/c/examples/mpi_digits.c"),
    ("ranks", "elixir", "bindings/elixir/examples/ranks.exs"),
    ("ranks", "rust", "bindings/rust/ranks/src/main.rs"),
]
EXAMPLES_WITH_SENTENCES = pytest.param("_scaler", 5, marks=pytest.mark.wording)


def lines_of(text):
    """Lines without the layout and the comment marks around a documentation test."""
    return [line for raw in text.splitlines() if (line := raw.strip().removeprefix("///").strip())]


@pytest.mark.parametrize("module, least", [("_policy", 5), ("_history", 4), EXAMPLES_WITH_SENTENCES])
def test_the_examples_of_docstrings_print_what_they_say(module, least):
    names = vars(gradscaler)
    failed, attempted = doctest.testmod(importlib.import_module(f"gradscaler.{module}"), extraglobs=names)
    assert failed == 0 and attempted >= least


def test_the_python_examples_run_one_after_another():
    names = {}
    for language, code in BLOCKS:
        if language == "python":
            exec(compile(code, "docs/checkpoints.md", "exec"), names)
    assert names["resumed"].loss_scale == 2048


@pytest.mark.parametrize("guide, language, program", TESTED)
def test_an_example_of_another_language_is_that_of_a_tested_program(guide, language, program):
    source = lines_of((ROOT / program).read_text())
    codes = re.findall(rf"^```{language}\n(.*?)^```", (ROOT / f"docs/{guide}.md").read_text(), re.M | re.S)
    for wanted in map(lines_of, codes):
        assert any(source[at : at + len(wanted)] == wanted for at in range(len(source))), wanted
    assert codes


def test_the_table_has_the_keys_of_every_format():
    table = re.findall(r"^\| .* \|$", GUIDE, re.M)
    rows = {name: row for row in table for name in row.split("|")[1].strip().split(", ")}
    for name in gradscaler.formats():
        try:
            saved = gradscaler.Scaler("torch").state_dict(format=name, prefix="")
        except ValueError:
            assert name not in rows, f"{name} saves no state"
            continue
        keys = set(re.findall(r"\w+", rows[name])) | (set(saved) if name == "gradscaler" else set())
        keys |= set(re.findall(r"\w+", rows["torch"])) if "torch's" in rows[name] else set()
        assert set(saved) <= keys, name
