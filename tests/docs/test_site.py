# SPDX-License-Identifier: MIT
"""The site's checker finds what is wrong, and text becomes the Markdown that it means."""

import re
import runpy
import sys
from pathlib import Path

import pytest

SITE = Path(__file__).parents[2] / "docs/site"
check = runpy.run_path(str(SITE / "check.py"))["problems"]


@pytest.mark.parametrize(
    "html, problem",
    [
        ('<a href="other.html#here">', None),
        ('<a href="#top" id="top">', None),
        ('<a href="https://example.org/">', None),
        ('<img src="data:image/png;base64,">', None),
        ('<a href="source.rs.html#1-2">', None),
        ('<a href="none.html">', "leads nowhere"),
        ('<a href="other.html#none">', "no such place"),
        ('<a href="source.rs.html#1-3">', "no such place"),
        ('<a href="folder">', "is a folder"),
        ('<a href="../../etc/passwd">', "leads nowhere"),
        ('<script src="none.js">', "leads nowhere"),
        ('<script src="https://example.org/a.js">', "fetches"),
        ('<link rel="stylesheet" href="https://example.org/a.css">', "fetches"),
        ('<img src="//example.org/a.png">', "fetches"),
        ("<pre>```{py:class} Error</pre>", "shows"),
        ("<p>{c:func}`gsc_scale`</p>", "shows"),
    ],
)
def test_a_page_has_the_problem_that_it_has(html, problem, tmp_path):
    (tmp_path / "page.html").write_text(html)
    (tmp_path / "other.html").write_text('<p id="here">')
    (tmp_path / "source.rs.html").write_text('<a id="1"></a><a id="2"></a>')
    (tmp_path / "folder").mkdir()
    found = list(check(tmp_path.resolve()))
    assert [problem in one for one in found] == [True] if problem else not found


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(SITE.parents[1] / "include"), *sys.path])
    return runpy.run_path(str(SITE / "pages.py"))


def test_what_markdown_would_take_for_marks_is_text(pages):
    assert pages["plain"]("- *a [b] `*c*` d_") == "- \\*a \\[b\\] `*c*` d\\_"
    names = pages["Names"](pages["manifest"].load())
    assert names.text("*out is gsc_measure of |x|, min_scale") == "`*out` is {c:func}`gsc_measure` of |x|, `min_scale`"


def test_a_docstring_keeps_its_lists_and_sessions(pages):
    text = "One: two.\n\nbad: what *is*\n    bad\nrank, failed: who\n\n>>> f(1)\n2\n\nuse = it(1)\nthen = that(2)"
    made = "One: two.\n\n- `bad`: what \\*is\\*\n  bad\n- `rank, failed`: who\n\n```python\n>>> f(1)\n2\n```\n\n"
    assert pages["prose"](text) == made + "```python\nuse = it(1)\nthen = that(2)\n```"


def test_a_link_in_a_block_of_code_stays(pages):
    text = "[a](b)\n```c\nx[0](y)\n```\n    z[1](y)\n[a](b)\n"
    assert pages["outside_code"](text, str.upper) == "[A](B)\n```c\nx[0](y)\n```\n    z[1](y)\n[A](B)\n"


def test_a_link_to_an_example_leads_to_a_page_with_the_program(pages, tmp_path):
    root = SITE.parents[1]
    assert "](python-examples-torch-loop.py.md)" in pages["guide"](root / "docs/torch.md", tmp_path)
    code = (root / "bindings/python/examples/torch/loop.py").read_text()
    assert f"```python\n{code}```" in (tmp_path / "python-examples-torch-loop.py.md").read_text()


def test_each_page_of_the_reference_of_c_begins_with_what_its_subject_is(pages):
    for item in pages["manifest"].load().items:
        if item.what == "section":
            assert re.match(r"(A|An|Calls|Metrics|Ranks) ", item.doc or ""), item.name


def test_the_reference_of_elixir_speaks_elixir():
    text = (SITE.parents[1] / "bindings/elixir/lib/grad_scaler/structs.ex").read_text()
    for said in re.findall(r'@moduledoc """\n(.*?)"""', text, re.S):
        assert not re.search(r"gsc_|NULL|pointer|options\.|`policy_|`report_|Initialise", said), said
