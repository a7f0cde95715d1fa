# SPDX-License-Identifier: MIT
"""Rank programs of several engines, and how they are started."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import engines  # noqa: E402, after that


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="the late rank that is waited for is 8 s late")


def pytest_generate_tests(metafunc):
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", engines.ALL, ids=[type(engine).__name__.lower() for engine in engines.ALL])
