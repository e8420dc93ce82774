"""Small random data for the trainings of `benchmarks/trainings.py`, in the formats that they read."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def make_tokens(folder: Path) -> None:
    """nanoGPT: two files of 16-bit token numbers."""
    data = folder / "data" / "random"
    data.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 400_000), ("val", 40_000)):
        _random().integers(0, 4_000, count, dtype=np.uint16).tofile(data / f"{name}.bin")


def make_text(folder: Path) -> None:
    """minGPT's chargpt: a text that holds the letters of its prompt."""
    words = " ".join(_words(20_000))
    (folder / "projects" / "chargpt" / "input.txt").write_text(f"O God, O God!\n{words}")


def make_names(folder: Path) -> None:
    """makemore: a name a line."""
    (folder / "names.txt").write_text("\n".join(_words(30_000)))


def make_corpus(folder: Path) -> None:
    """word_language_model: three texts of words."""
    data = folder / "word_language_model" / "data" / "random"
    data.mkdir(parents=True, exist_ok=True)
    words = _words(2_000)
    for name, count in (("train", 300_000), ("valid", 20_000), ("test", 2_000)):
        lines = _random().choice(words, (count // 20, 20))
        (data / f"{name}.txt").write_text("\n".join(" ".join(line) for line in lines) + "\n")


def make_masked_images(folder: Path) -> None:
    """Pytorch-UNet: pictures with masks of two values."""
    for name in ("imgs", "masks"):
        (folder / "data" / name).mkdir(parents=True, exist_ok=True)
    for number in range(400):
        pixels = _random(number).integers(0, 255, (96, 96, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "data" / "imgs" / f"{number}.png")
        Image.fromarray((pixels[:, :, 0] > 127).astype(np.uint8)).save(folder / "data" / "masks" / f"{number}.png")


def make_point_clouds(folder: Path) -> None:
    """Pointnet_Pointnet2_pytorch: shapes of ModelNet10, a point with its normal a line."""
    data = folder / "data" / "modelnet40_normal_resampled"
    names = [f"shape{LETTERS[kind]}" for kind in range(10)]
    data.mkdir(parents=True, exist_ok=True)
    (data / "modelnet10_shape_names.txt").write_text("\n".join(names))
    for split, count in (("train", 60), ("test", 4)):
        shapes = [f"{name}_{split}{number:04d}" for name in names for number in range(count)]
        (data / f"modelnet10_{split}.txt").write_text("\n".join(shapes))
        for number, shape in enumerate(shapes):
            (data / shape.split("_")[0]).mkdir(exist_ok=True)
            points = _random(number).normal(size=(1024, 6))
            np.savetxt(data / shape.split("_")[0] / f"{shape}.txt", points, delimiter=",", fmt="%.4f")


def make_mnist(folder: Path) -> None:
    """MNIST in its own format, below `data` of the folder and of the one above it."""
    for data in (folder / "data", folder.parent / "data"):
        raw = data / "MNIST" / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        for name, count in (("train", 20_000), ("t10k", 2_000)):
            pixels = _random().integers(0, 255, (count, 28, 28), dtype=np.uint8)
            labels = _random().integers(0, 10, count, dtype=np.uint8)
            (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, count, 28, 28) + pixels.tobytes())
            (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, count) + labels.tobytes())


def make_cifar10(folder: Path) -> None:
    """ddpm-torch: its configuration of a small model, and CIFAR-10 in its own format, 20 pictures a file."""
    diffusion = {
        "timesteps": 1000,
        "beta_schedule": "linear",
        "beta_start": 0.0001,
        "beta_end": 0.02,
        "model_mean_type": "eps",
        "model_var_type": "fixed-large",
        "loss_type": "mse",
    }
    model = {
        "hid_channels": 32,
        "ch_multipliers": [1, 2, 2],
        "num_res_blocks": 1,
        "apply_attn": [False, True, False],
        "drop_rate": 0.1,
    }
    train = {"epochs": 100, "use_ema": True, "grad_norm": 1.0, "warmup": 100, "image_intv": 1}
    for name, num_samples in (("small", 4), ("unsampled", 0)):
        sampling = train | {"num_samples": num_samples}
        configuration = {"dataset": "cifar10", "train": sampling, "diffusion": diffusion, "model": model}
        (folder / f"{name}.json").write_text(json.dumps(configuration))
    data = folder / "data" / "cifar-10-batches-py"
    data.mkdir(parents=True, exist_ok=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        pixels = _random().integers(0, 255, (20, 3072), dtype=np.uint8)
        (data / name).write_bytes(pickle.dumps({"data": pixels, "labels": [number % 10 for number in range(20)]}))


def make_pictures(folder: Path) -> None:
    """A folder of small pictures."""
    (folder / "pictures").mkdir(exist_ok=True)
    for number in range(400):
        pixels = _random(number).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "pictures" / f"{number}.png")


def make_graphs(folder: Path) -> None:
    """powerful-gnns: graphs as text, a node with its tag and its neighbours a line."""
    data = folder / "dataset" / "RANDOM"
    data.mkdir(parents=True, exist_ok=True)
    lines = ["600"]
    for number in range(600):
        random, num_nodes = _random(number), 12 + number % 20
        edges = {(node, (node + 1) % num_nodes) for node in range(num_nodes)}
        edges |= {(int(a), int(b)) for a, b in random.integers(0, num_nodes, (10, 2)) if a != b}
        neighbours = [{b for a, b in edges if a == n} | {a for a, b in edges if b == n} for n in range(num_nodes)]
        lines.append(f"{num_nodes} {number % 2}")
        lines += [f"{n % 3} {len(near)} {' '.join(map(str, sorted(near)))}" for n, near in enumerate(neighbours)]
    (data / "RANDOM.txt").write_text("\n".join(lines) + "\n")


def make_tu_graphs(folder: Path) -> None:
    """PyTorch Geometric: the raw files of the data set MUTAG."""
    raw = folder / "data" / "TU" / "MUTAG" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    edges, indicator, labels, tags, first = [], [], [], [], 1
    for number in range(1_500):
        num_nodes = 10 + number % 18
        for node in range(num_nodes):
            other = (node + 1) % num_nodes
            edges += [(first + node, first + other), (first + other, first + node)]
        indicator += [number + 1] * num_nodes
        tags += [node % 7 for node in range(num_nodes)]
        labels.append(1 if number % 2 else -1)
        first += num_nodes
    (raw / "MUTAG_A.txt").write_text("".join(f"{a}, {b}\n" for a, b in edges))
    for name, values in (("graph_indicator", indicator), ("graph_labels", labels), ("node_labels", tags)):
        (raw / f"MUTAG_{name}.txt").write_text("".join(f"{value}\n" for value in values))
    (raw / "MUTAG_edge_labels.txt").write_text("".join(f"{number % 4}\n" for number in range(len(edges))))


def make_triples(folder: Path) -> None:
    """KnowledgeGraphEmbedding: entities, relations and triples."""
    data = folder / "data" / "random"
    data.mkdir(parents=True, exist_ok=True)
    (data / "entities.dict").write_text("\n".join(f"{n}\te{n}" for n in range(3_000)))
    (data / "relations.dict").write_text("\n".join(f"{n}\tr{n}" for n in range(20)))
    for name, count in (("train", 60_000), ("valid", 200), ("test", 200)):
        ends, relations = _random().integers(0, 3_000, (count, 2)), _random().integers(0, 20, count)
        lines = [f"e{a}\tr{r}\te{b}" for (a, b), r in zip(ends, relations, strict=True)]
        (data / f"{name}.txt").write_text("\n".join(lines))


def make_series(folder: Path) -> None:
    """LTSF-Linear: hourly values of seven variables, as ETTh1.csv."""
    (folder / "dataset").mkdir(exist_ok=True)
    hours = np.datetime64("2016-07-01T00:00:00") + np.arange(17_420) * np.timedelta64(1, "h")
    values = _random().normal(size=(17_420, 7))
    rows = [
        f"{str(hour).replace('T', ' ')},{','.join(f'{v:.4f}' for v in row)}"
        for hour, row in zip(hours, values, strict=True)
    ]
    (folder / "dataset" / "ETTh1.csv").write_text("\n".join(["date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT", *rows]) + "\n")


def make_ratings(folder: Path) -> None:
    """pytorch-fm: ratings as those of MovieLens 1M."""
    (folder / "data").mkdir(exist_ok=True)
    users, items = _random().integers(1, 6_000, 200_000), _random(1).integers(1, 3_900, 200_000)
    lines = [f"{u}::{i}::{1 + (u + i) % 5}::978300760" for u, i in zip(users, items, strict=True)]
    (folder / "data" / "ratings.dat").write_text("\n".join(lines))


def nothing(folder: Path) -> None:
    """The program makes its data itself."""


def _random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _words(count: int) -> list[str]:
    random = _random()
    return ["".join(random.choice(list(LETTERS), length)) for length in random.integers(3, 12, count)]


Maker = Callable[[Path], None]
