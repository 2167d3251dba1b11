# SPDX-License-Identifier: Apache-2.0
"""The job of tests/gpu/footprints.py: trains or infers with one network on made-up data, for as long as it is told."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

CLASSES, TOKENS = 1000, 30000
# Layers, width, heads, of networks with random weights.
TEXT = {"bert": (12, 768, 12), "bert-small": (4, 512, 8), "gpt2": (12, 768, 12), "gpt2-medium": (24, 1024, 16)}


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of one job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--task", choices=("train", "infer"), required=True)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--optimizer", choices=("sgd", "adam", "none"), default="none")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=5.0)
    return parser.parse_args(list(words))


def _network(given: argparse.Namespace) -> Any:
    if given.library == "torchvision":
        import torchvision

        return getattr(torchvision.models, given.model)(num_classes=CLASSES)
    if given.library == "timm":
        import timm

        return timm.create_model(given.model, num_classes=CLASSES)
    import transformers

    layers, width, heads = TEXT[given.model]
    if given.model.startswith("bert"):
        return transformers.BertForMaskedLM(
            transformers.BertConfig(
                vocab_size=TOKENS,
                num_hidden_layers=layers,
                hidden_size=width,
                num_attention_heads=heads,
                intermediate_size=4 * width,
            )
        )
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=TOKENS, n_layer=layers, n_embd=width, n_head=heads, use_cache=False)
    )


def make_step(given: argparse.Namespace) -> Callable[[], None]:
    """Put the network and its data on the GPU, and return what does one step with them."""
    import torch

    torch.manual_seed(0)
    network = _network(given).to("cuda")
    is_text = given.library == "transformers"
    if is_text:
        inputs = torch.randint(TOKENS, (given.batch_size, given.seq_len), device="cuda")
    else:
        inputs = torch.randn(given.batch_size, 3, given.image_size, given.image_size, device="cuda")
    labels = torch.randint(CLASSES, (given.batch_size,), device="cuda")
    network.train(given.task == "train")
    narrow = given.dtype == "bf16"

    def loss_of() -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16) if narrow else contextlib.nullcontext():
            if is_text:
                return network(input_ids=inputs, labels=inputs if given.task == "train" else None)[0]
            found = network(inputs)
            found = found[0] if isinstance(found, tuple) else found
            return torch.nn.functional.cross_entropy(found, labels) if given.task == "train" else found

    if given.task == "infer":

        def infer() -> None:
            with torch.no_grad():
                loss_of()

        return infer
    kind = torch.optim.SGD if given.optimizer == "sgd" else torch.optim.AdamW
    options = {"lr": 0.001, "momentum": 0.9} if given.optimizer == "sgd" else {"lr": 0.0001}
    optimizer = kind(network.parameters(), **options)

    def train() -> None:
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()

    return train


def main(words: Sequence[str]) -> None:
    """Run it."""
    given = parse(words)
    step = make_step(given)
    until = time.monotonic() + given.seconds
    while time.monotonic() < until:
        step()


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
