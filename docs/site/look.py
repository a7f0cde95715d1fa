# SPDX-License-Identifier: MIT
"""Opens every page of a site but rustdoc's as a file in Chromium: look.py FOLDER PICTURES.

None may be wider than the screen of a telephone, complain or ask the network. Pictures of the first page and of one
reference go to PICTURES, for people to look at.
"""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTHS = 390, 1280
PICTURED = "index.html", "torch.html", "reference/c.html", "reference/python.html"


def problems(site, pictures, browser):
    pages = sorted(path for path in site.rglob("*.html") if "reference/rust/" not in path.as_posix())
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
            page, said = context.new_page(), []
            page.on("console", lambda message, said=said: said.append(message.text))
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            page.on("requestfailed", lambda request, said=said: said.append(f"cannot load {request.url}"))
            for path in pages:
                name = path.relative_to(site).as_posix()
                page.goto(path.as_uri())
                wide = page.evaluate("document.documentElement.scrollWidth")
                yield from (f"{name}: {words}" for words in said)
                said.clear()
                if wide > width:
                    yield f"{name}: {wide} wide on a screen of {width}"
                if name in PICTURED:
                    page.screenshot(path=pictures / f"{name.replace('/', '_')[:-5]}-{width}-{scheme}.png")
            context.close()
    print(f"{len(pages)} pages looked at, at {' and '.join(map(str, WIDTHS))} pixels; pictures in {pictures}")


if __name__ == "__main__":
    with sync_playwright() as engine:
        chromium = engine.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        folder = Path(sys.argv[2])
        folder.mkdir(parents=True, exist_ok=True)
        found = list(problems(Path(sys.argv[1]).resolve(), folder, chromium))
        chromium.close()
    print("\n".join(found))
    sys.exit(bool(found))
