"""A drafter that is trained for one target: an EAGLE-3-style head, made from the target's own text.

prompts     what the target is asked; the prompts that training never sees
target      the target's arithmetic for many texts at once
watch       its states, of whole texts and while it decodes
answering   answers to many prompts by continuous batching
sampling    the same for all training prompts, written to shards
shards      samples on disk, and as one small file
data        samples with their states, in batches
head        the model: one decoder layer over token embeddings and states
chain       the head one position after the other, in torch or in an Engine
start       draft ids by frequency, the head by least squares
train       soft cross-entropy through an unrolled chain
run         a long training with checkpoints and a log
evaluate    tokens per target forward on prompts that training never saw
drafting    the head as a Drafter of `speculative.decode.generate`
ship        the files that the course loads, with hashes and a card

`python -m utils.speculative.drafter sample|states|train|evaluate|ship` runs the stages.
Li et al. 2025 (EAGLE-3) for the idea; sizes and recipe are our own.
"""
