"""flashcheck: the numerical correctness gate for attention kernels."""

__version__ = "0.1.0"
