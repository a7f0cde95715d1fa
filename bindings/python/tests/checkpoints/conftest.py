# SPDX-License-Identifier: MIT
"""With --long the tests also run with Paddle, which is heavy: pip install paddlepaddle."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")
