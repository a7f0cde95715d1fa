# SPDX-License-Identifier: MIT
"""Devices that JAX makes of one processor, for tests of sharding; before anything starts it."""

import os

import pytest

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"


@pytest.fixture
def in_jnp(monkeypatch):
    """As on a platform that the compiled handler does not serve."""
    from gradscaler.jax import _call, _xla

    monkeypatch.setattr(_xla, "why_not", lambda platform: "this is a test of the other way")
    monkeypatch.setattr(_call, "_warn_once", lambda platform, why: None)


@pytest.fixture(params=["handler", "jnp"])
def way(request):
    """A test with this runs twice: its work is done by the compiled handler, then in jax.numpy."""
    if request.param == "jnp":
        request.getfixturevalue("in_jnp")
    return request.param
