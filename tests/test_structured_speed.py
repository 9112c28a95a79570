"""Single products, the crossover race with a fake GPU, and the speed study's arithmetic."""

import pytest
import torch

from utils import device, ledger, measure, models
from utils.sparsity import crossover, gradual, matvec, storage
from utils.structured_study import speed


@pytest.fixture(scope="module", autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("shape", [(16, 32), (40, 72), (5, 100)])
@pytest.mark.parametrize("kind", ["fp32", "sparse24"])
def test_single_products_are_right(kind, shape):
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(shape, generator=generator), torch.randn(shape[1], generator=generator)
    weight = weight * gradual.keep_mask(weight, 0.5, "2:4")
    got = torch.tensor(matvec.Matvec(weight, kind, x.numpy())())
    torch.testing.assert_close(got, weight @ x, rtol=1e-4, atol=1e-5)
    run, size = matvec.csr(weight, x.numpy())
    torch.testing.assert_close(run(), weight @ x, rtol=1e-4, atol=1e-5)
    assert size == storage.csr_bytes(shape, weight.numel() // 2, 4)


def test_a_product_reads_what_the_formula_says():
    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(0))
    weight = weight * gradual.keep_mask(weight, 0.5, "2:4")
    x = torch.ones(128).numpy()
    dense, sparse = (matvec.Matvec(weight, kind, x).nbytes for kind in ("fp32", "sparse24"))
    assert (dense, sparse) == (64 * 128 * 4, storage.semi_structured_bytes((64, 128), 4))
    assert sparse / dense == 0.53125


@pytest.mark.parametrize(
    ("kind", "size", "words"), [("fp32", 3, "3 numbers"), ("int8", 8, "step_costs.Product")]
)
def test_bad_products_are_named(kind, size, words):
    with pytest.raises(ValueError, match=words):
        matvec.Matvec(torch.ones(16, 8), kind, torch.ones(size).numpy())


def test_no_race_without_a_sparse_kernel():
    asked = []

    def probe(where, dtype):
        asked.append((where.type, dtype))
        return False

    assert crossover.race((8, 8), device=device.detect("cpu"), probe=probe, convert=None) is None
    assert asked == [("cpu", torch.float16)]


def test_the_race_on_a_fake_gpu_finds_the_crossover():
    """The fake kernel needs 32 rows' time for any batch below 32, half the time above."""
    shapes = []

    def compare(arms, repeats, where):
        dense, sparse = arms["dense"](), arms["2:4"]()
        torch.testing.assert_close(dense, sparse)
        batch = len(dense)
        shapes.append(tuple(dense.shape))
        times = {"dense": batch, "2:4": max(batch, 32) / 2}
        return measure.Timings({n: measure.Timing((t,) * repeats) for n, t in times.items()})

    found = crossover.race(
        (12, 16), (1, 8, 16, 32, 64), device.detect("cpu"), torch.float32, 3,
        probe=lambda *_: True, convert=lambda weight: weight, compare=compare,
    )  # fmt: skip
    assert shapes == [(b, 12) for b in (1, 8, 16, 32, 64)]
    assert [round(r.median, 3) for r in found.values()] == [0.062, 0.5, 1.0, 2.0, 2.0]
    assert crossover.crossover(found) == 32
    assert crossover.crossover({1: found[1]}) is None


def test_the_speed_study_on_a_tiny_model():
    by_arm = speed.engines(speed.smaller(models.tiny(intermediate_size=128)))
    found = speed.steps(by_arm, 1)
    for engine in by_arm.values():
        assert engine.length() == speed.CONTEXT
        engine.close()
    size = {arm: found[f"{arm}_bytes"].value for arm in by_arm}
    assert found["channels_50_predicted"].value == size["dense"] / size["channels_50"]
    assert size["dense"] - size["channels_50"] == 4 * 2 * 3 * 64 * 64
    keys = 8 * 2 * 16 * speed.CONTEXT  # one of two key heads, and its values, in two blocks
    assert size["dense"] - size["groups_1"] == 4 * 2 * (2 * 32 * 64 + 2 * 16 * 64) + keys
    assert found["dense_speed"].value == 1


def test_products_are_compared_by_bytes():
    found = speed.products(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)), 1)
    assert found["two_four_predicted"].value == pytest.approx(1 / 0.53125)
    assert found["csr_50_predicted"].value == pytest.approx(16384 / (8 * 2048 + 4 * 65))


@pytest.fixture(scope="module")
def record():
    return ledger.recorded(speed.UNIT)


def test_record_is_made_by_this_script(record):
    assert record["script_sha256"] == ledger.file_sha256(speed.__file__)


@pytest.mark.parametrize("weights", ["fp32", "int8"])
@pytest.mark.parametrize("arm", ["channels_25", "channels_50"])
def test_channel_removal_is_as_fast_as_its_bytes_say(record, weights, arm):
    """The bar of this unit: within 15 % of the prediction from bytes."""
    values = record["values"]
    measured = values[f"{weights}_{arm}_speed"]["value"]
    assert measured == pytest.approx(values[f"{weights}_{arm}_predicted"]["value"], rel=0.15)
