"""The paged cache of one program in a backend, with the contents of its blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import chain, count
from typing import Any, NamedTuple

from lockstep.harness.backends.paged import Entry, Pool, Ring, Table, Tables
from lockstep.harness.contracts.answers import read_index, read_list, require_index
from lockstep.harness.contracts.operation import Answer, Config, Op
from lockstep.harness.contracts.paged import checks, reading
from lockstep.harness.contracts.paged.contents import (
    Contents,
    Memory,
    Need,
    Slot,
    copy_blocks,
    list_handed_over,
    list_state_positions,
    locate,
    name_rank,
)
from lockstep.harness.contracts.paged.model import (
    PagedModel,
    Segment,
    Step,
    can_lag,
    list_groups,
    name_group,
)
from lockstep.harness.contracts.system import Reader, Setup, System, to_numpy
from lockstep.harness.core.errors import Broken
from lockstep.harness.core.payload import Margins
from lockstep.reference.paged import Request

NO_TOKEN = -1


Settled = Sequence[tuple[str, int, int]]
"""(request, begin, end) of tokens that have just become known and computed."""


class GroupStep(NamedTuple):
    """The tokens of one request in a step, and its table in one group.

    Attributes:
        slots: for each position of the step, the slots that the backend writes; empty if
            it does not tell them.
    """

    segment: Segment
    group: int
    table: Table
    slots: Sequence[Sequence[Slot]]

    def locate(self, config: Config, position: int) -> list[Slot]:
        return locate(config, self.table, self.group, position, self.segment.length)

    def list_written(self, config: Config, position: int) -> Sequence[Slot]:
        """Lists the slots to which the step writes a position."""
        at = position - self.segment.start
        return self.slots[at] if self.slots else self.locate(config, position)


class Flight(NamedTuple):
    """A launched step.

    Attributes:
        step: for each request, its segment, the tables that the backend returned at the
            launch, and a copy of these tables.
        tasks: the writes and reads of each group for each request.
        copies: the blocks to copy after the step, for later steps.
        entries: the entries after this and later launches and finishes, if the backend
            promises "reuse".
    """

    step: Sequence[tuple[Segment, Any, Tables]]
    tasks: Sequence[GroupStep]
    copies: list[tuple[int, int]]
    entries: list[Entry]


class Sending(NamedTuple):
    """A transfer to another cache.

    Attributes:
        request: the request whose content is sent.
        contents: each content that is sent, and its slot.
    """

    request: Request
    contents: Sequence[tuple[Slot, Need]]


class PagedSystem(System):
    """Acts as the scheduler and calls a backend's cache.

    Attributes:
        cache: the cache of the backend.
        contents: the contents of all blocks.
        events: the number of entries of each prefix that result from all events.
        prefixes: the prefixes that had entries after the last operation.
        owners: block → the first group with an entry that names the block.
        is_shared: whether blocks serve any group.
        saved: the backend's saved store, and the contents at that time.
        sending, sent: the transfers to another cache that are in progress, by name, and
            those that have landed.
        pinnable: transfer → the blocks that its request had when it began.
        tables: request → its tables after the last operation.
        pool: the pool after the last operation; None if the backend does not report it.
        group_of: the group of each layer.
        sources: for each layer, the layer whose K and V it reads, mostly itself.
        flights: the launched steps, the oldest first.
        attended: judges the attention of each token of the last step.
        capacity, host_capacity: the initial numbers of device blocks and of idle blocks
            of other memory; 0 for unreported blocks.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.contents, self.events = Contents(), Counter[checks.Prefix]()
        self.prefixes: set[checks.Prefix] = set()
        self.owners: dict[int, int] = {}
        self.is_shared = len(self.config["groups"]) == 1
        self.saved: tuple[Any, Contents] | None = None
        self.sending: dict[str, Sending] = {}
        self.pinnable: dict[str, set[int]] = {}
        self.sent: list[Sending] = []
        self.tables: dict[str, Tables] = {}
        self.flights: list[Flight] = []
        self.attended: list[Callable[[], None]] = []
        self.cache = self.open_cache()
        self.groups = self.config["groups"]
        self.stores = self.config["data"] == "backend"
        self.group_of = list_groups(self.config)
        self.sources = [*range(len(self.group_of)), *self.config["reads"]]
        self.group_of += [self.group_of[owner] for owner in self.config["reads"]]
        self.readers = [
            Reader(self.backend, self.config, self.limit, layer)
            for layer in range(len(self.group_of) if self.stores else 0)
        ]
        self.pool = self.read_pool()
        self.capacity = self.host_capacity = 0
        if self.pool is not None:
            references, free, cached, _, idle = self.pool
            self.capacity = len(references) + len(free) + len(cached)
            self.host_capacity = len(idle)

    def open_cache(self, **sizes: int) -> Any:
        config = {**self.config, **sizes, "tells": self.declared.tells}
        return self.backend.open(config)

    def read_pool(self) -> Pool | None:
        tells = "pool" in self.declared.tells
        return reading.read_pool(self.cache.pool()) if tells else None

    @property
    def margins(self) -> Margins:  # type: ignore[override]  # read only
        return {"attention": max((item.attention for item in self.readers), default=0.0)}

    # --- operations ---------------------------------------------------------------------

    def call(self, op: Op, fields: Iterable[str], result: str = "") -> Answer:
        """Calls the method of an operation. Overwrites the passed lists afterwards,
        because the backend must not keep them.

        Args:
            op: the operation.
            fields: the fields that are the method's arguments, in order.
            result: the field of the answer that takes the returned value.
        """
        lent = [list(op[item]) if is_list(op[item]) else op[item] for item in fields]
        answer = self.ask(lambda: getattr(self.cache, op["op"])(*lent))
        for value in lent:
            if isinstance(value, list):
                value[:] = [NO_TOKEN] * len(value)
        if result and "error" not in answer:
            return {result: answer.get("result")}
        return answer

    def watch_hit(
        self, op: Op, fields: Iterable[str], result: str, model: PagedModel
    ) -> Answer:
        """Matches or schedules a request, and checks the hit of a waiting request.

        The hit must be the longest possible hit if the backend promises this.
        """
        request = model.cache.requests.get(op["request"])
        longest = 0
        if "reuse" in self.declared.tells and request and not request.is_held:
            longest = checks.find_longest(model, request, self.list_entries())
        answer = self.call(op, fields, result)
        if result == "start" and is_list(answer.get(result)):
            length = 3 if len(answer[result]) == 3 else 2
            start, count, *preempted = read_list(answer[result], "schedule", length)
            count = reading.read_number("schedule", count, "a number of tokens")
            answer = {"start": start, "count": count}
            if preempted and (names := read_list(preempted[0], "schedule")):
                answer["preempted"] = names
        checks.check_longest(answer, op["request"], longest)
        return answer

    # --- transfers ----------------------------------------------------------------------

    def begin(self, op: Op, copies: Any, leaves: bool) -> Answer:
        """Begins a transfer; returns {"copied": the number of the backend's copies}."""
        pairs = reading.read_copies(copies, op["op"])
        self.contents.begin(op["transfer"], pairs, leaves)
        self.note_blocks(op)
        return {"copied": len(pairs)}

    def send(self, op: Op, answer: Any, model: PagedModel) -> Answer:
        """Begins to copy blocks to another cache, which must get all that it needs."""
        blocks = reading.read_blocks("send", read_list(answer, "send"))
        name = op["request"]
        request = model.cache.requests[name]
        end = min(request.computed, len(request.tokens))
        tables = self.read_tables(name)
        slots = [*list_handed_over(model, name, tables, end)]
        earlier = [*self.sending.values(), *self.sent]
        had = {
            need
            for item in earlier
            if item.request is request
            for _, need in item.contents
        }
        checks.check_complete(name, slots, blocks, had)
        # Sent blocks also contain what lies before a window, if it is still there.
        whole = list_handed_over(model, name, tables, end, is_whole=True)
        needed, stored = {need for _, need in slots}, self.contents.device
        sent = [
            (slot, need)
            for slot, need in whole
            if slot and slot[0] in blocks
            if need in needed or stored.get(slot) == need.held
        ]
        self.sending[op["transfer"]] = Sending(request, sent)
        return self.begin_remote(op, blocks, leaves=True, memory={})

    def receive(self, op: Op, answer: Any, model: PagedModel) -> Answer:
        """Begins to copy blocks from another cache, which has all content."""
        name, end = op["request"], op["end"]
        blocks = reading.read_blocks("receive", read_list(answer, "receive"))
        slots = list_handed_over(model, name, self.read_tables(name), end, is_whole=True)
        memory = {slot: need.held for slot, need in slots if slot}
        return self.begin_remote(op, blocks, leaves=False, memory=memory)

    def begin_remote(
        self, op: Op, blocks: Sequence[int], leaves: bool, memory: Memory
    ) -> Answer:
        """Begins to copy blocks from or to the memory of another cache, in which they
        have the same numbers."""
        pairs = [(block, block) for block in blocks]
        self.contents.begin(op["transfer"], pairs, leaves, memory)
        self.note_blocks(op)
        return {"copied": len(blocks)}

    def note_blocks(self, op: Op) -> None:
        """Notes the blocks of the request of a transfer. A backend may pin all of these
        until the transfer ends."""
        tables = self.read_tables(op["request"])
        listed = (checks.list_blocks(table) for table in tables)
        self.pinnable[op["transfer"]] = {*chain.from_iterable(listed)}

    def land(self, op: Op, model: PagedModel) -> None:
        """Ends a transfer whose blocks have all been copied."""
        if op["transfer"] not in self.contents.transfers:
            return
        transfer = self.contents.transfers[op["transfer"]]
        blocks = transfer.list_blocks(on_host=True)
        self.contents.end(op["transfer"])
        if op["transfer"] in self.sending:
            self.sent.append(self.sending.pop(op["transfer"]))
            checks.check_sent(op["transfer"], transfer, self.sent[-1].contents)
        self.compared["host_entries due"] += bool(model.landed and blocks)
        if model.landed and self.declared.tells >= {"reuse", "host_entries"}:
            host = self.contents.host
            checks.check_landed(model, blocks, host, self.list_host_entries())

    def fail(
        self, op: Op, fields: Iterable[str], result: str, model: PagedModel
    ) -> Answer:
        """Ends a transfer whose last copy, or several copies, have not arrived."""
        transfer, arrived = self.contents.transfers.get(op["transfer"]), 0
        if transfer is not None:
            arrived = min(op["arrived"], max(0, len(transfer.pairs) - 1))
        answer = self.call({**op, "arrived": arrived}, fields, result)
        if "error" not in answer and transfer is not None:
            self.contents.end(op["transfer"], arrived)
            self.sending.pop(op["transfer"], None)
        return answer

    def restore(self, blocks: int | None) -> Answer:
        """Restores the saved store into a fresh cache, with the saved contents.

        With `blocks`, restores the store of a cache with this number of blocks.
        """
        if blocks is not None:
            if not self.declares({"blocks": blocks}):
                return {"error": "usage"}  # there is no such cache
            target, source = self.open_cache(), self.open_cache(blocks=blocks)
            return self.ask(lambda: target.restore(source.save()))
        assert self.saved is not None
        store, contents = self.saved
        self.contents = contents.clone()
        self.flights.clear()
        self.sending.clear()
        self.events.clear()
        self.cache = self.open_cache()
        return self.ask(lambda: self.cache.restore(store))

    # --- the step -----------------------------------------------------------------------

    def run_step(self, model: PagedModel) -> Answer:
        """Launches and finishes a step at once; `model` is the reference after the
        step."""
        self.prepare(model.ran)
        return self.execute(partial(self.cache.run, *self.list_lags(model.ran)), model)

    def launch_step(self, model: PagedModel) -> Answer:
        self.prepare(model.flights[-1])
        self.cache.launch(*self.list_lags(model.flights[-1]))
        self.note_entries()
        return {}

    def note_entries(self) -> None:
        """Notes the entries that the tokens of launched steps may have already."""
        for flight in self.flights if "reuse" in self.declared.tells else ():
            flight.entries.extend(self.list_entries())

    def list_lags(self, step: Step) -> list[bool]:
        """Lists the arguments of `run` and `launch`."""
        return [step[0].lags] * can_lag(self.config)

    def finish_step(self, model: PagedModel) -> Answer:
        outputs = [model.outputs] * self.config["overlap"]
        return self.execute(partial(self.cache.finish, *outputs), model)

    def prepare(self, step: Step) -> None:
        """Records a launched step: the tables of its requests, its writes and reads."""
        self.copy_blocks()
        told = [(segment, self.cache.tables(segment.name)) for segment in step]
        kept = [
            (segment, tables, self.freeze(tables, segment.name))
            for segment, tables in told
        ]
        tasks = [
            GroupStep(segment, *item)
            for segment, _, copy in kept
            for item in zip(count(), copy, self.read_slots(segment), strict=False)
        ]
        self.flights.append(Flight(kept, tasks, [], []))

    def execute(self, end: Callable[[], object], model: PagedModel) -> Answer:
        """Acts as the model in the oldest step: writes and reads in every layer, then
        copies blocks for later steps.

        Args:
            end: tells the backend that the step has ended.
            model: the reference after the step.
        """
        flight = self.flights.pop(0)
        self.check_frozen(flight)
        states = [
            self.read(task, task.segment.start - 1, task.segment.start)
            if self.is_state(task.group) and task.segment.start
            else []
            for task in flight.tasks
        ]
        for task in flight.tasks:
            self.write(task, self.contents.device, model)
        pairs = zip(flight.tasks, states, strict=True)
        answers = [self.answer(task, state, model) for task, state in pairs]
        if self.stores:
            self.move_arrays(flight, answers, model)
        end()
        self.note_entries()
        self.contents.copy(flight.copies)
        settled = [segment[:3] for segment in model.returned]
        self.check_published(settled, model, flight.entries)
        both = zip(flight.tasks, answers, strict=True)
        return {"caches": [item for task, item in both if task.segment in model.returned]}

    def read_slots(self, segment: Segment) -> Sequence[Sequence[Sequence[Slot]]]:
        """Returns `GroupStep.slots` of each group."""
        if "slots" not in self.declared.tells or self.config["ranks"] == 1:
            return [()] * len(self.groups)
        self.compared["slots"] += 1
        answer = self.cache.slots(segment.name)
        return reading.read_slots(answer, self.config, segment.end - segment.start)

    def freeze(self, tables: Any, name: str) -> Tables:
        """Returns a copy of the tables of a request, which does not change any more."""
        return deepcopy(reading.read_tables(tables, name, len(self.groups), self.stores))

    def check_frozen(self, flight: Flight) -> None:
        """Raises Broken if tables have changed since the launch of their step."""
        for segment, tables, kept in flight.step:
            if (changed := self.freeze(tables, segment.name)) != kept:
                raise Broken(
                    "table",
                    f"the tables of request {segment.name} were {kept} when its step was"
                    f" launched, and were changed to {changed} before the step has"
                    " finished; return a copy",
                )

    def foresee(self, model: PagedModel) -> Memory:
        """Returns the contents of device blocks once the launched steps have finished."""
        if not self.flights:
            return self.contents.device
        memory = dict(self.contents.device)
        for flight in self.flights:
            for task in flight.tasks:
                self.write(task, memory, model)
            copy_blocks(memory, memory, flight.copies)
        return memory

    def copy_blocks(self) -> None:
        """Copies the blocks that the backend requests, in the backend's order, after the
        launched steps."""
        pairs = reading.read_copies(self.cache.copies(), "copies")
        if self.flights:
            self.flights[-1].copies.extend(pairs)
        else:
            self.contents.copy(pairs)

    def move_slots(self, moves: Any) -> None:
        """Moves the contents of single slots, in the backend's order."""
        for move in read_list(moves, "accept"):
            numbers = reading.read_blocks("accept", read_list(move, "accept", 4))
            block, index, *target = numbers
            self.contents.move((block, index), (target[0], target[1]))

    def is_state(self, group: int) -> bool:
        return bool(self.groups[group]["type"] == "state")

    def write(self, task: GroupStep, memory: Memory, model: PagedModel) -> None:
        """Writes the tokens or the states of the step to the slots in the table."""
        name, start, end, _, _, length, _, lags, _, weights = task.segment
        group = model.cache.groups[task.group]
        if isinstance(task.table, Ring) or (lags and group.lags):
            return
        tags = dict(enumerate(task.segment.list_written(group), start))
        positions, due = [*tags], start
        if group.type == "state":
            block = self.groups[task.group]["block"]
            positions = list_state_positions(start, end, block, length)
            due = min(end, length) - 1
        for position in positions:
            slots = task.list_written(self.config, position)
            content = task.group, tags[position], weights[position - start]
            memory.update(dict.fromkeys(slots, content))
            if not slots and not task.slots and position >= due:
                raise Broken(
                    "table",
                    f"position {position} of request {name}, group {task.group},"
                    f" has no slot in its table {list(task.table)}",
                )

    def answer(self, task: GroupStep, state: Sequence[Any], model: PagedModel) -> Answer:
        """Returns the tokens or the state that one group reads for one request."""
        where = f"request {task.segment.name}, {name_group(self.config, task.group)}"
        if self.is_state(task.group):
            return {"where": where, "state": list(state)}
        first = model.cache.groups[task.group].first(task.segment.start)
        answer = {"where": where, "first": first}
        if isinstance(task.table, Ring):  # see `move_arrays`
            return answer
        valid = task.segment.count_valid(model.cache.groups[task.group])
        return {**answer, "slots": self.read(task, first, valid)}

    def read(self, task: GroupStep, begin: int, end: int) -> list[Any]:
        """Reads the content of each position: a tag, or a description if the content is
        not a token."""
        contents: list[Any] = []
        for position in range(begin, end):
            slots = task.locate(self.config, position)
            found = [self.read_slot(task.group, slot) for slot in slots] or ["no slot"]
            wrong = [item for item in found if item != found[0] or isinstance(item, str)]
            contents.append(wrong[0] if wrong else found[0])
        return contents

    def read_slot(self, group: int, slot: Slot) -> int | str:
        content, rank = self.contents.device.get(slot), name_rank(self.config, slot)
        if content is None:
            return f"nothing (block {slot[0]}{rank})"
        if content[0] != group:
            return f"token {content[1]} of group {content[0]}{rank}"
        return content[1]

    # --- arrays -------------------------------------------------------------------------

    def move_arrays(
        self, flight: Flight, answers: Sequence[Answer], model: PagedModel
    ) -> None:
        """Lets the backend write and read K and V in each layer; extends the answers."""
        self.attended = []
        tasks = flight.tasks
        for layer, group in enumerate(self.group_of):
            attention = model.cache.groups[group]
            if model.ran[0].lags and attention.lags:
                continue
            is_state = self.is_state(group)
            move = self.move_states if is_state else self.move_tokens
            field = "state" if is_state else "slots"
            members = slice(group, None, len(self.groups))
            moved = move(layer, model)
            items = zip(tasks[members], answers[members], moved, strict=True)
            for task, answer, seen in items:
                if not is_state:
                    lost = task.segment.end - task.segment.count_valid(attention)
                    seen = seen[: len(seen) - lost]
                    seen = self.name_blocks(task, answer["first"], seen)
                where = f"{answer['where']}, {self.name_layer(layer)}"
                item = {**answer, "where": where, field: seen, "layers": []}
                answer.setdefault(field, seen)
                answer["layers"] = [*answer.get("layers", ()), item]

    def name_layer(self, layer: int) -> str:
        source = self.sources[layer]
        return f"layer {layer}{f', which reads layer {source}' * (source != layer)}"

    def name_blocks(self, task: GroupStep, first: int, seen: Sequence[Any]) -> list[Any]:
        """Adds the number of the block to each description of a content that is not a
        token."""
        named = list(seen)
        for at, content in enumerate(seen):
            slots = task.locate(self.config, first + at)
            if isinstance(content, str) and slots:
                named[at] = f"{content} (block {slots[0][0]})"
        return named

    def move_tokens(self, layer: int, model: PagedModel) -> list[list[Any]]:
        reader = self.readers[self.sources[layer]]
        group = model.cache.groups[self.group_of[layer]]
        tags = [tag for segment in model.ran for tag in segment.list_written(group)]
        pair = self.readers[layer].feed(tags)
        with self.lend("a", "update", pair):
            answer = self.cache.update(layer, *pair)
            pairs = read_list(answer, "update", len(model.ran))
            read = [list(reader.read(item, "update")) for item in pairs]
        if self.attends and "attend" in self.declared.tells:
            self.attend(layer, tags, model)
        return read

    def attend(self, layer: int, tags: Sequence[int], model: PagedModel) -> None:
        """Computes attention of each token of the step, for `verify_attention`."""
        reader = self.readers[self.sources[layer]]
        queries = reader.queries
        array = self.arrays.from_numpy(queries.get_vectors(tags), self.config["dtype"])
        with self.lend("a", "attend", [array]):
            attended = to_numpy(self.arrays, self.cache.attend(layer, array), "attend")
            attended = attended.copy()  # the backend may use its array again
        form = [1, self.config["heads"], len(tags), self.config["value_dim"]]
        if list(attended.shape) != form:
            message = f"attend returned shape {list(attended.shape)}, not {form}"
            raise Broken("malformed", message)
        group, row = model.cache.groups[self.group_of[layer]], 0
        where = f"attend ({self.name_layer(layer)})"
        for segment in model.ran:
            for query in range(segment.start, segment.end):
                content = segment.contents[query - segment.start]
                seen = model.list_seen(content, group.first(query))
                explain = partial(self.explain_nan, segment.name, self.group_of[layer])
                case = attended[0, :, row], tags[row], seen, row, where, explain
                if segment in model.returned and query < segment.count_valid(group):
                    self.attended.append(partial(reader.judge, *case))
                row += 1

    def verify_attention(self) -> None:
        """Compares the attention of a step, whose K and V were as expected, with double
        precision."""
        self.compared["attention"] += bool(self.attended)
        for judge in self.attended:
            judge()

    def explain_nan(self, name: str, group: int) -> str:
        """Names the blocks of a request that have slots without a token."""
        table, size = self.tables[name][group], self.groups[group]["block"]
        device = self.contents.device
        unwritten = [
            f"block {block}"
            for block in (() if isinstance(table, Ring) else table)
            if block is not None and any((block, at) not in device for at in range(size))
        ]
        return (
            f", but {', '.join(unwritten)} of request {name} has slots without a token:"
            " attention must not read them"
            if unwritten
            else ""
        )

    def move_states(self, layer: int, model: PagedModel) -> list[list[Any]]:
        reader, step = self.readers[layer], model.ran
        states = read_list(self.cache.read_states(layer), "read_states", len(step))
        read = [
            [] if state is None else list(reader.read(state, "read_states"))
            for state in states
        ]
        ends = read_list(self.cache.list_ends(layer), "list_ends", len(step))
        tags = [
            segment.tags[min(segment.end, require_index(end, "an end")) - 1]
            for segment, ends_of_request in zip(step, ends, strict=True)
            for end in read_list(ends_of_request, "list_ends")
        ]
        pair = reader.feed(tags)
        with self.lend("a", "write_states", pair):
            self.cache.write_states(layer, *pair)
        return read

    # --- what it tells ------------------------------------------------------------------

    def read_tables(self, name: str) -> Tables:
        tables = self.cache.tables(name)
        return reading.read_tables(tables, name, len(self.groups), self.stores)

    def list_entries(self) -> list[Entry]:
        return reading.read_entries(self.cache.entries(), len(self.groups))

    def list_host_entries(self) -> list[Entry]:
        entries = self.cache.host_entries()
        return reading.read_entries(entries, len(self.groups), "host_entries")

    def tell_held(self) -> reading.Facts:
        """Formats the tables: the blocks, and the requests that share each block."""
        busy = self.contents.list_busy(on_host=False)
        return reading.describe_tables(self.tables, busy, self.config)

    def verify_memory(self, op: Mapping[str, Any], model: PagedModel) -> None:
        """Runs the checks that follow every operation; see `checks`."""
        holding = [name for name, item in model.cache.requests.items() if item.is_held]
        tables = self.tables = {name: self.read_tables(name) for name in holding}
        self.copy_blocks()  # nothing is written before the next step
        checks.check_tables(model, tables)
        tells, contents = self.declared.tells, self.contents
        self.pool = self.read_pool()
        if self.pool is not None:
            checks.check_pool(tables, self.pool, self.capacity)
            device, host = contents.list_busy(False), contents.list_busy(True)
            checks.check_busy((*self.pool.free, *self.pool.cached), device, "")
            checks.check_host(self.pool.idle, host, self.host_capacity)
            if not self.flights and not model.cache.step:
                needed = [self.pinnable[name] for name in contents.transfers]
                checks.check_pinned(self.pool.pinned, {*device}.union(*needed))
        future = self.foresee(model)
        if not model.cache.step:
            for name in holding:
                checks.check_contents(model, name, tables[name], future)
        entries = self.list_entries() if tells & {"entries", "reuse"} else []
        self.compared["entries"] += bool(entries)
        checks.check_entries(model, entries, future, tables)
        self.check_kept(op, entries)
        if "host_entries" in tells and self.config["host"]:
            on_host = self.list_host_entries()
            self.compared["host_entries"] += bool(on_host)
            checks.check_entries(model, on_host, contents.host, {})
        if "events" in tells:
            events = reading.read_events(self.cache.events(), len(self.groups))
            self.compared["events"] += bool(events)
            checks.follow_events(self.events, events)
            checks.check_events(self.events, entries)

    def check_published(
        self, settled: Settled, model: PagedModel, former: Sequence[Entry] = ()
    ) -> None:
        """Checks that tokens that were just computed or confirmed can be hit through the
        present entries or through `former` entries."""
        is_due = int(checks.may_publish(model, settled))
        self.compared.update({"entries due": is_due, "events due": is_due})
        if "reuse" in self.declared.tells:
            entries = [*former, *self.list_entries()]
            checks.check_published(model, settled, entries)

    def check_kept(self, op: Mapping[str, Any], entries: Sequence[Entry]) -> None:
        """Checks that no entry was evicted while a block is free.

        With several groups, begins to check once a block has served two groups, because
        each group may have its own blocks.
        """
        before, self.prefixes = self.prefixes, set(map(checks.get_prefix, entries))
        for entry in entries:
            owner = self.owners.setdefault(entry.block, entry.group)
            self.is_shared |= owner != entry.group
        drops = "evict", "reset", "restore", "update_weights"
        may_drop = op["op"] in drops or not op.get("reuse", True)
        promises = "reuse" in self.declared.tells and self.is_shared
        if promises and self.pool is not None and not may_drop:
            checks.check_kept(before - self.prefixes, self.pool)

    def check_empty(self) -> None:
        """Checks that nothing can be hit after a reset, in any memory."""
        if self.declared.tells & {"entries", "reuse"}:
            checks.check_empty(self.list_entries())
        if "host_entries" in self.declared.tells and self.config["host"]:
            checks.check_empty(self.list_host_entries(), " of other memory")

    def check_evicted(self, evicted: Any) -> None:
        """Checks that no more blocks were evicted than could be evicted."""
        most = len(self.pool.cached) if self.pool is not None else None
        if most is not None and (read_index(evicted) or 0) > most:
            raise Broken(
                "result",
                f"evicted {evicted} blocks, but only {most} could be evicted: those"
                " that could be hit and that no request held",
            )

    def check_refusal(
        self, name: str, end: int, model: PagedModel, got: str, evicts: bool
    ) -> None:
        """Checks that a step up to position `end` had too few free blocks, so that it was
        refused or took blocks of other requests; `got` says which.

        `evicts` tells whether it has to evict cached blocks before it does so.
        """
        if self.pool is not None:
            pool = self.pool if evicts else self.pool._replace(cached=())
            spare = self.capacity - self.config["blocks"]
            reserved = spare if self.config["lookahead"] else 0  # more slots for drafts
            tables = self.tables.get(name)
            checks.check_refusal(model, name, end, tables, pool, reserved, got)


def is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)
