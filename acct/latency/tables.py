"""Tables 11 to 15 in the paper's layout, and beyond it the roofline, memory, linear maps, growth and aims: pure functions of documents."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acct.config.latency import STAGES
from acct.latency.aims import aims
from acct.reporting.names import direction_label
from acct.reporting.render import rendered
from acct.reporting.tables import DASH, Block, Table, Text
from acct.training.files import write_text

Document = dict[str, Any]
NAMES = {
    "source_prefill": "Source prefill", "cartographer": "Cart.", "allocator": "Alloc.", "compiler": "Comp.", "packing": "Packing",
    "rotation": "Rotation", "target_prefill": "Target prefill", "query_native": "Query, native", "query_mounted": "Query, mounted",
    "ridge": "Linear map",
}  # fmt: skip
FAMILIES = (("table12", "qwen3", "Qwen3"), ("table13", "llama", "Llama"), ("table14", "qwen2", "Qwen2.5"))


def _ms(value: float | None) -> Text:
    return Text(DASH if value is None else f"{value:.1f}")


def _ratio(value: float) -> Text:
    return Text(f"{value:.2f}")


def provenance(documents: Sequence[Document]) -> str:
    """Machines, types, threads and commits of what a table shows."""
    found = []
    for one in documents:
        made, settings = one["provenance"], one["config"]
        devices = ", ".join(made["devices"]) or f"{made['processor']}, {made['cores']} cores, {settings['latency']['threads']} threads"
        commit = f"{(made['commit'] or 'no commit')[:12]}{' with changes' if made['dirty'] else ''}"
        found.append(f"{devices}; {settings['runtime']['dtype']}; {settings['latency']['weights']} weights; {commit}")
    return "Provenance: " + " | ".join(dict.fromkeys(found))


def table11(documents: Sequence[Document]) -> Table:
    """Warm-up and timed repetitions for each stage."""
    columns = ("Warm-up", "Repetitions")
    blocks = []
    for one in documents:
        options = one["config"]["latency"]
        rows = tuple((NAMES[stage], (Text(str(options["warmup"][stage])), Text(str(options["repetitions"][stage])))) for stage in STAGES)
        if rows not in [block.rows for block in blocks]:
            blocks.append(Block(direction_label(one["direction"]), columns, rows))
    note = "- The paper's counts did not reach us: these are fields, `latency.warmup` and `latency.repetitions`."
    return Table("table11", "Warm-up and timed repetitions for each stage.", tuple(blocks), (), (note,), provenance(documents))


def family_table(name: str, family: str, label: str, documents: Sequence[Document]) -> Table | None:
    """Tables 12 to 14: stage medians in ms and speed-ups by length; None where no direction of the family was timed."""
    own = [one for one in documents if one["family"] == family and one["records"]]
    if not own:
        return None
    columns = ("Source prefill", "Cart.", "Alloc.", "Comp.", "Conversion", "Target prefill", "Speed-up")
    blocks = []
    for one in own:
        rows = []
        for record in one["records"]:
            stages = record["stages_ms"]
            times = [stages["source_prefill"], stages["cartographer"], stages["allocator"], stages["compiler"], record["conversion_ms"]]
            cells = (*map(_ms, times), _ms(record["target_prefill_ms"]), Text(f"{record['speedup']:.2f}x"))
            rows.append((f"{record['context_tokens']:,}", cells))
        blocks.append(Block(direction_label(one["direction"]), columns, tuple(rows)))
    caption = f"{label} stage latencies (ms, medians) and state-conversion speed-ups by context length."
    return Table(name, caption, tuple(blocks), (), tuple(skipped_notes(own)), provenance(own))


def table15(documents: Sequence[Document]) -> Table | None:
    """Construction with source encoding on the shortest and the longest context."""
    own = [one for one in documents if one["records"]]
    if not own:
        return None
    columns = ("Tokens", "Source prefill", "Conversion", "Packing", "Rotation", "Construction", "Target prefill", "Speed-up")
    rows = []
    for one in own:
        for record in dict.fromkeys((0, len(one["records"]) - 1)):
            found = one["records"][record]
            stages = found["stages_ms"]
            parts = [stages["source_prefill"], found["conversion_ms"], stages["packing"], stages["rotation"]]
            cells = (Text(f"{found['context_tokens']:,}"), *map(_ms, parts), _ms(sum(parts)), _ms(found["target_prefill_ms"]))
            rows.append((direction_label(one["direction"]), (*cells, Text(f"{found['cold_speedup']:.2f}x"))))
    caption = "Target-state construction latency (ms), including source encoding, on the shortest and longest contexts."
    return Table("table15", caption, (Block("Construction", columns, tuple(rows)),), (), tuple(skipped_notes(own)), provenance(own))


def roofline(documents: Sequence[Document]) -> Table | None:
    """Every stage beside the least time that its operations and bytes need on this machine, with spread and memory."""
    columns = ("Median", "p5", "p95", "GFLOP", "MB", "Bound", "Median / bound", "Peak MB")
    blocks = []
    for one in documents:
        for record in [*one["records"], *one.get("growth", [])]:
            rows = []
            for stage, found in record["stages"].items():
                known = "bound_ms" in found
                name = NAMES.get(stage) or map_label(stage.removeprefix("ridge_"))
                work = (f"{found['flops'] / 1e9:.2f}", f"{found['bytes'] / 1e6:.1f}", f"{found['bound_ms']:.2f}") if known else (DASH,) * 3
                peak = DASH if found["peak_bytes"] is None else f"{found['peak_bytes'] / 1e6:.1f}"
                times = (f"{found[key]:.2f}" for key in ("median_ms", "p5_ms", "p95_ms"))
                cells = (*times, *work, f"{found['times_bound']:.2f}" if known else DASH, peak)
                rows.append((name, tuple(Text(cell) for cell in cells)))
            alone = "" if "target_prefill_ms" in record else ", conversion alone"
            blocks.append(Block(f"{direction_label(one['direction'])}, {record['context_tokens']:,} tokens{alone}", columns, tuple(rows)))
    if not blocks:
        return None
    notes = [
        f"- {one['direction']}, {part}: {found['flops'] / 1e9:.1f} GFLOP/s in a matrix product, {found['bytes'] / 1e9:.2f} GB/s copied."
        for one in documents
        for part, found in one["ceilings"].items()
    ]
    caption = "Stages (ms) against the roofline: operations and bytes from shapes, ceilings measured in the same run."
    return Table("latency_roofline", caption, tuple(blocks), (), tuple(dict.fromkeys(notes)), provenance(documents))


def map_label(key: str) -> str:
    """A linear map by its key in `ridge_ms`, "8" or "8_all"."""
    count = key.removesuffix("_all")
    return f"Linear map, {count} layer{'s' * (count != '1')}{', all heads' * key.endswith('_all')}"


def compiled_notes(documents: Sequence[Document]) -> list[str]:
    """What torch.compile cost before the warm-up calls, where it was used."""
    return [
        f"- {one['direction']}, {record['context_tokens']:,} tokens: compiled ({one['config']['latency']['compile_backend']}) in the first "
        f"conversion, {record['compile_ms'] / 1e3:.1f} s."
        for one in documents
        for record in one["records"]
        if record.get("compile_ms") is not None
    ]


def comparison(documents: Sequence[Document]) -> Table | None:
    """The conversion beside full-length linear maps in the same process, bytes, and memory."""
    found = {key for one in documents for record in one["records"] for key in record["ridge_ms"]}
    maps_of = sorted(found, key=lambda key: (key.endswith("_all"), int(key.removesuffix("_all"))))
    columns = (
        "Conversion", *map(map_label, maps_of),
        "Query, native", "Query, mounted", "Mounted / ideal bytes", "Peak / output bytes",
    )  # fmt: skip
    blocks = []
    for one in documents:
        rows = []
        for record in one["records"]:
            maps = [_ms(record["ridge_ms"].get(key)) for key in maps_of]
            steps = [_ms(record["stages_ms"].get(stage)) for stage in ("query_native", "query_mounted")]
            bytes_ = [_ratio(record[key] / record["ideal_bytes"]) for key in ("mounted_bytes", "peak_bytes")]
            rows.append((f"{record['context_tokens']:,}", (_ms(record["conversion_ms"]), *maps, *steps, *bytes_)))
        if rows:
            blocks.append(Block(direction_label(one["direction"]), columns, tuple(rows)))
    if not blocks:
        return None
    caption = "Conversion (ms) beside closed-form linear maps of the whole context; query steps; bytes."
    return Table("latency_comparison", caption, tuple(blocks), (), tuple(compiled_notes(documents)), provenance(documents))


def growth(documents: Sequence[Document]) -> Table | None:
    """Conversion alone against length, with the exponent of its growth."""
    own = [one for one in documents if one.get("growth")]
    if not own:
        return None
    columns = ("Cart.", "Alloc.", "Comp.", "Conversion", "Peak / output bytes")
    blocks, notes = [], []
    for one in own:
        rows = []
        for record in one["growth"]:
            times = [record["stages"][stage]["median_ms"] for stage in ("cartographer", "allocator", "compiler")]
            cells = (*map(_ms, times), _ms(record["conversion_ms"]), _ratio(record["peak_bytes"] / record["ideal_bytes"]))
            rows.append((f"{record['context_tokens']:,}", cells))
        blocks.append(Block(direction_label(one["direction"]), columns, tuple(rows)))
        if one["growth_exponent"] is not None:
            notes.append(f"- {one['direction']}: conversion grows as N^{one['growth_exponent']:.2f} (least squares over logarithms).")
    caption = "Growth of the conversion alone (ms) on random source states."
    return Table("latency_growth", caption, tuple(blocks), (), tuple(notes), provenance(own))


def skipped_notes(documents: Sequence[Document]) -> list[str]:
    """A line for each length that was left out."""
    return [
        f"- {one['direction']}, {lost['context_tokens']:,} tokens: left out at {lost['phase']}: {lost['reason']}"
        for one in documents
        for lost in one["skipped"]
    ]


def latency_tables(documents: Sequence[Document]) -> list[Table]:
    """Every table that the documents have something for."""
    made = [table11(documents)] if documents else []
    made += [table for name, family, label in FAMILIES if (table := family_table(name, family, label, documents)) is not None]
    made += [table for build in (table15, roofline, comparison, growth) if (table := build(documents)) is not None]
    return made + ([] if (found := aims(documents, provenance(documents))) is None else [found])


def write_tables(documents: Sequence[Document], folder: Path) -> list[Path]:
    """<folder>/<table>.{md,tex,csv} of every table."""
    written = []
    for table in latency_tables(documents):
        for ending, text in rendered(table).items():
            written.append(folder / f"{table.name}{ending}")
            write_text(written[-1], text)
    return written
