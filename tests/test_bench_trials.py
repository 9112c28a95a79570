"""The trials measure what they say, leave the engine as it was, and their record is whole."""

import json
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest

from utils import models
from utils.bench import protocol, speed, trial_kernels, trials
from utils.bench.schema import TRIALS
from utils.engine import Engine
from utils.kernels import entries


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(speed, "PAUSE", 0)


LOADED = SimpleNamespace(model=None, card=SimpleNamespace(name="x"))


def int8(**shape):
    return Engine(models.tiny(**shape), "int8", max_tokens=128, backend="numba", threads=2)


def test_a_quick_run_makes_a_whole_record(tmp_path):
    record = trials.run(models.tiny(), "a tiny model", trials.QUICK)
    protocol.write(record, tmp_path / "trials.json", TRIALS)
    found = json.loads((tmp_path / "trials.json").read_text())["trials"]
    assert set(found["kernels"]["time_ratio"]) == {"two chains", "ahead 4 KiB"}
    assert all(set(r) == {"1", "4"} for r in found["kernels"]["time_ratio"].values())
    empty = found["empty_products"]
    assert 0 < empty["fixed_ms"]["median"] and 0 < empty["token_ms"]["median"]
    products = 1e3 * empty["token_ms"]["median"] / empty["product_us"]["median"]
    assert round(products) == 2 * 7 + 1  # of two layers, and the head
    assert found["many_arrays"]["one_gb_s"]["median"] > 0


def test_the_engine_is_itself_again_after_an_error():
    made = int8()
    before = made.backend.model.matrices.copy()
    with pytest.raises(KeyError), trial_kernels.swapped(made, trial_kernels.ahead(4)):
        assert not (made.backend.model.matrices == before).all()
        raise KeyError
    assert np.array_equal(made.backend.model.matrices, before)


ODD = dict(hidden_size=90, intermediate_size=70, num_attention_heads=3, num_key_value_heads=1)


@pytest.mark.parametrize("shape", [{}, ODD | dict(head_dim=16)])  # inputs: 4 n, and 4 n + 2
def test_trial_kernels_give_the_engines_bits(shape):
    made = int8(**shape)
    for kernel in (trial_kernels.two_chains(), trial_kernels.ahead(4)):
        trials._check(made, "a kernel", kernel)


def test_a_trial_kernel_with_other_bits_is_refused():
    wrong = SimpleNamespace(address=entries.address("int4"))
    with pytest.raises(RuntimeError, match="'int4' gives other logits"):
        trials._check(int8(), "int4", wrong)


def test_the_sum_reads_every_piece():
    arrays = [np.full(trials.ARRAY_BYTES // 4, i, np.float32) for i in (1, 2, 4)]
    arrays[1][-1] = 66
    addresses = np.array([array.ctypes.data for array in arrays], np.int64)
    assert trials.total(addresses) == 7 * trials.ARRAY_BYTES // 4 + 64


def test_a_quick_run_does_not_touch_the_record(monkeypatch):
    written = []
    monkeypatch.setattr(trials.models, "load", lambda **_: LOADED)
    monkeypatch.setattr(trials, "run", lambda *_: {})
    monkeypatch.setattr(trials.protocol, "write", lambda *given: written.append(given))
    assert trials.main(["--quick"]) == 0
    where = [path.relative_to(trials.ledger.ROOT).parts for _, path, _ in written]
    assert where == [("_build", "evidence", trials.RECORD.name)]


def test_the_kept_record_is_whole():
    jsonschema.validate(json.loads(trials.RECORD.read_text(encoding="utf-8")), TRIALS)
