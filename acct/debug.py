"""Randomly initialised tiny decoders of real classes and a few rows of the invented world: every stage in seconds.

The two sizes of a family differ on every axis (layers, hidden, KV heads, queries per head, head width), so that a swapped axis cannot
pass. Their figures mean nothing; the path through them is the real one (`debug=tiny`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from acct.errors import UnknownName

FAMILIES = ("llama", "qwen2", "qwen3")
SIZES: dict[str, dict[str, int]] = {
    "source": dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8),
    "target": dict(hidden_size=72, intermediate_size=64, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3, head_dim=12),
}


def build_model(family: str, size: str, vocabulary: int, special: dict[str, int | None], seed: int = 0) -> Any:
    """A frozen random model; `special` holds bos_token_id, eos_token_id and pad_token_id. The process's random state is kept."""
    import transformers

    classes = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    shape = dict(SIZES[size])
    if family == "qwen2":  # no head width of its own: hidden / heads
        shape["hidden_size"] = shape["num_attention_heads"] * shape.pop("head_dim")
    settings = getattr(transformers, f"{classes[family]}Config")(
        vocab_size=vocabulary, max_position_embeddings=4096, tie_word_embeddings=False, initializer_range=0.2, **special, **shape
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(100 * seed + 10 * FAMILIES.index(family) + (size == "target"))
        model = getattr(transformers, f"{classes[family]}ForCausalLM")(settings)
    return model.eval()


def model_folder(name: str, root: Path | str) -> Path:
    """The folder of the tiny model `<family>_<size>` under a root, written on the first call, whole or not at all.

    Raises:
        UnknownName: no such family or size.
    """
    family, _, size = name.partition("_")
    if family not in FAMILIES or size not in SIZES:
        raise UnknownName("tiny model", name, [f"{f}_{s}" for f in FAMILIES for s in SIZES])
    from acct.micro.language import build_tokenizer

    folder = Path(root) / name
    if (folder / "config.json").is_file():
        return folder
    tokenizer = build_tokenizer(chat=family != "llama")
    special = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("bos", "eos", "pad")}
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder.parent))
    build_model(family, size, len(tokenizer), special).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    try:
        os.replace(partial, folder)
    except OSError:  # another process was first
        shutil.rmtree(partial, ignore_errors=True)
    return folder
