"""Policies as files that act without this package: ONNX, a contract, a sample and a card."""
