"""How tasks, methods and directions are written and ordered in tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

TASKS: dict[str, str] = {
    "search_qa": "SearchQA", "trivia_qa": "TriviaQA", "boolq": "BoolQ", "race": "RACE", "wiki_hop": "WikiHop", "pubmed_qa": "PubMedQA",
    "hellaswag": "HellaSwag", "winogrande": "WinoGrande", "mmlu": "MMLU", "piqa": "PIQA", "wikitext": "WikiText2",
    "factbook_qa": "Factbook-QA", "squad": "SQuAD", "hotpot_qa": "HotpotQA", "musique": "MuSiQue",
}  # fmt: skip
PAPER_TASKS = tuple(TASKS)[:11]
"""Those of the paper's tables."""
METHODS: dict[str, str] = {
    "target_full": "Target Full", "acct": "ACCT", "source_full": "Source Full", "no_context": "No context", "native_kv": "Native KV",
    "random": "Random", "bridge_only": "Bridge-only", "zeros": "Zeros", "noise": "Noise", "wrong_document": "Wrong document",
    "raw_source": "Raw source", "native_keys": "Native keys, compiled values", "native_values": "Compiled keys, native values",
    "snapkv": "SnapKV, context only", "snapkv_query_aware": "SnapKV, with query",
    "pyramidkv": "PyramidKV, context only", "pyramidkv_query_aware": "PyramidKV, with query",
    "observed_attention": "Observed attention, context only", "observed_attention_query_aware": "Observed attention, with query",
    "expected_attention": "Expected attention, context only", "expected_attention_query_aware": "Expected attention, with query",
    "ridge_1": "Linear map, 1 layer", "ridge_8": "Linear map, 8 layers",
    "ridge_1_kept": "Linear map, 1 layer, ACCT's positions", "ridge_8_kept": "Linear map, 8 layers, ACCT's positions",
    "ridge_1_all": "Linear map, 1 layer, all heads", "ridge_8_all": "Linear map, 8 layers, all heads",
}  # fmt: skip
_COMPRESSORS = ("snapkv", "pyramidkv", "observed_attention", "expected_attention")
COMPRESSORS = tuple(f"{name}{suffix}" for name in _COMPRESSORS for suffix in ("", "_query_aware"))
"""Rows beyond the paper in Tables 1 and 2."""
METRICS = {"f1": "F1", "accuracy": "Acc.", "perplexity": "PPL"}


def in_order(found: Iterable[str], known: Mapping[str, str]) -> list[str]:
    """Known names in their own order, then the others in alphabetical order."""
    found = set(found)
    return [name for name in known if name in found] + sorted(found - set(known))


def label(name: str, known: Mapping[str, str]) -> str:
    """The written form of a name; an unknown one as it is, with blanks."""
    return known.get(name, name.replace("_", " "))


def direction_label(name: str) -> str:
    """`micro_qwen3_small_to_large` as "micro qwen3 small → large"."""
    return name.replace("_to_", " → ").replace("_", " ")
