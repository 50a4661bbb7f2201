"""What a log says beside its transitions, such as the probabilities of its actions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.readers import read_file_array
from rl_training.data.sources import frame_config, holds_arrays, holds_frame, local_config
from rl_training.data.table_files import open_files, open_frame
from rl_training.data.tables import TableReader, opened_table
from rl_training.experiment.config import TABLE_KINDS, DatasetConfig
from rl_training.experiment.errors import ConfigError


def read_beside(source: Any, name: str) -> NDArray[Any]:
    """The array of that name in a mapping of arrays or in an npz or hdf5 file, or the column of a
    table, or its columns `name`_0, `name`_1 and so on; its rows are those of the transitions that
    `load_transition_dataset` makes of the same source."""
    if holds_frame(source):
        reader = TableReader(frame_config(source), "data frame", False, None)
        table = open_frame(source["frame"], reader.label)
        columns = reader.wanted_with(name, table.column_names)
        return reader.column(name, table.select(columns), [table.num_rows])
    if holds_arrays(source):
        if name not in source:
            raise ConfigError(f"there is no array '{name}' among {', '.join(map(str, source))}")
        return np.asarray(source[name])
    if isinstance(source, (str, Mapping, DatasetConfig)):
        config = local_config(source)
        if config.kind in TABLE_KINDS:
            files, reader = opened_table(config, False, None)
            opened = open_files(files, str(config.kind), partial(reader.wanted_with, name))
            return reader.column(name, *opened)
        if config.kind in ("npz", "hdf5"):
            return read_file_array(str(config.path), config.kind, name)
    raise ConfigError(
        f"'{name}' is read from an .npz or .hdf5 file, a table or a mapping of arrays, and the "
        "data are none of them; give the numbers themselves"
    )
