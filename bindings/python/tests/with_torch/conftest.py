# SPDX-License-Identifier: MIT
"""What the tests with torch share."""

import torch

torch.set_num_threads(1)
