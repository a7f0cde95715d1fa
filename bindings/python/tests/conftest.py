# SPDX-License-Identifier: MIT
"""The options of all tests. The helpers are in support.py, which tests find because this file is here."""


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="longer forms, older versions, and packages that are heavy")
