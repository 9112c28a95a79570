"""Decoding speed of smaller models in the engine, against the prediction from their bytes.

Does: whole steps of one text at one context, all arms in one interleaved run, fp32 and int8; then
single products in one thread: dense, 2:4 and CSR, over all MLP matrices of one kind (more than the
caches hold). Writes `records/12-structured-speed.json`. Run it on a machine that does nothing else:
    python -m utils.structured_study.speed [--rounds 21]
Does not: judge quality; which units are gone makes no difference to the time.
"""

import argparse
from pathlib import Path

import torch

from utils import ledger, measure, models
from utils.engine import Engine
from utils.sparsity import gradual, matvec, structured

UNIT = "12-structured-speed"
CONTEXT, STEPS = 64, 8
ZEROS = (50, 80, 90)
PROTOCOL = (
    "SmolLM2-135M-Instruct in the engine, one text, 8 steps at 64 tokens of context per round, "
    "interleaved rounds; speed is the dense time over the arm's time within a round (median, "
    "quartiles), predicted is the ratio of bytes read per token (matrices, keys and values). "
    "Products: all 30 gate matrices stacked, fp32, one thread"
)


def smaller(model):
    """{arm: model} whose sizes differ; the first units of each block stay."""
    config = model.config
    layers, wide = config.num_hidden_layers, config.intermediate_size

    def first(count):
        return [torch.arange(count)] * layers

    return {
        "dense": model,
        "channels_25": structured.keep_channels(model, first(wide * 3 // 4)),
        "channels_50": structured.keep_channels(model, first(wide // 2)),
        "groups_1": structured.keep_groups(model, first(config.num_key_value_heads - 1)),
        "blocks_6": structured.keep_blocks(model, list(range(max(1, layers - 6)))),
    }


def engines(models_by_arm, weights="fp32"):
    """{arm: Engine}, each with CONTEXT tokens in its cache."""
    found = {}
    for arm, model in models_by_arm.items():
        found[arm] = Engine(model, weights=weights, max_tokens=2 * CONTEXT)
        found[arm].step([n % 200 + 3 for n in range(CONTEXT)], rows=1)
    return found


def decode(engine):
    """STEPS steps from CONTEXT on."""
    for token in range(STEPS):
        engine.step([token + 3], keep=False)
    engine.crop(CONTEXT)


def steps(by_arm, rounds, baseline="dense"):
    """{arm_speed, arm_predicted} of engines, against the engine `baseline`."""
    times = measure.compare({a: lambda e=e: decode(e) for a, e in by_arm.items()}, rounds)
    size = {arm: engine.bytes_per_token(CONTEXT) for arm, engine in by_arm.items()}
    found = {}
    for arm in by_arm:
        ratio = times.ratio(baseline, arm)
        found[f"{arm}_speed"] = ledger.Value(ratio.median, rounds, ratio.low, ratio.high, "times")
        found[f"{arm}_predicted"] = ledger.Value(size[baseline] / size[arm])
        found[f"{arm}_bytes"] = ledger.Value(size[arm])
    return found


def products(stack, rounds):
    """{arm_speed, arm_predicted} of single products with `stack` [out, in]; fp32, one thread."""
    x = torch.randn(stack.shape[1], generator=torch.Generator().manual_seed(0)).numpy()
    arms = {"dense": matvec.Matvec(stack, "fp32", x), "two_four": _two_four(stack, x)}
    size = {name: arm.nbytes for name, arm in arms.items()}
    for share in ZEROS:
        sparse = stack.masked_fill(~gradual.keep_mask(stack, share / 100), 0)
        arms[f"csr_{share}"], size[f"csr_{share}"] = matvec.csr(sparse, x)
    times = measure.compare(arms, rounds)
    found = {}
    for arm in arms:
        ratio = times.ratio("dense", arm)
        found[f"{arm}_speed"] = ledger.Value(ratio.median, rounds, ratio.low, ratio.high, "times")
        found[f"{arm}_predicted"] = ledger.Value(size["dense"] / size[arm])
        found[f"{arm}_gb_s"] = ledger.Value(size[arm] / times[arm].median / 1e9)
    return found


def _two_four(stack, x):
    kept = stack.masked_fill(~gradual.keep_mask(stack, 0.5, "2:4"), 0)
    return matvec.Matvec(kept, "sparse24", x)


def gate_stack(model):
    """All gate matrices one below the other."""
    parts = [m.weight for n, m in models.linears(model).items() if n.endswith("gate_proj")]
    return torch.cat(parts)


def main(rounds):
    """Measure everything and write the record."""
    model = models.load(dtype=torch.float32).model
    values = {}
    for weights in ("fp32", "int8"):
        by_arm = engines(smaller(model), weights)
        if weights == "fp32":
            by_arm |= {"two_four": engines({"two_four": model}, "sparse24")["two_four"]}
        found = steps(by_arm, rounds)
        values |= {f"{weights}_{name}": value for name, value in found.items()}
        for engine in by_arm.values():
            engine.close()
    found = products(gate_stack(model), rounds)
    values |= {f"product_{name}": value for name, value in found.items()}
    for name, value in values.items():
        print(f"{name:32} {value.value:14.3f}")
    print(ledger.record(UNIT, Path(__file__), PROTOCOL, values))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    main(parser.parse_args().rounds)
