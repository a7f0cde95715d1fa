#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""ci/test names what failed and the command that repeats it; --help of every command of ci/ installs nothing."""

import importlib.machinery
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("runner", str(ROOT / "ci/test"))
runner = importlib.util.module_from_spec(importlib.util.spec_from_loader("runner", loader))
sys.modules["runner"] = runner
loader.exec_module(runner)

PRINTED = {
    "pytest": "E   assert 1 == 2\nFAILED tests/test_a.py::test_b[c d] - assert 1 == 2\n1 failed\n",
    "ctest": "The following tests FAILED:\n\t  7 - core_avx512 (Failed)\n\t 12 - abi.ffi (SEGFAULT)\nErrors\n",
    "cargo": "failures:\n    a_claim\n    module::another\n\ntest result: FAILED. 3 passed; 2 failed\n",
    "mix": "  1) test a claim (GradScaler.Test)\n     test/a_test.exs:5\n     Assertion with == failed\n",
    "check": "wrong\nCHECK FAILED: digits\n",
    "passed": "failures are refused\n2 passed\n",
}
NAMES = {
    "pytest": {"tests/test_a.py::test_b[c d]": "assert 1 == 2"},
    "ctest": {"core_avx512": "", "abi.ffi": ""},
    "cargo": {"a_claim": "", "module::another": ""},
    "mix": {"test/a_test.exs:5": ""},
    "check": {"digits": ""},
    "passed": {},
}
for kind, printed in PRINTED.items():
    assert runner.failures(printed) == NAMES[kind], (kind, runner.failures(printed))

# Whatever ci/test could run is in its table.
functions = re.findall(r"^((?:build|test)_\w+)\(\)", (ROOT / "ci/components.sh").read_text(), re.MULTILINE)
assert functions == [step.command for step in runner.BUILDS + runner.COMPONENTS], functions

COMPONENTS = """
only=$3
packages() { :; }
venv() { :; }
# 1 s
build_release() { :; }
# 1 s; after release
build_wheel() { echo 'error: no compiler'; return 1; }
# 1 s; levels quick
test_format() { [ -z "$only" ] || echo "NOTE: only $only"; }
# 1 s; after release; levels quick
test_core() { echo x >>rounds; [ "$(wc -l <rounds)" != 3 ] || { echo 'CHECK FAILED: third'; return 1; } }
# 1 s; after release; levels quick
test_c() { echo 'expected 1, not 2'; echo 'CHECK FAILED: digits'; return 1; }
# 1 s; after wheel; levels quick
test_python() { :; }
"""

with tempfile.TemporaryDirectory() as folder:
    copy = Path(folder)
    shutil.copytree(ROOT / "ci", copy / "ci")
    for command in sorted((copy / "ci").iterdir()):
        if command.is_file() and command.suffix != ".sh":
            done = subprocess.run([command, "--help"], capture_output=True, text=True)
            assert done.returncode == 0 and len(done.stdout) > 60, (command, done.stdout, done.stderr)
            assert not (copy / "build").exists(), f"{command} --help makes build/"

    (copy / "ci/setup.sh").write_text("set -e\n")
    (copy / "ci/components.sh").write_text(COMPONENTS)

    def run(*arguments):
        done = subprocess.run([copy / "ci/test", *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout

    status, said = run("--quick")
    lines = said.splitlines()
    assert status == 1 and lines[-1].startswith("4 passed, 3 failed"), said
    assert "    expected 1, not 2" in lines and "  ci/test 'c:digits'" in lines, said
    assert "    error: no compiler" in lines and "    not run: wheel failed" in lines, said
    assert any(re.match(r"\[2/7\] release ok, \d+ s, about", line) for line in lines), said

    status, said = run("format:clang-format")
    assert status == 0 and "format: only clang-format" in said and "\n2 passed, 0 failed, " in said, said

    # The second round fails, as the first of --quick and the first here have added a line.
    status, said = run("--again", "2", "core")
    assert status == 1 and said.splitlines()[-1].split()[:4] == ["core", "2", "1", "third"], said
    assert "(one processor)" in said
    assert run("--again", "1", "format")[0] == 0
    assert run("nothing")[0] == 2
