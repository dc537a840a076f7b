# cython: language_level=3, cdivision=True
"""Rows of pgoutput and of COPY in C. Optional.

Without it `connectors.postgres.pgoutput.fast_path` and `snapshot.postgres.copying` do the same; they are the oracles.

Indexes of lists and tuples are checked, but where a function says why they need not be. C does not check pointers: each
function that is given one says what may be read from it, or checks it against an end.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromFormat, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_New
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cdc.encode.tuples cimport empty, set_item

import struct

from cdc.model.change import UNCHANGED, Change, Op, Transaction
from connectors.postgres.pgoutput.messages import POSTGRES_EPOCH_US, Begin

cdef extern from "Python.h":
    bint PyMemoryView_Check(object)
    object PyUnicode_FromFormat(const char *, ...)
    Py_buffer *PyMemoryView_GET_BUFFER(object)

cdef enum:
    FIELDS = 26  # where those of a begin or a commit are, behind the frame and the tag
    BEGIN_SIZE = FIELDS + 20
    COMMIT_SIZE = FIELDS + 25
    KEEPALIVE_SIZE = 18
    CLOCK_BITS = 62  # of a time that is taken: what is added to it does not overflow
    MOST_BYTES = 1 << 20
    HEAD = 33
    OF_RELATION = 25  # where what is the same for all rows of a relation begins

cdef object _CHANGE = Change, _BEGIN = Begin, _TRANSACTION = Transaction
cdef int64_t _EPOCH_US = POSTGRES_EPOCH_US
cdef object _UNCHANGED = UNCHANGED
cdef object _RELATION = struct.Struct(">cIcH")


cdef tuple _ROWS = (
    ("I", "N", Op.CREATE), ("U", "N", Op.UPDATE), ("U", "O", Op.UPDATE), ("U", "K", Op.UPDATE), ("D", "O", Op.DELETE),
    ("D", "K", Op.DELETE),
)


cdef inline uint32_t big4(const unsigned char *at) noexcept:
    """Of four bytes; the caller has checked that they are there. So has that of `big8`."""
    return <uint32_t>at[0] << 24 | <uint32_t>at[1] << 16 | <uint32_t>at[2] << 8 | at[3]


cdef inline uint64_t big8(const unsigned char *at) noexcept:
    return <uint64_t>big4(at) << 32 | big4(at + 4)


cdef class _Known:
    cdef object op, table
    cdef Py_ssize_t columns
    cdef bint old_first, new_behind
    cdef tuple of_key
    """Where an old row is but a key: which columns are of it."""


cdef class Straight:
    """Does what `fast_path.PlainFastPath` does, and takes deletes, and updates that say something of the old row."""

    cdef dict known, heads
    cdef uint64_t last
    cdef _Known of_last
    """What the message before began with: of the next it is nearly always the same."""

    def __init__(self):
        self.known, self.heads = {}, {}
        self.last, self.of_last = 0, None

    def learn(self, relation, columns, table, in_identity=None):
        cdef _Known one
        self.last, self.of_last = 0, None
        for head in self.heads.pop(relation, ()):
            del self.known[head]
        if in_identity is not None and len(in_identity) != columns:
            raise ValueError("an identity of another number of columns")
        if table is not None:
            heads = self.heads[relation] = []
            for tag, row, op in _ROWS if in_identity is not None else _ROWS[:2]:
                one = _Known()
                one.op, one.table, one.columns = op, table, columns
                one.old_first = row != "N"
                one.new_behind = tag == "U"
                one.of_key = tuple(in_identity) if row == "K" else None
                head = _RELATION.pack(tag.encode(), relation, row.encode(), columns)
                self.known[head] = one
                heads.append(head)

    def change(self, bytes message not None):
        return self.read(<const unsigned char *>PyBytes_AS_STRING(message), PyBytes_GET_SIZE(message))

    def changes(self, get_copy_data, int most):
        """Changes of the messages that have come, and the first message that says none; None: no more has come."""
        cdef list found = []
        cdef object data, change
        cdef Py_buffer *view
        while len(found) < most:
            got, data = get_copy_data(1)
            if not got > 0:
                return found, None, got
            if not PyMemoryView_Check(data):
                return found, bytes(data), got
            view = PyMemoryView_GET_BUFFER(data)
            change = self.read(<const unsigned char *>view.buf, view.len)
            if change is None:
                return found, bytes(data), got
            found.append(change)
        return found, None, 1

    def transactions(self, get_copy_data, more, uint64_t after, Py_ssize_t most):
        """Do as `fast_path.PlainFastPath.transactions` does, and return a plain tuple."""
        cdef list whole = [], changes = []
        cdef object data, change
        cdef const unsigned char *text
        cdef Py_buffer *view
        cdef Py_ssize_t length, count = 0, size = 0, of_one = 0
        cdef uint64_t end = 0, reached, lsn = 0
        cdef int64_t at_us = 0
        cdef uint32_t xid = 0
        cdef bint inside = False
        while count + len(changes) < most and size + of_one < MOST_BYTES:
            got, data = get_copy_data(1)
            if got == 0:
                more()
                got, data = get_copy_data(1)
            if not got > 0:
                return self.received(whole, end, inside, lsn, at_us, xid, changes, None, got)
            if not PyMemoryView_Check(data):
                return self.received(whole, end, inside, lsn, at_us, xid, changes, bytes(data), got)
            view = PyMemoryView_GET_BUFFER(data)
            text, length = <const unsigned char *>view.buf, view.len
            of_one += length
            if length == 0 or text[0] != 119:  # w
                if length != KEEPALIVE_SIZE or text[0] != 107 or text[17] != 0:  # k
                    return self.received(whole, end, inside, lsn, at_us, xid, changes, bytes(data), got)
                reached = big8(text + 1)
                if not inside:
                    end = max(end, reached)
                continue
            if inside:
                change = self.read(text, length)
                if change is not None:
                    changes.append(change)
                    continue
                if length == COMMIT_SIZE and text[FIELDS - 1] == 67 and big8(text + FIELDS + 1) == lsn:
                    if lsn >= after:
                        whole.append(transaction(lsn, at_us, xid, changes))
                    count += max(1, len(changes))
                    size += of_one
                    reached = big8(text + FIELDS + 9)
                    end = max(end, reached)
                    inside, changes, of_one = False, [], 0
                    continue
            elif length == BEGIN_SIZE and text[FIELDS - 1] == 66:
                at_us = <int64_t>big8(text + FIELDS + 8)
                if at_us >> CLOCK_BITS == 0:
                    lsn, xid, at_us, inside = big8(text + FIELDS), big4(text + FIELDS + 16), at_us + _EPOCH_US, True
                    continue
            return self.received(whole, end, inside, lsn, at_us, xid, changes, bytes(data), got)
        return self.received(whole, end, inside, lsn, at_us, xid, changes, None, 1)

    cdef tuple received(
        self, list whole, uint64_t end, bint inside, uint64_t lsn, int64_t at_us, uint32_t xid, list changes, message, got
    ):
        cdef object begun = None
        if inside:
            begun = empty(_BEGIN, 3)
            set_item(begun, 0, lsn)
            set_item(begun, 1, at_us)
            set_item(begun, 2, xid)
        return whole, end, begun, changes, message, got

    cdef object read(self, const unsigned char *text, Py_ssize_t size):
        """The change that `size` bytes from `text` say, which are HEAD at least where they say any; else None."""
        cdef Py_ssize_t at = HEAD
        cdef uint64_t head
        cdef _Known known
        cdef object change, old = None, new = None
        cdef bint holes = False
        if size < HEAD:
            return None
        memcpy(&head, text + OF_RELATION, 8)
        known = self.of_last
        if known is None or head != self.last:
            known = self.known.get(PyBytes_FromStringAndSize(<const char *>text + OF_RELATION, HEAD - OF_RELATION))
            if known is None:
                return None
            self.last, self.of_last = head, known
        if not known.old_first:
            new = row_at(text, size, &at, known.columns, None, &holes)
            if new is None:
                return None
        else:
            old = row_at(text, size, &at, known.columns, known.of_key, &holes)
            if old is None:
                return None
            if known.new_behind:
                if size - at < 3 or text[at] != 78 or (text[at + 1] << 8 | text[at + 2]) != known.columns:
                    return None
                at += 3
                holes = False
                new = row_at(text, size, &at, known.columns, None, &holes)
                if new is None or holes:  # they are filled from the old row
                    return None
        if at != size:
            return None
        change = empty(_CHANGE, 5)
        set_item(change, 0, known.op)
        set_item(change, 1, known.table)
        set_item(change, 2, old)
        set_item(change, 3, new)
        set_item(change, 4, big8(text + 1))
        return change


cdef object transaction(uint64_t lsn, int64_t at_us, uint32_t xid, list changes):
    cdef object made = empty(_TRANSACTION, 6)
    set_item(made, 0, PyUnicode_FromFormat("%u:%llu", xid, <unsigned long long>lsn))
    set_item(made, 1, xid)
    set_item(made, 2, lsn)
    set_item(made, 3, at_us // 1000)
    set_item(made, 4, changes)
    set_item(made, 5, PyBytes_FromFormat('"txId":%u,"lsn":%%d', xid))
    return made


cdef object row_at(
    const unsigned char *text, Py_ssize_t size, Py_ssize_t *begin, Py_ssize_t columns, tuple of_key, bint *holes
):
    """The columns from `begin` on, which is moved behind them; None if they are not what they should be.

    Of a key, columns that are not of it are UNCHANGED. `holes` is set where any column was not sent. Nothing is read at
    or behind `size`, and `begin` is not behind it.
    """
    cdef Py_ssize_t at = begin[0], i
    cdef tuple row = PyTuple_New(columns)
    cdef uint64_t length
    cdef unsigned char kind
    cdef object value
    for i in range(columns):
        if at >= size:
            return None
        kind = text[at]
        if kind == 116:  # t
            if size - at < 5:
                return None
            length = big4(text + at + 1)
            at += 5
            if length > <uint64_t>(size - at):
                return None
            value = PyBytes_FromStringAndSize(<const char *>text + at, length)
            at += length
        elif kind == 110:  # n
            value = None
            at += 1
        elif kind == 117:  # u
            value = _UNCHANGED
            holes[0] = True
            at += 1
        else:
            return None
        set_item(row, i, value if of_key is None or of_key[i] else _UNCHANGED)
    begin[0] = at
    return row


def copy_row(bytes line not None, Py_ssize_t columns):
    """A line of COPY's text format, newline included; None if it is not one of that many columns."""
    cdef const unsigned char *text = <const unsigned char *>PyBytes_AS_STRING(line)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(line) - 1, at = 0, begin, i
    cdef bint escaped
    cdef tuple row = PyTuple_New(columns)
    cdef object value
    if size < 0 or text[size] != 10:  # below, what is read of a field is before `at`, and that is not behind the newline
        return None
    for i in range(columns):
        begin = at
        escaped = False
        while at < size and text[at] != 9:
            if text[at] == 92:
                escaped = True
            at += 1
        if (at == size) != (i == columns - 1):
            return None
        if not escaped:
            value = PyBytes_FromStringAndSize(<const char *>text + begin, at - begin)
        elif at - begin == 2 and text[begin + 1] == 78:  # N
            value = None
        else:
            value = unescaped(text + begin, at - begin)
        set_item(row, i, value)
        at += 1
    return row


cdef bytes unescaped(const unsigned char *text, Py_ssize_t size):
    """What is written is never more than what was read: there is room for `size`."""
    cdef bytes value = PyBytes_FromStringAndSize(NULL, size)
    cdef unsigned char *to = <unsigned char *>PyBytes_AS_STRING(value)
    cdef unsigned char *first = to
    cdef Py_ssize_t at = 0
    cdef unsigned char c
    while at < size:
        c = text[at]
        if c == 92 and at + 1 < size:
            at += 1
            c = text[at]
            if c == 98:
                c = 8
            elif c == 102:
                c = 12
            elif c == 110:
                c = 10
            elif c == 114:
                c = 13
            elif c == 116:
                c = 9
            elif c == 118:
                c = 11
        to[0] = c
        to += 1
        at += 1
    return value[: to - first]
