# SPDX-License-Identifier: MIT
"""With --long the tests also run with packages that are heavy. Install them before, beside torch:

pip install paddlepaddle wheel setuptools
DS_BUILD_OPS=0 pip install --no-build-isolation deepspeed    # builds without a GPU
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
