# SPDX-License-Identifier: MIT
"""Sphinx: one site of the guides and references that docs/site/pages.py has put together; ci/docs runs both."""

import html
import json
import re
from pathlib import Path

from docutils import nodes

project = "gradscaler"
extensions = ["myst_parser", "sphinx_copybutton", "sphinx_design", "sphinx.ext.linkcode"]
html_theme = "furo"
html_title = "gradscaler"
html_favicon = "static/favicon.svg"
html_show_copyright = False
html_show_sphinx = False
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_static_path = ["static"]
templates_path = []
pygments_style = "default"
pygments_dark_style = "github-dark"
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
copybutton_exclude = ".linenos, .gp, .go"
copybutton_selector = "div:not(.highlight-text) > div.highlight pre"
toc_object_entries_show_parents = "hide"
python_use_unqualified_type_names = True
add_module_names = False
maximum_signature_line_length = 88
smartquotes = False  # texts of the code have code's quotes

LINES = json.loads((Path(__file__).parents[2] / "build/docs-source/lines.json").read_text())
snippets = {}


def linkcode_resolve(domain, info):
    """Returns the line of a page with the source, or None."""
    return LINES.get(f"{info['module']}.{info['fullname']}") if domain == "py" else None


def cards(match):
    """Repeats the heads of more than two columns at each cell, because a telephone shows a row as a card."""
    heads = [re.sub("<[^>]+>", "", head) for head in re.findall(r"<th\b.*?>(.*?)</th>", match[0], re.S)]
    if len(heads) < 3:
        return match[0]

    def row(found):
        labels = iter(heads)
        return re.sub("<td", lambda _: f'<td data-label="{next(labels).strip()}"', found[0])

    return re.sub(r"<tr\b.*?</tr>", row, match[0], flags=re.S).replace('"docutils', '"cards docutils', 1)


def page(app, name, template, context, doctree):
    """Describes a page by its first paragraph, lists the methods of a page of Rust in its contents, and keeps its text.

    A search from a file reads that text, because it can fetch no page.
    """
    if name == "search":
        app.add_js_file("snippets.js")
    if doctree is None:
        return
    first = next(iter(doctree.findall(nodes.paragraph)), None)
    if first is not None:
        context["metatags"] += f'<meta name="description" content="{html.escape(" ".join(first.astext().split()))}">\n'
    context["body"] = re.sub(r'<table class="docutils.*?</table>', cards, context["body"], flags=re.S)
    if 'class="rustdoc"' in context["body"]:
        found = re.findall(r'<section id="((?:ty)?method\.(\w+))"|<h2 id="([\w-]+)"[^>]*>([^<]+)', context["body"])
        link = '<li><a class="reference internal" href="#{}">{}</a></li>'.format
        links = "".join(link(to or top, name or words) for to, name, top, words in found)
        context["toc"] = f'<ul><li><a href="#"></a><ul>{links}</ul></li></ul>'  # the first link is not shown
        context["furo_hide_toc"] = not found
    body = re.sub(r'<a class="headerlink".*?</a>', "", context["body"])
    snippets[name] = re.sub(r"<(?!/?section\b)[^>]*>", "", body)


def write_snippets(app, failed):
    if failed:
        return
    (app.outdir / "_static/snippets.js").write_text(f"""const snippets = {json.dumps(snippets, ensure_ascii=False)};
if (location.protocol === "file:")
  window.fetch = async (url) => ({{
    text: () => `<div role="main">${{snippets[url.replace(/^\\.\\//, "").replace(/\\.html.*/, "")]}}</div>`,
  }});
""")


def setup(app):
    app.connect("html-page-context", page, priority=600)  # after the theme, which hides empty contents
    app.connect("build-finished", write_snippets)
