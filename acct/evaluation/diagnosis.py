"""What a trained interface does inside, on held-out examples of its training data: the numbers behind the per-layer figures.

    rank correlation   Spearman's rho of scores and deletion utilities over the prefix, every unit of every layer (spec 2, 5)
    kept utility       utility of the top k - t positions by score over that of the top by utility
    Bridge R2          of keys and of values at the selected positions, every unit (spec 4)
    attention KL       L_attn of one layer alone: native || compiled over selected context keys and visible query keys (spec 5), for the
                       Bridge and for the whole Compiler
    capacities         slots of every unit at the median context length, tail included
    survival           for one example: how many heads of each layer keep each token

Training measures means only, and utilities of a few sampled layers; here it is all layers, and one number for each example, so that
figures can show intervals. Nothing is trained and no answer is read. Values are float32 or better and stored as they are.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acct.cartographer import Cartographer
from acct.compiler.bridge import held_out_r2
from acct.compiler.compiler import Compiler, rotate_kv
from acct.config.root import Config
from acct.errors import ArtifactError, ConfigError
from acct.json_files import read_json
from acct.losses.compilation import AttentionTeacher, attention
from acct.pipeline import Interface, count
from acct.progress import Progress
from acct.provenance import describe
from acct.selection import layer_slice, rows, slots_of_rows, unit_index
from acct.training.compilation import CompilationTask
from acct.training.files import write_text
from acct.training.modules import load_interface
from acct.training.scoring import ScoringTask, kept_share, rank_correlation
from acct.training.selections import FrozenSelections, batches_of, freeze_selections
from acct.training.session import Examples, Session, open_session
from acct.types import Selection, SparseKV

FORMAT = "acct-diagnosis-1"
FILE = Path("diagnosis") / "diagnosis.json"


def diagnose(config: Config) -> Path:
    """Measure the run folder's interface and write <run>/diagnosis/diagnosis.json.

    Raises:
        ArtifactError: a stage has not finished, or was built from other models or another budget.
    """
    config = copy.deepcopy(config)  # the session's own: sizes of the diagnosis in place of training's
    for stage in (config.training.cartographer, config.training.allocator, config.training.compiler):
        stage.held_out = config.diagnosis.examples
    config.compiler.attention, config.compiler.behaviour = 1.0, 0.0
    with open_session(config, record=False) as session:
        interface = load_interface(config, session.pair)
        examples = session.held_out.first(config.diagnosis.examples)
        if config.diagnosis.example >= len(examples):
            raise ConfigError(f"diagnosis.example={config.diagnosis.example}, but there are {len(examples)} held-out examples, from 0.")
        found = _measure(session, interface, examples)
        path = session.run / FILE
        write_text(path, json.dumps(found, indent=1, sort_keys=True, allow_nan=False) + "\n")
    return path


def read_diagnosis(run: Path) -> dict[str, Any] | None:
    """What `diagnose` wrote into a run folder; None where it was not run.

    Raises:
        ArtifactError: not a diagnosis of this format.
    """
    path = run / FILE
    if not path.is_file():
        return None
    found: dict[str, Any] = read_json(path, "Run `acct diagnose` again.")
    if found.get("format") != FORMAT:
        raise ArtifactError(f"{path} is not a diagnosis of format {FORMAT!r}. Run `acct diagnose` again.")
    return found


def _measure(session: Session, interface: Interface, examples: Examples) -> dict[str, Any]:
    config, target = session.config, session.pair.geometry.target
    frozen = freeze_selections(session, interface, examples, config.diagnosis.batch, "selections")
    ranked = None if interface.cartographer is None else ranking_by_layer(session, interface.cartographer, examples)
    lengths = frozen.all.context_lengths
    median = lengths.sort().values[len(lengths) // 2]
    counts = count(interface, session.pair.geometry, median[None])[0] + interface.rule.tails(median[None])
    facts = {
        "format": FORMAT,
        "direction": config.direction.name,
        "scale": config.scale,
        "variant": config.paths.variant,
        "retention": config.budget.retention,
        "tail_tokens": config.budget.tail_tokens,
        "layers": target.layers,
        "heads": target.kv_heads,
        "examples": [item.id for item in examples.items],
        "built_from": {**interface.identity, "examples": examples.digest()},
        "provenance": describe(),
        "capacities": {"context_tokens": int(median), "counts": counts.view(target.layers, target.kv_heads).tolist()},
        "rank_correlation": None if ranked is None else ranked[0].tolist(),
        "kept_utility": None if ranked is None else ranked[1].tolist(),
        "survival": survival(session, frozen, examples, config.diagnosis.example),
    }
    return facts | compilation_by_layer(session, interface.compiler, examples, frozen)


def _batches(session: Session, examples: Examples, label: str) -> Iterator[list[int]]:
    """Indices of batches of similar length, with progress."""
    with Progress(label, len(examples), every=session.config.runtime.progress_seconds, enabled=session.parallel.main) as display:
        for indices in batches_of(len(examples), session.config.diagnosis.batch, examples.lengths()):
            yield indices
            display.update(len(indices))


@torch.no_grad()
def ranking_by_layer(session: Session, cartographer: Cartographer, examples: Examples) -> tuple[Tensor, Tensor]:
    """Rank correlation and kept share of utility, means over the heads of each layer: two float64 [example, layer]."""
    target, rule = session.pair.geometry.target, session.rule
    session.config.supervision.layers = target.layers  # all of them instead of a sample
    task, generator = ScoringTask(session, examples, cartographer), torch.Generator().manual_seed(0)
    found = torch.zeros(2, len(examples), target.layers, dtype=torch.float64)
    for indices in _batches(session, examples, "score and utility"):
        batch = examples.batch(indices)
        states = session.read_source(batch).to(session.device)
        supervised = task.supervise(batch, generator)
        utilities = supervised.utilities.to(session.device)
        scores = task.scores(states, supervised.units.to(session.device))
        lengths = states.context_lengths
        prefix, cutoff = lengths - rule.tails(lengths), rule.mean_capacities(lengths) - rule.tails(lengths)
        for row, values in enumerate((rank_correlation(scores, utilities, prefix), kept_share(scores, utilities, prefix, cutoff))):
            found[row, indices] = values.view(len(indices), target.layers, target.kv_heads).mean(-1).cpu()
    return found[0], found[1]


@torch.no_grad()
def compilation_by_layer(session: Session, compiler: Compiler, examples: Examples, frozen: FrozenSelections) -> dict[str, Any]:
    """R2 of the Bridge for every unit, and the attention divergence of every example and layer."""
    target = session.pair.geometry.target
    task = CompilationTask(session, examples, frozen)
    task.bridge, task.subspace = compiler.bridge, compiler.subspace
    if compiler.residual is not None:
        task.residual = compiler.residual
    statistics = task.new_statistics()
    kinds = {"bridge": False} | ({"compiler": True} if compiler.residual is not None else {})
    divergence = {name: torch.zeros(len(examples), target.layers, dtype=torch.float64) for name in kinds}
    for indices in _batches(session, examples, "compiled states"):
        batch = task.frozen(indices, statistics)
        assert batch.teacher_attention is not None
        for name, with_residual in kinds.items():
            keys, values = task.compiled(batch, with_residual)
            rotated = rotate_kv(session.pair.target, SparseKV(batch.selection, keys, values, False), batch.totals)
            divergence[name][indices] = attention_by_layer(rotated.keys, batch.teacher_attention, batch.selection).cpu()
    keys, values = held_out_r2(compiler.bridge, statistics)
    grids = {"keys": keys, "values": values, "rows": statistics.rows}
    return {
        "bridge_r2": {name: _grid(values, target.layers) for name, values in grids.items()},
        "attention_kl": {name: values.tolist() for name, values in divergence.items()},
    }


def attention_by_layer(compiled: Tensor, teacher: AttentionTeacher, selection: Selection) -> Tensor:
    """L_attn of each layer alone: float64 [batch, layer]; its mean is `acct.losses.compilation.attention`.

    Args:
        compiled: rotated keys [slot, dim]. teacher: of the same selection.
    """
    found = torch.zeros(selection.batch, selection.layers, dtype=torch.float64)
    for example in range(selection.batch):
        slots = slots_of_rows(selection, [example])
        own, keys, native = rows(selection, [example]), compiled[slots], teacher.keys[slots]
        for layer in range(selection.layers):
            here, units = layer_slice(own, layer), slice(layer * own.heads, (layer + 1) * own.heads)
            single = Selection(
                1, own.heads, own.context_lengths, own.tails, own.counts[:, units], own.positions[here], own.ranks[here], own.is_tail[here]
            )
            part = AttentionTeacher(
                teacher.queries[example, layer][None, None], teacher.row_valid[example][None], teacher.history[example, layer][None, None],
                native[here], teacher.scaling,
            )  # fmt: skip
            found[example, layer] = attention(keys[here], part, single)
    return found


def survival(session: Session, frozen: FrozenSelections, examples: Examples, index: int) -> dict[str, Any]:
    """For one example: its tokens as text, and how many heads of each layer keep each of them."""
    item, selection = examples.items[index], rows(frozen.all, [index])
    tokenizer = session.pair.tokenizer
    kept = torch.zeros(selection.layers, len(item.context_ids), dtype=torch.int64)
    kept.index_put_((unit_index(selection) // selection.heads, selection.positions), torch.ones(()).long(), accumulate=True)
    text: Mapping[str, Any] = {
        "id": item.id,
        "tokens": [tokenizer.decode([token]) for token in item.context_ids],
        "query": tokenizer.decode(list(item.query_ids)),
        "answers": list(item.answers),
    }
    return {**text, "tail": int(selection.tails[0]), "kept": kept.tolist()}


def _grid(values: Tensor, layers: int) -> list[list[float | None]]:
    """[layer][head], None where undefined."""
    return [[float(v) if math.isfinite(v) else None for v in row] for row in values.view(layers, -1).tolist()]
