# SPDX-License-Identifier: MIT
"""Opens every page of a site but rustdoc's as a file in Chromium: look.py FOLDER PICTURES.

None may be wider than the screen, have a table that is, clip code, wrap tabs, complain or ask the network; on a wide
screen the contents of a page are visible. Pictures of the pages go to PICTURES, for people to look at. A search from a
file shows text of what it finds, and leads to a guide first.
"""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTHS = 390, 1280
CLIPPED = "[...document.querySelectorAll('pre')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
SCROLLED = "[...document.querySelectorAll('.table-wrapper')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
TABS = "new Set([...document.querySelectorAll('.sd-tab-label')].map(e => e.offsetTop)).size"
CONTENTS = "[...document.querySelectorAll('.toc-drawer:not(.no-toc)')]"
HIDDEN = f"{CONTENTS}.some(e => e.getBoundingClientRect().right > innerWidth)"
ANSWERS = {"nan": "skipped", "inf": "skipped", "scale is 0": "skipped", "skipped": "skipped"}
ANSWERS |= {"resume": "checkpoints", "slow": "measured", "hysteresis": "presets"}


def problems(site, pictures, browser):
    apart = "/source/", "/reference/rust/src/", "/gradscaler_sys/"
    pages = sorted(path for path in site.rglob("*.html") if not any(part in path.as_posix() for part in apart))
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
                if clipped := page.evaluate(CLIPPED):
                    yield f"{name}: {clipped} blocks of code are clipped on a screen of {width}"
                if scrolled := page.evaluate(SCROLLED):
                    yield f"{name}: {scrolled} tables are wider than a screen of {width}"
                if page.evaluate(TABS) > 1:
                    yield f"{name}: its tabs are in more than one line on a screen of {width}"
                if width == max(WIDTHS) and page.evaluate(HIDDEN):
                    yield f"{name}: its contents are not visible"
                page.screenshot(path=pictures / f"{name.replace('/', '_')[:-5]}-{width}-{scheme}.png")
            for words, guide in ANSWERS.items():
                page.goto(f"{(site / 'search.html').as_uri()}?q={words}")
                first = page.locator("#search-results li a").first.get_attribute("href")
                if not first.startswith(f"{guide}.html"):
                    yield f"a search for {words} leads to {first}, not to {guide}"
            page.wait_for_timeout(500)
            if page.locator("#search-results li p.context").count() == 0:
                yield "search.html shows no text of what it finds"
            page.screenshot(path=pictures / f"found-{width}-{scheme}.png")
            said.clear()
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
