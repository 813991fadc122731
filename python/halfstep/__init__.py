"""Python side of halfstep: train LLMs in BF16 with 16-bit optimizer state and gradients.

The trainer itself is the C++ program `halfstep`. This package has what Python is needed for:
`halfstep.load_checkpoint` reads the trainer's checkpoints (needs numpy), `halfstep.tokenize` works
Hugging Face tokenizers for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfstep.checkpoint import load_checkpoint

__version__ = "0.1.0"
__all__ = ["load_checkpoint"]


def __getattr__(name: str) -> Any:
    # Only when it is asked for: the tokenizer's process has no use for numpy.
    if name == "load_checkpoint":
        from halfstep.checkpoint import load_checkpoint

        return load_checkpoint
    raise AttributeError(f"module 'halfstep' has no attribute {name!r}")
