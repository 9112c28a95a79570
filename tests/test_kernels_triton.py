"""The Triton kernels: interpreted on the CPU against every storage form, and compiled, not run.

The interpreter has to be chosen before triton is imported, and other tests import it by way of
torch. So a process of its own runs this file and prints what it measured, once with the
interpreter and once with the compiler; the tests judge the numbers.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kernel_cases import CASES, EXTREMES, FORMS, excess, extreme, inputs_for, stored

ROOT = Path(__file__).resolve().parents[1]
LONG = [(form, (5, 1100)) for form in FORMS]  # more than one block along the inputs
PRODUCTS = [*CASES, *LONG]
TARGETS = {"cuda 80": ("cuda", 80, 32), "gfx942": ("hip", "gfx942", 64)}
KERNELS = ("floats", "float8", "int8", "int4", "codebook", "sparse24")

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not packaged for this system: there are no kernels to test",
)


def measured(what, folder, **environment):
    """Run this file as a program; what it printed last, from JSON."""
    environment = os.environ | environment | {"TRITON_CACHE_DIR": str(folder), "PYTHONPATH": "."}
    command = [sys.executable, __file__, what]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    return measured("interpret", tmp_path_factory.mktemp("triton"), TRITON_INTERPRET="1")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return measured("compile", tmp_path_factory.mktemp("triton"), TRITON_INTERPRET="0")


@needs_triton
@pytest.mark.parametrize("form, shape", PRODUCTS)
def test_product(interpreted, form, shape):
    assert interpreted[f"{form} {shape}"] <= 1


@needs_triton
@pytest.mark.parametrize("kind", EXTREMES)
@pytest.mark.parametrize("form", FORMS)
def test_product_with_extreme_weights(interpreted, form, kind):
    assert interpreted[f"{form} {kind}"] <= 1


@needs_triton
@pytest.mark.parametrize("form", FORMS)
def test_rows_together_equal_rows_alone_in_each_bit(interpreted, form):
    assert interpreted[f"{form} alone"] == {"1": True, "5": True, "8": True, "11": True}


@needs_triton
def test_a_wrong_weight_exceeds_the_bound(interpreted):
    assert interpreted["wrong weight"] > 1


@needs_triton
def test_a_model_of_triton_products(interpreted):
    assert interpreted["model"] <= 1e-4
    assert interpreted["uncounted"] == 0  # and norms are not counted


@needs_triton
def test_wrong_inputs_are_named(interpreted):
    assert interpreted["width"] == "x is torch.float32 (2, 31): pass float32 [M, 32]"
    assert interpreted["no rows"] == [0, 5]


@needs_triton
def test_inputs_start_at_an_aligned_address(interpreted):
    assert interpreted["view"] == [True, False] and interpreted["aligned"] == [True, True]


@needs_triton
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_compiles_with_the_same_sum_for_one_row_and_three(compiled, kernel, target):
    """The layout of the numbers that are summed fixes the order: which lane adds what."""
    one, three = compiled[f"{kernel} {target} 1"], compiled[f"{kernel} {target} 3"]
    assert one["layouts"] == three["layouts"] != []
    assert three["sums"] == 3 * one["sums"] > 0
    assert one["fused"] == three["fused"] == 0  # a fused multiply-add rounds once, not twice


@needs_triton
def test_without_interpreter_a_cpu_is_refused(compiled):
    assert "TorchLinear" in compiled["cpu"] and "TRITON_INTERPRET=1" in compiled["cpu"]


def test_without_triton_the_import_says_what_to_use(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "utils.kernels.triton_linear", raising=False)
    with pytest.raises(ImportError, match="TorchLinear"):
        importlib.import_module("utils.kernels.triton_linear")


def interpret():
    """Everything that is computed: {case: number}."""
    from utils.kernels.triton_linear import TritonLinear, aligned

    found = {}
    for form, shape in PRODUCTS:
        found[f"{form} {shape}"] = _excess(TritonLinear, stored(form, *shape))
    for form in FORMS:
        found |= {f"{form} {kind}": _excess(TritonLinear, extreme(form, kind)) for kind in EXTREMES}
        found[f"{form} alone"] = _alone(TritonLinear(stored(form, 5, 100), "cpu"))
    weight, x = stored("int4", 5, 32), torch.ones(2, 32)
    found["wrong weight"] = excess(TritonLinear(stored("nf4", 5, 32), "cpu")(x), weight, x)
    views = [torch.ones(3, 33)[:1], torch.ones(3, 33)[1:2]]
    found["view"] = [view.data_ptr() % 16 == 0 for view in views]
    found["aligned"] = [aligned(view).data_ptr() % 16 == 0 for view in views]
    found["no rows"] = list(TritonLinear(weight, "cpu")(x[:0]).shape)
    found["width"] = _refusal(lambda: TritonLinear(weight, "cpu")(x[:, 1:]))
    found["model"], found["uncounted"] = _model_error(TritonLinear)
    return found


def _excess(linear, weight):
    x = inputs_for(weight)
    return excess(linear(weight, "cpu")(x), weight, x)


def _alone(linear):
    """{number of rows: whether each row equals the same row alone}."""
    x = torch.randn(11, 100, generator=torch.Generator().manual_seed(2))
    alone = torch.cat([linear(row[None]) for row in x])
    return {rows: torch.equal(linear(x[:rows]), alone[:rows]) for rows in (1, 5, 8, 11)}


def _model_error(linear):
    """Largest difference to transformers' logits, over the largest; bytes left uncounted."""
    from utils import models
    from utils.kernels import spec as specs
    from utils.kernels.torch_step import TorchStep
    from utils.kernels.weights import encode

    model = models.tiny(hidden_size=16, intermediate_size=24, vocab_size=20, num_hidden_layers=1)
    spec, state = specs.read(model, 8), model.state_dict()
    weights = {name: encode(state[f"{name}.weight"], "fp32") for name in spec.matrices()}
    ids = torch.tensor([3, 1, 4, 1, 5])
    expected = model(ids[None]).logits[0]
    step = TorchStep(spec, weights, 1, 8, linear=linear)
    logits = step.step(ids, [0] * 5, range(5), range(5))
    uncounted = sum(weight.nbytes for weight in weights.values()) - step.nbytes_weights
    return float((logits - expected).abs().max() / expected.abs().max()), uncounted


def _refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return "no error"


def compile_all():
    """For each kernel, target and number of rows: how it sums."""
    from utils.kernels.triton_linear import TritonLinear

    found = {"cpu": _refusal(lambda: TritonLinear(stored("int4", 5, 32), "cpu"))}
    for kernel in KERNELS:
        for target in TARGETS:
            for rows in (1, 3):
                found[f"{kernel} {target} {rows}"] = _sums(_build(kernel, target, rows))
    return found


def _build(name, target, rows):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from utils.kernels import triton_kernels
    from utils.kernels.triton_linear import BLOCK_K, BLOCK_N, OPTIONS

    kernel = getattr(triton_kernels, name)
    types = {"scale": "*fp16", "codes": "*u8", "nibbles": "*u8", "metadata": "*u8", "zero": "*u8"}
    types |= {"out_features": "i32", "in_features": "i32", "groups": "i32"}
    fixed = {"ROWS": rows, "BLOCK_N": BLOCK_N, "BLOCK_K": BLOCK_K, "GROUP": 32}
    names = kernel.arg_names
    signature = {n: "constexpr" if n in fixed else types.get(n, "*fp32") for n in names}
    aligned = {
        (i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if signature[n][0] in "*i"
    }
    used = {n: value for n, value in fixed.items() if n in names}
    source = ASTSource(kernel, signature, used, aligned)
    return triton.compile(source, target=GPUTarget(*TARGETS[target]), options=OPTIONS).asm


def _sums(stages):
    """Number of reductions, layouts (spelled out) of what they reduce, fused multiply-adds."""
    code, machine = stages["ttgir"], stages.get("ptx") or stages["amdgcn"]
    layouts = dict(re.findall(r"^#(\w+) = (.*)$", code, re.MULTILINE))
    reduced = re.findall(r'"tt\.reduce".*?\}\) : \(tensor<\w+, #(\w+)>', code, re.DOTALL)
    fused = re.findall(r"^\s*(?:fma|v_\w*fma)\S*", machine, re.MULTILINE)
    used = sorted({layouts[name] for name in reduced})
    return {"sums": len(reduced), "layouts": used, "fused": len(fused)}


if __name__ == "__main__":
    run = {"interpret": interpret, "compile": compile_all}[sys.argv[1]]
    print(json.dumps(run()))
