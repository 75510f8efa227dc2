r"""From one seed to the random parts of a feature map, the same on every machine.

NumPy promises the bit stream of a bit generator for all time, but not how its distributions use those bits. So the draws
start from raw bits: 52 of them make a uniform number, and quantile functions make everything else.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, ndtri

from kinfed.errors import InputError

_SOBOL_BITS = 30


class Bits:
    """A stream of raw bits from a seed."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.PCG64(seed)

    def uniforms(self, *shape: int) -> NDArray[np.float64]:
        """Uniform numbers on the open interval (0, 1)."""
        raw = np.asarray(self._generator.random_raw(int(np.prod(shape))), dtype=np.uint64)
        # With 52 bits the half step is exact, so neither 0 nor 1 can come out.
        return (((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52).reshape(shape)

    def integers(self, count: int, bits: int) -> NDArray[np.int64]:
        """Integers of `bits` random bits."""
        raw = np.asarray(self._generator.random_raw(count), dtype=np.uint64)
        return (raw >> np.uint64(64 - bits)).astype(np.int64)


def iid_normals(bits: Bits, count: int, dim: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`count` independent rows of N(0, I_dim), and one uniform beside each."""
    return ndtri(bits.uniforms(count, dim)), bits.uniforms(count)


def orthogonal_normals(bits: Bits, count: int, dim: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows that are each N(0, I_dim) but orthogonal within blocks of `dim`, and one uniform beside each.

    A block is the Q of a Gaussian matrix, uniform over orthonormal frames once R has a positive diagonal; each row then
    gets the length of an independent Gaussian vector, a chi variable with `dim` degrees of freedom.
    """
    blocks = []
    for start in range(0, count, dim):
        gaussian = ndtri(bits.uniforms(dim, min(dim, count - start)))
        q, r = np.linalg.qr(gaussian)
        blocks.append((q * np.sign(np.diag(r))).T)
    lengths = np.sqrt(2 * gammaincinv(dim / 2, bits.uniforms(count)))
    return np.vstack(blocks) * lengths[:, None], bits.uniforms(count)


def sobol_normals(bits: Bits, count: int, dim: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows of N(0, I_dim) and one uniform beside each from a Sobol sequence scrambled by a random digital shift."""
    from scipy.stats import qmc  # a second to import, and only this draw needs it

    if dim + 1 > qmc.Sobol.MAXDIM:
        raise InputError(f"sampling='sobol' stops at dimension {qmc.Sobol.MAXDIM - 1}, got {dim}; use 'orthogonal'")
    # random_base2 takes powers of two only; the first `count` points of the sequence are what is wanted.
    sequence = qmc.Sobol(dim + 1, scramble=False, bits=_SOBOL_BITS).random_base2(max(count - 1, 1).bit_length())[:count]
    digits = np.rint(sequence * 2.0**_SOBOL_BITS).astype(np.int64)
    shifted = digits ^ bits.integers(dim + 1, _SOBOL_BITS)
    uniforms = (shifted + 0.5) * 2.0**-_SOBOL_BITS
    return np.asarray(ndtri(uniforms[:, :dim])), np.asarray(uniforms[:, dim], dtype=np.float64)
