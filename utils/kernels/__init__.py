"""The engine's kernels: see weights.py for the storage forms, and kernels.md in the book."""
