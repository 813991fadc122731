"""Python side of halfstep: train LLMs in BF16 with 16-bit optimizer state and gradients.

The trainer itself is the C++ program `halfstep`. This package has what it needs Python for:
`halfstep.tokenize` works Hugging Face tokenizers for it.
"""

__version__ = "0.1.0"
