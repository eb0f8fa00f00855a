"""One thread for every test of the reference: its tensors are far too small to share."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
