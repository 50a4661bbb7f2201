"""The short form of a data set on the command line, without importing what reads data."""

from __future__ import annotations

import json

from rl_training.experiment.config_files import parse_override


def with_data_section(override: str) -> str:
    """Expand the short form `dataset=log.npz` to its keys; other overrides stay as they are."""
    value = parse_override(override)[1] if override.startswith("dataset=") else None
    if not isinstance(value, str):
        return override
    from rl_training.data.sources import parse_source

    section = parse_source(value).model_dump(mode="json", exclude_unset=True)
    return f"dataset={json.dumps(section)}"
