# SPDX-License-Identifier: Apache-2.0
"""The job of tests/gpu/footprints.py, slowdowns.py and proof.py: trains or infers with one network on made-up data.

Library "own" has what the others lack: a U-Net, a DLRM, an LSTM, a perceptron and the discriminator of a GAN.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

BEGAN_S = time.time()
# Labels are among the first SEGMENTS classes, as many as a U-Net tells apart.
CLASSES, SEGMENTS, TOKENS = 1000, 21, 30000
# Layers, width, heads, of networks with random weights.
TEXT = {
    "bert": (12, 768, 12),
    "bert-small": (4, 512, 8),
    "bert-large": (24, 1024, 16),
    "gpt2": (12, 768, 12),
    "gpt2-medium": (24, 1024, 16),
    "gpt2-large": (36, 1280, 20),
    "xlnet": (12, 768, 12),
    "xlnet-large": (24, 1024, 16),
}
# Width of each of a DLRM's embedding tables, and their number; steps of an LSTM; features of a perceptron.
TABLE_WIDTH, TABLES, STEPS, FEATURES = 64, 26, 128, 512


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of one job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--task", choices=("train", "infer", "generate"), required=True)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--optimizer", choices=("sgd", "adam", "none"), default="none")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--host-ms", type=float, default=0.0, help="what the host does for each batch")
    parser.add_argument("--loader", choices=("serial", "ahead"), default="serial", help="when it does that")
    parser.add_argument("--sync-every", type=int, default=1, help="steps after which the loss is looked at")
    parser.add_argument("--decode", type=int, default=0, help="threads that decode JPEGs for the batches; 0: no images")
    parser.add_argument("--hold-mib", type=int, default=0, help="GPU memory that it holds beside what it needs")
    parser.add_argument("--table-rows", type=int, default=400_000, help="of each table of a DLRM")
    parser.add_argument("--gpus", type=int, default=1, help="of which each computes a part of every batch")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--steps", type=int, default=0, help="so many, and not for so many seconds")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(list(words))


def network(given: argparse.Namespace) -> Any:
    """Build the network on the host."""
    if given.library == "own":
        return _OWN[given.model](given)
    if given.library == "torchvision":
        import torchvision

        if given.model.startswith("maskrcnn"):
            return torchvision.models.detection.__dict__[given.model](weights=None, weights_backbone=None)
        options = {"aux_logits": False, "init_weights": False} if given.model == "inception_v3" else {}
        return getattr(torchvision.models, given.model)(num_classes=CLASSES, **options)
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
    if given.model.startswith("xlnet"):
        return transformers.XLNetLMHeadModel(
            transformers.XLNetConfig(vocab_size=TOKENS, n_layer=layers, d_model=width, n_head=heads, d_inner=4 * width)
        )
    use_cache = given.task == "generate"
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=TOKENS, n_layer=layers, n_embd=width, n_head=heads, use_cache=use_cache)
    )


def _unet(_: argparse.Namespace) -> Any:
    from torch import nn

    def block(inward: int, outward: int) -> Any:
        layers = []
        for channels in (inward, outward):
            layers += [nn.Conv2d(channels, outward, 3, padding=1), nn.BatchNorm2d(outward), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    class UNet(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            widths = (64, 128, 256, 512, 1024)
            self.down = nn.ModuleList(block(i, o) for i, o in zip((3, *widths), widths, strict=False))
            pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
            self.grow = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, stride=2) for i, o in pairs)
            self.up = nn.ModuleList(block(i, o) for i, o in pairs)
            self.last = nn.Conv2d(widths[0], SEGMENTS, 1)

        def forward(self, values: Any) -> Any:
            kept = []
            for layer in self.down:
                values = layer(values)
                kept.append(values)
                values = nn.functional.max_pool2d(values, 2) if layer is not self.down[-1] else values
            for grow, layer, other in zip(self.grow, self.up, kept[-2::-1], strict=True):
                values = layer(_joined(grow(values), other))
            return self.last(values).mean((2, 3))

    return UNet()


def _joined(one: Any, other: Any) -> Any:
    import torch

    return torch.cat((one, other), 1)


def _dlrm(given: argparse.Namespace) -> Any:
    import torch
    from torch import nn

    class Dlrm(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            bags = (nn.EmbeddingBag(given.table_rows, TABLE_WIDTH, sparse=True) for _ in range(TABLES))
            self.tables = nn.ModuleList(bags)
            self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, TABLE_WIDTH), nn.ReLU())
            pairs = (TABLES + 1) * TABLES // 2
            self.top = nn.Sequential(nn.Linear(TABLE_WIDTH + pairs, 1024), nn.ReLU(), nn.Linear(1024, CLASSES))

        def forward(self, values: Any) -> Any:
            dense, sparse = values[:, :13].float(), values[:, 13:]
            low = self.bottom(dense)
            rows = torch.stack([low, *(table(sparse[:, i : i + 1]) for i, table in enumerate(self.tables))], 1)
            row, column = torch.triu_indices(TABLES + 1, TABLES + 1, 1, device=values.device)
            return self.top(torch.cat((low, torch.bmm(rows, rows.transpose(1, 2))[:, row, column]), 1))

    return Dlrm()


def _lstm(_: argparse.Namespace) -> Any:
    from torch import nn

    class Lstm(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.read, self.lstm = nn.Embedding(TOKENS, 256), nn.LSTM(256, 512, num_layers=2, batch_first=True)
            self.say = nn.Linear(512, CLASSES)

        def forward(self, values: Any) -> Any:
            return self.say(self.lstm(self.read(values))[0][:, -1])

    return Lstm()


def _mlp(_: argparse.Namespace) -> Any:
    from torch import nn

    widths = (FEATURES, 1024, 1024)
    hidden = [nn.Sequential(nn.Linear(i, o), nn.ReLU()) for i, o in itertools.pairwise(widths)]
    return nn.Sequential(*hidden, nn.Linear(widths[-1], CLASSES))


def _dcgan(_: argparse.Namespace) -> Any:
    from torch import nn

    widths = (3, 64, 128, 256, 512)
    layers = [
        nn.Sequential(nn.Conv2d(i, o, 4, 2, 1), nn.BatchNorm2d(o), nn.LeakyReLU(0.2))
        for i, o in itertools.pairwise(widths)
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


_OWN = {"unet": _unet, "dlrm": _dlrm, "lstm": _lstm, "mlp": _mlp, "dcgan": _dcgan}


def _inputs(given: argparse.Namespace, device: str) -> Any:
    import torch

    if given.library == "transformers":
        return torch.randint(TOKENS, (given.batch_size, given.seq_len), device=device)
    if given.model == "dlrm":
        return torch.randint(given.table_rows, (given.batch_size, 13 + TABLES), device=device)
    if given.model == "lstm":
        return torch.randint(TOKENS, (given.batch_size, STEPS), device=device)
    if given.model == "mlp":
        return torch.randn(given.batch_size, FEATURES, device=device)
    return torch.randn(given.batch_size, 3, given.image_size, given.image_size, device=device)


def _boxes(given: argparse.Namespace, device: str) -> list[dict[str, Any]]:
    """Return what a detector learns from: eight boxes with masks in each image."""
    import torch

    size = given.image_size
    corner = torch.randint(0, size // 2, (8, 2), device=device).float()
    masks = torch.randint(0, 2, (8, size, size), dtype=torch.uint8, device=device)
    boxes = torch.cat((corner, corner + size // 4), 1)
    one = {"boxes": boxes, "labels": torch.randint(1, 90, (8,), device=device), "masks": masks}
    return [one for _ in range(given.batch_size)]


def make_step(given: argparse.Namespace, built: Any = None, device: str = "cuda") -> Callable[[], None]:
    """Put the network and its data on the GPU, and return what does one step with them."""
    import torch

    torch.manual_seed(0)
    with torch.device(device):  # weights are drawn there: on the host it takes a large network half a minute
        model = (network(given) if built is None else built).to(device)
    inputs = _inputs(given, device)
    is_text, is_detector = given.library == "transformers", given.model.startswith("maskrcnn")
    labels: Any = torch.randint(SEGMENTS, (given.batch_size,), device=device)
    if is_detector:
        inputs, labels = list(inputs), _boxes(given, device)
    model.train(given.task == "train")
    of_text = {"return_dict": False} if given.gpus > 1 else {}
    if given.gpus > 1:
        if is_text:
            import transformers

            # XLNet asks its parameters for both, and a replica has none.
            transformers.PreTrainedModel.dtype = torch.float32
            transformers.PreTrainedModel.device = property(lambda _: torch.device("cuda", torch.cuda.current_device()))
        model = torch.nn.DataParallel(model, list(range(given.gpus)))
    narrow = given.dtype == "bf16"

    def loss_of() -> Any:
        with torch.autocast(device, dtype=torch.bfloat16) if narrow else contextlib.nullcontext():
            if is_text:
                found = model(input_ids=inputs, labels=inputs if given.task == "train" else None, **of_text)[0]
                return found.mean() if given.gpus > 1 else found
            if is_detector:
                return sum(model(inputs, labels).values()) if given.task == "train" else model(inputs)
            found = model(inputs)
            found = found[0] if isinstance(found, tuple) else found
            return torch.nn.functional.cross_entropy(found, labels) if given.task == "train" else found

    if given.task == "generate":
        model = model.to(torch.bfloat16) if narrow else model

        def generate() -> None:
            with torch.no_grad():
                seen = torch.ones_like(inputs)
                model.generate(inputs, attention_mask=seen, max_new_tokens=16, do_sample=False, pad_token_id=0)

        return generate
    if given.task == "infer":

        def infer() -> None:
            with torch.no_grad():
                loss_of()

        return infer
    kind = torch.optim.SGD if given.optimizer == "sgd" else torch.optim.AdamW
    options: dict[str, float] = {"lr": 0.001, "momentum": 0.9} if given.optimizer == "sgd" else {"lr": 0.0001}
    if given.model == "dlrm":  # AdamW knows no sparse gradients, and momentum would make them dense
        kind, options = torch.optim.SGD, {"lr": 0.001}
    optimizer = kind(model.parameters(), **options)
    held = torch.empty(given.hold_mib << 20, dtype=torch.uint8, device=device)

    def train(_: Any = held) -> None:
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()

    return train


class Loader:
    """What the host does for each batch: before each step, or two batches ahead of them; or it decodes in threads."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._host_s, self._ahead = given.host_ms / 1000, given.loader == "ahead"
        self._ready_s = [0.0, 0.0]
        self._batches: queue.Queue[Any] | None = None
        if given.decode:
            self._batches = queue.Queue(given.decode)
            for _ in range(given.decode):
                threading.Thread(target=_decode, args=(given, self._batches), daemon=True).start()

    def wait(self) -> None:
        """Return when the next batch is there."""
        if self._batches is not None:
            self._batches.get().cuda(non_blocking=True).float().div_(255)
            return
        if not self._host_s:
            return
        if not self._ahead:
            time.sleep(self._host_s)
            return
        time.sleep(max(0.0, self._ready_s[0] - time.monotonic()))
        began_s = max(self._ready_s[1], time.monotonic())
        self._ready_s = [self._ready_s[1], began_s + self._host_s]


def _decode(given: argparse.Namespace, batches: queue.Queue[Any]) -> None:
    """Put batches for ever: each image is decoded, cropped and scaled, which leaves Python's lock alone."""
    import numpy
    import torch
    from PIL import Image

    side = given.image_size
    small = numpy.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=numpy.uint8)
    stream = io.BytesIO()
    Image.fromarray(small).resize((500, 375) if side > 64 else (side, side)).save(stream, "JPEG")
    while True:
        made = []
        for _ in range(given.batch_size):
            image = Image.open(io.BytesIO(stream.getvalue()))
            made.append(numpy.asarray(image.resize((side, side), box=(0, 0, image.width * 0.9, image.height * 0.9))))
        batches.put(torch.from_numpy(numpy.stack(made)))


def main(words: Sequence[str]) -> None:
    """Run it; the last line that it prints says when the first step was done, when the last, and how many."""
    given = parse(words)
    step, loader = make_step(given), Loader(given)
    import torch

    first_s, done, until = 0.0, 0, time.monotonic() + given.seconds
    while done < given.steps if given.steps else time.monotonic() < until:
        loader.wait()
        step()
        done += 1
        if not first_s or done % given.sync_every == 0:
            torch.cuda.synchronize()
        first_s = first_s or time.time()
    torch.cuda.synchronize()
    print(json.dumps({"began_s": BEGAN_S, "first_s": first_s, "ended_s": time.time(), "steps": done}), flush=True)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
