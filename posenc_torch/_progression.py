"""The geometric progression of frequencies, in Python's float64, so that no compiler touches it.

(XLA rewrites a traced power, and torch.compile traces NumPy in float32.) The same file is in both packages.
"""

__all__ = ["geometric"]


def geometric(base: float, width: int) -> list[float]:
    """Angles per unit of position for `width` columns, two to a frequency: base ** (-2 i / width)."""
    return [base ** (-2 * i / width) for i in range((width + 1) // 2)]
