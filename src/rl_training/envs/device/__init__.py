"""Environments whose worlds live on the training device, as tensors.

`protocol.py` says what a simulator has to be, `register.py` how it gets an id, `worlds.py` steps
it without leaving the device, `classic.py` and `locomotion.py` are the tasks of this package.
"""
