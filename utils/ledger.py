"""Evidence records: what was measured, on what, how, with which spread; and claims joined to them.

A notebook ends with `publish`: it writes `_build/evidence/UNIT.json` and glues every value, so a
number in the book's text and the number in the record are one. Long studies write
`records/UNIT.json` with `record` (only `make records` does that) and notebooks
show those values labelled "recorded", through `recorded`.
`load` joins the claims that circulate in this field (`data/claims.yaml`) to such values.
What it does not do: judge a claim that has no evidence here; that one is "open".
"""

import datetime
import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import jsonschema
import torch
import yaml

from utils import cache
from utils.device import detect, versions

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "records"
EVIDENCE = ROOT / "_build" / "evidence"
DATA = Path(__file__).resolve().parent / "data"

NUMBER = {"type": "number"}
SCHEMA = {
    "type": "object",
    "required": ["unit", "protocol", "device", "versions", "date", "values"],
    "additionalProperties": False,
    "properties": {
        "unit": {"type": "string", "pattern": r"^\d\d-[a-z0-9-]+$"},
        "protocol": {"type": "string", "minLength": 20},
        "date": {"type": "string", "format": "date"},
        "script": {"type": "string"},
        "script_sha256": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "device": {
            "type": "object",
            "required": ["kind", "name", "threads", "cpu_capability"],
        },
        "versions": {"type": "object", "additionalProperties": {"type": "string"}},
        "values": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {
                "type": "object",
                "required": ["value"],
                "additionalProperties": False,
                "properties": {
                    "value": {"type": ["number", "integer", "boolean"]},
                    "n": {"type": "integer", "minimum": 1},
                    "low": NUMBER,
                    "high": NUMBER,
                    "unit": {"type": "string"},
                },
            },
        },
    },
}


@dataclass(frozen=True)
class Value:
    """A number with its sample size, interval and unit (each None where there is none)."""

    value: float
    n: int | None = None
    low: float | None = None
    high: float | None = None
    unit: str | None = None


def publish(unit, protocol, values, device=None):
    """Write a notebook's evidence record and glue its values for the book's text.

    unit: the slug.  protocol: a sentence on how the values came about.
    values: {name: number or Value}.  Returns the record's path.
    Raises ValueError, naming the value, for a number that is not finite or a bad record.
    """
    entries = {name: _entry(name, value) for name, value in values.items()}
    path = _write(EVIDENCE / f"{unit}.json", _envelope(unit, protocol, entries, device))
    _glue({name: entry["value"] for name, entry in entries.items()})
    return path


def record(unit, script, protocol, values, device=None):
    """Write `records/UNIT.json`: a long study's result and the hash of the script behind it."""
    entries = {name: _entry(name, value) for name, value in values.items()}
    envelope = _envelope(unit, protocol, entries, device)
    envelope["script"] = Path(script).resolve().relative_to(ROOT).as_posix()
    envelope["script_sha256"] = file_sha256(script)
    return _write(RECORDS / f"{unit}.json", envelope)


def recorded(unit):
    """The checked content of `records/UNIT.json`; ValueError when it is absent or broken.

    unit: a study's slug, or "notebooks/SLUG" for the evidence kept of a notebook's run.
    """
    path = RECORDS / f"{unit}.json"
    if not path.exists():
        raise ValueError(f"no record {unit}.json: run `make records`")
    content = json.loads(path.read_text(encoding="utf-8"))
    check(content)
    return content


def check(content):
    """Check a record against the schema and its intervals; raise ValueError with the reason."""
    try:
        jsonschema.validate(content, SCHEMA)
    except jsonschema.ValidationError as error:
        where = "/".join(map(str, error.absolute_path)) or "record"
        raise ValueError(f"record {content.get('unit')!r}: {where}: {error.message}") from None
    for name, entry in content["values"].items():
        low, high = entry.get("low", entry["value"]), entry.get("high", entry["value"])
        if not low <= entry["value"] <= high:
            raise ValueError(f"value {name!r} lies outside its interval [{low}, {high}]")


def load(claims=DATA / "claims.yaml", evidence=DATA / "evidence.yaml"):
    """The claims, each with `verdict` ("open" without evidence) and `evidence` (a list).

    An entry of evidence.yaml names a claim, a verdict, a scope ("same claim" or "mechanism on our
    model"), a kind (measured, computed or cited), what it says, and its values by record:
    {record: [value name, ...]}. Here the values themselves are put in: {name: number}.
    Raises ValueError for evidence on an unknown claim or with a value that its record lacks.
    """
    found = {c["id"]: c | {"verdict": "open", "evidence": []} for c in _yaml(claims)}
    for entry in _yaml(evidence):
        if entry["claim"] not in found:
            raise ValueError(f"evidence for {entry['claim']!r}, which is no claim of {claims}")
        claim = found[entry["claim"]]
        claim["verdict"] = entry["verdict"]
        claim["evidence"].append(entry | {"values": _looked_up(entry)})
    return list(found.values())


def _yaml(path):
    return yaml.safe_load(Path(path).read_text(encoding="utf-8"))


def _looked_up(entry):
    values = {}
    for unit, names in entry["values"].items():
        kept = recorded(unit)["values"]
        for name in names:
            if name not in kept:
                raise ValueError(f"{entry['claim']}: record {unit} has no value {name!r}")
            values[name] = kept[name]["value"]
    return values


def file_sha256(path):
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _envelope(unit, protocol, entries, device):
    device = device or detect()
    about = {"kind": device.kind, "name": device.name, "threads": device.threads}
    return {
        "unit": unit,
        "protocol": protocol,
        "date": datetime.date.today().isoformat(),
        "device": about | {"cpu_capability": torch.backends.cpu.get_cpu_capability()},
        "versions": versions(),
        "values": entries,
    }


def _entry(name, value):
    value = value if isinstance(value, Value) else Value(value)
    entry = {k: _plain(v) for k, v in asdict(value).items() if v is not None}
    for key, number in entry.items():
        if isinstance(number, float) and not math.isfinite(number):
            raise ValueError(f"value {name!r}: {key} is {number}, not a finite number")
    return entry


def _plain(x):
    """Plain Python numbers: NumPy's and torch's scalars can't be stored or formatted."""
    return x.item() if hasattr(x, "item") else x


def _write(path, content):
    check(content)
    with cache.write_atomically(path) as scratch:
        scratch.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return path


def _glue(values):
    try:
        from myst_nb import glue
    except ImportError:  # on Colab: nothing builds a book there
        return
    for name, value in values.items():
        glue(name, value, display=False)
