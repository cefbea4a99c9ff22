"""Bytes, eight at a time: words of byte arrays, marks in them, and copies of ranges. Compiled.

Unchecked like all compiled indexing; with numba's bounds checks on, the ends of what is touched are checked too. A
word's first byte is its lowest, as on every machine this runs on.
"""

# numba infers the types of what it compiles.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import extending, njit, types
from numba.core import cgutils

assert sys.byteorder == "little"

_ONES = np.uint64(0x0101010101010101)
_HIGH = np.uint64(0x8080808080808080)
_WORD = ir.IntType(64)
intrinsic: Any = extending.intrinsic  # what it makes is called without its first argument


@njit(cache=True, nogil=True)
def word_at(src, at):
    """The eight bytes from `at` on."""
    src[at + 7]
    return _load(src, at)


@njit(cache=True, nogil=True)
def put_word(word, out, at):
    out[at + 7] = 0
    _store(out, at, word)


@njit(cache=True, nogil=True)
def copy(src, start, length, out, at) -> int:
    """Copy a range; the two must not overlap. Returns the place after it."""
    if length > 0:
        src[start + length - 1]
        out[at + length - 1] = 0
        _copy(out, at, src, start, length)
    return int(at + length)


@njit(cache=True, nogil=True)
def equal_to(word, byte):
    """Marks on the bytes of a word that equal `byte`; only the first mark is certain."""
    differs = word ^ (_ONES * np.uint64(byte))
    return (differs - _ONES) & ~differs & _HIGH


@njit(cache=True, nogil=True)
def below(word, byte):
    """Marks on the bytes that are below `byte`, at most 128; only the first mark is certain."""
    return (word - _ONES * np.uint64(byte)) & ~word & _HIGH


@njit(cache=True, nogil=True)
def first_mark(marks):
    """Which byte has the first mark. There must be one."""
    return np.int64(_trailing_zeros(marks) >> np.uint64(3))


@intrinsic
def borrowed(typing: Any, array: Any) -> Any:
    """The same array, which the caller keeps alive meanwhile. Compiled code counts the users of an array at every turn,
    with locked instructions: that costs as much as decoding."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        proxy = cgutils.create_struct_proxy(signature.args[0])(context, builder, value=args[0])
        proxy.meminfo = cgutils.get_null_value(proxy.meminfo.type)
        proxy.parent = cgutils.get_null_value(proxy.parent.type)
        return proxy._getvalue()

    return array(array), generate


def _place(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = cgutils.create_struct_proxy(array_type)(context, builder, value=array).data
    return builder.gep(data, [index])


@intrinsic
def _load(typing: Any, src: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        return builder.load(builder.bitcast(place, _WORD.as_pointer()), align=1)

    return types.uint64(src, types.int64), generate


@intrinsic
def _store(typing: Any, out: Any, at: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        builder.store(args[2], builder.bitcast(place, _WORD.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(out, types.int64, types.uint64), generate


@intrinsic
def _copy(typing: Any, out: Any, at: Any, src: Any, start: Any, length: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = _place(context, builder, signature.args[0], args[0], args[1])
        of = _place(context, builder, signature.args[2], args[2], args[3])
        cgutils.raw_memcpy(builder, to, of, args[4], 1)
        return context.get_dummy_value()

    return types.void(out, types.int64, src, types.int64, types.int64), generate


@intrinsic
def _trailing_zeros(typing: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate
