"""Linear layers of several networks at once against NumPy in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rl_training.models.linear import (
    PIECE,
    TALL,
    batched_linear,
    member_linear,
    product_over_rows,
)

from ..each import each


def doubles(*tensors: torch.Tensor) -> list[np.ndarray]:
    return [tensor.detach().double().numpy() for tensor in tensors]


@each("trained", [1, 3])
@each("rows", [7, TALL, TALL + 1])
def test_outputs_and_gradients(rows: int, trained: int) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3, rows, 4), torch.randn(3, 4, 5)
    bias, upstream = torch.randn(3, 1, 5), torch.randn(3, rows, 5)
    given = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    out = batched_linear(x, weight, bias, trained)
    to_x, to_weight, to_bias = doubles(*torch.autograd.grad(out, given, upstream))
    a, w, b, g = doubles(x, weight, bias, upstream)
    np.testing.assert_allclose(doubles(out)[0], np.einsum("mbi,mio->mbo", a, w) + b, atol=1e-5)
    g[trained:] = 0.0
    np.testing.assert_allclose(to_x, np.einsum("mbo,mio->mbi", g, w), atol=1e-5)
    np.testing.assert_allclose(to_weight, np.einsum("mbi,mbo->mio", a, g), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(to_bias, g.sum(1, keepdims=True), rtol=1e-4, atol=1e-4)


class Products(TorchDispatchMode):  # type: ignore[misc]
    """Notes the shape of the first factor of every batched product."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, op: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "bmm" in str(op):
            self.shapes.append(tuple(args[0].shape))
        return op(*args, **(kwargs or {}))


def test_many_rows_are_taken_in_pieces_also_of_several_agents() -> None:
    x, y = torch.randn(4, 2, 2 * TALL, 3), torch.randn(4, 2, 2 * TALL, 5)
    with Products() as products:
        found = torch.vmap(product_over_rows)(x, y)
    # one product of the pieces of all agents
    assert products.shapes == [(4 * 2 * 2 * TALL // PIECE, 3, PIECE)]
    torch.testing.assert_close(found, x.transpose(2, 3) @ y, rtol=1e-4, atol=1e-3)


def test_a_single_output_is_no_matrix_product_on_a_cpu() -> None:
    generator = torch.Generator().manual_seed(0)
    for width, expected in ((1, 0), (2, 3)):  # forward, and two in the backward pass
        x, weight, bias = (
            torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)
            for shape in ((3, 5, 4), (3, 4, width), (3, 1, width))
        )
        upstream = torch.randn(3, 5, width, dtype=torch.float64, generator=generator)
        with Products() as products:
            out = member_linear(x, weight, bias)
            found = torch.autograd.grad(out, (x, weight, bias), upstream)
        assert len(products.shapes) == expected
        plain = torch.einsum("mbi,mio->mbo", x, weight) + bias
        torch.testing.assert_close(out, plain)
        for own, other in zip(
            found, torch.autograd.grad(plain, (x, weight, bias), upstream), strict=True
        ):
            torch.testing.assert_close(own, other)
