"""The seed of a trial's leg, before the script sets its own.

Arms whose losses and data order can be compared start from the same random state. A script that
seeds itself, later, has its own way.
"""

from __future__ import annotations

import random
import sys
from typing import Any


def plant(torch: Any, seed: int) -> None:
    """Seed Python, NumPy where it is loaded, and torch with all its devices."""
    random.seed(seed)
    torch.manual_seed(seed)  # CUDA's generators are seeded when CUDA begins
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        plant_numpy(numpy, seed)


def plant_numpy(numpy: Any, seed: int) -> None:
    """Seed NumPy's global generator."""
    numpy.random.seed(seed % (1 << 32))
