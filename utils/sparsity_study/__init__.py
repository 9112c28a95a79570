"""The study of unit 11: pruning at every level, layer by layer, with few bits, and thresholds."""
