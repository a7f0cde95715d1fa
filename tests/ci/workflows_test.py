#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Workflows run commands of ci/ that exist, with arguments that these name; files for the host have its formats."""

import itertools
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

from check_jsonschema.cli import main as check_jsonschema
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
FORMATS = {
    "github-workflows": ".github/workflows/*",
    "github-issue-forms": ".github/ISSUE_TEMPLATE/*",
    "dependabot": ".github/dependabot.yml",
    "citation-file-format": "CITATION.cff",
}


def run(*command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(map(str, command))}\n{done.stdout}{done.stderr}"
    return done.stdout


def commands(workflow):
    """Returns the commands of a workflow, each once for every row of its job's matrix."""
    for job in workflow["jobs"].values():
        rows = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
        for row, step in itertools.product(rows, job.get("steps", [])):
            if "run" in step:
                yield re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda name, row=row: str(row[name[1]]), step["run"])


def problem(command, helps):
    """Returns why a command cannot run, or None: a word that its --help lacks is an argument that it does not take."""
    program, *words = shlex.split(command)
    if not re.fullmatch(r"ci/\w+", program):
        return "is not one command of ci/"
    if program not in helps:
        return f"there is no {program}"
    for word in words:
        known = r"\[(SECONDS|N)\]" if word.isdecimal() else rf"(?<![\w-]){re.escape(word)}(?![\w-])"
        if not re.search(known, helps[program]):
            return f"{program} --help does not name {word}"


yaml = YAML(typ="safe")
workflows = {path.name: yaml.load(path) for path in sorted((ROOT / ".github/workflows").glob("*"))}
used = {(name, command) for name, workflow in workflows.items() for command in commands(workflow)}
programs = {shlex.split(command)[0] for _, command in used} & {f"ci/{path.name}" for path in (ROOT / "ci").iterdir()}
helps = {program: run(program, "--help") for program in programs}

assert problem("ci/test nowhere", helps) == "ci/test --help does not name nowhere"
assert problem("ci/fuzz 9", helps) is None and problem("ci/fuzz x", helps) and problem("ci/none", helps)
assert problem("make test", helps) and problem("ci/test --quick && ci/fuzz", helps)
wrong = [f"{name}: {command}: {found}" for name, command in sorted(used) if (found := problem(command, helps))]
assert len(used) > 10 and not wrong, wrong

for schema, files in FORMATS.items():
    options = [f"--builtin-schema=vendor.{schema}", "--quiet", *map(str, ROOT.glob(files))]
    assert not check_jsonschema(options, standalone_mode=False), files

# Security: every action by its hash, the least permissions, no input of strangers in a command.
zizmor = Path(sys.executable).with_name("zizmor")
run(zizmor, "--offline", "--quiet", "--collect=all", "--strict-collection", "--min-severity=medium", ".")

# Who opens the tree in a container has the system of the tests.
image = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())["image"]
assert image in [row["image"] for row in workflows["ci.yml"]["jobs"]["test"]["strategy"]["matrix"]["include"]]
hook = yaml.load(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"][0]
assert problem(hook["entry"], helps) is None, hook
