"""Write and read safetensors files: atomically, with a JSON description, strictly.

But: it knows nothing about quantization; see `tensor.py` and `checkpoint.py` for what goes in.
"""

import json
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file


def write(path, tensors, about):
    """Write tensors {name: tensor} and a JSON-able dict; a crash leaves the old file or none."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    try:
        save_file(ready, temporary, metadata={"about": json.dumps(about)})
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def read(path, required=()):
    """Read (tensors, description). Raises ValueError for another file or a missing field."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}
            about = json.loads((file.metadata() or {}).get("about", "{}"))
    except SafetensorError as error:
        raise ValueError(f"{path} is not a complete safetensors file ({error})") from error
    missing = [field for field in required if field not in about]
    if missing:
        raise ValueError(f"{path} does not describe its {missing}: the course did not write it")
    return tensors, about
