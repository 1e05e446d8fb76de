"""Both sides of a prefix program, the reference model and the system under test: what all
kinds share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.harness.backends.backend import Backend
from lockstep.harness.contracts.operation import Answer, Config, Held, Op, Source

MOST_TOLD = 24
"""Conversations that are remembered to draw others from."""

Path = Sequence[int]
"""The tokens of a conversation, from its beginning on."""


class PrefixModel(ABC):
    """The reference of one program.

    An operation is carried out by the method of its name, or of its `act`:

    * begin: opens a request.
    * feed: computes a pass, the whole or the first `layers` of it, and adds the tokens
      that were generated.
    * close: ends a request, whether by close or by cancel.
    * refuse: makes the caches below refuse the next time.

    Attributes:
        tag: the tag of the next token.
        fed: the tags of the last pass; may be left empty if `rows` is false.
        broken: the users whose last pass broke off.
        refusing: what refuses the next time it is asked, although it could.
        past: what happened lately, for the abstract states.
        told: the latest conversations, to draw others from.
        alphabet, reach: the tokens that are drawn, and the longest request.
    """

    has_users = False
    """Each request belongs to a user, and an operation without one is skipped; of others
    it is a mistake of usage."""

    def __init__(self, config: Config, rows: bool = True) -> None:
        self.config, self.rows = config, rows
        self.tag = 0
        self.fed: Sequence[int] = ()
        self.broken: set[str] = set()
        self.past: set[str] = set()
        self.told: deque[list[int]] = deque(maxlen=MOST_TOLD)
        self.alphabet: Path = (1, 2, 3)
        self.reach = 12

    # --- the open requests --------------------------------------------------------------

    @abstractmethod
    def is_open(self, user: str) -> bool:
        """Whether the user has an open request."""

    @abstractmethod
    def get_request(self, user: str) -> list[int]:
        """All tokens of the open request of a user."""

    @abstractmethod
    def get_remaining(self, user: str) -> list[int]:
        """Those that are still to be computed; none if no request is open."""

    def is_broken(self, user: str) -> bool:
        """Whether the last pass of the request broke off."""
        return user in self.broken

    @abstractmethod
    def draw_user(self, source: Source) -> dict[str, str]:
        """The field `user` of a user with an open request; {} for the first user."""

    @abstractmethod
    def draw_new_user(self, source: Source) -> dict[str, str] | None:
        """The same for a user who can begin one now, or None."""

    # --- what is held -------------------------------------------------------------------

    @abstractmethod
    def list_stored(self) -> list[list[int]]:
        """The conversations that a request can reuse, as far as they go."""

    @abstractmethod
    def get_oldest(self) -> list[int]:
        """The one of them that was not used for the longest time."""

    def list_partings(self) -> Mapping[Path, Sequence[Path]]:
        """Each path that was captured because conversations part there → the stored paths
        behind it that were used before it."""
        return {}

    def get_facts(self, op: Op) -> Mapping[str, int]:
        """whole: 1 if something is stored that ends with the last token asked for."""
        return {"whole": int(op.get("tokens") in self.list_stored())}

    @abstractmethod
    def list_held(self, op: Op) -> Sequence[Held]:
        """The content of each cache below."""

    @abstractmethod
    def list_live(self) -> Mapping[int, int]:
        """tag → position of what some cache holds now."""


# --- the system under test --------------------------------------------------------------

NO_TOKEN = -1


class PrefixSystem(ABC):
    """The cache of one program in a backend.

    It has the same methods as `PrefixModel` for operations, with the reference after the
    operation, here and below, as one more argument.

    Attributes:
        builds_on: the backend builds it on caches that it is given.
        given: the config that it was opened with.
    """

    cache: Any
    given: Config

    def __init__(self, backend: Backend, config: Config) -> None:
        self.backend, self.config = backend, config
        self.builds_on = backend.contracts["prefix"][config["kind"]].builds_on

    def open(self, caches: Sequence[Any], below: Sequence[Any]) -> None:
        """Opens the cache.

        Args:
            caches: those that it may build on.
            below: their configs, whether it builds on them or brings its own.
        """
        own = {"poison": self.backend.poison, "below": below}
        self.given = {**self.config, **own, "caches": caches if self.builds_on else None}
        self.cache = self.backend.open(self.given)

    @abstractmethod
    def ask(self, call: Callable[[], Any]) -> Answer:
        """{"result": value} or {}; {"error": name, "why": in its words} if refused."""

    def lend(self, call: Callable[[list[int]], Any], tokens: Sequence[int]) -> Answer:
        """Asks with a list of tokens that is the caller's: it is written over later."""
        lent = list(tokens)
        answer = self.ask(lambda: call(lent))
        lent[:] = [NO_TOKEN] * len(lent)
        return answer

    @abstractmethod
    def verify_attention(self, model: Any) -> None:
        """Puts the last pass through the framework's attention."""
