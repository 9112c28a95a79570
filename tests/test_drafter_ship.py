"""The shipped files: there and back, and every way in which they can be wrong."""

import json

import pytest
import torch

from tests import small_drafter as small
from utils.speculative.drafter import data, sampling, shards, ship

MODEL = small.target()
HEAD = small.head(MODEL)


@pytest.fixture
def shipped(tmp_path):
    """A folder with all five files."""
    plan = sampling.Plan(longest_answer=8, per_shard=2, batch=2, shortest_kept=2)
    texts, tokenizer = ["one", "two"], small.Tokenizer()
    sampling.sample(MODEL, tokenizer, tmp_path / "s", 16, plan, texts=texts, log=str)
    (tmp_path / "log.jsonl").write_text('{"what": "end"}\n')
    facts = {"tokens": 16, "seconds": 1.5}
    ship.save(HEAD, tmp_path / "shipped", tmp_path / "s", tmp_path / "log.jsonl", facts)
    return tmp_path / "shipped"


def test_there_and_back(shipped):
    found = ship.load(MODEL, shipped)
    lot = data.lot(small.seen(MODEL, count=2))
    with torch.no_grad():
        expected, again = (h.unroll(lot.ids, lot.states, lot.kept, 2) for h in (HEAD, found))
    for a, b in zip(expected, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)  # fp16 weights
    assert torch.equal(found.draft_ids, HEAD.draft_ids) and torch.equal(found.mean, HEAD.mean)
    assert not found.training and not any(p.requires_grad for p in found.parameters())


def test_the_file_has_half_precision_and_nothing_of_the_target(shipped):
    tensors = ship.load_file(shipped / ship.WEIGHTS)
    assert {name for name in tensors if name in ("embedding", "rows", "cos", "sin")} == set()
    assert tensors["o.weight"].element_size() == 2 and tensors["mean"].element_size() == 4
    size = (shipped / ship.WEIGHTS).stat().st_size
    assert size < 2 * ship.parameters(HEAD) + 8000


def test_all_files_are_there_and_hashed(shipped):
    names = {path.name for path in shipped.iterdir()}
    assert names == {ship.WEIGHTS, ship.SAMPLES, ship.LOG, ship.CARD, "hashes.json"}
    for name in names - {"hashes.json"}:
        assert ship.checked(name, shipped).exists()
    assert len(shards.read(ship.checked(ship.SAMPLES, shipped)).texts) == 2
    card = (shipped / ship.CARD).read_text()
    assert "| tokens | 16 |" in card and "Limits" in card and "Licence" in card


@pytest.mark.parametrize("name", [ship.WEIGHTS, ship.SAMPLES, ship.LOG, ship.CARD])
def test_a_changed_file_is_refused(shipped, name):
    with (shipped / name).open("ab") as file:
        file.write(b"x")
    with pytest.raises(ValueError, match="SHA-256 .* not .*restore it"):
        ship.checked(name, shipped)
    (shipped / name).unlink()
    with pytest.raises(ValueError, match="is missing"):
        ship.checked(name, shipped)


def test_changed_weights_are_not_loaded(shipped):
    path = shipped / ship.WEIGHTS
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="SHA-256"):
        ship.load(MODEL, shipped)


def test_another_target_is_refused(shipped):
    from utils import models

    with pytest.raises(ValueError, match="another target"):
        ship.load(models.tiny(seed=1, num_hidden_layers=3), shipped)


def test_no_folder_and_too_large_weights_are_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no drafter in"):
        ship.load(MODEL, tmp_path)
    monkeypatch.setattr(ship, "LARGEST", 1000)
    with pytest.raises(ValueError, match="at most 1,000 are shipped"):
        ship.save(HEAD, tmp_path / "x", tmp_path, tmp_path, {})
    assert not (tmp_path / "x").exists()


def test_hashes_name_the_target(shipped):
    hashes = json.loads((shipped / "hashes.json").read_text())
    assert hashes["target"] == ship.mark(HEAD) and len(hashes) == 5


def test_all_stages_on_a_tiny_target(tmp_path, monkeypatch, capsys):
    """sample, states, train in two goes, evaluate, ship; then load what was shipped."""
    from utils.models import Loaded
    from utils.speculative.drafter import __main__ as stages

    monkeypatch.setattr(stages.models, "load", lambda: Loaded(MODEL, small.Tokenizer(), None))
    monkeypatch.setattr(stages.prompts, "corpus_passages", lambda: ["A passage.", "Another."])
    monkeypatch.setattr(stages, "VOCABULARY", 200)
    monkeypatch.setattr(ship, "FOLDER", tmp_path / "shipped")
    short = sampling.Plan(longest_answer=16, per_shard=8, shortest_kept=4)
    monkeypatch.setattr(stages.sampling, "Plan", lambda batch: short)
    monkeypatch.setattr(stages.sampling, "answers", lambda *a: _few(*a))
    folder = ["--folder", str(tmp_path / "work")]
    stages.main(["sample", "--tokens", "300", *folder])
    stages.main(["states", *folder])
    with pytest.raises(ValueError, match="train first"):
        stages.main(["evaluate", *folder])
    stages.main(["train", "--epochs", "2", "--minutes", "1e-9", *folder])
    stages.main(["train", *folder])
    for name in ("validation", "test"):
        stages.main(["evaluate", "--on", name, *folder])
    figures = json.loads((tmp_path / "work" / "head" / "test.json").read_text())
    assert figures["chain3"][0] >= 1 and set(figures) >= {"accepted", "lookup+3", "known"}
    stages.main(["ship", *folder])
    assert len(ship.load(MODEL, tmp_path / "shipped").draft_ids) == 200
    card = (tmp_path / "shipped" / ship.CARD).read_text()
    assert "| recipe: epochs | 2.0 |" in card and "| samples: sampled |" in card
    assert "ridge start" in capsys.readouterr().out


def _few(model, tokenizer, texts, plan):
    found = [shards.Text(t.number, 0.0, t.ids, t.start) for t in small.texts(model, count=3)]
    return shards.Shard(found, {"sampled": 60})
