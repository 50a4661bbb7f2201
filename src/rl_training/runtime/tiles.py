"""A batched product on a GPU's tensor cores, with what stands around it in a network.

Needs Triton, which PyTorch's builds for CUDA bring along. Tiles are fixed, never chosen by timing
in a run, and every sum has one order: a resumed run computes the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

Tile = tuple[int, int, int, int, int]
"""Rows, columns and inner length of a tile, warps of a program, stages of its pipeline."""


def tile_of(m: int, n: int, k: int, along: bool, precision: str) -> Tile:
    """The tile for products of (m, k) by (k, n) matrices, both stored `along` k or not; a part of
    what a run's results depend on: other tiles add in another order.

    Chosen from timings on an H200 (PyTorch 2.11, Triton 3.6) of the products of 64 seeds of IQL.
    With "tf32" no tile has both 64 rows and four warps. For such tiles Triton uses Hopper's
    instructions for groups of four warps, and some with three stages were wrong: masked products
    came out as zeros, one product differed from call to call. Why is not known. With "tf32x3" the
    code waits for each of these instructions, and no product was wrong.
    """
    rounded = precision == "tf32"
    if k <= 16:
        return 32, 128, 16, 4, 2
    if k < 64:
        return (32, 128, 32, 4, 2) if rounded else (64 if along else 128, 64, 32, 4, 2)
    if n < 64:
        return 32, 32, 64, 2, 3
    if m < 64:
        return 32, 64, 32, 2, 3
    if rounded:
        return 64, 128, 32, 2, 3
    return (128, 64, 32, 4, 3) if along else (32, 64, 32, 2, 3)


def product(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    relu: bool,
    sums: int,
    precision: str,
) -> tuple[Tensor, Tensor]:
    """See `rl_training.runtime.products.tiled_product`."""
    (batch, m, k), n = a.shape, b.shape[2]
    a, b = _aligned(a), _aligned(b)
    along = a.stride(2) == 1 and b.stride(1) == 1
    rows, columns, inner, warps, stages = tile_of(m, n, k, along, precision)
    out = a.new_empty(batch, m, n)
    totals = a.new_empty(batch, (0, n, m)[sums])
    tiles = triton.cdiv(m, rows) * triton.cdiv(n, columns)
    tiled_product_kernel[(batch * tiles,)](
        a,
        b,
        out,
        out if bias is None else _aligned(bias.contiguous()),
        out if mask is None else _aligned(mask.contiguous()),
        out if sums == 0 else totals,
        *(m, n, k, *a.stride(), *b.stride()),
        HAS_BIAS=bias is not None,
        RELU=relu,
        MASKED=mask is not None,
        SUMS=sums,
        PRECISION=precision,
        ROWS=rows,
        COLUMNS=columns,
        INNER=inner,
        num_warps=warps,
        num_stages=stages,
    )
    return out, totals


def _aligned(x: Tensor) -> Tensor:
    """The same values and strides from an address for which Triton makes the code that was
    checked; for others it makes other code."""
    if x.data_ptr() % 16 == 0:
        return x
    sizes = zip(x.shape, x.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in sizes)
    return x.as_strided((last + 1,), (1,)).clone().as_strided(x.shape, x.stride())


@triton.jit  # type: ignore[untyped-decorator]
def tiled_product_kernel(  # type: ignore[no-untyped-def]
    a,
    b,
    out,
    bias,
    mask,
    totals,
    M: tl.constexpr,  # noqa: N803
    N: tl.constexpr,  # noqa: N803
    K: tl.constexpr,  # noqa: N803
    a_batch: tl.constexpr,
    a_m: tl.constexpr,
    a_k: tl.constexpr,
    b_batch: tl.constexpr,
    b_k: tl.constexpr,
    b_n: tl.constexpr,
    HAS_BIAS: tl.constexpr,  # noqa: N803
    RELU: tl.constexpr,  # noqa: N803
    MASKED: tl.constexpr,  # noqa: N803
    SUMS: tl.constexpr,  # noqa: N803
    PRECISION: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
    INNER: tl.constexpr,  # noqa: N803
):
    """One tile of one product per program."""
    tiles_m: tl.constexpr = (M + ROWS - 1) // ROWS
    tiles_n: tl.constexpr = (N + COLUMNS - 1) // COLUMNS
    full: tl.constexpr = M % ROWS == 0 and N % COLUMNS == 0 and K % INNER == 0
    program = tl.program_id(0)
    batch = program // (tiles_m * tiles_n)
    tile_m = program // tiles_n % tiles_m
    tile_n = program % tiles_n
    m = tile_m * ROWS + tl.arange(0, ROWS)
    n = tile_n * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, INNER)
    a_at = a + batch * a_batch + m[:, None] * a_m + k[None, :] * a_k
    b_at = b + batch * b_batch + k[:, None] * b_k + n[None, :] * b_n
    result = tl.zeros((ROWS, COLUMNS), tl.float32)
    if SUMS == 1:
        total = tl.zeros((COLUMNS,), tl.float32)
    if SUMS == 2:
        total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, K, INNER):
        if full:
            x = tl.load(a_at)
            y = tl.load(b_at)
        else:
            x = tl.load(a_at, mask=(m < M)[:, None] & (k < K - start)[None, :], other=0.0)
            y = tl.load(b_at, mask=(k < K - start)[:, None] & (n < N)[None, :], other=0.0)
        result = tl.dot(x, y, result, input_precision=PRECISION)
        if SUMS == 1:
            total += tl.sum(y, 0)
        if SUMS == 2:
            total += tl.sum(x, 1)
        a_at += INNER * a_k
        b_at += INNER * b_k
    inside = (m < M)[:, None] & (n < N)[None, :]
    at = batch * (M * N) + m[:, None] * N + n[None, :]
    if HAS_BIAS:
        result += tl.load(bias + batch * N + n, mask=n < N, other=0.0)[None, :]
    if RELU:
        result = tl.where(result <= 0.0, 0.0, result)  # NaN stays
    if MASKED:
        result = tl.where(tl.load(mask + at, mask=inside, other=0.0) <= 0.0, 0.0, result)
    tl.store(out + at, result, mask=inside)
    if SUMS == 1:
        tl.store(totals + batch * N + n, total, mask=(n < N) & (tile_m == 0))
    if SUMS == 2:
        tl.store(totals + batch * M + m, total, mask=(m < M) & (tile_n == 0))
