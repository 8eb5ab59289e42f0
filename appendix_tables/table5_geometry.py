"""Table 5: geometry of the six directions and the widths that the capacity rule gives (paper E.1), from configurations alone."""

from __future__ import annotations

from acct.reporting.names import direction_label
from acct.reporting.tables import Block, Table, Text
from appendix_tables.inputs import DirectedPair, Inputs
from appendix_tables.stated import ATTENTION_HEAD, BODIES, HEAD_WIDTH, WORKED_DIRECTIONS, WORKED_UNITS, compared

SHAPE = ("L_S", "H_S", "d_S", "D_S", "L_T", "H_T", "d_T", "D_T", "P")
WIDTHS = ("w_M", "d_M", "c_M", "w_W", "heads", "f_W", "m_W", "D")


def shape(pair: DirectedPair) -> tuple[int, ...]:
    """Both models' layers, KV heads, head width and hidden width, and the target's units."""
    source, target = pair.geometry.source, pair.geometry.target
    each = ((model.layers, model.kv_heads, model.head_dim, model.hidden) for model in (source, target))
    return (*(value for values in each for value in values), pair.geometry.units)


def widths(pair: DirectedPair) -> tuple[int, ...]:
    """Of the Cartographer, then of the residual with its attention heads."""
    preset, head = pair.preset, pair.config.compiler.head_width
    cartographer = (preset.model_width, preset.attention_width, preset.embedding_width)
    return (*cartographer, preset.width, preset.width // head, preset.feed_forward_width, preset.latents, preset.depth)


def block(title: str, columns: tuple[str, ...], rows: list[tuple[str, tuple[int, ...]]]) -> Block:
    """A grid of whole numbers."""
    return Block(title, columns, tuple((name, tuple(Text(f"{value:,}") for value in values)) for name, values in rows))


def table(inputs: Inputs) -> Table:
    """Two grids: what the models are, and what the interface becomes."""
    pairs = inputs.pairs
    blocks = (
        block("Models", SHAPE, [(direction_label(pair.name), shape(pair)) for pair in pairs]),
        block("Interface", WIDTHS, [(direction_label(pair.name), widths(pair)) for pair in pairs]),
    )
    return Table(
        "table5", f"Geometry of the {len(pairs)} directions of scale={inputs.config.scale}; D is the depth of encoder and decoder.",
        blocks, (), tuple(notes(inputs)), inputs.geometry_provenance(),
    )  # fmt: skip


def listed(values: list[int]) -> int | str:
    """The one value, or all of them."""
    return values[0] if len(values) == 1 else ", ".join(map(str, values))


def notes(inputs: Inputs) -> list[str]:
    """The rule, what overrides it, and what the paper's text states."""
    found = [
        "w_M, d_M, c_M: the Cartographer's widths; w_W, f_W, m_W: width, feed-forward width and latents of the residual. The rule is ours "
        "where the text lost it: w_M = w_W = ceil_32(mean hidden width / 8), d_M = ceil_32(w_M / 4), f_W = ceil_32(8 w_W / 3), and a third "
        "block from a hidden width of 5,120."
    ]
    overridden = {pair.name: dict(pair.preset.overrides) for pair in inputs.pairs if pair.preset.overrides}
    if overridden:
        changed = next(iter(overridden.values()))
        settings = ", ".join(f"{name} = {value}" for name, value in sorted(changed.items()))
        found.append(f"{len(overridden)} of {len(inputs.pairs)} directions override the rule by configuration: {settings}.")
    if inputs.config.scale == "paper":
        heads = sorted({model.geometry.head_dim for pair in inputs.pairs for model in (pair.source, pair.target)})
        units = sorted({pair.geometry.units for pair in inputs.pairs if pair.name in WORKED_DIRECTIONS})
        found += [
            "",
            compared("head widths of all models", listed(heads), HEAD_WIDTH),
            compared("P of the worked example (Qwen3 4B and 8B as targets)", listed(units), WORKED_UNITS),
            compared("width of an attention head of the Compiler", inputs.config.compiler.head_width, ATTENTION_HEAD),
            "",
            BODIES,
        ]
    return found
