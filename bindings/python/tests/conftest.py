# SPDX-License-Identifier: MIT
"""The options of all tests. The helpers are in support.py, which tests find because this file is here."""

import functools
import os

import pytest


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="longer forms, older versions, and packages that are heavy")


def pytest_configure(config):
    """With GRADSCALER_SCRAMBLED, the extension has scrambled sentences: no test checks their words."""
    if not os.environ.get("GRADSCALER_SCRAMBLED"):
        return
    config.option.markexpr = config.option.markexpr or "not wording"
    for name in "raises", "warns":
        setattr(pytest, name, functools.partial(_without_match, getattr(pytest, name)))


def _without_match(check, *arguments, match=None, **keywords):
    return check(*arguments, **keywords)
