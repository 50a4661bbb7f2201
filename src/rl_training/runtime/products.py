"""Batched products of a recorded update, given to a kernel that does more in one pass.

PyTorch's library computes float32 products of many seeds without tensor cores, and bias, ReLU and
their gradients are passes of their own over what it writes. `tile_products` looks for them among
the recorded operations, where vmap and gradients are already ordinary operations, so that the
kernel needs no rule for either.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from rl_training.experiment.errors import ConfigError

aten = torch.ops.aten

FEWEST = 16
"""Matrices in a batch from which they fill a GPU together."""
NARROWEST = 4
"""Smallest side of a result. With one row or column the library is faster; two and three were not
measured."""
LARGEST = 2**31
"""Elements that the kernel's indices can count."""
BOUNDS = {"tf32x3": 1e-5, "tf32": 5e-3}
"""Relative errors up to which the kernel is right, root mean square on random inputs: 50 and 6
times the largest measured on an H200, because longer sums have larger ones. What was compiled
wrongly was wrong by much of the result."""
_VIEWS = {aten.view.default, aten._unsafe_view.default, aten.reshape.default}


@torch.library.custom_op(
    "rl_training::tiled_product",
    mutates_args=(),
    schema=(
        "(Tensor a, Tensor b, Tensor? bias, Tensor? mask, bool relu, int sums, str precision)"
        " -> (Tensor, Tensor)"
    ),
)
def tiled_product(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    relu: bool,
    sums: int,
    precision: str,
) -> tuple[Tensor, Tensor]:
    """a @ b + bias of (batch, m, k) and (batch, k, n), after a ReLU, or 0 where `mask` is not
    positive; `bias` is (batch, n) and `mask` (batch, m, n).

    Beside it the sums over k of b, (batch, n), if `sums` is 1, of a, (batch, m), if it is 2, else
    nothing. `precision` is "tf32", whose inputs are cut off to 11 bits, or "tf32x3", which rounds
    them and makes up for that by two more products of what was rounded away. Off a GPU it is
    float32.

    Relative errors of single products on an H200, root mean square against float64, beside the
    library's: tf32x3 1.0e-7 to 2.0e-7 for k = 256 (float32: 2.9e-7) and 0.8e-7 to 0.9e-7 for
    k < 64 (float32: 0.3e-7 to 0.9e-7); tf32 5e-4 to 8e-4 (the library's TF32, which rounds:
    3e-4; it keeps to float32 for some narrow products, the kernel does not).
    """
    if a.is_cuda:
        from rl_training.runtime import tiles

        return tiles.product(a, b, bias, mask, relu, sums, precision)
    return _by_library(a, b, bias, mask, relu, sums)


def _by_library(
    a: Tensor, b: Tensor, bias: Tensor | None, mask: Tensor | None, relu: bool, sums: int
) -> tuple[Tensor, Tensor]:
    """What `tiled_product` means, in the precision of its inputs."""
    out = torch.bmm(a, b)
    if bias is not None:
        out = out + bias[:, None]
    if relu:
        out = out.relu()
    if mask is not None:
        out = torch.where(mask <= 0, 0.0, out)
    return out, (a.new_empty(a.shape[0], 0), b.sum(1), a.sum(2))[sums]


@tiled_product.register_fake
def _shapes(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    relu: bool,
    sums: int,
    precision: str,
) -> tuple[Tensor, Tensor]:
    (batch, m, _), n = a.shape, b.shape[2]
    return a.new_empty(batch, m, n), a.new_empty(batch, (0, n, m)[sums])


def refuse_untileable(device: torch.device) -> None:
    """Raise an error if the kernel cannot run on a CUDA device."""
    if find_spec("triton") is None:
        raise ConfigError(
            "products: 'tiled' needs Triton, which is not installed; install it, or use "
            "products=library"
        )
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        raise ConfigError(
            "products: 'tiled' needs a GPU with TF32, of compute capability 8.0 or more, this one "
            f"has {major}.{minor}; use products=library"
        )


class Tiled(NamedTuple):
    """Products that were replaced, and those kept because the kernel was wrong."""

    replaced: int
    kept: int


Kernel = Callable[..., tuple[Tensor, Tensor]]


def tile_products(
    recorded: GraphModule, devices: Sequence[str] = ("cuda",), kernel: Kernel = tiled_product
) -> Tiled:
    """Replace the batched products on `devices` that are worth it, with what they fuse with:
    the bias and ReLU after a layer, the mask of a ReLU's gradient, and the sum that is a bias's
    gradient. Those of a form for which `kernel` is wrong on this device stay.

    Waits for the device, so it must not be captured.
    """
    found = [
        node
        for node in recorded.graph.find_nodes(op="call_function", target=aten.bmm.default)
        if _is_worth_it(node, devices)
    ]
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"
    replaced = sum(_replace(recorded.graph, node, precision, kernel) for node in found)
    recorded.recompile()
    return Tiled(replaced, len(found) - replaced)


class Layout(NamedTuple):
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Form(NamedTuple):
    """What the kernel's code depends on, beside the alignment that `tiles.product` provides. The
    compiler keeps the strides of recorded factors."""

    a: Layout
    b: Layout
    biased: bool  # and a ReLU after it
    masked: bool
    sums: int
    precision: str
    device: torch.device


@cache
def _is_right(kernel: Kernel, form: Form) -> bool:
    """Whether the kernel computes what the library does in float64, and the same bits twice.

    Triton 3.6 compiled some tiles wrongly on an H200: see `tiles.tile_of`.
    """
    random = torch.Generator(form.device).manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, device=form.device)

    def factor(shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        return drawn(last + 1).as_strided(shape, strides)  # may have gaps, or repeat elements

    (batch, m, _), n = form.a.shape, form.b.shape[2]
    a, b = factor(*form.a), factor(*form.b)
    bias = drawn(batch, n) if form.biased else None
    mask = drawn(batch, m, n) if form.masked else None
    given = (a, b, bias, mask, form.biased, form.sums)
    means: list[Any] = [x.double() if isinstance(x, Tensor) else x for x in given]
    exact = _by_library(*means)
    with torch.no_grad(), torch.cuda.device_of(a):  # type: ignore[no-untyped-call]
        once, again = (kernel(*given, form.precision) for _ in range(2))
        return all(
            torch.equal(x, y) and bool((x - z).norm() <= BOUNDS[form.precision] * z.norm())
            for x, y, z in zip(once, again, exact, strict=True)
        )


def _is_worth_it(node: Node, devices: Sequence[str]) -> bool:
    out, parts = _value(node), [_value(x) for x in node.all_input_nodes]
    return (
        out.device.type in devices
        and out.dtype == torch.float32
        and out.shape[0] >= FEWEST
        and min(out.shape) >= NARROWEST
        and all(x.numel() < LARGEST for x in (out, *parts))
    )


def _replace(graph: Graph, product: Node, precision: str, kernel: Kernel) -> bool:
    """Replace the product if the kernel is right for its form."""
    batch, m, n = _shape(product)
    last, bias, mask = _and_then(product)
    sums, summed = _sums_beside(product) if last is product else (0, None)
    a, b = (Layout(tuple(x.shape), x.stride()) for x in map(_value, product.args))  # type: ignore[arg-type]
    device = _value(product).device
    form = Form(a, b, bias is not None, mask is not None, sums, precision, device)
    if not _is_right(kernel, form):
        return False

    def call(target: Any, *args: Any) -> Node:
        return graph.call_function(target, args)

    with graph.inserting_before(last):
        both = call(
            torch.ops.rl_training.tiled_product.default,
            *product.args,
            None if bias is None else call(aten.reshape.default, bias, [batch, n]),
            None if mask is None else call(aten.reshape.default, mask, [batch, m, n]),
            bias is not None,
            sums,
            precision,
        )
        out, totals = (call(operator.getitem, both, i) for i in range(2))
        out.meta["val"] = _value(product)
        pairs = [(last, out)] if summed is None else [(last, out), (summed, totals)]
        instead = [(old, call(aten.reshape.default, new, list(_shape(old)))) for old, new in pairs]
    for old, new in instead:
        new.meta["val"] = _value(old)
        old.replace_all_uses_with(new)
        _erase(old)
    return True


def _erase(node: Node) -> None:
    """Erase an operation with what was computed for it alone, up to its product."""
    before = [x for x in node.all_input_nodes if x.target in _FUSED]
    node.graph.erase_node(node)
    for other in before:
        if not other.users:
            _erase(other)


_FUSED = _VIEWS | {aten.bmm.default, aten.add.Tensor}


def _and_then(product: Node) -> tuple[Node, Node | None, Node | None]:
    """The last operation that is fused with the product, its bias and its mask."""
    shaped = _reshaped(product)
    after = _only_user(shaped)
    if after is None:
        return product, None, None
    if after.target is aten.threshold_backward.default:
        gradient, mask, threshold = after.args
        masks = isinstance(mask, Node) and gradient is shaped and threshold == 0
        if masks and _shape(mask) == _shape(shaped) and _undisturbed(product, after):
            return after, None, mask  # type: ignore[return-value]
    elif after.target is aten.add.Tensor and not after.kwargs:
        (bias,) = [x for x in after.args if x is not shaped] or [None]
        relu = _only_user(after)
        if isinstance(bias, Node) and relu is not None and relu.target in _RELUS:
            *lead, _, n = _shape(shaped)
            if _shape(bias) == (*lead, 1, n) and _undisturbed(product, relu):
                return relu, _unscaled(bias), None
    return product, None, None


_RELUS = {aten.relu_.default, aten.relu.default}


def _sums_beside(product: Node) -> tuple[int, Node | None]:
    """Which factor of a weight's gradient is also summed over its rows, and that sum."""
    batch, k, _ = _shape(product.args[1])
    turned = _unshaped(product.args[0])[-1]
    factors = [(1, product.args[1])]
    if turned.target is aten.transpose.int:
        factors.append((2, turned.args[0]))
    for which, factor in factors:
        for rows in _unshaped(factor):
            *lead, length, _ = _shape(rows)
            if math.prod(lead) != batch or length != k:
                continue
            for user in rows.users:
                if _is_sum_over(user, len(lead)) and _undisturbed(product, user):
                    return which, user
    return 0, None


def _is_sum_over(node: Node, axis: int) -> bool:
    if node.target is not aten.sum.dim_IntList or node.kwargs:
        return False
    source, axes, *_ = node.args
    return [x % len(_shape(source)) for x in axes] == [axis]  # type: ignore[union-attr, operator]


def _undisturbed(first: Node, last: Node) -> bool:
    """Whether `last` comes after `first`, and nothing is written to in between."""
    node = first.next
    while node is not last:
        schema = getattr(node.target, "_schema", None)
        if node.op == "output" or (schema is not None and schema.is_mutable):
            return False
        node = node.next
    return True


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _reshaped(node: Node) -> Node:
    """The last view of a result that nothing else uses."""
    user = _only_user(node)
    while user is not None and user.target in _VIEWS:
        node, user = user, _only_user(user)
    return node


def _unshaped(node: Any) -> list[Node]:
    """The node and what it is a view of, with as many elements."""
    chain = [node]
    while node.target in _VIEWS or node.target is aten.expand.default:
        node = node.args[0]
        if math.prod(_shape(node)) != math.prod(_shape(chain[0])):
            break
        chain.append(node)
    return chain


def _unscaled(bias: Node) -> Node:
    """A bias without the products by 1 that vmap makes."""
    found: Any = _unshaped(bias)[-1]
    while found.target is aten.mul.Scalar and found.args[1] == 1:
        found = _unshaped(found.args[0])[-1]
    return found  # type: ignore[no-any-return]


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(_value(node).shape)


def _value(node: Node) -> Tensor:
    """A tensor like the one that the node gives."""
    found: Tensor | None = node.meta.get("val")
    if found is None and node.op == "get_attr":  # another use of the same tensor
        found = getattr(node.graph.owning_module, str(node.target))
    assert found is not None, node
    return found
