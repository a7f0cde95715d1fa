# SPDX-License-Identifier: MIT
"""Puts the pages of the site together, as Markdown for Sphinx: pages.py OUT RUSTDOC.

The guides come from the tree, with their links turned into links of the site. The reference of C is made from the
manifest, the reference of Python from its sources, the reference of Rust from the pages of rustdoc;
docs/site/elixir.exs makes the reference of Elixir.
"""

import functools
import html
import json
import re
import shutil
import sys
import textwrap
from pathlib import Path

import griffe
import manifest
import pygments
import pygments.formatters
import pygments.lexers

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "bindings/python/src"
MODULES = (
    "gradscaler",
    "gradscaler.torch",
    "gradscaler.torch.trainers",
    "gradscaler.jax",
    "gradscaler.roundpipe",
    "gradscaler.cerebras",
)
# The programs of bindings/c/examples/recipes that a section of C's reference shows.
C_EXAMPLES = {
    "Where a call runs": ["threads"],
    "Factor": ["offloaded", "delayed"],
    "Report": ["layers"],
    "State": ["guard", "two_optimizers"],
    "Ranks": ["ranks"],
    "Checkpoints and settings of frameworks": ["checkpoint"],
    "Calls on tensors": ["accumulation", "deferred_clip"],
    "CUDA": ["cuda_graph"],
}
# Where a file of the tree is in the site; what links to a folder or a source links to its reference.
SITE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "core/numerics.md": "numerics.md",
    "tests/traces/README.md": "recordings.md",
    "include/gradscaler.h": "reference/c.md",
    "include/gradscaler_cuda.h": "reference/c-cuda.md",
    "bindings/python/src/gradscaler/__init__.py": "reference/python.md",
    "bindings/elixir/lib/grad_scaler.ex": "reference/elixir/GradScaler.md",
    "bindings/rust/gradscaler/src/lib.rs": "reference/rust/gradscaler/index.md",
    "bindings/rust/gradscaler-sys/README.md": "reference/rust/gradscaler_sys/index.md",
}
# The guide that answers what people search for.
SEARCHED = {
    "skipped.md": ("nan", "inf", "skipped", "scale is 0"),
    "checkpoints.md": ("resume",),
    "measured.md": ("slow",),
    "presets.md": ("hysteresis",),
}
CONTENTS = """
```{toctree}
:hidden:
:caption: Languages

torch <torch>
Trainers of torch <trainers>
JAX <jax>
Python <python>
C <c>
Rust <rust>
Elixir <elixir>
CUDA <cuda>
```

```{toctree}
:hidden:
:caption: Guides

Presets <presets>
Checkpoints <checkpoints>
Distributed training <ranks>
Guards <guard>
Metrics and diagnosis <runs>
Why was my step skipped? <skipped>
Measurements <measured>
What others have <compare>
Promises <promises>
RoundPipe <roundpipe>
Cerebras <cerebras>
Numerics <numerics>
Test recordings <recordings>
Changes <changelog>
A release <release>
```

```{toctree}
:hidden:
:caption: Reference

Python <reference/python>
C <reference/c>
Rust <reference/rust/gradscaler/index>
Elixir <reference/elixir>
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


def program(path, out):
    """Writes the page of a program in bindings/, and returns its name."""
    page = "-".join(path.relative_to(ROOT / "bindings").parts) + ".md"
    language = {".exs": "elixir", ".py": "python", ".rs": "rust"}.get(path.suffix, "c")
    name = path.relative_to(ROOT).as_posix()
    (out / page).write_text(f"---\norphan: true\n---\n\n# {name}\n\n```{language}\n{path.read_text()}```\n")
    return page


def guide(source, out):
    def link(match):
        mark, words, target = match.groups()
        if re.match(r"https?:|#", target):
            return match[0]
        target, _, fragment = target.partition("#")
        path = (source.parent / target).resolve()
        if not path.exists():
            raise SystemExit(f"{source.relative_to(ROOT)}: the link to {target} leads nowhere")
        if mark:
            shutil.copy(path, out)
            return f"![{words}]({path.name})"
        page = program(path, out) if "examples" in path.parts else in_site(path)
        return f"[{words}]({page}" + (f"#{fragment})" if fragment else ")")

    def picture(match):
        path = (source.parent / match[2]).resolve()
        shutil.copy(path, out)
        return f'{match[1]}="{path.name}"'

    def in_markdown(text):
        text = re.sub(r"(!?)\[([^][]+)\]\(([^)\s]+)\)", link, text)
        return re.sub(r'(src|srcset)="([^":]+)"', picture, text)

    return outside_code(source.read_text(), in_markdown)


def guides(out):
    pages = sorted((ROOT / "docs").glob("*.md"))
    (out / "index.md").write_text(guide(ROOT / "docs/site/index.md", out) + CONTENTS)
    others = [ROOT / name for name in ("CHANGELOG.md", "core/numerics.md", "tests/traces/README.md")]
    for page in [*pages, *others]:
        (out / in_site(page)).write_text(guide(page, out))
    for page, words in SEARCHED.items():
        entries = ", ".join(f"! {word}" for word in words)
        (out / page).write_text(f"{directive('index', entries, '')}\n\n{(out / page).read_text()}")


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
        lines = "\n".join(
            line if not line or line.startswith("    ") else self.text(line)
            for line in manifest.paragraphs(text, 10**6)
        )
        return re.sub(r"^(?: {4}.*\n?)+", self.block, lines, flags=re.M)

    @staticmethod
    def block(match):
        language = "c" if "gsc_" in match[0] else "text"
        return f"\n```{language}\n{textwrap.dedent(match[0]).rstrip()}\n```\n"


def escaped(text):
    return re.sub(r"([*_<>\[\]\\])", r"\\\1", text)


def table(*rows):
    first, *rest = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([first, "|---" * len(rows[0]) + "|", *rest])


def toctree(pages):
    return directive("toctree", "", "\n".join(pages), ":hidden:") + "\n"


def directive(name, signature, body, *options):
    ticks = "`" * max(3, *(1 + len(run) for run in re.findall(r"^`{3,}", body, re.M)), 0)
    return "\n".join([f"{ticks}{{{name}}} {signature}", *options, *(["", body] if body else []), ticks])


@functools.cache
def c_lines():
    """Returns {name: (header, number of its line)}."""
    lines = {}
    types, others = r"(?:typedef )?struct (gsc_\w+)(?: \{|;| \w+;)", r"(?:GSC_API|typedef) .*?\b(gsc_\w+)(?:\(|\)|;)"
    for header in "include/gradscaler.h", "include/gradscaler_cuda.h":
        for number, line in enumerate((ROOT / header).read_text().splitlines(), 1):
            defined = re.match(f"{types}|{others}", line)
            if defined:
                lines[defined[1] or defined[2]] = header, number
    return lines


def c_source(item):
    """A link to the line of the header; Sphinx's linkcode knows no names of C."""
    header, number = c_lines()[item.name]
    return f'<a class="viewcode-link" href="../source/{header}.html#L-{number}">[source]</a>'


def c_function(names, item):
    arguments = ", ".join(manifest.declare(arg.c, arg.name) for arg in item.args) or "void"
    result = "const char *" if item.returns == "string" else f"{item.returns} "
    said = [c_source(item), names.paragraphs(item.doc)]
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
    said = [c_source(item), names.paragraphs(item.doc), f"Since {item.since}. {about[item.kind]}", table(*rows)]
    return directive("c:struct", item.name, "\n\n".join(said))


def c_constants(names, item):
    rows = [("constant", "value", "")]
    for value in item.values:
        later = "" if value.since == item.since else f"; since {value.since}"
        rows.append((names.code(value.c), f"`{value.value}`", names.cell(value.doc + later)))
    # One target for each, so that a search and a link find it.
    targets = "\n\n".join(directive("c:macro", value.c, "", ":no-typesetting:") for value in item.values)
    return "\n\n".join([names.paragraphs(item.doc), table(*rows), targets])


def c_item(names, item):
    if item.what in ("function", "callback"):
        return c_function(names, item)
    if item.what == "struct":
        return c_struct(names, item)
    if item.what == "constants":
        return c_constants(names, item)
    said = f"{names.paragraphs(item.doc)}\n\nSince {item.since}."
    of = f"{item.type} {item.name}" if item.what == "alias" else item.name
    return directive("c:type" if item.what == "alias" else "c:struct", of, said)


def c_example(name):
    """The program of bindings/c/examples/recipes as a block that opens."""
    code = (ROOT / f"bindings/c/examples/recipes/{name}.c").read_text().partition("\n")[2]
    return directive("dropdown", f"Example: {name}.c", f"```c\n{code}```")


def c_reference(out):
    api = manifest.load()
    names = Names(api)
    sections = []
    for item in api.items:
        if item.what == "section":
            sections.append((item, []))
        else:
            sections[-1][1].append(item)
    rows, listed = [("section", "functions")], []
    for section, items in sections:
        title = section.name.partition(":")[0]
        page = "c-" + title.lower().replace(" ", "-")
        examples = [c_example(name) for name in C_EXAMPLES.get(title, ())]
        text = [f"# C: {title}", names.paragraphs(section.doc or ""), *examples, *(c_item(names, i) for i in items)]
        (out / f"reference/{page}.md").write_text("\n\n".join(text) + "\n")
        functions = [names.code(item.name) for item in items if item.what == "function"]
        rows.append((f"[{section.name}]({page}.md)", ", ".join(functions)))
        listed.append(f"{title} <{page}>")
    text = ["# Reference of C", names.paragraphs(api.library.doc), table(*rows), toctree(listed)]
    (out / "reference/c.md").write_text("\n\n".join(text))


# ---- Python, from its sources ----


def prose(text, code="`{}`".format):
    """A docstring as Markdown; `code` makes the Markdown of a name, which may be a link.

    Lines of `name: what it is` become a list. Sessions with >>>, what is indented, and paragraphs that are lines of a
    program become blocks of code.
    """
    paragraphs, first = [], True
    for raw in re.split(r"\n\s*\n", text.strip("\n")):
        lines = raw.splitlines()
        entry = r"([a-z_][\w.]*(?:, (?:[a-z_]\w*|\.\.\.))*): (.*)"
        if raw.startswith((">>> ", "    ")) or all(re.match(r"[\w.]+ = \w[\w.]*\(", line) for line in lines):
            block = textwrap.dedent(raw)
            if paragraphs and paragraphs[-1].endswith("\n```") and raw.startswith("    "):
                paragraphs[-1] = f"{paragraphs[-1].removesuffix('```')}\n{block}\n```"
            else:
                paragraphs.append(f"```python\n{block}\n```")
        elif not first and re.match(entry, raw):
            entries = [re.fullmatch(entry, line) or line for line in lines]
            paragraphs.append(
                "\n".join(
                    f"  {plain(each.strip(), code)}"
                    if isinstance(each, str)
                    else f"- `{each[1]}`: {plain(each[2], code)}"
                    for each in entries
                )
            )
        else:
            paragraphs.append("\n".join(plain(line, code) for line in lines))
        first = False
    return "\n\n".join(paragraphs)


def plain(line, code="`{}`".format):
    """Without what Markdown would take for emphasis, links or tags outside of code; what looks like code becomes it."""
    bullet = "- " if line.startswith("- ") else ""
    pieces = re.split(
        r"(`[^`]*`|\b[A-Za-z]\w*(?:\.[A-Za-z]\w*)+(?:\(\))?|\b[a-z]+_\w+(?:\(\)|=[\w.]+)?)", line.removeprefix(bullet)
    )
    return bullet + "".join(code(piece.strip("`")) if at % 2 else escaped(piece) for at, piece in enumerate(pieces))


class Python:
    """The public names of the package, and pages about them."""

    def __init__(self):
        package = griffe.load("gradscaler", search_paths=[str(PACKAGE)], submodules=True, allow_inspection=False)
        self.sources = {m: package[m.removeprefix("gradscaler.")] if "." in m else package for m in MODULES}
        self.structs = package["_structs"]
        self.objects, self.imported = {}, {}  # where a name is defined: how people import it
        for module, source in self.sources.items():
            for name, member in self.exported(source):
                full = f"{module}.{name}"
                self.imported.setdefault(member.path, full)
                self.objects |= {full: member, **{f"{full}.{inner.name}": inner for inner in self.members(member)}}
        self.module, self.about = "gradscaler", ""

    @staticmethod
    def exported(source):
        own = [n for n, member in source.members.items() if n[0] != "_" and not member.is_alias and member.docstring]
        for name in source.exports or own:
            yield name, source[name].final_target if source[name].is_alias else source[name]

    @staticmethod
    def members(item):
        if not item.is_class:
            return []
        kinds = [item, *(base for base in item.mro() if base.name[0] != "_")]
        members = [member for kind in kinds for member in kind.members.values()]
        return [m for m in members if m.name[0] != "_" and not m.is_alias and m.docstring]

    def code(self, words):
        """A name in a text: a link if it is one of ours, as seen from where the text stands."""
        name = words.removesuffix("()")
        for full in (f"{self.about}.{name}", f"{self.module}.{name}", f"gradscaler.{name}", name):
            if full in self.objects and full != self.about:
                return f"{{py:obj}}`{words} <{full}>`"
        return f"`{words}`"

    def prose(self, item):
        return prose(item.docstring.value, self.code) if item.docstring else ""

    def annotation(self, expression):
        """With our own classes by the names that people import them by."""
        if isinstance(expression, str):
            return expression
        found = expression.iterate(flat=True)
        return "".join(e if isinstance(e, str) else self.imported.get(e.canonical_path, e.name) for e in found)

    def signature(self, function):
        parameters, keyword = [], False
        for parameter in function.parameters:
            kind = parameter.kind.value
            if kind == "keyword-only" and not keyword:
                parameters.append("*")
            keyword = keyword or kind in ("keyword-only", "variadic positional")
            star = {"variadic positional": "*", "variadic keyword": "**"}.get(kind, "")
            of = f": {self.annotation(parameter.annotation)}" if parameter.annotation is not None else ""
            value = re.sub(
                r"_(?:Float|Int)\((.*)\)", r"\1", str(parameter.default)
            )  # which remembers that nobody gave it
            value = re.sub(r"^\(lambda: (.*)\)\(\)$", r"\1", value)  # of a dataclass
            default = "" if parameter.default is None or star else f" = {value}"
            if parameter.name not in ("self", "cls"):
                parameters.append(f"{star}{parameter.name}{of}{default}")
        result = f" -> {self.annotation(function.returns)}" if function.returns is not None else ""
        return f"({', '.join(parameters)}){result}"

    def function(self, item, kind="function", *options):
        return directive(f"py:{kind}", item.name + self.signature(item), self.prose(item), *options)

    def cls(self, cls):
        said = [self.prose(cls)]
        base = self.structs.members.get(cls.name)
        if base is not None and base is not cls and base.docstring:  # its fields, which only the struct describes
            fields = re.sub(r"^(?:struct_size|reserved\w*): .*\n", "", base.docstring.value, flags=re.M)
            said.append(prose(fields, self.code).partition("\n\n")[2])
        if cls.name == "Error":  # of a stub, which has none
            about = {field.name: field.doc for field in manifest.load().structs["gsc_error"].fields}
            said.append("What a call of the library refused, with all that C's `gsc_error` holds.")
            rows = [f"- `{name}`: {plain(about[name])}" for name in cls.members if name in about]
            said.append("\n".join([*rows, "- `why`: the sentence without what says where"]))
        constants = [member for member in cls.members.values() if member.is_attribute and member.name.isupper()]
        if constants:
            rows = [(f"`{c.name}`", f"`{c.value}`", plain(comment(cls, c)).replace("|", "\\|")) for c in constants]
            said.append(table(("name", "value", ""), *rows))
        for member in self.members(cls):
            if member.is_function:
                is_class = "classmethod" in {str(decorator.value) for decorator in member.decorators}
                said.append(self.function(member, "method", *([":classmethod:"] if is_class else [])))
            elif not member.name.isupper():
                of = [f":type: {self.annotation(member.annotation)}"] if member.annotation is not None else []
                said.append(directive("py:attribute", member.name, self.prose(member), *of))
        init = cls.members.get("__init__")
        signature = self.signature(init).split(" -> ")[0] if init is not None and init.is_function else ""
        return directive("py:class", f"{cls.name}{signature}", "\n\n".join(said))

    def page(self, module, title, intro, names=()):
        """The page of a module, or of these names of the module gradscaler."""
        self.module, self.about = module, ""
        source = self.sources[module]
        text = [f"# Python: {title}"]
        text.append(directive("py:currentmodule" if names else "py:module", module, ""))
        text += [intro] if names else [self.prose(source), intro and f"## Example\n\n{intro}"]
        exported = dict(self.exported(source))
        for name in names or exported:
            member = exported[name]
            self.about = f"{module}.{name}"
            if member.is_class:
                text.append(self.cls(member))
            elif member.is_function:
                text.append(self.function(member))
            else:
                text.append(directive("py:data", name, self.prose(member)))
        return "\n\n".join(text) + "\n"


def comment(cls, member):
    """Returns the comment behind a constant in its line."""
    line = cls.filepath.read_text().splitlines()[member.lineno - 1]
    return line.partition("  # ")[2]


def py_reference(out, python):
    """A page for each section of docs/site/python.md, with its example; `Names:` lists what it has of `gradscaler`."""
    top = python.sources["gradscaler"]
    rows, listed, seen = [("page", "names")], [], set()
    for section in re.split(r"^## ", (ROOT / "docs/site/python.md").read_text(), flags=re.M)[1:]:
        title, _, intro = section.partition("\n")
        listing, _, rest = intro.strip().partition("\n\n")
        names = re.findall(r"\w+", listing.removeprefix("Names:")) if listing.startswith("Names:") else []
        intro = (rest if names else intro).strip().replace("```python jax", "```python")
        seen.update(names)
        page = f"python-{title.removeprefix('gradscaler.').lower()}"
        module = "gradscaler" if names else title
        (out / f"reference/{page}.md").write_text(python.page(module, title, intro, names))
        shown = names or [name for name, _ in python.exported(python.sources[module])]
        rows.append((f"[{title}]({page}.md)", ", ".join(f"{{py:obj}}`{n} <{module}.{n}>`" for n in shown)))
        listed.append(f"{title} <{page}>")
    missing = {name for name, _ in python.exported(top)} - seen
    if missing:
        raise SystemExit(f"docs/site/python.md names not: {', '.join(sorted(missing))}")
    python.module, python.about = "gradscaler", ""
    text = ["# Reference of Python", directive("py:module", "gradscaler", ""), python.prose(top), table(*rows)]
    (out / "reference/python.md").write_text("\n\n".join([*text, toctree(listed)]))


# ---- Rust and Elixir ----


def rust_page(path):
    """A page of rustdoc as one of the site, without what every type has; its links stay as they are."""
    text = path.read_text()
    main = re.search(r"<h1>(.*?)<button.*?</h1>(.*)</section></div></main>", text, re.S)
    kind, name = re.sub(r"<[^>]+>", "", html.unescape(main[1])).replace("\xa0", " ").strip().split(" ", 1)
    body = re.sub(r'<h2 id="(?:synthetic|blanket)-implementations".*', "", main[2], flags=re.S)
    body = re.sub("<rustdoc-toolbar></rustdoc-toolbar>|<script.*?</script>", "", body)
    body = re.sub('<summary class="hideme">.*?</summary>', "<summary></summary>", body)
    body = re.sub(r'<pre class="rust rust-example-rendered">(.*?)</pre>', rust_example, body, flags=re.S)
    title = f"# Rust: {name} ({kind.lower()})"
    shown = directive("raw", "html", f'<div class="rustdoc"><div>{body}</div>')
    return f"{title}\n\n{shown}\n"


def rust_example(match):
    return colours(html.unescape(re.sub(r"<[^>]+>", "", match[1])), "rust")


def rust_reference(out, built):
    for crate in "gradscaler", "gradscaler_sys":
        pages = {path: rust_page(path) for path in sorted((built / crate).glob("*.html")) if path.stem != "all"}
        (out / "reference/rust" / crate).mkdir(parents=True)
        kinds = "struct", "trait", "enum", "fn", "type"
        types = [path.stem for path in pages if path.stem.startswith(kinds) and crate == "gradscaler"]
        first = "struct.Scaler", "struct.Policy", "struct.Report"
        types.sort(key=lambda stem: (stem not in first, stem.partition(".")[2]))
        for path, text in pages.items():
            if path.stem == "index":
                text += toctree(f"{stem.partition('.')[2]} <{stem}>" for stem in types)
            options = "" if path.stem in types or path.stem == "index" and crate == "gradscaler" else "orphan: true\n"
            options += "nosearch: true\n" if crate == "gradscaler_sys" else ""
            text = f"---\n{options}---\n{text}" if options else text
            (out / "reference/rust" / crate / f"{path.stem}.md").write_text(text)


def elixir_reference(out):
    modules = {path.stem: path.read_text() for path in (out / "reference/elixir").glob("*.md")}
    first = {module: " ".join(text.split("\n\n")[1].split()) for module, text in sorted(modules.items())}
    rows = [(f"[{module}](elixir/{module}.md)", said.replace("|", "\\|")) for module, said in first.items()]
    contents = toctree(f"{module} <elixir/{module}>" for module in sorted(modules))
    (out / "reference/elixir.md").write_text(
        "\n\n".join(
            [
                "# Reference of Elixir\n\nThe modules of the package `gradscaler`.",
                table(("module", ""), *rows),
                contents,
            ]
        )
    )


# ---- sources ----


def colours(code, language, **options):
    lexer = pygments.lexers.get_lexer_by_name(language)
    return pygments.highlight(code, lexer, pygments.formatters.HtmlFormatter(**options))


def sources(out, python):
    """Pages with the sources that the references link to, and lines.json: where each name of Python is there."""
    members = python.objects.items()
    lines = {name: (member.filepath.relative_to(ROOT).as_posix(), member.lineno) for name, member in members}
    files = {file for file, _ in (*lines.values(), *c_lines().values())}
    elixir = [path.relative_to(ROOT).as_posix() for path in (ROOT / "bindings/elixir/lib").rglob("*.ex")]
    for file in sorted(files | set(elixir)):
        language = {"h": "c", "py": "python", "pyi": "python", "ex": "elixir"}[file.rpartition(".")[2]]
        shown = colours((ROOT / file).read_text(), language, linenos="inline", lineanchors="L", anchorlinenos=True)
        page = out / f"source/{file}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"---\norphan: true\nnosearch: true\n---\n# {file}\n\n{directive('raw', 'html', shown)}\n")
    links = {name: f"../source/{file}.html#L-{number}" for name, (file, number) in lines.items()}
    (out / "lines.json").write_text(json.dumps(links))


if __name__ == "__main__":
    out, rust = map(Path, sys.argv[1:])
    (out / "reference").mkdir(parents=True, exist_ok=True)
    guides(out)
    c_reference(out)
    python = Python()
    py_reference(out, python)
    rust_reference(out, rust)
    elixir_reference(out)
    sources(out, python)
