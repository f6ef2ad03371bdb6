"""Faults: realistic bugs, one a file, each an edit of clean kernels' source."""
