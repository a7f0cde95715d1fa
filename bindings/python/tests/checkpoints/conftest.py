# SPDX-License-Identifier: MIT
"""Keras computes with torch, which it must know before it is imported."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")
