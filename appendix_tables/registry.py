"""The appendix's tables by name. A new one is one module, one line here and one test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from acct.errors import UnknownName
from acct.reporting.render import rendered
from acct.reporting.tables import Table
from acct.training.files import write_text
from appendix_tables import ablations, additional_pairs, data_sets, table4_schedule, table5_geometry, table6_parameters, table7_compiler
from appendix_tables.inputs import Inputs

TABLES: dict[str, Callable[[Inputs], Table]] = {
    "table4": table4_schedule.table,
    "table5": table5_geometry.table,
    "table6": table6_parameters.table,
    "table7": table7_compiler.table,
    "data_sets": data_sets.table,
    "ablations": ablations.table,
    "additional_pairs": additional_pairs.table,
}


def write_appendix_tables(inputs: Inputs, folder: Path | str, names: Sequence[str] = ()) -> list[Path]:
    """Write <folder>/appendix_<name>.{md,tex,csv}.

    Args:
        names: of TABLES, none for all.
    Returns:
        the files, a table's three together.
    Raises:
        UnknownName: no such table; nothing is written then.
    """
    for name in names:
        if name not in TABLES:
            raise UnknownName("appendix table", name, TABLES)
    files = []
    for name in names or TABLES:
        for ending, text in rendered(TABLES[name](inputs)).items():
            path = Path(folder) / f"appendix_{name}{ending}"
            write_text(path, text)
            files.append(path)
    return files
