"""The study of unit 09's FP8 recipes and quantized key-value caches."""
