"""Tuples, and named tuples, filled in place by the compiled modules."""

from cpython.object cimport PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM

cdef extern from "Python.h":
    ctypedef object (*allocfunc)(PyTypeObject *, Py_ssize_t)
    ctypedef struct TypeObject "PyTypeObject":
        allocfunc tp_alloc


cdef inline object empty(object kind, Py_ssize_t size):
    """An instance of `kind`, a subclass of tuple, with room for `size` items: each must be set once."""
    return (<TypeObject *>kind).tp_alloc(<PyTypeObject *>kind, size)


cdef inline void set_item(object of, Py_ssize_t index, object value) noexcept:
    """PyTuple_SET_ITEM takes a reference over. Unchecked: `index` must be below the size that `of` was made with."""
    Py_INCREF(value)
    PyTuple_SET_ITEM(of, index, value)
