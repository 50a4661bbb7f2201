"""Images that were given as whole numbers, as the bytes that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.experiment.errors import DataError


def as_bytes(pixels: NDArray[Any], what: str) -> NDArray[np.uint8]:
    """Whole numbers from 0 to 255, of any integer type, as uint8; others are refused.

    `what` begins the sentence: it names the image.
    """
    if pixels.dtype == np.uint8:
        return pixels
    wrong: Any = pixels.dtype
    if pixels.dtype.kind in "iu":
        outside = pixels[(pixels < 0) | (pixels > 255)]
        if not outside.size:
            return pixels.astype(np.uint8)
        wrong = outside[0]
    raise DataError(
        f"{what} must hold whole numbers from 0 to 255, got {wrong}; give the pixels as the "
        "environment does, neither scaled nor normalised"
    )
