# SPDX-License-Identifier: MIT
"""What the tests of all folders share; support.py has their helpers, which they find as this file is here."""


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="longer forms, older versions, and packages that are heavy")
