# SPDX-License-Identifier: MIT
"""The examples of the drop-ins train, and the blocks of their guides run one after another."""

import runpy

import pytest
from conftest import ROOT


@pytest.mark.parametrize("name", ["pipeline", "cerebras_digits"])
def test_an_example_trains(name):
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / f"bindings/python/examples/{name}.py"), run_name="__main__")
    assert not ended.value.code


@pytest.mark.parametrize("name", ["roundpipe", "cerebras"])
def test_every_block_of_a_guide_runs(name):
    namespace = {}
    blocks = (ROOT / f"docs/{name}.md").read_text().split("```python\n")[1:]
    assert blocks
    for block in blocks:
        exec(compile(block.split("```")[0], f"docs/{name}.md", "exec"), namespace)
