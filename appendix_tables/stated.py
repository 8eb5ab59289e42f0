"""What the paper's text states in words about its appendix tables; the bodies of the tables are not in that text.

Only for comparison in notes: no cell of a table is taken from here.
"""

from __future__ import annotations

HEAD_WIDTH = 128
"""E.2: all six directions use d_S = d_T = 128."""
ATTENTION_HEAD = 32
"""E.1: the Compiler's attention uses 32 dimensions a head."""
WORKED_UNITS = 288
"""F.2: P of the worked example, the geometry of Qwen3 4B and 8B as targets."""
WORKED_DIRECTIONS = ("qwen3_4b_to_8b", "qwen3_8b_to_4b")
EVALUATION_EXAMPLES = 10_000
"""4.1: fixed examples of every direction."""
ABLATION_EXAMPLES = 80_000
"""4.4 and J: the evaluation protocol of the ablations."""
BODIES = "The paper's text as it is at hand holds no body of this table: single counts cannot be compared with the paper's."


def compared(what: str, ours: object, paper: object) -> str:
    """One line of a note: "agrees" is computed."""
    return f"- {what}: {ours}; the paper's text states {paper}: {'agrees' if ours == paper else '**DISAGREES**'}."
