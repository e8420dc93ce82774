"""Models of other kinds for the benchmark of the trace, each with its batch: plain torch, and some without a task."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 128
LENGTH = 128
VOCABULARY = 1000
CLASSES = 10

Pair = tuple[torch.Tensor, torch.Tensor]


def vectors(micro_batch_size: int) -> Pair:
    return torch.randn(micro_batch_size, LENGTH, WIDTH), torch.randint(CLASSES, (micro_batch_size,))


def vectors_time_first(micro_batch_size: int) -> Pair:
    return torch.randn(LENGTH, micro_batch_size, WIDTH), torch.randint(CLASSES, (micro_batch_size,))


def tokens(micro_batch_size: int) -> Pair:
    drawn = torch.randint(VOCABULARY, (micro_batch_size, LENGTH + 1))
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def images(micro_batch_size: int) -> Pair:
    return torch.randn(micro_batch_size, 3, 64, 64), torch.randint(CLASSES, (micro_batch_size,))


def images_channels_last(micro_batch_size: int) -> Pair:
    pixels, labels = images(micro_batch_size)
    return pixels.contiguous(memory_format=torch.channels_last), labels


def images_with_masks(micro_batch_size: int) -> Pair:
    return torch.randn(micro_batch_size, 3, 64, 64), torch.randint(2, (micro_batch_size, 64, 64)).float()


def pixel_cross_entropy(output: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(output.squeeze(1), masks)


class Pooled(nn.Module):
    """A body on sequences, the mean over their elements, a classifier."""

    def __init__(self, body: nn.Module, *, time: int = 1) -> None:
        super().__init__()
        self.body, self.time = body, time
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean(self.time))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, batch_first=True)
    return Pooled(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))


def encoder_time_first() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0)
    return Pooled(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), time=0)


class Sequences(nn.Module):
    """`nn.Transformer` from one sequence to another, with tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.transformer = nn.Transformer(WIDTH, 4, 2, 2, 4 * WIDTH, dropout=0.1, batch_first=True)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        return self.output(self.transformer(hidden, hidden, tgt_mask=mask, tgt_is_causal=True))


class _Last(nn.Module):
    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.recurrent = recurrent

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.recurrent(x)[0]


def lstm() -> nn.Module:
    return Pooled(_Last(nn.LSTM(WIDTH, WIDTH, batch_first=True)))


def gru() -> nn.Module:
    return Pooled(_Last(nn.GRU(WIDTH, WIDTH, batch_first=True)))


class _Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.tokens = nn.Sequential(nn.Linear(LENGTH, 2 * LENGTH), nn.GELU(), nn.Linear(2 * LENGTH, LENGTH))
        self.channels = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norms[0](x).mT).mT
        return x + self.channels(self.norms[1](x))


def mixer() -> nn.Module:
    return Pooled(nn.Sequential(*(_Mixer() for _ in range(8))))


class Convolutions(nn.Module):
    """Three strided convolutions with a normalization each."""

    def __init__(self, norm: type[nn.Module] | None = None) -> None:
        super().__init__()
        widths = (3, 64, 128, 256)
        self.body = nn.Sequential()
        for inner, outer in itertools.pairwise(widths):
            own = nn.BatchNorm2d(outer) if norm is nn.BatchNorm2d else nn.GroupNorm(8, outer)
            self.body.extend([nn.Conv2d(inner, outer, 3, stride=2 if inner > 3 else 1, padding=1), own, nn.ReLU()])
        self.head = nn.Linear(widths[-1], CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3)))


def group_norm_net() -> nn.Module:
    return Convolutions()


def batch_norm_net() -> nn.Module:
    return Convolutions(nn.BatchNorm2d)


def channels_last_net() -> nn.Module:
    return Convolutions(nn.BatchNorm2d).to(memory_format=torch.channels_last)


class UNet(nn.Module):
    """Two levels down and up again, with skips, pooling and transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.bottom = _twice(3, 32), _twice(32, 64), _twice(64, 128)
        self.up_second, self.up_first = nn.ConvTranspose2d(128, 64, 2, 2), nn.ConvTranspose2d(64, 32, 2, 2)
        self.join_second, self.join_first = _twice(128, 64), _twice(64, 32)
        self.head = nn.Conv2d(32, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        second = self.second(F.max_pool2d(first, 2))
        bottom = self.bottom(F.max_pool2d(second, 2))
        second = self.join_second(torch.cat([second, self.up_second(bottom)], 1))
        return self.head(self.join_first(torch.cat([first, self.up_first(second)], 1)))


def _twice(inner: int, outer: int) -> nn.Module:
    layers = (nn.Conv2d(inner, outer, 3, padding=1), nn.ReLU(), nn.Conv2d(outer, outer, 3, padding=1), nn.ReLU())
    return nn.Sequential(*layers)


class Printing(nn.Module):
    """Graph breaks: a print, and a value that is read out of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.gelu(self.first(x))
        print("hidden", tuple(hidden.shape))
        hidden = hidden * self.scale.item()
        return self.head(F.gelu(self.second(hidden)).mean(1))


class Selecting(nn.Module):
    """Keeps the elements that are positive: a size that depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        kept = hidden[hidden.sum(-1) > 0]
        return self.head(kept).square().mean() + targets.float().mean()


def whisper() -> nn.Module:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    return WhisperForConditionalGeneration(
        WhisperConfig(
            d_model=64,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=256,
            decoder_ffn_dim=256,
            vocab_size=VOCABULARY,
            num_mel_bins=20,
            max_source_positions=150,
            max_target_positions=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            suppress_tokens=None,
            begin_suppress_tokens=None,
            use_cache=False,
        )
    )


def speech(micro_batch_size: int) -> dict[str, torch.Tensor]:
    labels = torch.randint(3, VOCABULARY, (micro_batch_size, 64))
    return {"input_features": torch.randn(micro_batch_size, 20, 300), "labels": labels}


def clip() -> nn.Module:
    from transformers import CLIPConfig, CLIPModel

    text = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    return CLIPModel(
        CLIPConfig(
            text_config=text | {"vocab_size": VOCABULARY, "max_position_embeddings": 32, "eos_token_id": 2},
            vision_config=text | {"image_size": 64, "patch_size": 8},
            projection_dim=64,
        )
    )


def texts_and_images(micro_batch_size: int) -> dict[str, object]:
    ids = torch.randint(3, VOCABULARY, (micro_batch_size, 32))
    return {"input_ids": ids, "pixel_values": torch.randn(micro_batch_size, 3, 64, 64), "return_loss": True}


class _Residual(nn.Module):
    """The block of a diffusion model's U-Net: group norm, SiLU and a convolution, twice."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList((nn.GroupNorm(8, inner), nn.GroupNorm(8, outer)))
        self.convolutions = nn.ModuleList(
            (nn.Conv2d(inner, outer, 3, padding=1), nn.Conv2d(outer, outer, 3, padding=1))
        )
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            hidden = convolution(F.silu(norm(hidden)))
        return self.skip(x) + hidden


class _PixelAttention(nn.Module):
    """Self-attention among the pixels, after a group norm."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(8, width)
        self.project, self.output = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pixels = self.project(self.norm(x)).flatten(2).unflatten(1, (3 * self.heads, -1)).mT
        query, key, value = pixels.chunk(3, 1)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return x + self.output(mixed.mT.flatten(1, 2).view_as(x))


class _GroupNormUNet(nn.Module):
    """Three levels down and up again, each of two residual blocks; attention at the bottom."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList()
        inner = width
        for outer in widths:
            self.down.append(nn.Sequential(_Residual(inner, outer), _Residual(outer, outer)))
            inner = outer
        self.bottom = nn.Sequential(_Residual(inner, inner), _PixelAttention(inner), _Residual(inner, inner))
        self.up = nn.ModuleList()
        for outer in reversed(widths):
            self.up.append(nn.Sequential(_Residual(inner + outer, outer), _Residual(outer, outer)))
            inner = outer
        self.head = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        skips = []
        for level in self.down:
            hidden = level(hidden)
            skips.append(hidden)
            hidden = F.avg_pool2d(hidden, 2)
        hidden = self.bottom(hidden)
        for level in self.up:
            hidden = F.interpolate(hidden, scale_factor=2.0)
            hidden = level(torch.cat([hidden, skips.pop()], 1))
        return self.head(hidden)


def group_norm_unet() -> nn.Module:
    return _GroupNormUNet()


def whisper_tiny_classifier() -> nn.Module:
    from transformers import WhisperConfig, WhisperForAudioClassification

    return WhisperForAudioClassification(
        WhisperConfig(
            d_model=384,
            encoder_layers=4,
            decoder_layers=4,
            encoder_attention_heads=6,
            decoder_attention_heads=6,
            encoder_ffn_dim=1536,
            decoder_ffn_dim=1536,
            problem_type="single_label_classification",
        )
    )


def long_speech(micro_batch_size: int) -> dict[str, torch.Tensor]:
    return {
        "input_features": torch.randn(micro_batch_size, 80, 3000),
        "labels": torch.randint(2, (micro_batch_size,)),
    }


def resnet_50_channels_last() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(num_labels=1000, problem_type="single_label_classification")
    return ResNetForImageClassification(config).to(memory_format=torch.channels_last)


def large_images_channels_last(micro_batch_size: int) -> dict[str, torch.Tensor]:
    pixels = torch.randn(micro_batch_size, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    return {"pixel_values": pixels, "labels": torch.randint(1000, (micro_batch_size,))}


def t5_small_eager_attention() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(decoder_start_token_id=0, use_cache=False)
    config._attn_implementation = "eager"
    return T5ForConditionalGeneration(config)


def long_texts(micro_batch_size: int) -> dict[str, torch.Tensor]:
    shape = (micro_batch_size, 1024)
    return {"input_ids": torch.randint(VOCABULARY, shape), "labels": torch.randint(VOCABULARY, shape)}
