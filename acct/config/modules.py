"""The three trained modules: Cartographer, Allocator, Compiler (spec 2, 3, 4, 6).

A width left at null follows from the pair by the capacity preset (spec 6). An override is saved with the outcome of the check.
"""

from __future__ import annotations

from dataclasses import dataclass

from acct.config.fields import check_choice, check_range, silent
from acct.errors import ConfigError
from acct.geometry import HEAD_MAPS


@dataclass
class CartographerConfig:
    """Scores every context token for every unit (spec 2).

    Attributes:
        ranking: "learned", or "random" for the ablation row Random (no scores, a seeded order for each unit).
        model_width, attention_width, embedding_width: w_M, d_M, c_M; null follows the preset.
        utility_rows: beyond the paper; at how many of the last query positions the source's own deletion utilities are measured, which the
            score then adds up by source unit (`acct.source_utility`). 0 measures none.
        block: units scored at once, null for all; bounds the memory of the scores' inner product.
        limit: C_M, most parameters allowed.
    """

    ranking: str = "learned"
    model_width: int | None = silent(None, "w_M of the capacity preset, ceil_32(mean hidden width / 8)", "6")
    attention_width: int | None = silent(None, "d_M of the capacity preset, ceil_32(w_M / 4)", "6")
    embedding_width: int | None = silent(None, "c_M of the capacity preset, 32", "6")
    query_slots: int = 4
    dropout: float = silent(0.0, "the text says only that dropout is used in training; none is needed at these sizes", "2")
    position_frequencies: int = silent(4, "phi_i: i/N, (N-1-i)/N and sin, cos of 2^k pi i/N for k below this", "2")
    utility_rows: int = 0
    block: int | None = None
    limit: int = 8_000_000

    def __post_init__(self) -> None:
        check_range("cartographer.utility_rows", self.utility_rows, 0, float("inf"))
        check_choice("cartographer.ranking", self.ranking, ("learned", "random"))
        check_range("cartographer.dropout", self.dropout, 0, 0.99)


@dataclass
class AllocatorConfig:
    """Shares the budget among units (spec 3).

    Attributes:
        capacities: "learned", or "uniform" for the ablation row Uniform (equal capacity, nothing trained).
        temperature: T_R of the soft rank gates.
        answer_tokens: most answer tokens under the loss.
        output_kl_weight: weight of KL(full || selected) on the answer positions; 0 as in the paper.
    """

    capacities: str = "learned"
    temperature: float = 2.0
    answer_tokens: int = 64
    output_kl_weight: float = 0.0

    def __post_init__(self) -> None:
        check_choice("allocator.capacities", self.capacities, ("learned", "uniform"))
        check_range("allocator.temperature", self.temperature, 0, float("inf"), open_low=True)
        check_range("allocator.answer_tokens", self.answer_tokens, 1, float("inf"))
        check_range("allocator.output_kl_weight", self.output_kl_weight, 0, float("inf"))


@dataclass
class CompilerConfig:
    """Turns source states into target keys and values (spec 4), and its loss (spec 5).

    Attributes:
        residual: off leaves the Bridge alone (the ablation row Bridge-only needs no training: it is also read from a full Compiler).
        width, feed_forward_width, depth, latents: w_W, f_W, D, m_W; null follows the preset.
        bridge_layers, bridge_heads: beyond the paper (spec 11): source layers nearest to pi_L that the Bridge reads for a unit, and their
            heads: "modulo" (pi_H), "block" (the same relative place) or "all".
        subspace_width, subspace_tokens, subspace_stride, subspace_ridge: beyond the paper: the Bridge of every unit reads one vector of
            this width instead, the best predicting directions of all source keys and values and of the target's embeddings of the token and
            of those before it (so many in all), fitted on every n-th context position (`acct.compiler.subspace`); 0 is off.
        readout_start, readout_ridge: beyond the paper: "zero", or "ridge" for W_p and zeta_p in closed form from what the Bridge leaves;
            the penalty, relative to the mean square of z.
        ridge: lambda_B at head width 128; scaled by d_T / 128.
        limit: C_W, most parameters of the residual.
        key_direction, key_scale, value, attention, behaviour: weights of the five terms.
        attention_positions, behaviour_positions: last query positions under the two terms.
        continuation: beyond the paper: the target's own greedy continuation (supervision.continuation_rows) follows the query under both
            terms, the first of which then sees at most supervision.query_rows positions.
        teacher: of the behaviour term: "kept", the target over its own states at the selection; beyond the paper "full", over all of them.
        behaviour_from: beyond the paper: share of the steps before the behaviour term enters: it costs most of a step.
        readout_rate: beyond the paper: under rates=relative a further factor on the steps of W_p, zeta_p and W_E, which a start in closed
            form puts near their place while the trunk has all to learn.
        further_questions: beyond the paper: how many other questions on an example's context (`Example.further`, where the data has any)
            the behaviour term asks in turn, one an epoch after its own, over the positions that its own keeps; the answer follows the
            question as it is read.
        attention_output: beyond the paper: weight of what attention reads (`acct.losses.attention_output`), at the positions of L_attn.
    """

    residual: bool = True
    width: int | None = silent(None, "w_W of the capacity preset, ceil_32(mean hidden width / 8)", "6")
    feed_forward_width: int | None = silent(None, "f_W of the capacity preset, ceil_32(8 w_W / 3)", "6")
    depth: int | None = silent(None, "D of the capacity preset, 2 (3 from a hidden width of 5120)", "6")
    latents: int | None = silent(None, "m_W of the capacity preset, 64", "6")
    head_width: int = 32
    input_norm: str = silent("none", "raw states enter W_E; rms divides each by its root mean square first", "4")
    input_bias: bool = silent(False, "no biases but zeta_p", "4")
    embedding_start: str = silent("random", "start of W_E; predictive: reduced-rank regression, for small pairs", "4")
    embedding_anchor: float = silent(0.0, "size of a constant coordinate in the predictive start, 0: none", "4")
    embedding_stride: int = silent(1, "the predictive start reads every n-th context position", "4")
    memory_norm: bool = silent(True, "what a cross-attention reads has an RMSNorm of its own", "4")
    latent_std: float = silent(1.0, "latents start at unit scale", "4")
    branch_start: str = silent("random", "zero: every sublayer starts by adding nothing", "4")
    rates: str = silent("uniform", "relative: steps of W_p, zeta_p, W_E are scaled by how much what they give or read varies", "4")
    norm_epsilon: float = silent(1e-6, "of every RMSNorm", "4")
    bridge_layers: int = 1
    bridge_heads: str = "modulo"
    subspace_width: int = 0
    subspace_tokens: int = 3
    subspace_stride: int = 2
    subspace_ridge: float = 3e-2
    readout_start: str = "zero"
    readout_ridge: float = 1e-2
    ridge: float = 1e-2
    warn_above: float = silent(0.2, "parameters / rows of the Bridge above which a warning tells of overfitting", "4")
    limit: int = 256_000_000
    key_direction: float = 1.0
    key_scale: float = 1e-4
    value: float = 1.0
    attention: float = 1.0
    behaviour: float = 1.0
    epsilon: float = 1e-6
    attention_positions: int = 32
    behaviour_positions: int = 8
    continuation: bool = False
    attention_output: float = 0.0
    teacher: str = "kept"
    behaviour_from: float = 0.0
    readout_rate: float = 1.0
    further_questions: int = 0

    def __post_init__(self) -> None:
        for name in ("key_direction", "key_scale", "value", "attention", "behaviour", "attention_output", "ridge"):
            check_range(f"compiler.{name}", getattr(self, name), 0, float("inf"))
        check_range("compiler.embedding_stride", self.embedding_stride, 1, float("inf"))
        check_range("compiler.bridge_layers", self.bridge_layers, 1, float("inf"))
        check_range("compiler.subspace_width", self.subspace_width, 0, float("inf"))
        check_range("compiler.subspace_tokens", self.subspace_tokens, 0, float("inf"))
        check_range("compiler.subspace_stride", self.subspace_stride, 1, float("inf"))
        check_range("compiler.subspace_ridge", self.subspace_ridge, 0, float("inf"))
        if self.subspace_width and (self.bridge_layers, self.bridge_heads) != (1, "modulo"):
            raise ConfigError(
                "compiler.subspace_width gives the Bridge all source layers and heads: leave compiler.bridge_layers at 1 and "
                "compiler.bridge_heads at modulo with it."
            )
        check_choice("compiler.teacher", self.teacher, ("kept", "full"))
        check_choice("compiler.rates", self.rates, ("uniform", "relative"))
        check_range("compiler.behaviour_from", self.behaviour_from, 0, 1)
        check_range("compiler.further_questions", self.further_questions, 0, float("inf"))
        check_range("compiler.readout_rate", self.readout_rate, 0, float("inf"))
        check_choice("compiler.readout_start", self.readout_start, ("zero", "ridge"))
        check_range("compiler.readout_ridge", self.readout_ridge, 0, float("inf"))
        check_choice("compiler.bridge_heads", self.bridge_heads, HEAD_MAPS)
        check_choice("compiler.input_norm", self.input_norm, ("none", "rms"))
        check_choice("compiler.branch_start", self.branch_start, ("random", "zero"))
        check_choice("compiler.embedding_start", self.embedding_start, ("random", "predictive"))
        if self.embedding_start == "predictive" and (self.input_norm != "none" or not self.input_bias):
            raise ConfigError(
                "compiler.embedding_start=predictive centres raw states: it needs compiler.input_norm=none and compiler.input_bias=true."
            )
        check_range("compiler.embedding_anchor", self.embedding_anchor, 0, float("inf"))
        check_range("compiler.attention_positions", self.attention_positions, 1, float("inf"))
        check_range("compiler.behaviour_positions", self.behaviour_positions, 1, float("inf"))
