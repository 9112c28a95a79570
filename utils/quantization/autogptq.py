"""Does AutoGPTQ 0.7.1, archived, still read our files? `python -m utils.quantization.autogptq`

Makes an environment under `_build/autogptq` that borrows this one's torch and puts in front of it
the last transformers that AutoGPTQ can import (4.57.6), writes a small model in format version 1,
loads it there, and compares every dequantized weight and the logits with ours. Prints what came of
it, also where that is an error; exit status 0 when all is equal.
But: nothing here is needed by the course; it shows what an archived package needs.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

import torch
from safetensors.torch import save_file

from utils import models
from utils.quantization import gptq_checkpoint, gptq_model

FOLDER = Path(__file__).resolve().parents[2] / "_build" / "autogptq"
PACKAGES = ("transformers==4.57.6", "huggingface_hub<1", "peft==0.18.1", "accelerate==1.12.0",
            "datasets", "sentencepiece", "gekko", "rouge")  # fmt: skip
ARCHIVED = "auto-gptq==0.7.1"
READER = """
import sys, torch
from auto_gptq import AutoGPTQForCausalLM
from safetensors.torch import load_file
kept = load_file(sys.argv[1] + "/expected.safetensors")
model = AutoGPTQForCausalLM.from_quantized(
    sys.argv[1], device="cpu", use_triton=False, model_basename="model", disable_exllama=True,
    disable_exllamav2=True, torch_dtype=torch.float32, use_safetensors=True,
).model
with torch.no_grad():
    gaps = [(model(input_ids=kept.pop("ids")).logits - kept.pop("logits")).abs().max().item()]
    for name, weight in kept.items():
        made = model.get_submodule(name)(torch.eye(weight.shape[1])).T
        gaps.append((made - weight).abs().max().item())
print("largest difference: logits", gaps[0], "weights", max(gaps[1:]), "in", len(kept), "layers")
sys.exit(max(gaps) > 0)
"""


def write(folder):
    """A small quantized model in `folder`, with what it must give (expected.safetensors)."""
    model, ids = models.tiny(), torch.arange(64).reshape(2, 32) * 7 % 256
    made = gptq_model.tensors(model, ids, group_size=32)
    rest = {
        name: tensor.clone()  # the tied head as well: AutoGPTQ leaves what it misses undefined
        for name, tensor in model.state_dict().items()
        if name.removesuffix(".weight") not in made
    }
    config = model.config.to_dict() | {"architectures": ["LlamaForCausalLM"], "dtype": "float32"}
    gptq_checkpoint.save(folder, made, rest, config=config)
    with torch.no_grad():
        logits = gptq_model.simulate(model, made)(input_ids=ids).logits
    expected = {name: tensor.dequantize() for name, tensor in made.items()}
    save_file(expected | {"ids": ids, "logits": logits}, folder / "expected.safetensors")


def environment(folder):
    """Python of an environment in `folder` with AutoGPTQ; made when it isn't there."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        link = folder / "lib" / version / "site-packages" / "course.pth"
        link.write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
        pip = [python, "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "--no-deps", ARCHIVED], check=True)
        subprocess.run([*pip, *PACKAGES, f"torch=={torch.__version__}"], check=True)
    return python


def main():
    """Write, load there, compare; the exit status."""
    write(FOLDER / "model")
    python = environment(FOLDER / "environment")
    command = [python, "-W", "ignore", "-c", READER, FOLDER / "model"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print("\n".join((done.stdout or done.stderr).strip().splitlines()[-3:]))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
