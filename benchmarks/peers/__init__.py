"""Other libraries, run in an environment of their own.

Modules here that are named after a library are run by that environment's Python and
import nothing of this package's dependencies.
"""
