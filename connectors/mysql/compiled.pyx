# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Row images and small transactions of the binlog in C. Optional.

Without it `connectors.mysql.rows`, `binlog` and `grouping` do the same; they are the oracles.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

import struct

from cdc.change import UNCHANGED, Change, Op
from connectors.mysql.events import Header, Rows

cdef extern from "Python.h":
    ctypedef object (*allocfunc)(PyTypeObject *, Py_ssize_t)
    ctypedef struct TypeObject "PyTypeObject":
        allocfunc tp_alloc

cdef object _CHANGE = Change
cdef object _UNCHANGED = UNCHANGED

cdef enum:
    CALLED, SIGNED, UNSIGNED, DECIMAL, DATE, DATETIME, TIMESTAMP, SIZED

cdef dict _KINDS = {
    "signed": SIGNED, "unsigned": UNSIGNED, "decimal": DECIMAL, "date": DATE, "datetime": DATETIME,
    "timestamp": TIMESTAMP,
}
cdef uint64_t[10] _TENS = [1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000]
cdef int[10] _GROUPS = [0, 1, 1, 2, 2, 3, 3, 4, 4, 4]
"""Bytes of that many digits of a DECIMAL."""


def kinds():
    """The names of values that `rows` may give."""
    return list(_KINDS)


cdef inline void set_item(object of, Py_ssize_t index, object value) noexcept:
    """PyTuple_SET_ITEM takes a reference over."""
    Py_INCREF(value)
    PyTuple_SET_ITEM(of, index, value)


cdef inline uint64_t little(const unsigned char *at, int size) noexcept:
    cdef uint64_t number = 0
    while size:
        size -= 1
        number = number << 8 | at[size]
    return number


cdef inline uint64_t big(const unsigned char *at, int size) noexcept:
    cdef uint64_t number = 0
    cdef int i
    for i in range(size):
        number = number << 8 | at[i]
    return number


cdef inline int padded(unsigned char *to, uint64_t number, int digits) noexcept:
    cdef int i = digits
    while i:
        i -= 1
        to[i] = 48 + number % 10
        number //= 10
    return digits


cdef inline int plain(unsigned char *to, uint64_t number) noexcept:
    cdef unsigned char digits[20]
    cdef int at = 20
    while True:
        at -= 1
        digits[at] = 48 + number % 10
        number //= 10
        if number == 0:
            break
    memcpy(to, digits + at, 20 - at)
    return 20 - at


cdef int decimal(unsigned char *to, const unsigned char *raw, int size, int precision, int scale) noexcept:
    """The text's size; 0 if the bytes are of no number."""
    cdef unsigned char bytes_[40]
    cdef int i, at = 0, digits, width, left, length = 0
    cdef bint negative = size > 0 and not raw[0] & 0x80, begun = False
    cdef uint64_t group
    if size < 1 or size > 40:
        return 0
    memcpy(bytes_, raw, size)
    bytes_[0] ^= 0x80
    if negative:
        for i in range(size):
            bytes_[i] ^= 0xFF
        to[0] = 45
        length = 1
    left = precision - scale
    while left:
        digits = left % 9 or 9
        width = _GROUPS[digits]
        group = big(bytes_ + at, width)
        if group >= _TENS[digits]:
            return 0
        at += width
        left -= digits
        if begun:
            length += padded(to + length, group, digits)
        elif group:
            length += plain(to + length, group)
            begun = True
    if not begun:
        to[length] = 48
        length += 1
    if not scale:
        return length
    to[length] = 46
    length += 1
    left = scale
    while left:
        digits = 9 if left > 9 else left
        width = _GROUPS[digits]
        group = big(bytes_ + at, width)
        if group >= _TENS[digits]:
            return 0
        at += width
        left -= digits
        length += padded(to + length, group, digits)
    return length


cdef inline void day(unsigned char *to, uint64_t year, uint64_t month, uint64_t of_month) noexcept:
    padded(to, year, 4)
    to[4] = 45
    padded(to + 5, month, 2)
    to[7] = 45
    padded(to + 8, of_month, 2)


cdef inline void clock(unsigned char *to, uint64_t hour, uint64_t minute, uint64_t second) noexcept:
    padded(to, hour, 2)
    to[2] = 58
    padded(to + 3, minute, 2)
    to[5] = 58
    padded(to + 6, second, 2)


cdef inline int fraction(unsigned char *to, const unsigned char *raw, int digits) noexcept:
    """Its size with the point; -1 if there are more digits than there may be."""
    cdef uint64_t number = big(raw, (digits + 1) // 2)
    if not digits:
        return 0
    if digits & 1:
        number //= 10
    if number >= _TENS[digits]:
        return -1
    to[0] = 46
    return 1 + padded(to + 1, number, digits)


cdef int datetime(unsigned char *to, const unsigned char *raw, int digits) noexcept:
    cdef uint64_t packed = big(raw, 5), months = packed >> 22 & 0x1FFFF, hours = packed >> 12 & 31
    cdef int more = fraction(to + 19, raw + 5, digits)
    if not packed >> 39 or more < 0 or months // 13 > 9999:
        return 0
    day(to, months // 13, months % 13, packed >> 17 & 31)
    to[10] = 32
    clock(to + 11, hours, packed >> 6 & 63, packed & 63)
    return 19 + more


cdef int timestamp(unsigned char *to, const unsigned char *raw, int digits) noexcept:
    """http://howardhinnant.github.io/date_algorithms.html#civil_from_days"""
    cdef uint64_t seconds = big(raw, 4), of_day = seconds % 86400
    cdef uint64_t days = seconds // 86400 + 719468, era = days // 146097, of_era = days - era * 146097
    cdef uint64_t year_of_era = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    cdef uint64_t of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    cdef uint64_t shifted = (5 * of_year + 2) // 153, month = shifted + 3 if shifted < 10 else shifted - 9
    cdef int more = fraction(to + 19, raw + 4, digits)
    if not seconds or more < 0:
        return 0
    day(to, year_of_era + era * 400 + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1)
    to[10] = 32
    clock(to + 11, of_day // 3600, of_day // 60 % 60, of_day % 60)
    return 19 + more


cdef class _Step:
    cdef int kind, size, first, second
    cdef int bit
    """Of the null bits; -1 where the column has no NULL."""
    cdef object unpack, text


cdef class Image:
    """`rows._compiled`: what reads one image with these columns in it, of a body and where it begins."""

    cdef list steps
    """None for a column that is not in it."""
    cdef int bits

    def __init__(self, forms, nullable, present):
        """`forms` as `rows` has them: (text's name and two numbers, layout, what makes text of it) or (size, text)."""
        cdef _Step step
        cdef int bit = 0
        self.steps = []
        for form, may_be_null, there in zip(forms, nullable, present, strict=True):
            if not there:
                self.steps.append(None)
                continue
            step = _Step()
            step.bit = bit if may_be_null else -1
            bit += 1
            if len(form) == 2:
                step.kind = SIZED
                step.size, step.text = form
            else:
                told, layout, step.text = form
                name, step.first, step.second = told or ("", 0, 0)
                step.kind = _KINDS.get(name, CALLED)
                step.size = struct.calcsize("<" + layout)
                step.unpack = struct.Struct("<" + layout).unpack_from
            self.steps.append(step)
        self.bits = (bit + 7) // 8

    def __call__(self, bytes body, Py_ssize_t at):
        row = self.read(body, &at)
        return row, at

    cdef tuple read(self, bytes body, Py_ssize_t *at):
        cdef const unsigned char *text = <const unsigned char *>PyBytes_AS_STRING(body)
        cdef Py_ssize_t end = PyBytes_GET_SIZE(body), p = at[0] + self.bits, i, count = len(self.steps), size
        cdef const unsigned char *nulls = text + at[0]
        cdef tuple row = PyTuple_New(count)
        cdef _Step step
        cdef object value
        cdef unsigned char made[96]
        cdef int length
        cdef int64_t number
        if p > end:
            raise IndexError
        for i in range(count):
            step = self.steps[i]
            if step is None:
                set_item(row, i, _UNCHANGED)
                continue
            if step.bit >= 0 and nulls[step.bit >> 3] >> (step.bit & 7) & 1:
                set_item(row, i, None)
                continue
            if step.size > end - p:
                raise IndexError
            if step.kind == SIZED:
                size = <Py_ssize_t>little(text + p, step.size)
                p += step.size
                if size > end - p:
                    raise IndexError
                value = PyBytes_FromStringAndSize(<const char *>text + p, size)
                if step.text is not None:
                    value = step.text(value)
                set_item(row, i, value)
                p += size
                continue
            length = 0
            if step.kind == SIGNED:
                number = <int64_t>(little(text + p, step.size) << (64 - 8 * step.size)) >> (64 - 8 * step.size)
                if number < 0:
                    made[0] = 45
                    length = 1 + plain(made + 1, 0 - <uint64_t>number)
                else:
                    length = plain(made, number)
            elif step.kind == UNSIGNED:
                length = plain(made, little(text + p, step.size))
            elif step.kind == DECIMAL:
                length = decimal(made, text + p, step.size, step.first, step.second)
            elif step.kind == DATETIME:
                length = datetime(made, text + p, step.first)
            elif step.kind == TIMESTAMP:
                length = timestamp(made, text + p, step.first)
            elif step.kind == DATE:
                number = little(text + p, 3)
                if number >> 9 <= 9999:
                    day(made, number >> 9, number >> 5 & 15, number & 31)
                    length = 10
            if length:
                value = PyBytes_FromStringAndSize(<const char *>made, length)
            else:
                value = step.text(*step.unpack(body, p))
            set_item(row, i, value)
            p += step.size
        at[0] = p
        return row


def images(Image before, Image after, bytes body):
    """What `rows.Reader` gives of all rows of an event. Raises IndexError for one that ends early."""
    cdef Py_ssize_t at = 0, end = PyBytes_GET_SIZE(body)
    cdef list found = []
    cdef object old, new
    while at < end:
        old = None if before is None else before.read(body, &at)
        new = None if after is None else after.read(body, &at)
        found.append((old, new))
    return found


def changes(op, table, Image before, Image after, bytes body, offset):
    """The same as changes; `offset` is where the event begins."""
    cdef Py_ssize_t at = 0, end = PyBytes_GET_SIZE(body), number = 0
    cdef list found = []
    cdef object change, old, new
    while at < end:
        old = None if before is None else before.read(body, &at)
        new = None if after is None else after.read(body, &at)
        change = (<TypeObject *>_CHANGE).tp_alloc(<PyTypeObject *>_CHANGE, 5)
        set_item(change, 0, op)
        set_item(change, 1, table)
        set_item(change, 2, old)
        set_item(change, 3, new)
        set_item(change, 4, (offset, number))
        found.append(change)
        number += 1
    return found


# ---- transactions ----

cdef uint32_t[8][256] _CRC


cdef void _fill_crc() noexcept:
    """https://create.stephan-brumme.com/crc32/#slicing-by-8-overview"""
    cdef uint32_t crc
    cdef int i, j
    for i in range(256):
        crc = i
        for j in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
        _CRC[0][i] = crc
    for i in range(256):
        for j in range(1, 8):
            _CRC[j][i] = _CRC[j - 1][i] >> 8 ^ _CRC[0][_CRC[j - 1][i] & 0xFF]


_fill_crc()


cdef uint32_t crc32(const unsigned char *at, Py_ssize_t size) noexcept:
    cdef uint32_t crc = 0xFFFFFFFF, one, two
    while size >= 8:
        one = <uint32_t>little(at, 4) ^ crc
        two = <uint32_t>little(at + 4, 4)
        crc = (
            _CRC[7][one & 0xFF] ^ _CRC[6][one >> 8 & 0xFF] ^ _CRC[5][one >> 16 & 0xFF] ^ _CRC[4][one >> 24]
            ^ _CRC[3][two & 0xFF] ^ _CRC[2][two >> 8 & 0xFF] ^ _CRC[1][two >> 16 & 0xFF] ^ _CRC[0][two >> 24]
        )
        at += 8
        size -= 8
    while size:
        crc = crc >> 8 ^ _CRC[0][(crc ^ at[0]) & 0xFF]
        at += 1
        size -= 1
    return ~crc


cdef enum:
    PACKET_HEAD = 4
    EVENT_HEAD = 19
    CRC_SIZE = 4
    GTID_SIZE = 49
    MOST = 1 << 16  # bytes of a transaction that is looked at: of longer ones, events are read one by one
    WHOLE = 0xFFFFFF

cdef object _HEADER = Header, _ROWS = Rows
cdef tuple _OPS = (Op.CREATE, Op.UPDATE, Op.DELETE)


cdef object rows_event(const unsigned char *event, Py_ssize_t end, int kind, uint64_t *table):
    """As `straight` reads it; None for what is laid out otherwise."""
    cdef Py_ssize_t at = EVENT_HEAD + 8, bits, body
    cdef int op = (kind - 23) % 7
    cdef uint64_t columns
    if kind >= 30:
        if end < at + 2 or little(event + at, 2) < 2:
            return None
        at += little(event + at, 2)
    if end <= at:
        return None
    table[0] = little(event + EVENT_HEAD, 6)
    columns = event[at]
    at += 1
    bits = (columns + 7) // 8
    body = at + 2 * bits if op == 1 else at + bits
    if columns >= 0xFB or body > end:
        return None
    cdef object header = (<TypeObject *>_HEADER).tp_alloc(<PyTypeObject *>_HEADER, 6)
    set_item(header, 0, little(event, 4))
    set_item(header, 1, kind)
    set_item(header, 2, little(event + 5, 4))
    set_item(header, 3, little(event + 9, 4))
    set_item(header, 4, little(event + 13, 4))
    set_item(header, 5, little(event + 17, 2))
    cdef object made = (<TypeObject *>_ROWS).tp_alloc(<PyTypeObject *>_ROWS, 8)
    set_item(made, 0, header)
    set_item(made, 1, _OPS[op])
    set_item(made, 2, table[0])
    set_item(made, 3, little(event + EVENT_HEAD + 6, 2))
    set_item(made, 4, columns)
    set_item(made, 5, PyBytes_FromStringAndSize(<const char *>event + at, bits) if op != 0 else b"")
    set_item(made, 6, PyBytes_FromStringAndSize(<const char *>event + body - bits, bits) if op != 2 else b"")
    set_item(made, 7, PyBytes_FromStringAndSize(<const char *>event + body, end - body))
    return made


def transaction(bytearray buffer, Py_ssize_t begin, bint checksum, dict begins, dict maps):
    """A transaction of MySQL that lies whole in `buffer`, as packets from `begin` on: GTID, BEGIN, maps and rows, XID.

    Gives where it ends in the buffer, and (server_id, seconds, uuid, gno, microseconds of its commit, its offset in the
    file, its last event's, where it ends; no uuid where it has no GTID) and its rows: (table map, rows, offset). None if any of it is not there yet,
    is longer than small, does not match its checksum, or is nothing that was seen before: then nothing has been taken.

    `begins` are the statements known as BEGIN, by their bytes; `maps` the table maps, by theirs.
    """
    cdef const unsigned char *text = <const unsigned char *>PyByteArray_AS_STRING(buffer)
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(buffer), at = begin, length, end
    cdef const unsigned char *event
    cdef int kind, seen = 0
    cdef uint64_t end_pos, begin_pos = 0, gno = 0, at_us = 0, table = 0, server = 0, seconds = 0, packed
    cdef bytes uuid = b""
    cdef list found = []
    cdef dict of_table = {}
    cdef object told, rows
    while True:
        if size - at < PACKET_HEAD + 1 + EVENT_HEAD + CRC_SIZE or at - begin > MOST:
            return None
        length = little(text + at, 3)
        if length == WHOLE or length > size - at - PACKET_HEAD or length < 1 + EVENT_HEAD + CRC_SIZE:
            return None
        event = text + at + PACKET_HEAD + 1
        if text[at + PACKET_HEAD] != 0:
            return None
        length -= 1
        kind, end_pos = event[4], little(event + 13, 4)
        if <Py_ssize_t>little(event + 9, 4) != length or end_pos < <uint64_t>length:
            return None
        end = length
        if checksum:
            end -= CRC_SIZE
            if crc32(event, end) != <uint32_t>little(event + end, 4):
                return None
        at += PACKET_HEAD + 1 + length
        if seen == 0:
            if (kind != 33 and kind != 34) or end <= EVENT_HEAD + GTID_SIZE or event[EVENT_HEAD + 25] != 2:
                return None
            if event[EVENT_HEAD + GTID_SIZE - 1] & 0x80:
                return None
            packed = event[EVENT_HEAD + GTID_SIZE]
            if packed >= 0xFB and (not 0xFC <= packed <= 0xFD or EVENT_HEAD + GTID_SIZE + <Py_ssize_t>packed - 0xFA >= end):
                return None
            if kind == 33:
                uuid = PyBytes_FromStringAndSize(<const char *>event + EVENT_HEAD + 1, 16)
            gno = little(event + EVENT_HEAD + 17, 8)
            at_us = little(event + EVENT_HEAD + 42, 7)
            server, seconds = little(event + 5, 4), little(event, 4)
            if at_us < 1000 and (at_us or not seconds):  # its end says when it was
                return None
            begin_pos = end_pos - length
            seen = 1
        elif seen == 1:
            if kind != 2 or end < EVENT_HEAD + 8:
                return None
            if PyBytes_FromStringAndSize(<const char *>event + EVENT_HEAD + 8, end - EVENT_HEAD - 8) not in begins:
                return None
            seen = 2
        elif kind == 19:
            told = maps.get((PyBytes_FromStringAndSize(<const char *>event + EVENT_HEAD, end - EVENT_HEAD), False))
            if told is None:
                return None
            of_table[told[1]] = told
        elif 23 <= kind <= 25 or 30 <= kind <= 32:
            rows = rows_event(event, end, kind, &table)
            if rows is None:
                return None
            told = of_table.get(table)
            if told is None:
                return None
            found.append((told, rows, end_pos - length))
        elif kind == 16:
            if end != EVENT_HEAD + 8:
                return None
            return at, (server, seconds, uuid, gno, at_us, begin_pos, end_pos - length, end_pos), found
        elif kind != 29:  # the statement behind the rows
            return None


def text_rows(bytes seen, Py_ssize_t columns, int number):
    """Rows of a result, as packets of a text protocol: (bytes taken, the next packet's number, rows).

    Ends before what is not there whole, and before what is not a row or not in order. An empty row of one column looks
    like the result's end to nobody: its packet is longer.
    https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_query_response_text_resultset_row.html
    """
    cdef const unsigned char *text = <const unsigned char *>PyBytes_AS_STRING(seen)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(seen), at = 0, p, end, i
    cdef uint64_t length
    cdef unsigned char first
    cdef list rows = []
    cdef tuple row
    cdef object value
    while size - at > PACKET_HEAD:
        length = little(text + at, 3)
        if length == 0 or length == WHOLE or length > <uint64_t>(size - at - PACKET_HEAD) or text[at + 3] != number:
            break
        p = at + PACKET_HEAD
        end = p + length
        if text[p] >= 0xFE:
            break
        row = PyTuple_New(columns)
        for i in range(columns):
            if p >= end:
                break
            first = text[p]
            p += 1
            if first == 0xFB:
                set_item(row, i, None)
                continue
            length = first
            if first > 0xFB:
                if first > 0xFD or end - p < first - 0xFA:
                    break
                length = little(text + p, first - 0xFA)
                p += first - 0xFA
            if length > <uint64_t>(end - p):
                break
            value = PyBytes_FromStringAndSize(<const char *>text + p, length)
            set_item(row, i, value)
            p += length
        else:
            if p != end:
                break
            rows.append(row)
            at = end
            number = (number + 1) % 256
            continue
        break
    return at, number, rows
