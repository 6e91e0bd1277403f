"""Compiled inner loops, loaded where they were built; every one of them has a NumPy twin.

`kernels.c` is compiled when the package is built and there is a C compiler (see `build.py`). It is
plain C called through ctypes: no compilation while a program runs, no cache of machine code, and
calls release Python's lock, so that threads work side by side.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

LIBRARY = Path(__file__).with_name("kernels.so")

Addresses = npt.NDArray[np.uintp]
_SUFFIX = {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}
_use = os.environ.get("FEDCIRCUITS_NATIVE", "1") != "0"


class Kernels:
    """The functions of the library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Look up BLAS once; SciPy hands out the addresses of its own."""
        self._library = library
        from scipy.linalg import cython_blas

        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        name_of = ctypes.pythonapi.PyCapsule_GetName
        name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
        given = cython_blas.__pyx_capi__
        capsules = {"f32": given["sgemm"], "f64": given["dgemm"]}
        self._gemm = {s: ctypes.c_void_p(get(c, name_of(c))) for s, c in capsules.items()}

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; arrays go as addresses, whole numbers as int64, others as double."""
        getattr(self._library, name)(*map(_as_c, arguments))

    def call_typed(self, name: str, dtype: np.dtype[Any], *arguments: Any) -> None:
        """Call the version of a function for a float type."""
        self.call(f"{name}_{_SUFFIX[dtype]}", *arguments)

    def call_with_gemm(self, name: str, dtype: np.dtype[Any], *arguments: Any) -> None:
        """Call a function that multiplies matrices."""
        suffix = _SUFFIX[dtype]
        self.call(f"{name}_{suffix}", self._gemm[suffix], *arguments)

    def call_with_both_gemms(self, name: str, dtype: np.dtype[Any], *arguments: Any) -> None:
        """Call a function that multiplies matrices of its float type and of doubles."""
        suffix = _SUFFIX[dtype]
        self.call(f"{name}_{suffix}", self._gemm[suffix], self._gemm["f64"], *arguments)

    def call_with_double_gemm(self, name: str, dtype: np.dtype[Any], *arguments: Any) -> None:
        """Call the version of a function for a float type that multiplies matrices of doubles."""
        self.call(f"{name}_{_SUFFIX[dtype]}", self._gemm["f64"], *arguments)


def address(array: npt.NDArray[Any]) -> int:
    """Where a C-contiguous array lies, ten times sooner than `array.ctypes` says it."""
    try:
        return ctypes.addressof(_first_byte(array))
    except (TypeError, ValueError):  # read-only, or empty
        return int(array.ctypes.data)


_first_byte: Callable[[Any], Any] = ctypes.c_char.from_buffer


def _as_c(value: Any) -> Any:
    kind = type(value)  # the usual ones first: small tables spend much of their time here
    if kind is np.ndarray:
        try:
            return ctypes.byref(_first_byte(value))
        except (TypeError, ValueError):  # read-only, or empty
            return ctypes.c_void_p(value.ctypes.data)
    if value is None or kind is Pointer:
        return value
    if isinstance(value, int):
        return ctypes.c_int64(value)
    if isinstance(value, float):
        return ctypes.c_double(value)
    return value  # ready for C


class Pointer(ctypes.c_void_p):
    """Where an array lies, made once for many calls; it keeps the array."""

    array: npt.NDArray[Any]


def pointer(array: npt.NDArray[Any]) -> Pointer:
    """A C-contiguous array as an argument that many calls take."""
    made = Pointer(address(array))
    made.array = array
    return made


_threads: ContextVar[int] = ContextVar("threads", default=1)


def n_threads() -> int:
    """Threads a compiled loop may use; what it computes does not depend on them."""
    return _threads.get()


@contextmanager
def using_threads(number: int) -> Iterator[None]:
    """Let compiled loops that are called inside use so many threads."""
    before = _threads.set(number)
    try:
        yield
    finally:
        _threads.reset(before)


def kernels() -> Kernels | None:
    """The compiled loops, or None where there are none or they are switched off."""
    return _loaded() if _use else None


@cache
def _loaded() -> Kernels | None:
    if not LIBRARY.exists():
        return None
    from fedcircuits.native.build import source_digest  # it is a program too: not while it runs

    try:
        library = ctypes.CDLL(str(LIBRARY))
        library.source_digest.restype = ctypes.c_char_p
        if library.source_digest() != source_digest().encode():
            _warn_unused("it was built from other sources")  # its arguments may differ
            return None
        return Kernels(library)
    except (OSError, KeyError, AttributeError) as error:  # another machine, or an odd SciPy
        _warn_unused(str(error))
        return None


def _warn_unused(reason: str) -> None:
    """Warn that the library beside this file is not used: NumPy is several times slower."""
    warnings.warn(
        f"the library of compiled loops is not used ({reason}); NumPy does its work, several "
        "times more slowly. Build it again: python -m fedcircuits.native.build",
        stacklevel=3,
    )


@contextmanager
def numpy_only() -> Iterator[None]:
    """Run with the NumPy twins alone (the same as `FEDCIRCUITS_NATIVE=0`)."""
    global _use
    before, _use = _use, False
    try:
        yield
    finally:
        _use = before


def addresses(arrays: Iterable[npt.NDArray[Any] | None]) -> Addresses:
    """Addresses of C-contiguous arrays, 0 for None; the arrays must outlive them."""
    found = [0 if array is None else address(array) for array in arrays]
    return np.array(found, dtype=np.uintp)
