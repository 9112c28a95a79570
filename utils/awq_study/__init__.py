"""The study of unit 07: INT8 activations and AWQ on the whole model."""
