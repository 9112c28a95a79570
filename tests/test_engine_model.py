"""The engine with the course's model: transformers' logits and text, memory, the kernels' cache."""

import os
import re
import subprocess
import sys

import pytest
import torch
from small_engine import close

from utils import models
from utils.engine import Engine
from utils.kernels.weights import encode

pytestmark = pytest.mark.slow

QUESTION = "Explain in two sentences why the sky is blue."
HELPERS = """
import gc
from utils import models
from utils.engine import Engine

def figure(name):
    text = open("/proc/self/status").read()
    return int(text.split(name + ":")[1].split()[0]) * 1024
"""


@pytest.fixture(scope="module")
def loaded():
    return models.load()


@pytest.fixture(scope="module")
def ids(loaded):
    chat = [{"role": "user", "content": QUESTION}]
    made = loaded.tokenizer.apply_chat_template(chat, add_generation_prompt=True)
    return list(made["input_ids"]) if hasattr(made, "keys") else list(made)


def run(code, cache=None, **settings):
    """The lines that a fresh process prints."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | settings
    if cache is not None:
        environment["COURSE_CACHE"] = str(cache)
    done = subprocess.run(
        [sys.executable, "-c", HELPERS + code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_logits_and_greedy_text_of_transformers(loaded, ids):
    made = Engine(loaded.model, "fp32", max_tokens=512)
    whole = torch.tensor([ids])
    assert close(made.step(ids), loaded.model(whole).logits[0])
    new = made.generate(ids, 48, eos_token_id=()).tokens[0]
    settings = dict(max_new_tokens=48, do_sample=False, eos_token_id=None)
    expected = loaded.model.generate(whole, attention_mask=torch.ones_like(whole), **settings)
    assert new == expected[0, len(ids) :].tolist()
    assert made.generate(ids, 48, eos_token_id=(), drafter="lookup").tokens == [new]


@pytest.mark.parametrize(
    "form, largest", [("bf16", 1e-3), ("fp8_e4m3", 0.1), ("int8", 0.05), ("int4", 1), ("nf4", 1)]
)
def test_packed_logits_are_those_of_the_rounded_weights(form, largest, ids):
    model = models.load().model
    made, original = Engine(model, form, max_tokens=512), model(torch.tensor([ids])).logits[0]
    for name in made.spec.matrices():
        kind = made.backend.packed[name].kind
        module = model.get_submodule(name)
        module.weight.data = encode(module.weight, kind).dequantize()
    logits, expected = made.step(ids), model(torch.tensor([ids])).logits[0]

    def divergence(q):
        p = original.double().log_softmax(-1)
        return float((p.exp() * (p - q.double().log_softmax(-1))).sum(-1).mean())

    relative = 1e-2 if "int8" in made.kinds else 1e-4  # integer kernels round activations
    assert close(logits, expected, relative)
    assert abs(divergence(logits) - divergence(expected)) < 1e-3
    assert 0 < divergence(logits) < largest


MEMORY = """
Engine(models.tiny(), {form!r}, max_tokens=64, threads=1).step([1])
Engine(models.tiny(), "int8", max_tokens=64, threads=1).step([1])
model = models.load().model
sum(float(p.sum()) for p in model.parameters())  # every page of the model is in memory
gc.collect()
before = figure("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # the peak starts here
made = Engine(model, {form!r}, max_tokens=512, threads=1)
made.step([i % 1000 for i in range(512)], rows=1)
made.generate([i % 1000 for i in range(100)], 100, eos_token_id=(), drafter="lookup")
print((figure("VmHWM") - before) / (made.nbytes + made.cache_nbytes))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="needs /proc")
@pytest.mark.parametrize("form", ["fp32", "int8", "int4", "sparse24"])
def test_making_and_running_an_engine_takes_little_more_than_weights_and_cache(form):
    assert float(run(MEMORY.format(form=form)).split()[-1]) <= 1.15


LONG = """
model = models.load().model
made = Engine(model, "int8", max_tokens=2048, threads=1)
del model
made.step([i % 1000 for i in range(2048)], rows=1)  # every page of the cache is in use
seen = []

def note(token):
    seen.append(figure("VmRSS"))

made.generate([5, 6, 7], 2000, eos_token_id=(), on_token=note, {how})
print(seen[-1] - seen[200], len(seen))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
@pytest.mark.parametrize("how", ["drafter=None", "drafter='lookup', repetition_penalty=1.2"])
def test_two_thousand_tokens_leave_nothing_behind(how):
    growth, tokens = map(int, run(LONG.format(how=how)).split()[-2:])
    assert tokens == 2000 and growth < 5e6


COMPILED = """
for form in ("int8", "bf16"):
    Engine(models.tiny(), form, max_tokens=64, threads=2).step([1, 2, 3])
    print("built", form)
"""


def test_kernels_are_compiled_once_and_it_is_said(tmp_path):
    def files():
        """What was written when, but for `used`, which each process touches."""
        written = (f for f in tmp_path.rglob("*") if f.is_file() and f.name != "used")
        return {str(f): f.stat().st_mtime_ns for f in written}

    cold = run(COMPILED, tmp_path)
    first, second = cold.split("built int8")
    assert re.search(r"compiling .*int8, step", first) and "compiled in" in first
    assert re.search(r"compiling .*bf16", second) and "int8" not in second
    kept = files()
    assert any(name.endswith(".nbc") for name in kept)
    assert "compil" not in run(COMPILED, tmp_path)
    assert files() == kept


MIXED = """
import hashlib
for form in {forms}:
    made = Engine(models.tiny(), form, max_tokens=64, threads=1)
    logits = made.step([1, 2, 3, 4, 5, 6, 7])
    print("bits", form, hashlib.sha256(logits.numpy().tobytes()).hexdigest())
"""


def test_kernels_from_several_processes_are_not_mixed_up(tmp_path):
    forms = ["int8", "bf16", "int4", "fp8_e4m3", "fp8_e5m2"]

    def bits(forms, folder):
        lines = run(MIXED.format(forms=forms), folder).splitlines()
        return [line for line in lines if line.startswith("bits")]

    expected = bits(forms, tmp_path / "together")
    assert len(set(expected)) == len(forms)
    for form in forms:  # each compiled by a process of its own
        bits([form], tmp_path / "apart")
    assert bits(forms, tmp_path / "apart") == expected
