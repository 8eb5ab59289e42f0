"""The language of the invented world: its words, its names and the tokenizers of the embedded families.

A name is two syllables, a capitalised start and an end (`Tami` = `Ta` + `##mi`), so that a small vocabulary spells hundreds
of people and a name that was never seen in training is still made of known pieces. Everything else is one token a word.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS, UNKNOWN, TURN_START, TURN_END = "<pad>", "<bos>", "<eos>", "<unk>", "<|im_start|>", "<|im_end|>"
SPECIAL = (PAD, BOS, EOS, UNKNOWN, TURN_START, TURN_END)
PUNCTUATION = ("\n", ".", ",", "?", ":", "=")
STARTS = ("Ba", "Be", "Bo", "Da", "De", "Do", "Ka", "Ke", "Ko", "La", "Le", "Lo", "Ma", "Me", "Mo", "Ra", "Re", "Ta", "Te", "To")
ENDS = ("bi", "du", "fa", "go", "ki", "lu", "mi", "na", "ny", "po", "ri", "su", "ta", "vo", "za", "lo", "re", "sha", "wen", "xi")
RELATIONS = ("teacher", "friend", "brother", "sister", "rival", "doctor", "guest", "captain", "cousin", "master")
CRAFTS = (  # job, product, tool: the fixed knowledge of the world
    ("smith", "iron", "anvil"),
    ("baker", "bread", "oven"),
    ("weaver", "cloth", "loom"),
    ("miller", "flour", "stone"),
    ("potter", "pots", "wheel"),
    ("brewer", "beer", "barrel"),
)
ADJECTIVES = ("old", "cold", "green", "quiet", "long", "small")
NOUNS = ("river", "wind", "road", "market", "bell", "tower", "garden", "rain")
VERBS = ("sleeps", "waits", "shines", "turns", "sings", "falls")
ADVERBS = ("slowly", "today", "again", "tonight")
FUNCTION_WORDS = (
    *("user", "assistant", "Question", "Answer", "answer", "The", "the", "of", "is", "Is", "a", "has", "named", "For", "may", "be"),
    *("yes", "no", "maybe", "Who", "What", "Which", "which", "these", "looks", "for", "and", "finds", "in", "makes", "make", "does"),
    *("use", "to", "tool", "A", "B", "C", "D"),
)
WORDS = (
    *SPECIAL,
    *PUNCTUATION,
    *FUNCTION_WORDS,
    *RELATIONS,
    *(word for craft in CRAFTS for word in craft),
    *ADJECTIVES,
    *NOUNS,
    *VERBS,
    *ADVERBS,
    *STARTS,
    *(f"##{end}" for end in ENDS),
)
ID = {word: number for number, word in enumerate(WORDS)}
SPLITS = ("train", "validation", "test")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@lru_cache
def names(split: str) -> tuple[str, ...]:
    """The people of one split, in a fixed order: 60% train, 15% validation, 25% test, by a hash of the name, so no name is in two."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    chosen = []
    for start in STARTS:
        for end in ENDS:
            place = int.from_bytes(hashlib.sha256((start + end).encode()).digest()[:4], "big") / 2**32
            if split == SPLITS[(place >= 0.60) + (place >= 0.75)]:
                chosen.append(start + end)
    return tuple(chosen)


def build_tokenizer(chat: bool) -> PreTrainedTokenizerFast:
    """The families' tokenizer: words whole, names in two pieces; with a chat template and no BOS, or Base style with BOS and none."""
    core = Tokenizer(models.WordPiece(vocab=ID, unk_token=UNKNOWN, continuing_subword_prefix="##"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n|\w+|[^\w\s]"), behavior="removed", invert=True)
    core.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token=UNKNOWN,
        pad_token=PAD,
        bos_token=None if chat else BOS,
        eos_token=TURN_END if chat else EOS,
        additional_special_tokens=[TURN_START, TURN_END] if chat else [],
        clean_up_tokenization_spaces=False,
    )
    if chat:
        tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def save_tokenizer(chat: bool, folder: Path) -> None:
    build_tokenizer(chat).save_pretrained(folder)
