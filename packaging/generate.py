# SPDX-License-Identifier: MIT
"""Writes the manifest's version, and the fields of packaging/owner.toml, into the files that must state them.

The rest of these files is written by hand.
"""

import re
import sys
import tomllib

from manifest import ROOT, run

NUMBER = r'"\d+\.\d+\.\d+"'
# The text before the version; in the crates also before the versions of crates that they depend on.
LINE = [r"^version = "]
CRATE = [r"^version = ", r'path = "[^"]*", version = ']
LOCKED = [r'^name = "gradscaler[a-z-]*"\nversion = ']
PLACES = {
    "bindings/python/pyproject.toml": LINE,
    "bindings/python/src/gradscaler/__init__.py": [r"^__version__ = "],
    "bindings/elixir/mix.exs": [r"^      version: "],
    "bindings/elixir/lib/grad_scaler.ex": [r"^      iex> GradScaler\.info\(\)\.version\n      "],
    "CITATION.cff": [r"^version: "],
}
for folder in ("", "*/", "*/*/"):
    for name, places in (("Cargo.toml", CRATE), ("Cargo.lock", LOCKED)):
        for path in sorted((ROOT / "bindings/rust").glob(folder + name)):
            PLACES[str(path.relative_to(ROOT))] = places

OWNER = tomllib.loads((ROOT / "packaging/owner.toml").read_text())
if wrong := [field for field, value in OWNER.items() if re.search(r'["\\\n]', value)]:
    sys.exit(f"packaging/owner.toml: {wrong[0]} has a quote, a backslash or a line break: leave it out")
# The text before a line, the line with its fields, and the line that stands for it while one of these is empty, if any.
PUBLISHED = [
    (r"^description = .*\n", 'repository = "@repository@"\n'),
    (r"^description = .*\n(?:repository = .*\n)?", 'documentation = "@documentation@"\n'),
]
OWNED = {
    "bindings/python/pyproject.toml": [
        (r'^license = "MIT"\n', 'maintainers = [{ name = "@maintainer@", email = "@contact@" }]\n'),
        (r"^requires-python = .*\n", 'urls = { Repository = "@repository@", Documentation = "@documentation@" }\n'),
    ],
    "bindings/elixir/mix.exs": [
        (r"^      package: package\(\),\n", '      source_url: "@repository@",\n'),
        (r'^      licenses: \["MIT"\],\n', '      links: %{"Source" => "@repository@"},\n', "      links: %{},\n"),
    ],
    "packaging/conanfile.py": [(r'^    license = "MIT"\n', '    url = homepage = "@repository@"\n')],
    "packaging/vcpkg/vcpkg.json": [
        (r'^  "description": .*\n', '  "homepage": "@repository@",\n'),
        (r'^  "version": .*\n', '  "maintainers": "@maintainer@ <@contact@>",\n'),
    ],
    "CITATION.cff": [(r"^license: MIT\n", 'repository-code: "@repository@"\n')],
    ".github/CODEOWNERS": [(r"^# .*\n", "* @reviewers@\n")],
    ".github/SECURITY.md": [(r"never as an issue\.\n", "Without this button write to @contact@.\n")],
    "tests/fuzz/oss-fuzz/project.yaml": [
        (r"^# .*\n", 'homepage: "@repository@"\n'),
        (r"^language: .*\n", 'main_repo: "@repository@"\n'),
        (r"^sanitizers: .*\n", 'primary_contact: "@contact@"\n'),
    ],
    "tests/fuzz/oss-fuzz/Dockerfile": [
        (r"^# .*\n", "FROM @oss_fuzz_image@\n"),
        (r"^RUN apt-get .*\n", "RUN git clone --depth 1 @repository@ gradscaler\n"),
    ],
}
for path in PLACES:
    text = (ROOT / path).read_text()
    if path.endswith("Cargo.toml") and "\ndescription = " in text and "\npublish = false" not in text:
        OWNED[path] = PUBLISHED


def with_line(text, before, line, without=""):
    """Returns the text with the line, or the other one if a field is empty, in the place of the one that it has."""
    filled = all(OWNER[field] for field in re.findall(r"@(\w+)@", line))
    new = re.sub(r"@(\w+)@", lambda field: OWNER[field[1]], line) if filled else without
    old = re.escape(line.split("@")[0]) + r".*\n|" + re.escape(without)
    return re.subn(f"({before})(?:{old})", lambda found: found[1] + new, text, count=1, flags=re.M)


def stamp(name):
    def emit(manifest):
        version = "{}.{}.{}".format(*manifest.version)
        places = PLACES.get(name, [])
        text, count = (ROOT / name).read_text(), 1
        if places:
            text, count = re.subn(f"({'|'.join(places)}){NUMBER}", rf'\g<1>"{version}"', text, flags=re.M)
        if places is not CRATE and not count:
            sys.exit(f"{name}: has no version where packaging/generate.py looks for it")
        for owned in OWNED.get(name, []):
            text, count = with_line(text, *owned)
            if not count:
                sys.exit(f"{name}: packaging/generate.py looks for {owned[0]} and does not find it")
        return text

    return emit


run({name: stamp(name) for name in PLACES | OWNED})
