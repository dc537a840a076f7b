"""Many searches at once: which of them find a text, without asking each one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_apply.views.search.query import Asked, Search, finds
from spark_apply.views.search.words import places


class KeptSearches:
    """Searches by number. A text is compared with those alone of which it holds a word that they need."""

    def __init__(self) -> None:
        self._searches: list[tuple[int, Search]] = []
        self._by_word: dict[str, list[int]] = {}

    def add(self, number: int, asked: Asked) -> None:
        place = len(self._searches)
        self._searches.append((number, asked.search))
        for word in asked.needs:
            self._by_word.setdefault(word, []).append(place)

    def __bool__(self) -> bool:
        return bool(self._searches)

    def finding(self, texts: Sequence[str | None]) -> Iterator[int]:
        """Yield the numbers of the searches that find a row with these texts, each once."""
        text = places(texts)
        asked = [self._by_word[word] for word in text if word in self._by_word]
        for place in asked[0] if len(asked) == 1 else sorted({each for of in asked for each in of}):
            number, search = self._searches[place]
            if finds(search, text):
                yield number
