# SPDX-License-Identifier: MIT
"""Puts the pages of the site together, as Markdown for Sphinx: pages.py OUT.

Guides are those of the tree, with their links turned into links of the site. The reference of C is made from the
manifest, that of Python from its sources; docs/site/elixir.exs and rustdoc make the others.
"""

import re
import sys
from pathlib import Path

import griffe
import manifest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "bindings/python/src"
GUIDES = (
    "c",
    "python",
    "torch",
    "jax",
    "elixir",
    "rust",
    "cuda",
    "ranks",
    "checkpoints",
    "presets",
    "roundpipe",
    "cerebras",
)
MODULES = "gradscaler", "gradscaler.torch", "gradscaler.jax", "gradscaler.roundpipe", "gradscaler.cerebras"
# Where a file of the tree is in the site; what links to a folder or a source links to its reference.
SITE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "core/numerics.md": "numerics.md",
    "include/gradscaler.h": "reference/c.md",
    "bindings/python/src/gradscaler/__init__.py": "reference/python.md",
    "bindings/elixir/lib/grad_scaler.ex": "reference/elixir/GradScaler.md",
    "bindings/rust/gradscaler/src/lib.rs": "reference/rust/gradscaler/index.html",
    "bindings/rust/gradscaler-sys/README.md": "reference/rust/gradscaler_sys/index.html",
}
CONTENTS = """
```{toctree}
:hidden:
:caption: Languages

C <c>
Python <python>
torch <torch>
JAX <jax>
Elixir <elixir>
Rust <rust>
CUDA <cuda>
```

```{toctree}
:hidden:
:caption: Guides

Presets <presets>
Checkpoints <checkpoints>
Ranks <ranks>
Guard <guard>
RoundPipe <roundpipe>
Cerebras <cerebras>
The bits <numerics>
Changes <changelog>
```

```{toctree}
:hidden:
:caption: Reference

C <reference/c>
Python <reference/python>
Elixir <reference/elixir>
Rust <reference/rust>
```
"""


# ---- guides ----


def outside_code(text, change):
    """The text with `change` applied to what is in no fenced or indented block."""
    pieces = re.split(r"(^```.*?^```$|^(?:    [^\n]*\n)+)", text, flags=re.M | re.S)
    return "".join(piece if number % 2 else change(piece) for number, piece in enumerate(pieces))


def in_site(path):
    """The page that a file of the tree is on."""
    name = path.relative_to(ROOT).as_posix()
    if name in SITE:
        return SITE[name]
    if path.parent == ROOT / "docs" and path.suffix == ".md":
        return path.name
    raise SystemExit(f"{name} is linked to, but is no page: add it to SITE in docs/site/pages.py")


def guide(source):
    def link(match):
        words, target = match[1], match[2]
        if re.match(r"https?:|#", target):
            return match[0]
        target, _, fragment = target.partition("#")
        path = (source.parent / target).resolve()
        if not path.exists():
            raise SystemExit(f"{source.relative_to(ROOT)}: the link to {target} leads nowhere")
        page = in_site(path) + (f"#{fragment}" if fragment else "")
        # Sphinx knows nothing of the pages that rustdoc makes.
        return f'<a href="{page}">{words}</a>' if ".html" in page else f"[{words}]({page})"

    return outside_code(source.read_text(), lambda text: re.sub(r"\[([^][]+)\]\(([^)\s]+)\)", link, text))


def guides(out):
    pages = sorted((ROOT / "docs").glob("*.md"))
    contents = CONTENTS if ROOT / "docs/guard.md" in pages else CONTENTS.replace("Guard <guard>\n", "")
    (out / "index.md").write_text(guide(ROOT / "README.md") + contents)
    for page in [*pages, ROOT / "CHANGELOG.md", ROOT / "core/numerics.md"]:
        (out / in_site(page)).write_text(guide(page))


# ---- C, from the manifest ----


class Names:
    """Text of the manifest as Markdown: what is code looks like it, and what is in the reference is linked."""

    def __init__(self, api):
        self.anchors = {}
        for item in api.items:
            if item.what == "function":
                self.anchors[item.name] = "func"
            elif item.what in ("struct", "opaque"):
                self.anchors[item.name] = "struct"
            elif item.what in ("alias", "callback"):
                self.anchors[item.name] = "type"
            for value in getattr(item, "values", ()):
                self.anchors[value.c] = "macro"

    def text(self, text):
        code = r"`[^`]*`|\*?\b(?:gsc|GSC)_\w+\*?|\*\w+\b|\b\w+(?:\.|->)[a-z]\w*(?:\.\w+)*|\b[a-z0-9]+_[a-z0-9_]+\b"
        pieces = re.split(f"({code})", text)
        return "".join(self.code(piece) if at % 2 else escaped(piece) for at, piece in enumerate(pieces))

    def code(self, word):
        word = word.strip("`")
        kind = self.anchors.get(word)
        return f"{{c:{kind}}}`{word}`" if kind else f"`{word}`"

    def cell(self, text):
        return self.text(text).replace("|", "\\|")

    def paragraphs(self, text):
        return "\n".join(
            line if not line or line.startswith("    ") else self.text(line)
            for line in manifest.paragraphs(text, 10**6)
        )


def escaped(text):
    return re.sub(r"([*_<>\[\]\\])", r"\\\1", text)


def table(*rows):
    first, *rest = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([first, "|---" * len(rows[0]) + "|", *rest])


def directive(name, signature, body, *options):
    ticks = "`" * (3 + body.count("```{"))
    return "\n".join([f"{ticks}{{{name}}} {signature}", *options, "", body, ticks])


def c_function(names, item):
    arguments = ", ".join(manifest.declare(arg.c, arg.name) for arg in item.args) or "void"
    result = "const char *" if item.returns == "string" else f"{item.returns} "
    said = [names.paragraphs(item.doc)]
    rows = []
    for arg in item.args:
        words = [arg.unit] if arg.unit else []
        words += [f"NULL: {arg.null}"] if arg.null else []
        words += [f"NULL only with {arg.count} = 0"] if arg.count and not arg.required and not arg.null else []
        rows += [(f"`{arg.name}`", names.cell("; ".join(words)))] if words else []
    if rows:
        said.append(table(("argument", ""), *rows))
    if item.what == "function":
        facts = {"no": "never waits", "by size": "takes as long as the tensors do", "yes": "may wait"}[item.blocks]
        facts += "; may be captured in a CUDA graph" if item.capture else "; not in a CUDA graph that is captured"
        said.append(f"Since {item.since}; {facts}.")
        if item.errors:
            said.append("Fails with " + ", ".join(names.code(f"GSC_ERROR_{error}") for error in item.errors) + ".")
    if item.what == "callback":
        return directive("c:type", f"{result}(*{item.name})({arguments})", "\n\n".join(said))
    return directive("c:function", f"{result}{item.name}({arguments})", "\n\n".join(said))


def c_struct(names, item):
    about = {"grows": f"Starts as `{item.name.upper()}_INIT`; may gain fields.", "fixed": f"{item.size} bytes."}
    rows = [("field", "type", "")]
    for field in item.fields:
        array = f"[{field.array}]" if field.array else ""
        later = "" if field.since == item.since else f"; since {field.since}"
        rows.append((f"`{field.name}`", f"`{field.c.strip()}{array}`", names.cell(field.doc + later)))
    said = [names.paragraphs(item.doc), f"Since {item.since}. {about[item.kind]}", table(*rows)]
    return directive("c:struct", item.name, "\n\n".join(said))


def c_constants(names, item):
    rows = [("constant", "value", "")]
    for value in item.values:
        later = "" if value.since == item.since else f"; since {value.since}"
        rows.append((names.code(value.c), f"`{value.value}`", names.cell(value.doc + later)))
    # One target for each, so that a search and a link find it.
    targets = "\n\n".join(directive("c:macro", value.c, "", ":no-typesetting:") for value in item.values)
    return "\n\n".join([names.paragraphs(item.doc), table(*rows), targets])


def c_reference(out):
    api = manifest.load()
    names = Names(api)
    text = ["# Reference of C", names.paragraphs(api.library.doc)]
    for item in api.items:
        if item.what == "section":
            text += [f"## {item.name}", names.paragraphs(item.doc or "")]
        elif item.what in ("function", "callback"):
            text.append(c_function(names, item))
        elif item.what == "struct":
            text.append(c_struct(names, item))
        elif item.what == "constants":
            text.append(c_constants(names, item))
        else:
            said = f"{names.paragraphs(item.doc)}\n\nSince {item.since}."
            of = f"{item.type} {item.name}" if item.what == "alias" else item.name
            text.append(directive("c:type" if item.what == "alias" else "c:struct", of, said))
    (out / "reference/c.md").write_text("\n\n".join(text) + "\n")


# ---- Python, from its sources ----


def prose(text):
    """A docstring as Markdown: `name: what it is` lines become a list, sessions with >>> stay as they are."""
    lines, code, listed = [], False, False
    for at, line in enumerate(text.splitlines()):
        if code and not line.strip():
            code = False
            lines.append("```")
        entry = re.match(r"([a-z_][\w.]*(?:, (?:[a-z_]\w*|\.\.\.))*): (.*)", line)
        if line.startswith(">>>") and not code:
            code = True
            lines += ["", "```python"]
        if code or line.startswith("    ") and not listed:
            lines.append(line)
        elif entry and at:
            if not listed:
                lines.append("")
            listed = True
            lines.append(f"- `{entry[1]}`: {plain(entry[2])}")
        else:
            listed = listed and line.startswith(" ")
            lines.append(("  " if listed else "") + plain(line.strip() if listed else line))
    return "\n".join([*lines, "```"] if code else lines)


def plain(line):
    """Without what Markdown would take for emphasis, links or tags outside of code."""
    bullet = "- " if line.startswith("- ") else ""
    pieces = re.split(r"(`[^`]*`)", line.removeprefix(bullet))
    return bullet + "".join(piece if at % 2 else escaped(piece) for at, piece in enumerate(pieces))


def annotated(expression, public):
    """An annotation, with our own classes by the names that people import them by."""
    if isinstance(expression, str):
        return expression
    found = expression.iterate(flat=True)
    return "".join(e if isinstance(e, str) else public.get(e.canonical_path, e.name) for e in found)


def py_signature(function, public):
    def show(parameter):
        star = {"variadic positional": "*", "variadic keyword": "**"}.get(parameter.kind.value, "")
        of = f": {annotated(parameter.annotation, public)}" if parameter.annotation is not None else ""
        default = f" = {parameter.default}" if parameter.default is not None and not star else ""
        return f"{star}{parameter.name}{of}{default}"

    parameters, keyword = [], False
    for parameter in function.parameters:
        if parameter.kind.value == "variadic positional":
            keyword = True
        if parameter.kind.value == "keyword-only" and not keyword:
            keyword = True
            parameters.append("*")
        if parameter.name not in ("self", "cls"):
            parameters.append(show(parameter))
    result = f" -> {annotated(function.returns, public)}" if function.returns is not None else ""
    return f"({', '.join(parameters)}){result}"


def py_function(function, name, public, *options):
    return directive("py:method" if options or function.parent.is_class else "py:function",
                     f"{name}{py_signature(function, public)}", prose(function.docstring.value), *options)  # fmt: skip


def py_class(cls, name, public):
    said = [prose(cls.docstring.value if cls.docstring else "")]
    constants = [member for member in cls.members.values() if member.is_attribute and member.name.isupper()]
    if constants:
        comments = {c: comment(cls, member) for c, member in ((member.name, member) for member in constants)}
        rows = [(f"`{c.name}`", f"`{c.value}`", plain(comments[c.name]).replace("|", "\\|")) for c in constants]
        said.append(table(("name", "value", ""), *rows))
    for member in cls.members.values():
        if member.name.startswith("_") or not member.docstring or member.is_alias:
            continue
        if member.is_function:
            is_class = "classmethod" in {str(d.value) for d in member.decorators}
            said.append(py_function(member, member.name, public, *([":classmethod:"] if is_class else [])))
        elif member.is_attribute and not member.name.isupper():
            kind = f":type: {annotated(member.annotation, public)}" if member.annotation is not None else ""
            said.append(directive("py:attribute", member.name, prose(member.docstring.value), *filter(None, [kind])))
    init = cls.members.get("__init__")
    signature = py_signature(init, public).split(" -> ")[0] if init is not None and init.is_function else ""
    return directive("py:class", f"{name}{signature}", "\n\n".join(said))


def comment(cls, member):
    """What stands behind a constant in its line."""
    line = cls.filepath.read_text().splitlines()[member.lineno - 1]
    return line.partition("  # ")[2]


def py_reference(out):
    package = griffe.load("gradscaler", search_paths=[str(PACKAGE)], submodules=True, allow_inspection=False)
    sources = {module: package[module.removeprefix("gradscaler.")] if "." in module else package for module in MODULES}
    public = {
        member.target_path if member.is_alias else member.path: f"{module}.{name}"
        for module, source in reversed(sources.items())
        for name, member in source.members.items()
        if name in (source.exports or source.members) and not name.startswith("_")
    }
    pages = []
    for module, source in sources.items():
        text = [f"# {module}", directive("py:module", module, ""), prose(source.docstring.value)]
        exports = source.exports or [name for name, member in source.members.items() if is_own(member)]
        for name in exports:
            member = source[name]
            member = member.final_target if member.is_alias else member
            if member.is_class:
                text.append(py_class(member, name, public))
            elif member.is_function:
                text.append(py_function(member, name, public))
            elif member.docstring:
                text.append(directive("py:data", name, prose(member.docstring.value)))
        page = "python" if module == "gradscaler" else f"python-{module.removeprefix('gradscaler.')}"
        (out / f"reference/{page}.md").write_text("\n\n".join(text) + "\n")
        pages.append(page)
    listed = "\n".join(f"{module} <{page}>" for module, page in list(zip(MODULES, pages, strict=True))[1:])
    with (out / "reference/python.md").open("a") as page:
        page.write(f"\n```{{toctree}}\n:hidden:\n\n{listed}\n```\n")


def is_own(member):
    return not member.name.startswith("_") and not member.is_alias and bool(member.docstring)


# ---- Elixir and Rust ----


def other_references(out):
    modules = sorted(path.stem for path in (out / "reference/elixir").glob("*.md"))
    listed = "\n".join(f"{module} <elixir/{module}>" for module in modules)
    (out / "reference/elixir.md").write_text(
        "# Reference of Elixir\n\n```{toctree}\n:maxdepth: 1\n\n" + listed + "\n```\n"
    )
    (out / "reference/rust.md").write_text(
        "# Reference of Rust\n\n"
        '- <a href="rust/gradscaler/index.html">gradscaler</a>, the crate that people use\n'
        '- <a href="rust/gradscaler_sys/index.html">gradscaler_sys</a>, the C interface, one to one\n'
    )


if __name__ == "__main__":
    out = Path(sys.argv[1])
    (out / "reference").mkdir(parents=True, exist_ok=True)
    guides(out)
    c_reference(out)
    py_reference(out)
    other_references(out)
