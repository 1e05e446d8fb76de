"""The paged cache of one program in a backend, with the contents of its blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lockstep.harness.backends.paged import Entry, Pool, Ring, Table, Tables
from lockstep.harness.contracts.answers import read_list
from lockstep.harness.contracts.operation import Answer, Op
from lockstep.harness.contracts.paged.checks import (
    EventBook,
    check_busy,
    check_contents,
    check_entries,
    check_evicted,
    check_pool,
    check_refusal,
    check_tables,
    list_ends,
    locate,
)
from lockstep.harness.contracts.paged.contents import Contents, Pairs
from lockstep.harness.contracts.paged.model import PagedModel, name_group
from lockstep.harness.contracts.paged.reading import (
    read_copies,
    read_entries,
    read_events,
    read_pool,
    read_tables,
)
from lockstep.harness.contracts.paged.reuse import (
    check_landed,
    check_longest,
    check_published,
    find_longest,
)
from lockstep.harness.contracts.paged.words import tell_tables
from lockstep.harness.contracts.system import (
    Reader,
    Setup,
    System,
    to_numpy,
)
from lockstep.harness.core.errors import Broken, format_plain
from lockstep.harness.core.payload import Margins

NO_TOKEN = -1


class Part(NamedTuple):
    """One group of one request in a step, which begins and ends at these positions."""

    name: str
    start: int
    end: int
    group: int
    table: Table


class PagedSystem(System):
    """Acts as the scheduler and calls a backend's cache.

    Each operation has a method with the operation's name.

    Attributes:
        cache: the cache of the backend.
        contents: the contents of all blocks.
        saved: the backend's saved store, and the contents at that time.
        told: request → its tables after the last operation.
        pool: the pool after the last operation; None if the backend does not report it.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.contents = Contents()
        self.saved: tuple[Any, Contents] | None = None
        self.told: dict[str, Tables] = {}
        self.cache = self.open_cache()
        self.events = EventBook()
        self.groups = self.config["groups"]
        self.stores = self.config["data"] == "backend"
        self.group_of = [
            number
            for number, group in enumerate(self.groups)
            for _ in range(group["layers"])
        ]
        self.readers = [
            Reader(self.backend, self.config, self.limit, layer)
            for layer in range(len(self.group_of) if self.stores else 0)
        ]
        self.pool = self.read_pool()
        self.capacity = 0 if self.pool is None else count_blocks(self.pool)

    def open_cache(self) -> Any:
        return self.backend.open({**self.config, "tells": self.declared.tells})

    def read_pool(self) -> Pool | None:
        tells = "pool" in self.declared.tells
        return read_pool(self.cache.pool()) if tells else None

    @property
    def margins(self) -> Margins:  # type: ignore[override]  # read only
        return {"attention": max((item.attention for item in self.readers), default=0.0)}

    # --- operations ---------------------------------------------------------------------

    def call(self, op: Op, *fields: str) -> Answer:
        """Calls the method of an operation with its fields; lists are overwritten
        afterwards."""
        lent = [list(op[item]) if is_list(op[item]) else op[item] for item in fields]
        answer = self.ask(lambda: getattr(self.cache, op["op"])(*lent))
        for value in lent:
            if isinstance(value, list):
                value[:] = [NO_TOKEN] * len(value)
        return answer

    def open(self, op: Op) -> Answer:
        return self.call(op, "request", "tokens", "namespace")

    def match(self, op: Op) -> Answer:
        return rename(self.call(op, "request"), "hit")

    def schedule(self, op: Op) -> Answer:
        answer = self.call(op, "request", "count")
        if "error" in answer:
            return answer
        result = answer.get("result")
        if not is_list(result):
            return {"start": result}
        start, count = read_list(result, "schedule", 2)
        if not isinstance(count, int):
            message = f"schedule returned {format_plain(count)} for a number of tokens"
            raise Broken("malformed", message)
        return {"start": start, "count": count}

    def watch_hit(self, op: Op, model: PagedModel) -> Answer:
        """Matches or schedules a request, and checks the hit of a waiting request.

        The hit must be the longest possible hit if the backend promises this.
        """
        request = model.cache.requests.get(op["request"])
        longest = 0
        if "reuse" in self.declared.tells and request and not request.is_held:
            longest = find_longest(model, request, self.list_entries())
        answer: Answer = getattr(self, op["op"])(op)
        check_longest(answer, op["request"], longest)
        return answer

    def accept(self, op: Op) -> Answer:
        return self.call(op, "request", "kept", "sampled", "drafts")

    def preempt(self, op: Op) -> Answer:
        return self.call(op, "request")

    def free(self, op: Op) -> Answer:
        return self.call(op, "request", "reuse")

    def fork(self, op: Op) -> Answer:
        return rename(self.call(op, "source", "target", "tokens"), "ok")

    def rewind(self, op: Op) -> Answer:
        return rename(self.call(op, "request", "to", "tokens"), "ok")

    def evict(self, op: Op) -> Answer:
        answer = rename(self.call(op, "count"), "evicted")
        if self.pool is not None:
            check_evicted(answer.get("evicted"), self.pool)
        return answer

    def reset(self, op: Op) -> Answer:
        return rename(self.call(op), "ok")

    # --- transfers ----------------------------------------------------------------------

    def offload(self, op: Op) -> Answer:
        answer = self.call(op, "request", "transfer")
        if "error" in answer:
            return answer
        return self.begin(op, read_copies(answer.get("result"), "offload"), True)

    def load(self, op: Op) -> Answer:
        answer = rename(self.call(op, "request", "transfer"), "loaded")
        if "error" in answer or answer["loaded"] is None:
            return answer
        end, pairs = read_list(answer["loaded"], "load", 2)
        return {"loaded": end, **self.begin(op, read_copies(pairs, "load"), False)}

    def begin(self, op: Op, pairs: Pairs, leaves: bool) -> Answer:
        self.contents.begin(op["transfer"], pairs, leaves)
        return {"copied": len(pairs)}

    def landed(self, op: Op, model: PagedModel) -> Answer:
        answer = self.call(op, "transfer")
        if "error" not in answer and op["transfer"] in self.contents.transfers:
            blocks = self.contents.transfers[op["transfer"]].list_blocks(on_host=True)
            self.contents.end(op["transfer"])
            if model.landed and self.declared.tells >= {"reuse", "host_entries"}:
                entries = self.list_host_entries()
                check_landed(model, blocks, self.contents.host, entries)
        return answer

    def failed(self, op: Op) -> Answer:
        """Ends a transfer of which at least the last copy has not arrived."""
        most = self.contents.count_copies(op["transfer"]) - 1
        arrived = min(op["arrived"], max(0, most))
        answer = self.call({**op, "arrived": arrived}, "transfer", "arrived")
        if "error" not in answer and op["transfer"] in self.contents.transfers:
            self.contents.end(op["transfer"], arrived)
        return rename(answer, "kept")

    def save(self, op: Op) -> Answer:
        answer = self.call(op)
        if "result" in answer:
            self.saved = answer["result"], self.contents.clone()
        return {"saved": "result" in answer}

    def restore(self, op: Op) -> Answer:
        """Restores the saved store into a fresh cache, with the saved contents."""
        assert self.saved is not None
        store, contents = self.saved
        self.contents, self.events = contents.clone(), EventBook()
        self.cache = self.open_cache()
        return self.ask(lambda: self.cache.restore(store))

    # --- the step -----------------------------------------------------------------------

    def run(self, step: Sequence[tuple[str, int, int]], model: PagedModel) -> Answer:
        """Acts as the model: copies blocks, then writes and reads in every layer.

        Args:
            step: (request, begin, end) for each request of the step.
            model: the reference after the step.
        """
        self.copy_blocks()
        reads = [
            Part(*item, group, table)
            for item in step
            for group, table in enumerate(self.read_tables(item[0]))
        ]
        states = [self.read_state(task) for task in reads]
        for task in reads:
            self.write(task, model)
        answers = [
            self.answer(task, state, model)
            for task, state in zip(reads, states, strict=True)
        ]
        if self.stores:
            self.move_arrays(step, answers, model)
        self.cache.run()
        return {"caches": answers}

    def copy_blocks(self) -> None:
        """Copies the blocks that the backend requests, in the backend's order."""
        self.contents.copy(read_copies(self.cache.copies(), "copies"))

    def is_state(self, group: int) -> bool:
        return bool(self.groups[group]["type"] == "state")

    def read_state(self, task: Part) -> list[Any]:
        """Reads the state before the step; returns nothing for other types of groups."""
        if not task.start or not self.is_state(task.group):
            return []
        return self.read(task, task.start - 1, task.start)

    def write(self, task: Part, model: PagedModel) -> None:
        """Writes the tokens or the state of the step to the slots in the table."""
        if isinstance(task.table, Ring):
            return
        request = model.cache.requests[task.name]
        positions: Sequence[int] = range(task.start, task.end)
        is_state = self.is_state(task.group)
        if is_state:
            block = self.groups[task.group]["block"]
            positions = [end - 1 for end in list_ends(task.start, task.end, block)]
        for position in positions:
            slot = locate(self.config, task.table, task.group, position)
            if slot is not None:
                self.contents.device[slot] = (
                    task.group,
                    model.get_tag(request, position),
                )
            elif position == task.end - 1 or not is_state:
                raise Broken(
                    "table",
                    f"position {position} of request {task.name}, group {task.group},"
                    f" has no slot in its table {list(task.table)}",
                )

    def answer(self, task: Part, state: Sequence[Any], model: PagedModel) -> Answer:
        """Returns the tokens or the state that one group reads for one request."""
        where = f"request {task.name}, {name_group(self.config, task.group)}"
        if self.is_state(task.group):
            return {"where": where, "state": list(state)}
        first = model.cache.groups[task.group].first(task.start)
        answer = {"where": where, "first": first}
        if isinstance(task.table, Ring):  # see `move_arrays`
            return answer
        return {**answer, "slots": self.read(task, first, task.end)}

    def read(self, task: Part, begin: int, end: int) -> list[Any]:
        """Reads positions: returns a tag for each, or a description of other content."""
        contents: list[Any] = []
        for position in range(begin, end):
            slot = locate(self.config, task.table, task.group, position)
            content = None if slot is None else self.contents.device.get(slot)
            if slot is None:
                contents.append("no slot")
            elif content is None:
                contents.append("nothing")
            elif content[0] != task.group:
                contents.append(f"token {content[1]} of group {content[0]}")
            else:
                contents.append(content[1])
        return contents

    # --- arrays -------------------------------------------------------------------------

    def move_arrays(
        self,
        step: Sequence[tuple[str, int, int]],
        answers: Sequence[Answer],
        model: PagedModel,
    ) -> None:
        """Lets the backend write and read K and V in each layer; extends the answers."""
        layer, groups = 0, len(model.cache.groups)
        for group, settings in enumerate(self.groups):
            for _ in range(settings["layers"]):
                move = self.move_states if self.is_state(group) else self.move_tokens
                read = move(layer, step, model)
                field = "state" if self.is_state(group) else "slots"
                for answer, seen in zip(answers[group::groups], read, strict=True):
                    where = f"{answer['where']}, layer {layer}"
                    item = {**answer, "where": where, field: seen, "layers": []}
                    answer.setdefault(field, seen)
                    answer["layers"] = [*answer.get("layers", ()), item]
                layer += 1

    def move_tokens(
        self, layer: int, step: Sequence[tuple[str, int, int]], model: PagedModel
    ) -> list[list[Any]]:
        reader = self.readers[layer]
        tags = [
            tag
            for name, start, end in step
            for tag in model.list_tags(model.cache.requests[name], start, end)
        ]
        pair = reader.feed(tags)
        with self.lend("a", "update", pair):
            answer = self.cache.update(layer, *pair)
            pairs = read_list(answer, "update", len(step))
            read = [list(reader.read(item, "update")) for item in pairs]
        if self.every and "attend" in self.declared.tells:
            self.check_attention(layer, tags, model)
        return read

    def check_attention(self, layer: int, tags: Sequence[int], model: PagedModel) -> None:
        """Compares the attention of each token of the step with double precision."""
        reader, queries = self.readers[layer], self.readers[layer].queries
        array = self.arrays.from_numpy(queries.get_vectors(tags), self.config["dtype"])
        with self.lend("a", "attend", [array]):
            attended = to_numpy(self.arrays, self.cache.attend(layer, array), "attend")
        form = [1, self.config["heads"], len(tags), self.config["value_dim"]]
        if list(attended.shape) != form:
            message = f"attend returned shape {list(attended.shape)}, not {form}"
            raise Broken("malformed", message)
        for row, seen in enumerate(self.list_seen(layer, model)):
            reader.judge(attended[0, :, row], tags[row], seen, row, "attend")

    def list_seen(self, layer: int, model: PagedModel) -> Iterator[list[int]]:
        """Lists the tags that each token of the step attends to in a layer."""
        group = model.cache.groups[self.group_of[layer]]
        for name, start, end in model.ran:
            request = model.cache.requests[name]
            for query in range(start, end):
                yield model.list_tags(request, group.first(query), query + 1)

    def move_states(
        self, layer: int, step: Sequence[tuple[str, int, int]], model: PagedModel
    ) -> list[list[Any]]:
        reader = self.readers[layer]
        states = read_list(self.cache.read_states(layer), "read_states", len(step))
        read = [
            [] if item is None else list(reader.read(item, "read_states"))
            for item in states
        ]
        ends = read_list(self.cache.list_ends(layer), "list_ends", len(step))
        tags = [
            model.get_tag(model.cache.requests[name], end - 1)
            for (name, _, _), ends_of_request in zip(step, ends, strict=True)
            for end in ends_of_request
        ]
        pair = reader.feed(tags)
        with self.lend("a", "write_states", pair):
            self.cache.write_states(layer, *pair)
        return read

    # --- what it tells ------------------------------------------------------------------

    def read_tables(self, name: str) -> Tables:
        tables = self.cache.tables(name)
        return read_tables(tables, name, len(self.groups), self.stores)

    def tell_held(self) -> dict[str, list[tuple[str, str]]]:
        """Formats the tables: the blocks, and the requests that share each block."""
        busy = self.contents.list_busy(on_host=False)
        return tell_tables(self.told, busy, self.config)

    def verify_memory(self, op: Mapping[str, Any], model: PagedModel) -> None:
        """Runs the checks that follow every operation; see `checks`."""
        holding = [name for name, item in model.cache.requests.items() if item.is_held]
        tables = self.told = {name: self.read_tables(name) for name in holding}
        self.copy_blocks()  # nothing is written before the next step
        check_tables(model, tables)
        tells = self.declared.tells
        self.pool = self.read_pool()
        if self.pool is not None:
            check_pool(tables, self.pool, self.capacity)
            idle_blocks = *self.pool.free, *self.pool.cached
            check_busy(idle_blocks, self.contents.list_busy(on_host=False), "")
            idle = self.contents.list_busy(on_host=True)
            check_busy(self.pool.idle, idle, " of other memory")
        if not model.cache.step:
            for name in holding:
                check_contents(model, name, tables[name], self.contents.device)
        entries: list[Entry] = []
        groups = len(self.groups)
        if tells & {"entries", "reuse"}:
            entries = self.list_entries()
            check_entries(model, entries, self.contents.device, tables)
        if "host_entries" in tells and self.config["host"]:
            check_entries(model, self.list_host_entries(), self.contents.host)
        if "events" in tells:
            self.events.follow(read_events(self.cache.events(), groups))
            self.events.check(entries)

    def check_published(
        self, settled: Sequence[tuple[str, int, int]], model: PagedModel
    ) -> None:
        """Checks that tokens which have just been computed, or confirmed, can be hit."""
        if "reuse" in self.declared.tells:
            check_published(model, settled, self.list_entries())

    def list_entries(self) -> list[Entry]:
        return read_entries(self.cache.entries(), len(self.groups))

    def list_host_entries(self) -> list[Entry]:
        groups = len(self.groups)
        return read_entries(self.cache.host_entries(), groups, "host_entries")

    def check_refusal(self, name: str, end: int, model: PagedModel) -> None:
        """Checks that a refused request, whose step would end at `end`, had no room."""
        if self.pool is not None:
            spare = self.capacity - self.config["blocks"]
            reserved = spare if self.config["lookahead"] else 0  # more slots for drafts
            check_refusal(model, name, end, self.told.get(name), self.pool, reserved)


def count_blocks(pool: Pool) -> int:
    return len(pool.free) + len(pool.cached) + len(pool.references)


def rename(answer: Answer, name: str) -> Answer:
    """Returns the answer with its field "result" renamed to `name`."""
    return answer if "error" in answer else {name: answer.get("result")}


def is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)
