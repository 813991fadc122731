"""Random small models by `transformers`, with the logits, loss and gradients that it computes.

Usage: make_reference.py DIR. For each case DIR/CASE gets a Hugging Face folder (config.json and
model.safetensors, or shards) and reference.safetensors with: tokens, targets [batch, seq]; logits;
loss (the sum of token losses); grad.NAME of every parameter. DIR/finetune_* have examples.jsonl too,
and loss and gradients are sums over its examples, each of which went through the model alone with
labels of -100 on its prompt. Everything is FP32 and seeded; nothing is downloaded.
"""

import json
import pathlib
import random
import sys

import torch
from safetensors.torch import save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

BATCH, SEQ, VOCAB = 3, 40, 131
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "initializer_range": 0.05,
}


def llama3_rope(theta):
    """Limits chosen so that some of the 8 frequencies fall into each of the three regions."""
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    }


CASES = {
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 24}),
    "qwen3_tied": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 16, "tie_word_embeddings": True}),
    "llama_untied": (LlamaForCausalLM, LlamaConfig, {}),
    "llama_tied": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True}),
    "llama_rope3": (LlamaForCausalLM, LlamaConfig, {"rope_parameters": llama3_rope(5e5)}),
    "llama_head_dim": (LlamaForCausalLM, LlamaConfig, {"head_dim": 20, "num_key_value_heads": 1}),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"num_key_value_heads": 4}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": None}),
}
SHARDED = {"llama_untied"}


def randomise(model, generator):
    """Draws every parameter anew: transformers starts norms at 1 and biases at 0, which hides faults."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            parameter.data = 1 + 0.2 * noise
        else:
            parameter.data = 0.15 * noise


def make(case, out):
    model_class, config_class, changes = CASES[case]
    config = config_class(**(SIZES | changes))
    config._attn_implementation = "sdpa"
    generator = torch.Generator().manual_seed(1234)
    torch.manual_seed(1234)
    model = model_class(config).float()
    randomise(model, generator)
    model.tie_weights()

    tokens = torch.randint(VOCAB, (BATCH, SEQ), generator=generator)
    targets = torch.randint(VOCAB, (BATCH, SEQ), generator=generator)
    targets[torch.rand(BATCH, SEQ, generator=generator) < 0.2] = -100
    logits = model(tokens).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=-100, reduction="sum"
    )
    loss.backward()

    model.save_pretrained(out, max_shard_size="100KB" if case in SHARDED else "1GB")
    reference = {"tokens": tokens, "targets": targets, "logits": logits.detach(), "loss": loss.detach()}
    for name, parameter in model.named_parameters():
        reference[f"grad.{name}"] = parameter.grad
    save_file(reference, out / "reference.safetensors")


FINETUNE_CASES = {
    "finetune_qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 24, "vocab_size": 257}),
    "finetune_llama": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True, "vocab_size": 257}),
}
END = 256  # of byte tokens


def make_finetune(case, out):
    model_class, config_class, changes = FINETUNE_CASES[case]
    config = config_class(**(SIZES | changes))
    generator = torch.Generator().manual_seed(99)
    torch.manual_seed(99)
    model = model_class(config).float()
    randomise(model, generator)
    model.tie_weights()

    draw = random.Random(7)
    words = "red green blué sky sea 中 tree".split()
    examples = []
    for _ in range(14):
        prompt, completion = (" ".join(draw.choices(words, k=draw.randint(1, 3))) for _ in range(2))
        examples.append({"prompt": prompt, "completion": completion})
    (out / "examples.jsonl").write_text("".join(json.dumps(e) + "\n" for e in examples))
    loss_sum, num_targets, longest = torch.zeros(()), 0, 0
    for example in examples:
        prompt, completion = (list(example[key].encode()) for key in ("prompt", "completion"))
        tokens = torch.tensor([prompt + completion + [END]])
        labels = torch.tensor([[-100] * len(prompt) + completion + [END]])
        count = len(completion) + 1
        # The library's own loss, a mean over labels that count; its shift by one is inside.
        loss = model(input_ids=tokens, labels=labels).loss * count
        loss.backward()
        loss_sum += loss.detach()
        num_targets += count
        longest = max(longest, tokens.shape[1])
    assert longest <= SEQ + 1, "an example does not fit into a row of the test"

    model.save_pretrained(out)
    reference = {"loss": loss_sum, "tokens": tokens, "targets": labels, "num_targets": torch.tensor(num_targets)}
    for name, parameter in model.named_parameters():
        reference[f"grad.{name}"] = parameter.grad
    save_file(reference, out / "reference.safetensors")


if __name__ == "__main__":
    torch.set_num_threads(1)  # the reference does not depend on the machine's size
    for case in CASES:
        directory = pathlib.Path(sys.argv[1]) / case
        directory.mkdir(parents=True, exist_ok=True)
        make(case, directory)
    for case in FINETUNE_CASES:
        directory = pathlib.Path(sys.argv[1]) / case
        directory.mkdir(parents=True, exist_ok=True)
        make_finetune(case, directory)
    print(f"wrote {len(CASES) + len(FINETUNE_CASES)} reference models to {sys.argv[1]}")
