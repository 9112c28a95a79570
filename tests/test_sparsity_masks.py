"""Masks: exact counts, ties, Wanda's rows, 2:4 and its storage (field cases 14, 16, 17)."""

import pytest
import torch
from torch.nn.utils import prune as torch_prune
from torch.sparse import _semi_structured_conversions as oracle

from utils.sparsity import product, semi_structured, storage, unstructured


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("sparsity", [0.0, 0.1, 0.25, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("n", [1, 2, 5, 7, 10, 64])
def test_exactly_k_zeros_as_torch_counts_them(n, sparsity, generator):
    weight = torch.randn(1, n, generator=generator)
    zeros = int((~unstructured.mask(weight, sparsity)).sum())
    expected = torch_prune._compute_nparams_toprune(sparsity, n)
    assert zeros == unstructured.zero_count(sparsity, n) == expected


def test_constant_tensor_loses_its_first_half():
    keep = unstructured.mask(torch.ones(4, 6), 0.5)
    assert (~keep).sum() == 12 and not keep[:2].any() and keep[2:].all()


def test_large_tensor_with_ties_is_exact_and_repeats(generator):
    weight = torch.randint(-3, 4, (4096, 4097), generator=generator).to(torch.float16)
    first, second = (unstructured.mask(weight, 0.25) for _ in range(2))
    assert int((~first).sum()) == round(0.25 * weight.numel())
    assert torch.equal(first, second)


@pytest.mark.parametrize("method", ["magnitude", "wanda"])
def test_fast_ranking_equals_the_stable_sort(method, generator):
    for seed in range(20):
        weight = torch.randint(-4, 5, (9, 31), generator=generator.manual_seed(seed)).float()
        norm = torch.randint(1, 3, (31,), generator=generator).float()
        fast, naive = (
            unstructured.mask(weight, 0.4, method, norm, ranker)
            for ranker in (unstructured.keep_largest, unstructured.keep_largest_naive)
        )
        assert torch.equal(fast, naive)


def test_magnitude_keeps_what_torch_keeps(generator):
    layer = torch.nn.Linear(40, 30)
    ours = unstructured.mask(layer.weight, 0.5)
    torch_prune.l1_unstructured(layer, "weight", amount=0.5)
    assert torch.equal(ours, layer.weight_mask.bool())


def test_wanda_by_hand():
    weight = torch.tensor([[4.0, 0.0, 1.0, -1.0], [3.0, -2.0, -1.0, -3.0]])
    norm = torch.tensor([1.0, 2.0, 8.0, 3.0])
    keep = unstructured.mask(weight, 0.5, "wanda", norm)
    # scores: [4, 0, 8, 3] and [3, 4, 8, 9]
    assert keep.tolist() == [[True, False, True, False], [False, False, True, True]]


def test_wanda_has_the_same_count_in_every_row(generator):
    weight, norm = torch.randn(17, 33, generator=generator), torch.rand(33, generator=generator)
    keep = unstructured.mask(weight, 0.25, "wanda", norm)
    assert set((~keep).sum(1).tolist()) == {round(0.25 * 33)}


def test_wanda_with_equal_norms_is_magnitude_row_by_row(generator):
    weight = torch.randn(8, 32, generator=generator)
    keep = unstructured.mask(weight, 0.5, "wanda", torch.full((32,), 3.0))
    rows = torch.stack([unstructured.mask(row[None], 0.5)[0] for row in weight])
    assert torch.equal(keep, rows)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda w: unstructured.mask(w, 50), "between 0 and 1"),
        (lambda w: unstructured.mask(w, 0.5, "wanda"), "input_norm"),
        (lambda w: unstructured.mask(w, 0.5, "wanda", torch.ones(3)), "does not fit"),
        (lambda w: unstructured.mask(w, 0.5, "random"), "unknown method"),
        (lambda w: unstructured.mask(w * float("nan"), 0.5), "NaN"),
        (lambda w: unstructured.mask(w / 0, 0.5), "NaN or infinity"),
        (lambda w: semi_structured.mask(w * float("nan")), "NaN"),
        (lambda w: semi_structured.mask(w[:, :10]), "divisible by 4, not 10"),
        (lambda w: semi_structured.compress(w), "more than two non-zeros"),
        (lambda w: semi_structured.mask(w.flatten()), "matrix"),
        (lambda w: semi_structured.decompress(w, w.to(torch.uint8)), "belong together"),
        (lambda w: storage.break_even_sparsity("dense", 2), "no break-even"),
    ],
)
def test_bad_input_is_named(call, words, generator):
    with pytest.raises(ValueError, match=words):
        call(torch.randn(4, 16, generator=generator) + 5)


@pytest.mark.parametrize("shape", [(4, 8), (8, 4), (5, 12)])
def test_two_of_four_along_the_input_dimension(shape, generator):
    weight = torch.randn(shape, generator=generator)
    keep = semi_structured.mask(weight)
    assert (keep.reshape(shape[0], -1, 4).sum(2) == 2).all()
    assert semi_structured.is_semi_structured(weight * keep)
    dropped = weight.abs().where(~keep, 0).reshape(shape[0], -1, 4).amax(2)
    kept = weight.abs().where(keep, torch.inf).reshape(shape[0], -1, 4).amin(2)
    assert (dropped <= kept).all()


def test_transpose_is_masked_along_its_own_input_dimension(generator):
    weight = torch.randn(4, 8, generator=generator)
    assert torch.equal(semi_structured.mask(weight.T), semi_structured.mask(weight.T.contiguous()))


def test_ties_drop_the_earlier_two_and_scores_outrank_weights():
    assert semi_structured.mask(torch.ones(1, 4)).tolist() == [[False, False, True, True]]
    scores = torch.tensor([[9.0, 1.0, 8.0, 2.0]])
    assert semi_structured.mask(torch.ones(1, 4), scores).tolist() == [[True, False, True, False]]


CODES = {
    "1100": 0b0100,
    "1010": 0b1000,
    "0110": 0b1001,
    "1001": 0b1100,
    "0101": 0b1101,
    "0011": 0b1110,
}


@pytest.mark.parametrize("pattern, code", CODES.items())
def test_metadata_codes(pattern, code):
    weight = torch.tensor([[float(bit) for bit in pattern]])
    assert semi_structured.compress(weight).metadata.tolist() == [[code]]


def _logical(reordered, shape, meta_dtype):
    """torch's metadata after undoing its reordering for CUTLASS, as bytes in logical order."""
    rows, columns = reordered.shape
    offsets = oracle._calculate_meta_reordering_scatter_offsets(rows, columns, meta_dtype, "cpu")
    return reordered.flatten().gather(0, offsets).view(rows, columns).view(torch.uint8)


@pytest.mark.parametrize("dtype, meta", [(torch.float16, torch.int16), (torch.int8, torch.int32)])
@pytest.mark.parametrize("extra", [0.0, 0.6])
def test_compressed_form_equals_torchs(dtype, meta, extra, generator):
    weight = torch.randint(1, 100, (32, 64), generator=generator)
    weight = weight * semi_structured.mask(torch.rand(32, 64, generator=generator))
    weight = (weight * (torch.rand(32, 64, generator=generator) >= extra)).to(dtype)
    values, reordered = oracle.sparse_semi_structured_from_dense_cutlass(weight)
    ours = semi_structured.compress(weight)
    assert torch.equal(ours.values, values)
    assert torch.equal(ours.metadata, _logical(reordered, weight.shape, meta))
    assert torch.equal(semi_structured.decompress(*ours), weight)


@pytest.mark.parametrize("shape", [(1, 4), (3, 8), (5, 12), (32, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8])
def test_round_trip(shape, dtype, generator):
    weight = (torch.randn(shape, generator=generator) * 20).to(dtype)
    weight = weight.masked_fill(~semi_structured.mask(weight.float()), 0)
    assert torch.equal(semi_structured.decompress(*semi_structured.compress(weight)), weight)


def test_non_contiguous_input_gives_the_same_bits(generator):
    weight = torch.randn(16, 8, generator=generator).T
    pruned = weight * semi_structured.mask(weight)
    packed, again = semi_structured.compress(pruned), semi_structured.compress(pruned.contiguous())
    assert torch.equal(packed.values, again.values) and torch.equal(packed.metadata, again.metadata)


@pytest.mark.parametrize(
    "dtype, share",
    [
        (torch.float16, 0.5625),
        (torch.bfloat16, 0.5625),
        (torch.int8, 0.625),
        (torch.float32, 0.53125),
    ],
)
def test_share_of_the_dense_bytes(dtype, share):
    dense = torch.zeros(64, 128, dtype=dtype)
    packed = semi_structured.compress(dense)
    assert packed.nbytes / dense.nbytes == share
    assert packed.nbytes == storage.semi_structured_bytes(dense.shape, dense.element_size())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.5, 0.95, 1.0])
def test_predicted_bytes_are_measured_bytes(sparsity, dtype, generator):
    weight = torch.randn(13, 20, generator=generator).to(dtype) + 10
    weight = weight * unstructured.mask(weight, sparsity)
    nonzeros, width = int((weight != 0).sum()), weight.element_size()
    measured = storage.measured_bytes(weight)
    assert measured["dense"] == storage.dense_bytes(weight.shape, width)
    assert measured["csr"] == storage.csr_bytes(weight.shape, nonzeros, width)
    assert measured["bitmap"] == storage.bitmap_bytes(weight.shape, nonzeros, width)


def test_sparse_forms_come_back(generator):
    weight = torch.randn(13, 21, generator=generator)
    weight = weight * unstructured.mask(weight, 0.5)
    assert torch.equal(storage.to_csr(weight).to_dense(), weight)
    assert torch.equal(storage.from_bitmap(*storage.to_bitmap(weight), weight.shape), weight)


@pytest.mark.parametrize(
    "form, predict", [("csr", storage.csr_bytes), ("bitmap", storage.bitmap_bytes)]
)
@pytest.mark.parametrize("width", [1, 2, 4])
def test_break_even(form, predict, width):
    shape = (1000, 1000)
    even = storage.break_even_sparsity(form, width)
    sizes = [predict(shape, round(1e6 * (1 - even - step)), width) for step in (-0.01, 0.01)]
    dense = storage.dense_bytes(shape, width)
    assert sizes[0] > dense > sizes[1]


@pytest.mark.parametrize("batch", [1, 64])
def test_product_falls_back_to_the_masked_dense_one(batch, generator):
    weight = torch.randn(64, 128, generator=generator)
    weight = weight * semi_structured.mask(weight)
    x = torch.randn(batch, 128, generator=generator)
    result, way = product.linear(x, weight)
    assert torch.equal(result, x @ weight.T)
    assert way == "dense" and not product.has_sparse_kernel(x.device)
    with pytest.raises(ValueError, match="not 2:4"):
        product.linear(x, weight + 1)
