"""Parameters from configurations: published totals, transformers' own models, and bad input."""

import pytest
import torch

from utils import architecture, models

PRESETS = sorted(architecture.presets())
LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 160, "vocab_size": 256,
}  # fmt: skip


def config_of(name):
    """The preset as a transformers configuration."""
    from transformers import AutoConfig

    config = dict(architecture.presets()[name]["config"])
    return AutoConfig.for_model(config.pop("model_type"), **config)


@pytest.mark.parametrize("name", PRESETS)
def test_published_totals(name):
    """Equal to all the digits that the publisher gives, rounded or cut (7.6156 became 7.61)."""
    published = str(architecture.presets()[name]["published"]["total"])
    unit = 10 ** -len(published.partition(".")[2])
    assert -0.5 * unit <= architecture.read(name).total / 1e9 - float(published) < unit


def test_every_preset_names_its_source():
    for name, entry in architecture.presets().items():
        for key in ("source", "checked"):
            assert entry[key].startswith("https://"), (name, key)


def test_totals_to_the_last_parameter():
    counted = {name: architecture.read(name).total for name in PRESETS}
    assert counted["llama-2-7b"] == 6_738_415_616
    assert counted["llama-3-8b"] == 8_030_261_248
    assert counted["llama-3-70b"] == 70_553_706_496
    assert counted["mixtral-8x7b"] == 46_702_792_704
    assert counted["qwen3-30b-a3b"] == 30_532_122_624
    assert counted["deepseek-v3"] == 671_026_404_352


def test_active_parameters_as_published():
    """Publishers count the whole input embedding as active; `active` counts one row of it."""
    for name, said in (("mixtral-8x7b", 12.9), ("qwen3-30b-a3b", 3.3)):
        a = architecture.read(name)
        with_embedding = a.active + (a.vocabulary - 1) * a.hidden
        assert abs(with_embedding / 1e9 - said) < 0.06, name
    a = architecture.read("deepseek-v3")
    assert round(a.active / 1e9) == 37
    assert a.experts_per_token == 8 and a.dense_layers == 3


@pytest.mark.parametrize("name", PRESETS)
def test_equal_to_the_model_that_transformers_builds(name):
    from transformers import AutoModelForCausalLM

    config = config_of(name)
    with torch.device("meta"):  # shapes without memory, so that 671 billion fit
        model = AutoModelForCausalLM.from_config(config)
    built = sum(p.numel() for p in model.parameters())
    assert architecture.read(name).total == architecture.read(config).total == built


@pytest.mark.parametrize(
    "change",
    [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"tie_word_embeddings": False},
        {"head_dim": 32},
        {"num_key_value_heads": 1},
    ],
)
def test_variants_of_a_small_llama(change):
    model = models.tiny(**change)
    a = architecture.read(model.config)
    assert a.total == sum(p.numel() for p in model.parameters())
    biases = [p.numel() for name, p in model.named_parameters() if name.endswith("bias")]
    assert a.biases == sum(biases)


def test_parts_of_a_hand_counted_model():
    parts = architecture.read(LLAMA | {"tie_word_embeddings": False}).parameters()
    assert parts["embedding"] == parts["head"] == 256 * 64
    assert parts["attention"] == 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64)
    assert parts["mlp"] == 2 * 3 * 160 * 64
    assert parts["norms"] == 5 * 64
    assert parts["experts"] == parts["router"] == 0


def test_a_tied_head_counts_once():
    loose = architecture.read(LLAMA | {"tie_word_embeddings": False})
    tied = architecture.read(LLAMA | {"tie_word_embeddings": True})
    assert loose.total - tied.total == 256 * 64
    assert tied.parameters()["head"] == 0
    assert tied.active == tied.total
    assert loose.active == loose.total - 255 * 64, "one row of the embedding is read, not all"


def test_head_dim_need_not_be_hidden_over_heads():
    assert architecture.read("qwen3-0.6b").head_dim == 128  # 1024 / 16 would be 64
    assert architecture.read("llama-3-8b").head_dim == 128
    assert architecture.read(LLAMA).head_dim == 16
    assert architecture.read(LLAMA | {"head_dim": None}).head_dim == 16


def test_missing_key_value_heads_are_as_many_as_heads():
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert architecture.read(config).kv_heads == 4


def test_dense_layers_of_a_mixture():
    assert architecture.read("deepseek-v3").dense_layers == 3
    config = architecture.presets()["qwen3-30b-a3b"]["config"]
    assert architecture.read(config | {"mlp_only_layers": [0, 5]}).dense_layers == 2
    assert architecture.read(config | {"decoder_sparse_step": 2}).dense_layers == 24


def test_matrices_are_those_of_the_engine():
    from utils.kernels import spec

    model = models.tiny(tie_word_embeddings=False)
    shapes = sorted(spec.read(model, 64).matrices().values())[:-1]  # without the embedding
    listed = [
        (m.rows, m.columns)
        for m in architecture.read(model.config).matrices()
        for _ in range(m.copies)
    ]
    assert sorted(listed) == shapes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"num_key_value_heads": 3},
            "num_attention_heads=4 is no multiple of num_key_value_heads=3",
        ),
        ({"hidden_size": 66}, "head_dim is missing and hidden_size=66"),
        ({"vocab_size": None}, "vocab_size=None"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ({"model_type": "mamba"}, "model_type='mamba'"),
        ({"model_type": "mixtral"}, "without experts"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding_window=4096"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 8}, "sliding_window=8"),
        ({"num_key_value_heads": 0}, "num_key_value_heads=0"),
        ({"model_type": "mistral", "num_key_value_heads": None}, "num_key_value_heads=None"),
        ({"model_type": "qwen3"}, "head_dim=None"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings='false'"),
    ],
)
def test_bad_configurations_name_what_is_wrong(change, words):
    with pytest.raises(ValueError, match=words):
        architecture.read(LLAMA | change)


def test_too_many_experts_per_token():
    config = architecture.presets()["mixtral-8x7b"]["config"]
    with pytest.raises(ValueError, match="num_experts_per_tok=9 of num_local_experts=8"):
        architecture.read(config | {"num_experts_per_tok": 9})


@pytest.mark.parametrize("change", [{"n_shared_experts": -1}, {"first_k_dense_replace": "3"}])
def test_bad_counts_of_a_mixture(change):
    config = architecture.presets()["deepseek-v3"]["config"]
    with pytest.raises(ValueError, match=next(iter(change))):
        architecture.read(config | change)


def test_presets_are_copies():
    """A learner who edits a preset's dict must not change the preset."""
    architecture.presets()["llama-3-8b"]["config"]["num_key_value_heads"] = 32
    assert architecture.read("llama-3-8b").kv_heads == 8


def test_unknown_preset_lists_the_known_ones():
    with pytest.raises(ValueError, match="llama-3-8b"):
        architecture.read("llama-3-9b")
    with pytest.raises(ValueError, match="list is no configuration"):
        architecture.read([1])


@pytest.mark.slow
def test_the_course_model_is_its_preset():
    loaded = models.load(dtype=torch.float32)
    read, preset = architecture.read(loaded.model.config), architecture.read("smollm2-135m")
    assert read.total == preset.total == loaded.card.parameters == 134_515_008
