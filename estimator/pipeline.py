"""The engines of one pass as clocks: who waits for whom, in the order in which the executor issues its ops.

Each layer costs a handful of additions and maxima. Equal layers in a row settle into a steady period after a few, so
only those few are stepped, and the rest follow by multiplication: a pass of 96 layers takes microseconds to price.
"""

from __future__ import annotations

from dataclasses import dataclass, field

STEPPED = 4
"""First layers of a run that are stepped: two to settle, and two for the period, which two slots make two layers."""
TAIL = 2
"""Last layers of a run that are stepped."""


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """One layer in one pass, seconds. `attention_s` ends where q, k and v leave, if attention is delegated.

    enter_*, between_*: hidden states over the link, before the layer and between its blocks. load_*: the layer's own
    loads. store_kv_s: new KV rows on their way home. send_qkv_s, attend_s, context_s, output_s: a delegated
    attention's way down, its work on the CPU, its way up, and its second half on the GPU.
    """

    attention_s: float
    mlp_s: float
    enter_up_s: float = 0.0
    enter_down_s: float = 0.0
    between_up_s: float = 0.0
    between_down_s: float = 0.0
    load_attention_s: float = 0.0
    load_mlp_s: float = 0.0
    load_kv_s: float = 0.0
    store_kv_s: float = 0.0
    streams_kv: bool = False
    delegated: bool = False
    send_qkv_s: float = 0.0
    attend_s: float = 0.0
    context_s: float = 0.0
    output_s: float = 0.0

    @property
    def h2d_s(self) -> float:
        loads = self.load_attention_s + self.load_mlp_s + self.load_kv_s
        return loads + self.context_s + self.enter_up_s + self.between_up_s

    @property
    def keeps_to_itself(self) -> bool:
        """Nothing crosses the link."""
        return not (self.h2d_s or self.d2h_s or self.streams_kv or self.delegated)

    @property
    def d2h_s(self) -> float:
        return self.store_kv_s + self.send_qkv_s + self.enter_down_s + self.between_down_s


@dataclass
class Slots:
    """Staging slots taken in turn by what streams in a step; the load of an item waits for its slot's last use.

    loads: seconds of each item's load. ready: when what stands in each slot is there. loop: the last use of a slot in
    a step is followed by the load of the item that takes it first in the next step.
    """

    count: int
    loads: list[float]
    loop: bool
    cursor: int = 0
    ready: list[float] = field(default_factory=list)

    def prime(self, clock: Clock) -> None:
        """The first loads, issued before the first step."""
        self.ready = [clock.h2d(0.0, seconds) for seconds in self.loads[: self.count]]

    def ready_at(self) -> float:
        return self.ready[self.cursor % self.count]

    def release(self, clock: Clock, at: float) -> None:
        """The current item is done with its slot at `at`."""
        slot, following = self.cursor % self.count, self.cursor + self.count
        if following < len(self.loads):
            self.ready[slot] = clock.h2d(at, self.loads[following])
        elif self.loop:
            self.ready[slot] = clock.h2d(at, self.loads[slot])
        self.cursor += 1

    def skip(self, items: int, seconds: float) -> None:
        """`items` more went through in `seconds`, in the same pattern."""
        turn = -items % self.count if self.ready else 0
        self.ready = [at + seconds for at in self.ready[turn:] + self.ready[:turn]]
        self.cursor += items

    def restart(self) -> None:
        """The next step takes its items from the first slot on."""
        self.cursor = 0


@dataclass
class Clock:
    """`now`: when the walk has what it needs. The link's directions are busy until h2d_free and d2h_free."""

    now: float = 0.0
    h2d_free: float = 0.0
    d2h_free: float = 0.0

    def h2d(self, at: float, seconds: float) -> float:
        """Queues a copy up; returns when it ends. Copies of one direction run in the order of their issue."""
        self.h2d_free = max(self.h2d_free, at) + seconds
        return self.h2d_free

    def d2h(self, at: float, seconds: float) -> float:
        self.d2h_free = max(self.d2h_free, at) + seconds
        return self.d2h_free

    def work(self, seconds: float) -> None:
        self.now += seconds

    def send_up(self, seconds: float) -> None:
        """What comes next needs it, and it waits for the copies that were issued before it."""
        if seconds:
            self.now = self.h2d(self.now, seconds)

    def send_down(self, seconds: float) -> None:
        if seconds:
            self.now = self.d2h(self.now, seconds)

    def wait(self, until: float) -> None:
        self.now = max(self.now, until)

    def shift(self, seconds: float) -> None:
        self.now += seconds
        self.h2d_free += seconds
        self.d2h_free += seconds


def step_layer(clock: Clock, layer: LayerTimes, weights: Slots, kv: Slots) -> None:
    """One layer: its loads were issued earlier, and it issues those that take over its slots."""
    clock.send_up(layer.enter_up_s)
    clock.send_down(layer.enter_down_s)
    if layer.load_attention_s:
        clock.wait(weights.ready_at())
    if layer.streams_kv:
        clock.wait(kv.ready_at())
    clock.work(layer.attention_s)
    if layer.delegated:
        clock.send_down(layer.send_qkv_s)
        clock.work(layer.attend_s)
        clock.send_up(layer.context_s)
        clock.work(layer.output_s)
    if layer.load_attention_s:
        weights.release(clock, clock.now)
    if layer.streams_kv:
        kv.release(clock, clock.d2h(clock.now, layer.store_kv_s))
    clock.send_up(layer.between_up_s)
    clock.send_down(layer.between_down_s)
    if layer.load_mlp_s:
        clock.wait(weights.ready_at())
    clock.work(layer.mlp_s)
    if layer.load_mlp_s:
        weights.release(clock, clock.now)


def run_layers(clock: Clock, count: int, layer: LayerTimes, weights: Slots, kv: Slots) -> None:
    """`count` equal layers in a row.

    The last two are stepped again: it is in them that the loads of what comes after the run are issued.
    """
    if layer.keeps_to_itself:
        clock.work(count * (layer.attention_s + layer.mlp_s))
        return
    marks = [clock.now]
    skipped = max(0, count - STEPPED - TAIL)
    for _ in range(min(count, STEPPED)):
        step_layer(clock, layer, weights, kv)
        marks.append(clock.now)
    if skipped:
        seconds = skipped * (marks[-1] - marks[-3]) / 2
        clock.shift(seconds)
        weights.skip(skipped * (bool(layer.load_attention_s) + bool(layer.load_mlp_s)), seconds)
        kv.skip(skipped * layer.streams_kv, seconds)
    for _ in range(count - skipped - STEPPED):
        step_layer(clock, layer, weights, kv)
