"""The adapter to ExLlamaV3's page table, with the calls of its generator.

`Job` allocates pages for a prompt and the whole answer, computes the prompt in chunks
that end with pages, and copies the beginning of a page that matches in part. The last
token of a prompt is computed like a generated token. Comments contain line numbers of
`exllamav3/generator/`: G means `generator.py`, J `job.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from lockstep.harness.backends import Backend, Duty, Kind
from lockstep.harness.backends.paged import Pool
from lockstep.impl.peers.engines.engine import require_installed
from lockstep.impl.peers.engines.exllamav3 import EXLLAMAV3, load_exllamav3
from lockstep.impl.peers.paged import WITHDRAW, declare_engine, full

Config = Mapping[str, Any]
require_installed(EXLLAMAV3)

ALONE = Duty(
    {"op": "schedule", "step": [1, None]},
    "schedule of a second request in a step: prompts are computed one after another",
)
WHOLE = Duty(
    {"op": "schedule", "length - computed - count": [1, None]},
    "schedule of a part of a prompt: a later chunk may find tokens that another request"
    " has computed since",
)
ENDS = Duty(
    {
        "op": "schedule",
        "length - computed - count": [1, None],
        "(computed + count) % blocks_lcm": [1, None],
    },
    "schedule of a part of a prompt that does not end with a page: Job.prefill",
)
HIT = Duty(
    {"op": "schedule", "length - count": [1, None], "longest": [1, None]},
    "schedule of a part of a prompt that may be hit: it might not end with a page",
)
ABORT = Duty(
    {"op": "free", "scheduled": [1, None]},
    "free of a scheduled request: cancel is called between two iterations",
)
SPACE = Duty(
    {"op": "open", "named": [1, 1]}, "a request in a namespace: hashes have only tokens"
)


class Pages:
    """A page table, and the parts of a generator that its jobs read.

    Attributes:
        library: `PageTable` and `Job` for the size of a page.
        jobs: name → its `Job`.
        copied: the pages that a prompt copies.
        starts: the first position of each pass of the model.
    """

    def __init__(self, config: Config) -> None:
        (group,) = config["groups"]
        self.page = group["block"]
        self.library = load_exllamav3(self.page)
        self.jobs: dict[str, Any] = {}
        self.copied: list[tuple[int, int]] = []
        self.starts: list[int] = []
        size = config["blocks"] * self.page
        self.most = config["max_length"]
        cache = SimpleNamespace(max_num_tokens=size, copy_page=self.copy_page)
        model = SimpleNamespace(caps={}, prefill=self.prefill, output_device="cpu")
        self.generator = SimpleNamespace(
            cache=cache,
            model=model,
            draft_model=None,
            mtp_draft=False,
            dflash_draft=False,
            recurrent_cache=None,
            max_total_tokens=size,
            max_draft_tokens=0,
            max_batch_size=1 << 10,
            padded_vocab_size=0,
            ngram_match_min=0,
            hybrid_draft_tokens=0,
            ngram_corpus=None,
        )
        self.table = self.library.PageTable(self.generator, cache)
        self.generator.pagetable = self.table

    def copy_page(self, cache: Any, source: int, target: int, count: int) -> None:
        self.copied.append((source, target))

    def prefill(self, input_ids: Any, params: Any) -> None:
        self.starts.append(int(params["cache_seqlens"]))

    def open(self, request: str, tokens: Sequence[int], namespace: str | None) -> None:
        """Enqueues a job (G:635). An answer has at least one token, so a job with a
        prompt of `max_length` tokens needs room for two more tokens."""
        room = self.most + 1 - len(tokens)
        job = self.library.Job(torch.tensor([tokens]), room, sampler=object())
        job.prepare_for_queue(self.generator, len(self.jobs))
        self.jobs[request] = job

    # --- a step -------------------------------------------------------------------------

    def schedule(self, name: str, count: int) -> int | None:
        """Starts a job (G:2189 to 2208), and computes a chunk of its prompt.

        If a chunk finds tokens that another request has computed since, they count as
        computed in this step.
        """
        job = self.jobs[name]
        (sequence,) = job.sequences
        is_running = bool(sequence.allocated_pages)
        if not is_running:
            free = self.table.num_unreferenced_pages()
            if job.current_new_pages_required() > free:
                return None
            job.activate()
            job.allocate_pages()
        previous, self.starts = sequence.kv_position, []
        # A call ends with a page, or where a later page is cached.
        self.generator.max_chunk_size = -(-count // self.page) * self.page
        start = previous
        while not job.is_prefill_done() and sequence.kv_position < start + count:
            job.prefill([])
            start = previous if is_running else self.find_start(sequence)
        return int(start)

    def find_start(self, sequence: Any) -> int:
        """Returns the first position that the model computes."""
        return min(self.starts, default=int(sequence.kv_position))

    def copies(self) -> list[tuple[int, int]]:
        copied, self.copied = self.copied, []
        return copied

    def run(self) -> None:
        """Nothing is left to do: a model has computed the step."""

    def accept(
        self, name: str, accepted: int, sampled: int, drafts: Sequence[int]
    ) -> None:
        """Computes the last token (G:1700), appends a token, and publishes a page that is
        full (J:818 to 837).

        An iteration does this for all jobs before it computes other prompts.
        """
        job = self.jobs[name]
        (sequence,) = job.sequences
        job.get_input_ids_list(add_to_cache=True)
        sequence.sequence_ids.append(torch.tensor([[sampled]]))
        previous = sequence.kv_position // self.page
        sequence.kv_position += 1
        if sequence.kv_position // self.page > previous:
            job.hash_completed_page(sequence, previous)

    def free(self, name: str, reuse: bool) -> None:
        """Ends or cancels a job (G:2121, G:667)."""
        self.jobs.pop(name).deallocate_pages()

    # --- reports ------------------------------------------------------------------------

    def tables(self, request: str) -> list[list[int | None]]:
        (sequence,) = self.jobs[request].sequences
        return [[page.page_index for page in sequence.allocated_pages]]

    def pool(self) -> Pool:
        pages = self.table.all_pages
        used = {page.page_index: page.ref_count for page in pages if page.ref_count}
        idle = [page for page in pages if not page.ref_count]
        cached = [page.page_index for page in idle if self.is_cached(page)]
        free = [page.page_index for page in idle if not self.is_cached(page)]
        return Pool(used, free, cached)

    def is_cached(self, page: Any) -> bool:
        """Returns whether a request can hit a whole page."""
        is_full = page.kv_position == self.page
        return bool(is_full and self.library.is_content_hash(page.phash))


def exllamav3_pages() -> Backend:
    """Declares `PageTable` and `Job` for models with full layers."""
    return _declare("exllamav3", WHOLE)


def chunks() -> Backend:
    """Declares the page table, with prompts that are computed in chunks.

    It is not registered: if another request fills a page of a prompt before the prompt
    does, the library raises an exception.
    """
    return _declare("chunks", ENDS, HIT)


def _declare(name: str, *duties: Duty) -> Backend:
    config: Mapping[str, tuple[Any, ...]] = {
        "groups": ([full(4)], [full(6)], [full(8)]),
        # Two tokens more need no further page, and fit.
        "max_length": (14, 10, 22, 13, 9, 21),
        "blocks": (6, 7, 8, 10, 16),
        "lookahead": (0,),
        "prefix_cache": (True,),
        "admits": ("output",),
        "hash_block": (1,),
    }
    kind = Kind(
        frozenset({"open", "schedule", "run", "accept", "free"}),
        config,
        duties=(WITHDRAW, ALONE, *duties, ABORT, SPACE),
        tells=frozenset({"pool"}),
    )
    return declare_engine("exllamav3", name, {"paged-full": kind}, Pages)
