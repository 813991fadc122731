"""`transformers` reads the folders that the C++ test saved: same function, no tensor lost or added.

Usage: check_saved.py REFERENCE_DIR SAVED_DIR.
"""

import pathlib
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def check(reference_dir, saved_dir):
    original = AutoModelForCausalLM.from_pretrained(reference_dir, dtype=torch.float32)
    saved, info = AutoModelForCausalLM.from_pretrained(
        saved_dir, dtype=torch.float32, output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[kind], f"{saved_dir}: {kind}: {info[kind]}"
    assert type(saved) is type(original)
    for (name, a), (other, b) in zip(
        original.named_parameters(), saved.named_parameters(), strict=True
    ):
        assert name == other and torch.equal(a, b), f"{saved_dir}: {name} differs"
    # Same weights, same code: the logits are equal unless config.json changed the function.
    tokens = load_file(reference_dir / "reference.safetensors")["tokens"]
    with torch.no_grad():
        assert torch.equal(original(tokens).logits, saved(tokens).logits), f"{saved_dir}: logits"


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Those for fine-tuning are the same kinds of models again, with other data.
    references = sorted(p for p in pathlib.Path(sys.argv[1]).iterdir()
                        if p.is_dir() and not p.name.startswith("finetune_"))
    assert references, "no reference models"
    for reference in references:
        check(reference, pathlib.Path(sys.argv[2]) / reference.name)
    print(f"transformers reads all {len(references)} saved models as they were")
