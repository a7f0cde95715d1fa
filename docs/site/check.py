# SPDX-License-Identifier: MIT
"""Checks a site that is opened from files: check.py FOLDER.

Every link to a file and every fragment in it leads somewhere, no page fetches anything from elsewhere, and none shows
directives that its text was meant to be.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {"img": "src", "script": "src", "iframe": "src", "source": "src", "link": "href"}


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.names, self.links, self.fetched, self.shows_marks = set(), [], [], False
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.names.update(value for key, value in attributes if key == "id" or (tag == "a" and key == "name"))
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if found.get(FETCHED.get(tag)) and found.get("rel") not in ("canonical", "author"):
            self.fetched.append(found[FETCHED[tag]])

    def handle_data(self, data):
        self.shows_marks = self.shows_marks or bool(re.search(r"```\{|\{(?:py|c):\w+\}`", data))


def problems(site):
    pages = {path: Page(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        where = path.relative_to(site)
        if page.shows_marks:
            yield f"{where} shows what Sphinx should have read"
        for link in page.links + page.fetched:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.fetched and parts.scheme != "data":
                    yield f"{where} fetches {link}"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                yield f"{where}: {link} is a folder, which a browser would list"
            elif not target.is_relative_to(site) or not target.exists():
                yield f"{where}: {link} leads nowhere"
            elif parts.fragment and target in pages and not is_name(parts.fragment, pages[target]):
                yield f"{where}: {link}: no such place on that page"
    print(f"{len(pages)} pages, {sum(len(page.links) for page in pages.values())} links")


def is_name(fragment, page):
    lines = re.fullmatch(r"(\d+)-(\d+)", fragment)  # of a source that rustdoc shows: its script marks them
    return bool({fragment, unquote(fragment)} & page.names) or (
        lines is not None and {lines[1], lines[2]} <= page.names
    )


if __name__ == "__main__":
    found = sorted(set(problems(Path(sys.argv[1]).resolve())))
    print("\n".join(found))
    sys.exit(bool(found))
