# SPDX-License-Identifier: Apache-2.0
"""Twenty-four small programs of many kinds, of which no other table here has any: what tests/gpu/neighbours.py runs.

Trainings, inferences, simulations, signal processing and tables, each written as such programs are and with sizes that
leave most of them far from filling a GPU: small kernels one after the other, and large ones between which the host
works. A program makes its data on the GPU and returns what does one step. `python -m tests.gpu.kinds` tries each on the
CPU, with tiny sizes.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[], None]


class Program(NamedTuple):
    """What makes its step on a device, and after how many steps it looks at what came out.

    ``tiny`` are sizes with which it can be tried without a GPU.
    """

    make: Callable[..., Step]
    tiny: dict[str, Any]
    sync_every: int = 1


def _training(net: nn.Module, loss_of: Callable[[], Any], rate: float = 1e-3) -> Step:
    best = torch.optim.Adam(net.parameters(), rate)

    def step() -> None:
        best.zero_grad()
        loss_of().backward()
        best.step()

    return step


def _without_gradients(step: Step) -> Step:
    def run() -> None:
        with torch.no_grad():
            step()

    return run


def _layers(*widths: int, between: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    found: list[nn.Module] = []
    for inward, outward in itertools.pairwise(widths):
        found += [nn.Linear(inward, outward), between()]
    return nn.Sequential(*found[:-1])


def _molecules(device: str, count: int = 32, atoms: int = 20, width: int = 64) -> Step:
    """Learn energies and forces of small molecules: continuous filters between all pairs of atoms."""
    centres = torch.linspace(0.0, 5.0, 32, device=device)
    places, kinds = torch.randn(count, atoms, 3, device=device) * 2, torch.randint(10, (count, atoms), device=device)
    forces, energies = torch.randn(count, atoms, 3, device=device), torch.randn(count, device=device)

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.kind = nn.Embedding(10, width)
            self.filters = nn.ModuleList(_layers(32, width, width, between=nn.SiLU) for _ in range(3))
            self.mixes = nn.ModuleList(_layers(width, width, width, between=nn.SiLU) for _ in range(3))
            self.last = _layers(width, width, 1, between=nn.SiLU)

        def forward(self, where: Any) -> Any:
            far = ((where[:, :, None] - where[:, None]).square().sum(-1) + 1e-6).sqrt()
            basis, values = torch.exp(-4 * (far[..., None] - centres).square()), self.kind(kinds)
            for filters, mix in zip(self.filters, self.mixes, strict=True):
                values = values + mix((filters(basis) * values[:, None]).sum(2))
            return self.last(values).sum((1, 2))

    net = Net().to(device)

    def loss() -> Any:
        where = places.clone().requires_grad_()
        energy = net(where)
        (slope,) = torch.autograd.grad(energy.sum(), where, create_graph=True)
        return (energy - energies).square().mean() + (slope + forces).square().mean()

    return _training(net, loss)


def _citations(device: str, nodes: int = 20000, edges: int = 300_000, width: int = 64) -> Step:
    """Learn classes of the nodes of one large graph by passing messages along its edges."""
    source, target = torch.randint(nodes, (2, edges), device=device)
    seen, labels = torch.randn(nodes, width, device=device), torch.randint(40, (nodes,), device=device)
    degree = torch.bincount(target, minlength=nodes).clamp(min=1)[:, None].float()
    net = nn.ModuleList([nn.Linear(2 * width, width), nn.Linear(2 * width, width), nn.Linear(width, 40)]).to(device)

    def loss() -> Any:
        values = seen
        for layer in list(net)[:-1]:
            heard = torch.zeros_like(values).index_add(0, target, values[source]) / degree
            values = functional.relu(layer(torch.cat((values, heard), 1)))
        return functional.cross_entropy(net[-1](values), labels)

    return _training(net, loss)


def _recurrence(device: str, batch: int = 128, width: int = 512, length: int = 48) -> Step:
    """Learn sequences with a recurrent cell that Python calls for each place."""
    cell, last = nn.GRUCell(256, width).to(device), nn.Linear(width, 100).to(device)
    words, labels = torch.randn(length, batch, 256, device=device), torch.randint(100, (batch,), device=device)

    def loss() -> Any:
        state = torch.zeros(batch, width, device=device)
        for word in words:
            state = cell(word, state)
        return functional.cross_entropy(last(state), labels)

    return _training(nn.ModuleList([cell, last]), loss)


def _speech(device: str, batch: int = 16, samples: int = 24000, width: int = 256) -> Step:
    """Learn to write down speech: spectra, convolutions, recurrence both ways, and a loss over all alignments."""
    sound, window = torch.randn(batch, samples, device=device), torch.hann_window(512, device=device)
    mel = torch.rand(80, 257, device=device)
    first = nn.Sequential(nn.Conv1d(80, width, 3, 2, 1), nn.ReLU(), nn.Conv1d(width, width, 3, 1, 1), nn.ReLU())
    rnn, last = nn.GRU(width, width, 2, batch_first=True, bidirectional=True), nn.Linear(2 * width, 32)
    net = nn.ModuleList([first, rnn, last]).to(device)
    text = torch.randint(1, 32, (batch, 12), device=device)

    def loss() -> Any:
        spectra = torch.stft(sound, 512, 160, window=window, return_complex=True).abs().square()
        values = first(torch.log1p(mel @ spectra)).transpose(1, 2)
        said = last(rnn(values)[0]).log_softmax(-1).transpose(0, 1)
        lengths = torch.full((batch,), said.shape[0], dtype=torch.long), torch.full((batch,), 12, dtype=torch.long)
        return functional.ctc_loss(said, text, *lengths)

    return _training(net, loss)


def _volumes(device: str, batch: int = 2, side: int = 48, width: int = 24) -> Step:
    """Learn to mark organs in patches of volumes."""
    seen, marks = torch.randn(batch, 1, side, side, side, device=device), torch.randint(4, (batch,), device=device)
    marks = marks[:, None, None, None].expand(batch, side, side, side).contiguous()

    def block(inward: int, outward: int) -> nn.Module:
        return nn.Sequential(nn.Conv3d(inward, outward, 3, padding=1), nn.InstanceNorm3d(outward), nn.LeakyReLU())

    net = nn.Sequential(
        *(block(1, width), nn.MaxPool3d(2), block(width, 2 * width), nn.MaxPool3d(2), block(2 * width, 4 * width)),
        *(nn.ConvTranspose3d(4 * width, width, 4, 4), block(width, width), nn.Conv3d(width, 4, 1)),
    ).to(device)
    return _training(net, lambda: functional.cross_entropy(net(seen), marks))


def _contrast(device: str, batch: int = 96, width: int = 48) -> Step:
    """Learn without labels that two views of an image belong together."""
    images = torch.randn(batch, 3, 32, 32, device=device)

    def block(inward: int, outward: int, stride: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(inward, outward, 3, stride, 1), nn.GroupNorm(8, outward), nn.GELU())

    net = nn.Sequential(
        *(block(3, width, 1), block(width, 2 * width, 2), block(2 * width, 2 * width, 1)),
        *(block(2 * width, 4 * width, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), _layers(4 * width, 256, 64)),
    ).to(device)
    same, itself = torch.arange(2 * batch, device=device).roll(batch), torch.eye(2 * batch, device=device) * 1e4

    def loss() -> Any:
        noisy = images + 0.1 * torch.randn_like(images)
        views = torch.cat((images.flip(3), noisy.roll(4, 2)))
        said = functional.normalize(net(views))
        return functional.cross_entropy(said @ said.T / 0.2 - itself, same)

    return _training(net, loss)


def _denoising(device: str, batch: int = 8, width: int = 96) -> Step:
    """Draw images out of noise: one step of the way with a small network of convolutions and attention."""

    def block(inward: int, outward: int) -> nn.Module:
        return nn.Sequential(nn.GroupNorm(8, inward), nn.SiLU(), nn.Conv2d(inward, outward, 3, padding=1))

    down = nn.ModuleList([nn.Conv2d(3, width, 3, 1, 1), block(width, width), nn.Conv2d(width, 2 * width, 3, 2, 1)])
    middle = nn.ModuleList([block(2 * width, 2 * width), nn.MultiheadAttention(2 * width, 4, batch_first=True)])
    up = nn.ModuleList([nn.ConvTranspose2d(2 * width, width, 2, 2), block(2 * width, width), block(width, width)])
    net = nn.ModuleList([down, middle, up, block(width, 3)]).to(device)
    image = [torch.randn(batch, 3, 32, 32, device=device)]

    @_without_gradients
    def step() -> None:
        high = down[1](down[0](image[0]))
        low = middle[0](down[2](high))
        flat = low.flatten(2).transpose(1, 2)
        low = low + middle[1](flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(low.shape)
        noise = net[3](up[2](up[1](torch.cat((up[0](low), high), 1))))
        image[0] = (image[0] - 0.02 * noise).clamp(-3, 3) + 0.01 * torch.randn_like(image[0])

    return step


def _digits(device: str, batch: int = 512, width: int = 1024) -> Step:
    """Learn to draw digits through a narrow code of them."""
    seen = torch.rand(batch, 784, device=device)
    narrow, wide = _layers(784, width, 64).to(device), _layers(32, width, 784).to(device)

    def loss() -> Any:
        middle, spread = narrow(seen).chunk(2, 1)
        drawn = wide(middle + torch.randn_like(middle) * torch.exp(spread / 2))
        far = (1 + spread - middle.square() - spread.exp()).sum(1).mean()
        return functional.binary_cross_entropy_with_logits(drawn, seen, reduction="sum") / batch - far / 2

    return _training(nn.ModuleList([narrow, wide]), loss)


def _decoding(device: str, batch: int = 8, width: int = 1024, layers: int = 12, kept: int = 512) -> Step:
    """Write text token by token, with what was read kept and one recorded graph of kernels for each token."""
    heads, kind = width // 64, torch.float16 if device == "cuda" else torch.float32
    options = {"device": device, "dtype": kind}
    inward = torch.randn(layers, width, 3 * width, **options) / width
    outward = torch.randn(layers, width, width, **options) / width
    wide = torch.randn(layers, width, 8 * width, **options)
    back, words = torch.randn(layers, 4 * width, width, **options) / width, torch.randn(32000, width, **options)
    past = torch.randn(layers, 2, batch, heads, kept, 64, **options)
    token, at = torch.zeros(batch, dtype=torch.long, device=device), torch.zeros(1, dtype=torch.long, device=device)

    @_without_gradients
    def one() -> None:
        values = words[token]
        for i in range(layers):
            parts = (functional.rms_norm(values, (width,)) @ inward[i]).view(batch, 3, heads, 1, 64)
            query, key, value = parts.unbind(1)
            past[i, 0].index_copy_(2, at, key)
            past[i, 1].index_copy_(2, at, value)
            heard = functional.scaled_dot_product_attention(query, past[i, 0], past[i, 1])
            values = values + heard.reshape(batch, width) @ outward[i]
            gate, other = (functional.rms_norm(values, (width,)) @ wide[i]).chunk(2, 1)
            values = values + (functional.silu(gate) * other / width) @ back[i]
        token.copy_((functional.rms_norm(values, (width,)) @ words.T).argmax(1))
        at.copy_((at + 1) % kept)

    if device != "cuda":
        return one
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        one()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        one()
    return lambda: graph.replay()


def _long_filters(device: str, batch: int = 4, width: int = 128, length: int = 2048) -> Step:
    """Learn from long sequences with filters as long as they are, by Fourier transforms."""
    seen, labels = torch.randn(batch, width, length, device=device), torch.randint(10, (batch,), device=device)

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.filter = nn.Parameter(torch.randn(width, length) / length)
            self.mix = nn.Conv1d(width, width, 1)

        def forward(self, values: Any) -> Any:
            spectra = torch.fft.rfft(values, 2 * length) * torch.fft.rfft(self.filter, 2 * length)
            return values + self.mix(functional.gelu(torch.fft.irfft(spectra, 2 * length)[..., :length]))

    net = nn.Sequential(*(Layer() for _ in range(4)), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, 10))
    net = net.to(device)
    return _training(net, lambda: functional.cross_entropy(net(seen), labels))


def _bodies(device: str, count: int = 1024) -> Step:
    """Let bodies fall towards each other, each to all others."""
    state = torch.randn(2, count, 3, device=device)

    @_without_gradients
    def step() -> None:
        where, speed = state
        apart = where[None] - where[:, None]
        pull = (apart.square().sum(-1) + 0.01).rsqrt().pow(3)
        speed += 1e-5 * (pull[..., None] * apart).sum(1)
        where += 1e-3 * speed

    return step


def _lattice(device: str, height: int = 256, length: int = 512) -> Step:
    """Let a fluid flow: nine directions on a lattice, which collide and then move on."""
    ways = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
    moves = torch.tensor(ways, device=device, dtype=torch.float32)
    weights = torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4, device=device)
    flow = [weights[:, None, None] * (1 + 0.01 * torch.rand(9, height, length, device=device))]

    @_without_gradients
    def step() -> None:
        now = flow[0]
        density = now.sum(0)
        speed = torch.einsum("ic,ihl->chl", moves, now) / density
        along, square = torch.einsum("ic,chl->ihl", moves, speed), speed.square().sum(0)
        rest = weights[:, None, None] * density * (1 + 3 * along + 4.5 * along.square() - 1.5 * square)
        now = now + 0.6 * (rest - now)
        flow[0] = torch.stack([torch.roll(now[i], way, (0, 1)) for i, way in enumerate(ways)])

    return step


def _waves(device: str, side: int = 192, between_ms: int = 2) -> Step:
    """Let waves run through a volume, ten times, and look at what came out on the host."""
    fields = [torch.randn(side, side, side, device=device) for _ in range(2)]

    @_without_gradients
    def step() -> None:
        for _ in range(10):
            before, now = fields
            inner = now[1:-1, 1:-1, 1:-1]
            spread = now[2:, 1:-1, 1:-1] + now[:-2, 1:-1, 1:-1] + now[1:-1, 2:, 1:-1] + now[1:-1, :-2, 1:-1]
            spread = spread + now[1:-1, 1:-1, 2:] + now[1:-1, 1:-1, :-2] - 6 * inner
            before[1:-1, 1:-1, 1:-1] = 2 * inner - before[1:-1, 1:-1, 1:-1] + 0.1 * spread
            fields.reverse()
        fields[1].mean().item()
        time.sleep(between_ms / 1000)

    return step


def _eddies(device: str, side: int = 512) -> Step:
    """Let eddies turn in a plane, in the space of their waves."""
    along = torch.fft.fftfreq(side, 1 / side, device=device)
    across = torch.fft.rfftfreq(side, 1 / side, device=device)
    kx, ky = torch.meshgrid(along, across, indexing="ij")
    square = kx.square() + ky.square()
    inverse, kept = 1 / square.clamp(min=1), (square < (side / 3) ** 2).float()
    state = [torch.fft.rfft2(torch.randn(side, side, device=device)) * kept]

    def slope(now: Any) -> Any:
        stream = now * inverse
        parts = torch.stack((1j * ky * stream, -1j * kx * stream, 1j * kx * now, 1j * ky * now))
        u, v, wx, wy = torch.fft.irfft2(parts, (side, side))
        return -kept * torch.fft.rfft2(u * wx + v * wy) - 1e-4 * square * now

    @_without_gradients
    def step() -> None:
        half = state[0] + 5e-5 * slope(state[0])
        state[0] = state[0] + 1e-4 * slope(half)

    return step


def _options(device: str, paths: int = 2**21, days: int = 64, between_ms: int = 1) -> Step:
    """Price an option on the mean of a price by chance, and let the host have the figure."""

    @_without_gradients
    def step() -> None:
        moves = torch.randn(days, paths, device=device).mul_(0.02).sub_(0.0002)
        prices = moves.cumsum_(0).exp_()
        (prices.mean(0) - 1).clamp(min=0).mean().item()
        time.sleep(between_ms / 1000)

    return step


def _spins(device: str, side: int = 2048) -> Step:
    """Turn the spins of a magnet by chance, those of one colour at a time."""
    spins = torch.randint(2, (side, side), device=device).float() * 2 - 1
    row = torch.arange(side, device=device)
    colours = [(row[:, None] + row) % 2 == one for one in (0, 1)]

    @_without_gradients
    def step() -> None:
        for colour in colours:
            around = spins.roll(1, 0) + spins.roll(-1, 0) + spins.roll(1, 1) + spins.roll(-1, 1)
            turns = torch.rand_like(spins) < torch.exp(-0.88 * spins * around)
            spins.copy_(torch.where(turns & colour, -spins, spins))

    return step


def _radar(device: str, channels: int = 8, pulses: int = 128, samples: int = 2048, between_ms: int = 1) -> Step:
    """Find what moves in four frames of a radar, as they come in."""
    frames = torch.randn(4, channels, pulses, samples, device=device, dtype=torch.complex64)
    chirp = torch.fft.fft(torch.randn(samples, device=device, dtype=torch.complex64)).conj()

    @_without_gradients
    def step() -> None:
        for frame in frames:
            ranged = torch.fft.ifft(torch.fft.fft(frame) * chirp)
            power = torch.fft.fft(ranged, dim=1).abs().square().sum(0)
            around = functional.avg_pool2d(power[None, None], 9, 1, 4)[0, 0]
            found = (power > 8 * around).sum()
        found.item()
        time.sleep(between_ms / 1000)

    return step


def _boosting(device: str, rows: int = 40000, features: int = 16, bins: int = 32, depth: int = 5) -> Step:
    """Grow one more tree on the rest of what the others foretell of a table: sums by bin, best cut, and so on."""
    table = torch.randint(bins, (rows, features), device=device)
    wanted, said = torch.randn(rows, device=device), torch.zeros(rows, device=device)
    offsets = torch.arange(features, device=device) * bins

    @_without_gradients
    def step() -> None:
        rest, node = wanted - said, torch.zeros(rows, dtype=torch.long, device=device)
        for level in range(depth):
            size = 2**level * features * bins
            place = (node[:, None] * features * bins + offsets + table).flatten()
            sums = torch.zeros(size, device=device).index_add_(0, place, rest.repeat_interleave(features))
            counts = torch.zeros(size, device=device).index_add_(0, place, torch.ones_like(place, dtype=torch.float32))
            left, many = (one.view(-1, features, bins).cumsum(2) for one in (sums, counts))
            right, few = left[..., -1:] - left, many[..., -1:] - many
            gain = (left.square() / (many + 1) + right.square() / (few + 1)).flatten(1)
            best = gain.argmax(1)
            feature, cut = best // bins, best % bins
            node = 2 * node + (table.gather(1, feature[node][:, None])[:, 0] > cut[node])
        means = torch.zeros(2**depth, device=device).index_add_(0, node, rest) / rows
        said.add_(means[node])

    return step


def _policy(device: str, worlds: int = 2048, width: int = 64, length: int = 16) -> Step:
    """Learn to balance poles: play in many worlds at once with a tiny network, then learn from that."""
    actor, critic = (_layers(4, width, width, out, between=nn.Tanh).to(device) for out in (2, 1))
    net = nn.ModuleList([actor, critic])
    best, world = torch.optim.Adam(net.parameters(), 3e-4), [torch.randn(worlds, 4, device=device) * 0.05]

    def step() -> None:
        seen, done, got = [], [], []
        with torch.no_grad():
            for _ in range(length):
                state = world[0]
                act = torch.multinomial(functional.softmax(actor(state), 1), 1)[:, 0]
                x, speed, angle, turn = state.unbind(1)
                push = (act.float() * 20 - 10 + 0.05 * turn.square() * torch.sin(angle)) / 1.1
                lever = 0.5 * (4 / 3 - 0.1 * torch.cos(angle) ** 2)
                bend = (9.8 * torch.sin(angle) - torch.cos(angle) * push) / lever
                moved = torch.stack((x + 0.02 * speed, speed + 0.02 * push, angle + 0.02 * turn, turn + 0.02 * bend), 1)
                fell = (moved[:, 0].abs() > 2.4) | (moved[:, 2].abs() > 0.2)
                world[0] = torch.where(fell[:, None], torch.randn_like(moved) * 0.05, moved)
                seen.append(state)
                done.append(act)
                got.append((~fell).float())
        states, acts, value = torch.cat(seen), torch.cat(done), torch.stack(got).flip(0).cumsum(0).flip(0).flatten()
        for _ in range(2):
            guess = critic(states)[:, 0]
            chances = functional.log_softmax(actor(states), 1).gather(1, acts[:, None])[:, 0]
            loss = (guess - value).square().mean() - (chances * (value - guess.detach())).mean()
            best.zero_grad()
            loss.backward()
            best.step()

    return step


def _poisson(device: str, side: int = 512) -> Step:
    """Solve for a potential by conjugate gradients with a sparse matrix, ten of them between looks at the rest."""
    count = side * side
    place = torch.arange(count).view(side, side)
    pairs = torch.cat(
        [
            torch.stack((place[1:].flatten(), place[:-1].flatten())),
            torch.stack((place[:, 1:].flatten(), place[:, :-1].flatten())),
        ],
        1,
    )
    rows, columns = torch.cat((pairs, pairs.flip(0), torch.arange(count).expand(2, -1)), 1)
    values = torch.where(rows == columns, 4.0, -1.0)
    matrix = torch.sparse_coo_tensor(torch.stack((rows, columns)), values, (count, count)).to_sparse_csr().to(device)
    wanted = torch.randn(count, 1, device=device)
    state = [torch.zeros_like(wanted), wanted.clone(), wanted.clone()]

    @_without_gradients
    def step() -> None:
        guess, rest, way = state
        for _ in range(10):
            pushed = matrix @ way
            before = (rest * rest).sum()
            far = before / (way * pushed).sum()
            guess, rest = guess + far * way, rest - far * pushed
            way = rest + (rest * rest).sum() / before * way
        if rest.norm().item() < 1e-3:
            guess, rest, way = torch.zeros_like(wanted), wanted.clone(), wanted.clone()
        state[:] = [guess, rest, way]

    return step


def _documents(device: str, length: int = 16384, width: int = 1024, between_ms: int = 1) -> Step:
    """Read a long document with attention from each word to all, while the host prepares the next between them."""
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    net = nn.ModuleList([nn.Linear(width, 3 * width), nn.Linear(width, width), _layers(width, 4 * width, width)])
    net, words = net.to(device, kind), torch.randn(1, length, width, device=device, dtype=kind)

    @_without_gradients
    def step() -> None:
        parts = net[0](functional.layer_norm(words, (width,))).view(1, length, 3, width // 64, 64).transpose(1, 3)
        heard = functional.scaled_dot_product_attention(*parts.unbind(2)).transpose(1, 2).reshape(words.shape)
        values = words + net[1](heard)
        (values + net[2](functional.layer_norm(values, (width,)))).float().mean().item()
        time.sleep(between_ms / 1000)

    return step


def _neighbours_of_words(device: str, words: int = 500_000, width: int = 128, batch: int = 8192) -> Step:
    """Learn where words stand by which are near each other: rows of large tables, and no more than those change."""
    tables = nn.ModuleList(nn.Embedding(words, width, sparse=True) for _ in range(2)).to(device)
    best = torch.optim.SGD(tables.parameters(), 0.05)

    def step() -> None:
        middle, near = torch.randint(words, (2, batch), device=device)
        others = torch.randint(words, (batch, 5), device=device)
        values = tables[0](middle)
        alike = functional.logsigmoid((values * tables[1](near)).sum(1))
        unlike = functional.logsigmoid(-(tables[1](others) @ values[..., None])[..., 0]).sum(1)
        best.zero_grad()
        (-(alike + unlike).mean()).backward()
        best.step()

    return step


def _scene(device: str, points: int = 98304, width: int = 256) -> Step:
    """Learn what a scene looks like from each place: waves of a point, and a perceptron for colour and density."""
    waves = 2.0 ** torch.arange(10, device=device)
    net, seen = _layers(60, width, width, width, width, 4).to(device), torch.rand(points // 64, 3, device=device)

    def loss() -> Any:
        where = torch.rand(points, 3, device=device)
        turned = (where[..., None] * waves * math.pi).flatten(1)
        said = net(torch.cat((turned.sin(), turned.cos()), 1)).view(-1, 64, 4)
        held = 1 - torch.exp(-functional.relu(said[..., 3]) / 64)
        through = torch.cumprod(1 - held + 1e-6, 1)
        return ((held * through)[..., None] * said[..., :3].sigmoid()).sum(1).sub(seen).square().mean()

    return _training(net, loss)


def _fields(device: str, places: int = 2048) -> Step:
    """Learn how far the values of a field hang together: a dense matrix, its root, and what that says of the values."""
    where, values = torch.rand(places, 2, device=device), torch.randn(places, 1, device=device)
    scale = nn.ParameterList(nn.Parameter(torch.zeros((), device=device)) for _ in range(3))
    eye = torch.eye(places, device=device)

    def loss() -> Any:
        wide, high, noise = (one.exp() for one in scale)
        far = (where[:, None] - where[None]).square().sum(-1)
        root = torch.linalg.cholesky(high * torch.exp(-far / (0.02 * wide)) + (noise + 0.1) * eye)
        solved = torch.linalg.solve_triangular(root, values, upper=False)
        return solved.square().sum() / 2 + root.diagonal().log().sum()

    return _training(scale, loss, 1e-4)


PROGRAMS = {
    "molecules": Program(_molecules, {"count": 2, "atoms": 4, "width": 8}),
    "citations": Program(_citations, {"nodes": 50, "edges": 200, "width": 8}, 5),
    "recurrence": Program(_recurrence, {"batch": 4, "width": 16, "length": 4}),
    "speech": Program(_speech, {"batch": 2, "samples": 8000, "width": 16}),
    "volumes": Program(_volumes, {"batch": 1, "side": 8, "width": 4}),
    "contrast": Program(_contrast, {"batch": 4, "width": 8}, 5),
    "denoising": Program(_denoising, {"batch": 1, "width": 16}, 10),
    "digits": Program(_digits, {"batch": 8, "width": 16}, 10),
    "decoding": Program(_decoding, {"batch": 2, "width": 128, "layers": 2, "kept": 8}),
    "long filters": Program(_long_filters, {"batch": 2, "width": 8, "length": 64}, 10),
    "bodies": Program(_bodies, {"count": 16}, 20),
    "lattice": Program(_lattice, {"height": 16, "length": 16}, 20),
    "waves": Program(_waves, {"side": 12}),
    "eddies": Program(_eddies, {"side": 32}, 10),
    "options": Program(_options, {"paths": 64, "days": 4}),
    "spins": Program(_spins, {"side": 16}, 20),
    "radar": Program(_radar, {"channels": 2, "pulses": 16, "samples": 64}),
    "boosting": Program(_boosting, {"rows": 100, "features": 4, "bins": 4}),
    "policy": Program(_policy, {"worlds": 8, "width": 8, "length": 4}),
    "poisson": Program(_poisson, {"side": 16}),
    "documents": Program(_documents, {"length": 32, "width": 128}),
    "words": Program(_neighbours_of_words, {"words": 100, "width": 8, "batch": 16}, 5),
    "scene": Program(_scene, {"points": 128, "width": 16}),
    "fields": Program(_fields, {"places": 32}),
}


def main() -> None:
    """Try each without a GPU."""
    for name, program in PROGRAMS.items():
        began_s = time.monotonic()
        step = program.make("cpu", **program.tiny)
        for _ in range(3):
            step()
        print(f"{name:14} {time.monotonic() - began_s:6.2f} s", flush=True)


if __name__ == "__main__":
    main()
