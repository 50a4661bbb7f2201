"""The exports that the servers of these tests answer for."""

from ..export.conftest import _exports as _exports
from ..export.conftest import _quick_exports as _quick_exports
from ..export.conftest import bc_export as bc_export
from ..export.conftest import dreamer_export as dreamer_export
