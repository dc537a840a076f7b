"""Laws of the PostgreSQL encoders: what a JSON reader reads back is the value the server printed."""

from __future__ import annotations

import base64
import datetime as dt
import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from connectors.postgres.values import arrays, mapping, temporal

EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - timestamp without time zone

server_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
years = st.integers(-4712, 294_276)
clocks = st.times()


def day_text(year: int, month: int, day: int) -> tuple[str, str]:
    """As the server prints it: no year 0, BC at the end."""
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}", " BC" if year <= 0 else ""


def clock_text(clock: dt.time) -> str:
    """As the server prints it: no zeros at the end of a fraction."""
    fraction = f".{clock.microsecond:06d}".rstrip("0").rstrip(".")
    return f"{clock.hour:02d}:{clock.minute:02d}:{clock.second:02d}{fraction}"


def iso_clock(clock: dt.time) -> str:
    return clock.isoformat("microseconds" if clock.microsecond else "seconds")


def clock_micros(clock: dt.time) -> int:
    return ((clock.hour * 60 + clock.minute) * 60 + clock.second) * 1_000_000 + clock.microsecond


@st.composite
def dates(draw: st.DrawFn) -> tuple[int, int, int]:
    year, month = draw(years), draw(st.integers(1, 12))
    return year, month, draw(st.integers(1, month_lengths(year)[month - 1]))


def proleptic_days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 by counting: years, leap years among them, days of the months before."""
    before = year - 1
    days = before * 365 + before // 4 - before // 100 + before // 400
    return days + sum(month_lengths(year)[: month - 1]) + day - 719_163


def month_lengths(year: int) -> tuple[int, ...]:
    leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
    return (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@given(server_text)
@example('\x7f\u2028"\\/\x1f')
def test_text_round_trip(text: str) -> None:
    assert json.loads(mapping.text(text.encode())) == text


@given(server_text)
def test_text_leaves_everything_but_json_s_own_marks_alone(text: str) -> None:
    """Non-ASCII and DEL stay raw UTF-8, so the escaped text has the same bytes outside escapes."""
    raw = text.encode()
    if not any(byte < 0x20 or byte in b'"\\' for byte in raw):
        assert mapping.text(raw) == b'"%b"' % raw


@given(st.binary(max_size=8))
def test_text_is_refused_exactly_when_it_is_not_utf8(raw: bytes) -> None:
    try:
        expected = raw.decode()
    except UnicodeDecodeError:
        expected = None
    try:
        assert json.loads(mapping.text(raw)) == expected
    except ValueError:
        assert expected is None


@given(st.binary())
def test_binary(raw: bytes) -> None:
    assert base64.b64decode(json.loads(mapping.binary(b"\\x" + raw.hex().encode())), validate=True) == raw


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(-0.0)
def test_float_round_trip(number: float) -> None:
    """Python's repr and the server's output are both the shortest digits that read back."""
    text = repr(number).removesuffix(".0").encode()
    read = float(json.loads(mapping.floating(text)))
    assert (read, str(read)[0] == "-") == (number, str(number)[0] == "-")


@given(st.dictionaries(server_text, st.none() | server_text))
def test_hstore_round_trip(pairs: dict[str, str | None]) -> None:
    def quote(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = ", ".join(f"{quote(key)}=>{'NULL' if item is None else quote(item)}" for key, item in pairs.items())
    assert json.loads(json.loads(mapping.hstore(text.encode()))) == pairs


def array_out(value: Any, delimiter: str) -> str:
    """The server's own rule: quote what is empty, NULL, or has a brace, quote, backslash, white space or delimiter."""
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return "{" + delimiter.join(array_out(item, delimiter) for item in value) + "}"
    if value and value.upper() != "NULL" and not set(value) & set('{}"\\ \t\n\r\v\f' + delimiter):
        return str(value)
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


leaves = (
    st.none() | st.sampled_from(["", "NULL", "null", "{", "}", '"', "\\", "a b", ",", ";", '","', "{}"]) | server_text
)


@st.composite
def rectangles(draw: st.DrawFn) -> list[Any]:
    """Arrays of one to three dimensions, all rows as long as each other, as the server has them."""
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))

    def fill(sizes: list[int]) -> Any:
        return [fill(sizes[1:]) for _ in range(sizes[0])] if sizes else draw(leaves)

    return list(fill(shape))


@given(rectangles(), st.sampled_from([",", ";", ":"]))
def test_array_round_trip(value: list[Any], delimiter: str) -> None:
    encode = arrays.of(mapping.text, delimiter.encode())
    assert json.loads(encode(array_out(value, delimiter).encode())) == value


@given(st.lists(leaves | st.from_regex("[a-zé]+", fullmatch=True)) | rectangles())
def test_text_arrays_agree_with_the_plain_parser(value: list[Any]) -> None:
    literal = array_out(value, ",").encode()
    made = arrays.of_texts(mapping.text, b",")(literal)
    assert made == arrays.of(mapping.text, b",")(literal)
    assert json.loads(made) == value


numbers = st.none() | st.integers()


@given(st.lists(numbers) | st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=1))
def test_integer_arrays_agree_with_the_plain_parser(value: list[Any]) -> None:
    def texts(item: Any) -> Any:
        return [texts(i) for i in item] if isinstance(item, list) else item if item is None else str(item)

    literal = array_out(texts(value), ",").encode()
    assert arrays.of_integers(literal) == arrays.of(mapping.as_is, b",")(literal)


SPECIAL = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
floats_out = st.floats().map(lambda number: SPECIAL.get(repr(number), repr(number).removesuffix(".0")))


@given(st.lists(st.none() | floats_out))
def test_float_arrays_agree_with_the_plain_parser(value: list[str | None]) -> None:
    literal = array_out(value, ",").encode()
    assert arrays.of_floats(mapping.floating)(literal) == arrays.of(mapping.floating, b",")(literal)


@given(
    st.binary(max_size=30)
    | st.lists(st.sampled_from([b"{", b"}", b'"', b",", b"a", b"\\", b" ", b"NULL"])).map(b"".join)
)
def test_arrays_never_make_what_is_not_json(raw: bytes) -> None:
    """Any bytes: JSON or ValueError."""
    for encode in (arrays.of(mapping.text, b","), arrays.of_texts(mapping.text, b","), mapping.hstore):
        try:
            made = encode(b"{" + raw)
        except ValueError:
            continue
        json.loads(made)


@given(st.dates())
def test_date_as_python_counts(day: dt.date) -> None:
    assert int(temporal.date(day.isoformat().encode())) == day.toordinal() - 719_163


@given(dates())
def test_date_in_every_year(day: tuple[int, int, int]) -> None:
    text, era = day_text(*day)
    assert int(temporal.date((text + era).encode())) == proleptic_days(*day)


@given(st.datetimes())
@example(dt.datetime(1970, 1, 1))  # noqa: DTZ001
@example(dt.datetime(1970, 1, 1, 0, 0, 0, 1))  # noqa: DTZ001
def test_timestamp_as_python_counts(moment: dt.datetime) -> None:
    text = f"{day_text(moment.year, moment.month, moment.day)[0]} {clock_text(moment.time())}"
    made = temporal.timestamp_micros(text.encode())
    assert json.loads(made) == (moment - EPOCH) // dt.timedelta(microseconds=1)


@given(dates(), clocks)
def test_timestamp_in_every_year(day: tuple[int, int, int], clock: dt.time) -> None:
    text, era = day_text(*day)
    made = temporal.timestamp_micros(f"{text} {clock_text(clock)}{era}".encode())
    assert json.loads(made) == proleptic_days(*day) * 86_400_000_000 + clock_micros(clock)


@given(dates(), clocks)
def test_millis_are_micros_without_their_last_digits(day: tuple[int, int, int], clock: dt.time) -> None:
    text, era = day_text(*day)
    clock = clock.replace(microsecond=clock.microsecond // 1_000 * 1_000)
    made = temporal.timestamp_millis(f"{text} {clock_text(clock)}{era}".encode())
    assert json.loads(made) * 1_000 == proleptic_days(*day) * 86_400_000_000 + clock_micros(clock)


@given(dates(), clocks)
def test_timestamptz_in_utc_is_the_text_with_other_marks(day: tuple[int, int, int], clock: dt.time) -> None:
    (text, era), year = day_text(*day), day[0]
    made = json.loads(temporal.timestamptz(f"{text} {clock_text(clock)}+00{era}".encode()))
    shown = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}"
    assert made == f"{shown}-{day[1]:02d}-{day[2]:02d}T{iso_clock(clock)}Z"


@given(st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1)), st.integers(-57_599, 57_599))  # noqa: DTZ001
def test_timestamptz_of_other_zones(moment: dt.datetime, offset_s: int) -> None:
    """The sessions are in UTC; a zone in the text is heeded all the same."""
    text = f"{moment:%Y-%m-%d}".zfill(10) + f" {clock_text(moment.time())}{zone_text(offset_s)}"
    made = json.loads(temporal.timestamptz(text.encode()))
    assert dt.datetime.fromisoformat(made).replace(tzinfo=None) == moment - dt.timedelta(seconds=offset_s)


@given(clocks)
def test_time(clock: dt.time) -> None:
    assert json.loads(temporal.time(clock_text(clock).encode())) == clock_micros(clock)


@given(clocks, st.integers(-57_599, 57_599))
def test_timetz_is_the_same_moment_of_the_day(clock: dt.time, offset_s: int) -> None:
    made = json.loads(temporal.timetz(f"{clock_text(clock)}{zone_text(offset_s)}".encode()))
    moment = dt.datetime.combine(dt.date(2000, 1, 2), clock) - dt.timedelta(seconds=offset_s)
    assert made == iso_clock(moment.time()) + "Z"


def zone_text(offset_s: int) -> str:
    """As the server prints it: minutes and seconds only where there are any."""
    hours, rest = divmod(abs(offset_s), 3_600)
    minutes, seconds = divmod(rest, 60)
    text = f"{'-' if offset_s < 0 else '+'}{hours:02d}"
    return text + (f":{minutes:02d}" if rest else "") + (f":{seconds:02d}" if seconds else "")
