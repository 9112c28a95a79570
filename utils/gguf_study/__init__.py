"""The study of unit 09's block formats: their KL, llama.cpp's mixes, llama.cpp's own run."""
