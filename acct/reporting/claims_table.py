"""The paper's claims as data: each with its place, the figure it prints, and how it is measured (spec 10).

The text of the paper that this was made from has lost the bodies of its tables, so most claims about tasks are sentences without a
figure. Bounds that stand for a word of the paper ("far below", "most of", "several", "nearly") are [ours], and are printed as criteria.
"""

from __future__ import annotations

from acct.reporting.claims import Claim
from acct.reporting.claims_evidence import Row
from acct.reporting.claims_measures import MOST, SOME, Bound, Compared, Level, Timing
from acct.reporting.names import PAPER_TASKS, TASKS

FORWARD, REVERSE = "qwen3_4b_to_8b", "qwen3_8b_to_4b"
QWEN3 = (FORWARD, REVERSE)
UPWARD = (FORWARD, "llama_3b_to_8b", "qwen25_7b_to_32b")
DOWNWARD = (REVERSE, "llama_8b_to_3b", "qwen25_32b_to_7b")
SIX = (*QWEN3, "llama_3b_to_8b", "llama_8b_to_3b", "qwen25_7b_to_32b", "qwen25_32b_to_7b")
TO_14B = ("qwen3_17b_to_14b", "qwen3_4b_to_14b", "qwen3_8b_to_14b")

ACCT, ACCT_2X, ACCT_1X = Row(), Row(retention=0.5), Row(retention=1.0)
FULL, NATIVE, BRIDGE = Row("target_full"), Row("native_kv"), Row("bridge_only")
RANDOM, UNIFORM = Row(variant="random"), Row(variant="uniform")

OPEN_QA = ("search_qa", "trivia_qa")
CONTEXTUAL = (*OPEN_QA, "boolq", "race", "wiki_hop", "pubmed_qa")
EVERY = PAPER_TASKS

FAR_BELOW = Bound("at most", 0.5)
MOST_OF = Bound("at least", 0.8)
NEARLY = Bound("at least", 0.95)
SHORT, LONG, FROM_4K = 1_000, 19_000, 3_500
NO_PAIR: dict[str, str] = {}

A800 = "8 x A800 80GB, BF16, SDPA, batch 1, retention 0.25, tail 32"
COMPRESSED = "4x, tail 32"

LATENCY = (
    Claim("speedup_short", "Conversion is faster than target prefill at about 1K tokens", "Section 4.2, Figure 2, Tables 12-14",
          f"six directions, shortest sample; {A800}", "1.5-8.6x", SIX, Timing("speedup", Bound("at least", 1.5), "shortest", SHORT)),
    Claim("speedup_long", "Conversion is faster than target prefill at about 19K tokens", "Sections 1 and 4.2, Figure 2, Tables 12-14",
          f"six directions, longest sample; {A800}", "6.5-21.2x", SIX, Timing("speedup", Bound("at least", 6.5), "longest", LONG)),
    Claim("share_long", "Conversion takes a small share of target prefill at about 19K tokens", "Section 4.2, Figure 2, Table 1",
          f"six directions, longest sample; {A800}", "4.7-15.3%", SIX, Timing("share", Bound("at most", 15.3), "longest", LONG)),
    Claim("speedup_everywhere", "Conversion is faster than target prefill in all six directions at every length", "Section 4.2, Figure 2",
          f"48 measurements; {A800}", "all faster", SIX, Timing("speedup", Bound("above", 1.0))),
    *(Claim(f"cold_{name}", f"Faster than target prefill also with source encoding at about 19K tokens: {text}", "Appendix K, Table 15",
            f"longest sample; {A800}", f"{figure:g}x", (name,), Timing("cold_speedup", Bound("at least", figure), "longest", LONG))
      for name, text, figure in (("qwen3_4b_to_8b", "Qwen3 4B to 8B", 1.16), ("llama_3b_to_8b", "Llama 3B to 8B", 1.53),
                                 ("qwen25_7b_to_32b", "Qwen2.5 7B to 32B", 3.35))),
    Claim("cold_from_4k", "With source encoding faster at every length from about 4K tokens", "Appendix K",
          f"three upward directions; {A800}", "all faster", UPWARD, Timing("cold_speedup", Bound("above", 1.0), "every", FROM_4K)),
    Claim("cold_short", "With source encoding slower on the shortest sample", "Appendix K, Table 15",
          f"Qwen3 4B to 8B; {A800}", "slower", (FORWARD,), Timing("cold_speedup", Bound("below", 1.0), "shortest", SHORT)),
    Claim("reverse_source", "In reverse directions source prefill alone exceeds target prefill", "Appendix K",
          f"three downward directions, every length; {A800}", "always", DOWNWARD, Timing("source_over_target", Bound("above", 1.0))),
)  # fmt: skip

TASK_CLAIMS = (
    *(Claim(f"above_full_{task}", f"ACCT above Target Full on {TASKS[task]}", "Section 4.3, Table 1",
            f"Qwen3, {COMPRESSED}; judged in both directions [ours]", "above", QWEN3, Compared(ACCT, FULL, (task,)))
      for task in ("trivia_qa", "mmlu", "wikitext", "pubmed_qa")),
    Claim("piqa_kept", "All six directions keep most of PIQA", "Section 4.3, Table 1", COMPRESSED, "much of it retained", SIX,
          Compared(ACCT, FULL, ("piqa",), MOST_OF)),
)  # fmt: skip

BUDGETS = (
    *(Claim(f"2x_most_{name}", "2x compression better than 4x on most tasks", "Section 4.4, Table 2",
            f"Qwen3 {text}, each trained separately", "most tasks", (name,), Compared(ACCT_2X, ACCT, EVERY, needed=MOST))
      for name, text in ((FORWARD, "4B to 8B"), (REVERSE, "8B to 4B"))),
    Claim("2x_contextual", "2x compression better than 4x on all six contextual tasks", "Section 4.4, Table 2",
          "Qwen3 8B to 4B, each trained separately", "all six", (REVERSE,), Compared(ACCT_2X, ACCT, CONTEXTUAL)),
    *(Claim(f"{text}_above_1x", f"{text} compression above full retention (1x) on open-domain QA", "Section 4.4, Table 2",
            "Qwen3, both directions; 1x has neither Cartographer nor Allocator", "above", QWEN3, Compared(row, ACCT_1X, OPEN_QA))
      for text, row in (("2x", ACCT_2X), ("4x", ACCT))),
)  # fmt: skip

RETRAINED = "random orders, Allocator and Compiler retrained"
ABLATIONS = (
    Claim("random_open_qa", "Random selection far below ACCT on open-domain QA", "Section 4.4, Table 3",
          f"Qwen3, both directions, {COMPRESSED}; {RETRAINED}", "substantially degraded", QWEN3,
          Compared(RANDOM, ACCT, OPEN_QA, FAR_BELOW)),
    *(Claim(f"random_{task}", f"ACCT above Random selection on {TASKS[task]}", "Section 4.4, Table 3",
            f"Qwen3, both directions, {COMPRESSED}; {RETRAINED}", "above", QWEN3, Compared(ACCT, RANDOM, (task,)))
      for task in ("mmlu", "wikitext")),
    Claim("uniform_open_qa", "Learned allocation above Uniform on open-domain QA", "Section 4.4, Table 3",
          f"Qwen3 4B to 8B, {COMPRESSED}; Compiler retrained", "above", (FORWARD,), Compared(ACCT, UNIFORM, OPEN_QA)),
    Claim("uniform_mmlu", "Learned allocation above Uniform on MMLU", "Section 4.4, Table 3",
          f"Qwen3, both directions, {COMPRESSED}; Compiler retrained", "above", QWEN3, Compared(ACCT, UNIFORM, ("mmlu",))),
    Claim("bridge_qa_mmlu", "The full Compiler above Bridge-only on open-domain QA and MMLU", "Section 4.4, Table 3",
          f"Qwen3, both directions, {COMPRESSED}; same positions", "above", QWEN3, Compared(ACCT, BRIDGE, (*OPEN_QA, "mmlu"))),
    Claim("bridge_ppl", "The full Compiler has lower perplexity than Bridge-only", "Section 4.4, Table 3",
          f"Qwen3, both directions, {COMPRESSED}; same positions", "lower", QWEN3, Compared(ACCT, BRIDGE, ("wikitext",))),
    Claim("bridge_everything", "The full Compiler better than Bridge-only on every task", "Section 4.4, Table 3",
          f"Qwen3 8B to 4B, {COMPRESSED}; same positions", "every task", (REVERSE,), Compared(ACCT, BRIDGE, EVERY)),
    *(Claim(f"native_{task}", f"ACCT above Native KV on {TASKS[task]}", "Section 4.4, Table 3",
            f"Qwen3, both directions, {COMPRESSED}; same positions", "above", QWEN3, Compared(ACCT, NATIVE, (task,)))
      for task in ("trivia_qa", "pubmed_qa", "wikitext")),
    Claim("native_piqa", "ACCT nearly matches Native KV on PIQA", "Section 4.4, Table 3",
          f"Qwen3, both directions, {COMPRESSED}; same positions", "nearly equal", QWEN3, Compared(ACCT, NATIVE, ("piqa",), NEARLY)),
)  # fmt: skip

ADDITIONAL = (
    Claim("small_source", "ACCT above Target Full on both open-domain QA tasks", "Appendix I", f"Qwen3 0.6B to 4B, {COMPRESSED}", "above",
          ("qwen3_06b_to_4b",), Compared(ACCT, FULL, OPEN_QA), NO_PAIR),
    Claim("to_14b", "ACCT above Target Full on TriviaQA in the three directions that target 14B", "Appendix I",
          f"Qwen3 1.7B, 4B, 8B to 14B [ours: which], {COMPRESSED}", "above", TO_14B, Compared(ACCT, FULL, ("trivia_qa",)), NO_PAIR),
    Claim("large_source", "ACCT below 1% on several contextual tasks", "Appendix I", f"Qwen3 14B to 4B, {COMPRESSED}", "below 1%",
          ("qwen3_14b_to_4b",), Level(ACCT, CONTEXTUAL, Bound("below", 1.0), needed=SOME), NO_PAIR),
)  # fmt: skip

CLAIMS: tuple[Claim, ...] = (*LATENCY, *TASK_CLAIMS, *BUDGETS, *ABLATIONS, *ADDITIONAL)
