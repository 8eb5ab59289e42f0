"""Hydra's and OmegaConf's complaints about overrides, in one message with the closest known names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from acct.config.root import config_folder, field_names
from acct.errors import AcctError


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _close(name: str, known: Sequence[str]) -> str:
    matches = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    last = name.rsplit(".", 1)[-1]
    matches += [other for other in known if other.rsplit(".", 1)[-1] == last and other not in matches][:3]
    matches = list(dict.fromkeys(matches))[:3]
    return f" Did you mean {' or '.join(matches)}?" if matches else ""


def groups() -> dict[str, list[str]]:
    """Every configuration group with its choices."""
    folder = config_folder()
    return {path.name: sorted(f.stem for f in path.glob("*.yaml")) for path in sorted(folder.iterdir()) if path.is_dir()}


def explain(error: BaseException, arguments: Sequence[str] = ()) -> str | None:
    """A message for an error of Hydra's or OmegaConf's; None for any other, which is a fault of ours."""
    chain = _chain(error)
    for link in chain:
        if isinstance(link, AcctError):
            return f"{type(link).__name__}: {link}"
    if not any(isinstance(link, HydraException | OmegaConfBaseException) for link in chain):
        return None
    text = str(error).strip()
    known = field_names() + list(groups())
    found = re.search(r"[Cc]ould not override '([^']+)'|Key '([^']+)' (?:is )?not in|Could not append to config.*'([^']+)'", text)
    if found:
        name = next(part for part in found.groups() if part)
        return f"ConfigError: unknown setting {name!r}.{_close(name, known)} See acct <command> --cfg job for all of them."
    found = re.search(r"Could not find '([^'/]+)/([^']+)'", text)
    if found and found[1] in groups():
        group, choice = found[1], found[2]
        choices = groups()[group]
        return f"ConfigError: unknown {group} {choice!r}. Known: {', '.join(choices)}.{_close(choice, choices)}"
    found = re.search(r"override '([^']+)'\. No match in the defaults list|In order to append to config use|No match in the defaults", text)
    if found:
        name = (found[1] or "").split("=")[0] or next((a.split("=")[0] for a in arguments if "=" in a), "")
        return f"ConfigError: unknown setting {name!r}.{_close(name, known)} See acct <command> --cfg job for all of them."
    cause = str(chain[-1]).strip().splitlines()[0] if str(chain[-1]).strip() else ""
    first = text.splitlines()[0] if text else type(error).__name__
    key = re.search(r"full_key: (\S+)", "\n".join(str(link) for link in chain))
    where = f" (setting {key[1]})" if key else ""
    return f"ConfigError: {first}{where}{': ' + cause if cause and cause not in first else ''}"
