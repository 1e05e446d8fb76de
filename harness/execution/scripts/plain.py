"""The functions that scripts of calls use: a script contains copies of some of them.

This module imports nothing of this project. A script may set the names in capitals.
"""

import sys
from functools import partial
from operator import index
from types import SimpleNamespace

import numpy as np

TOLERANCE, LOWER_RIGHT = 0.0, True


def stack(table, rows, padding=np.nan):
    """Makes K or V [rows, heads, tokens, dim] of the tokens in each row; None is
    padding."""
    vectors = {token: np.array(table[token], np.float32) for token in table}
    vectors[None] = np.full_like(next(iter(vectors.values())), padding)
    return np.stack([np.stack([vectors[token] for token in row], 1) for row in rows])


def is_near(got, wanted):
    """Returns whether the numbers are equal, within the allowed rounding. NaN equals NaN,
    and 0 differs from -0."""
    wanted = np.array(wanted, np.float32)
    if got.shape != wanted.shape:
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        near = (np.abs(got - wanted) <= TOLERANCE) | (got == wanted)
    near &= (wanted != 0) | (np.signbit(got) == np.signbit(wanted))
    return bool(np.all(near | np.isnan(got) & np.isnan(wanted)))


def name_tokens(backend, pair, keys, values, row=0, is_permuted=False):
    """Lists the token in each column of a returned K and V; "?" for unknown content."""
    if pair is None:
        return []
    got_keys, got_values = map(backend.arrays.to_numpy, pair[:2])
    if is_permuted:
        got_values = got_values.swapaxes(2, 3)
    names = []
    for column in range(got_keys.shape[2]):
        key, value = got_keys[row, :, column], got_values[row, :, column]
        matches = [
            name
            for name in keys
            if is_near(key, keys[name])
            and is_near(value, values[name[1] if isinstance(name, tuple) else name])
        ]
        name = matches[0] if matches else "?"
        names.append(list(name) if isinstance(name, tuple) else name)
    return names


def name_state(backend, pair, states, row=None):
    """Lists the tokens that a state has read; "?" if the state is not in `states`."""
    conv, delta = (backend.arrays.to_numpy(array) for array in pair)
    if row is not None:
        conv, delta = conv[row : row + 1], delta[row : row + 1]
    for tokens, (right_conv, right_delta) in states.items():
        if is_near(conv, right_conv) and is_near(delta, right_delta):
            return list(tokens)
    return "?"


def sort(names):
    """Sorts tokens, and puts other names after them."""
    return sorted(names, key=lambda name: (isinstance(name, str), name))


def see(backend, mask, names, rows, row=0):
    """Lists the tokens that each row of a mask sees."""
    if mask is None:
        return [sort(names) for _ in range(rows)]
    if isinstance(mask, str):  # "causal"
        first = len(names) - rows if LOWER_RIGHT else 0
        return [sort(names[: max(0, first + number + 1)]) for number in range(rows)]
    content = np.atleast_2d(backend.arrays.to_numpy(mask))
    if content.ndim == 4:
        content = content[min(row, len(content) - 1), 0]
    try:
        seen = np.broadcast_to(content, (rows, len(names)))
    except ValueError:
        return [f"a mask {list(content.shape)} for {len(names)} columns"] * rows
    shown = seen if seen.dtype == bool else seen == 0
    return [sort(name for name, is_seen in zip(names, row) if is_seen) for row in shown]


def list_taken(backend, mask, length, row):
    """Lists the columns of a row that are tokens, not padding."""
    if mask is None:
        return list(range(length))
    content = np.atleast_2d(backend.arrays.to_numpy(mask))
    taken = content[min(row, len(content) - 1)].reshape(-1)
    return [column for column in range(length) if taken[min(column, len(taken) - 1)]]


def list_numbers(backend, numbers):
    """Lists the whole numbers in a list or an array."""
    if isinstance(numbers, (list, tuple)):
        return list(numbers)
    whole = int if "int" in backend.arrays.dtype(numbers) else float
    return [whole(number) for number in backend.arrays.to_numpy(numbers)]


def list_miscounted(pool, requests):
    """Lists the blocks with a wrong reference count or state.

    A reference count is wrong if it differs from the number of tables that hold the
    block. A state is wrong if the block is free twice, or free while a table holds it.
    """
    holders = list(pool.pinned)
    for groups in requests:
        for table in groups:
            blocks = getattr(table, "blocks", table)
            holders += [block for block in blocks if block is not None]
    free = [*pool.free, *pool.cached]
    return [
        block
        for block in sorted({*holders, *pool.references, *free})
        if pool.references.get(block, 0) != holders.count(block)
        or free.count(block) + (block in holders) > 1
    ]


def get_span(snapshot):
    """Returns the positions at which a snapshot begins and ends."""
    return snapshot and [snapshot.begin, snapshot.end]


def get_first(value):
    """Returns the first of several values, or the value itself."""
    return value[0] if isinstance(value, (list, tuple)) else value


def refuses(kinds, call):
    """Returns whether a call raises one of these exceptions."""
    try:
        call()
    except tuple(kinds):
        return True
    return False


def refuse(call):
    """Makes a call that must be refused."""
    try:
        call()
    except Exception as error:
        print(f"refused: {error}")


def is_same(got, wanted):
    """Returns whether two values are equal; an equal float or bool is not an integer."""
    if isinstance(wanted, (list, tuple)):
        is_listed = isinstance(got, (list, tuple)) and len(got) == len(wanted)
        return is_listed and all(map(is_same, got, wanted))
    is_bool = isinstance(got, (bool, np.bool_))
    if type(wanted) is int:
        try:
            return not is_bool and index(got) == wanted
        except TypeError:
            return False
    return is_bool == isinstance(wanted, bool) and bool(got == wanted)


def compare(label, got, *wanted):
    expected = " or ".join(map(str, wanted))
    agrees = any(is_same(got, value) for value in wanted)
    print(f"{label}: {got}, expected {expected}{'' if agrees else ' <- differs'}")
    return agrees
