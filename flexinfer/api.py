"""The Python face: load a model, plan, generate, stream. Importing this imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flexinfer.device import on_this_machine, within
from flexinfer.errors import ModelError, UserError
from flexinfer.host import memory_limit_bytes
from flexinfer.options import LoadOptions, UnknownKeywordError, refuse_unknown
from flexinfer.planning import ChosenPlan, choose, profile_on_device
from flexinfer.result import GenerateResult, Output
from flexinfer.settings import parse_path
from flexinfer.spec import ModelSpec, Workload, builtin_names, load_spec
from flexinfer.turns import Turns
from flexinfer.window import check_window

if TYPE_CHECKING:
    from flexinfer.engine import Engine
    from flexinfer.engine.generation import Generation, Listener
    from flexinfer.engine.request import Request
    from flexinfer.engine.tokenizer import Tokenizer
    from flexinfer.estimator import HardwareProfile
    from flexinfer.weights import WeightStore

OnLoad = Callable[[int, int, str], None]
"""(bytes read, bytes in all, file)"""
OnMeasure = Callable[[float, str], None]
"""(share done, what is measured)"""

_LOAD_KEYWORDS = (
    "strategy, prefill, decode, gpu_layers, device, gpu_memory, cpu_memory, link_bandwidth, dtype (or torch_dtype), "
    "profile and threads"
)
_GENERATE_KEYWORDS = (
    "prompts or input_ids (with attention_mask), max_new_tokens, max_length, temperature, do_sample, top_k, top_p, "
    "min_p, repetition_penalty, seed, stop, ignore_eos, eos_token_id, pad_token_id, streamer and chat"
)


class FlexInfer:
    """One model, ready to plan and to generate, one request at a time.

    Use `from_pretrained`. As a context manager, or with `close`, threads end and memory is freed.
    """

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        strategy: str = "auto",
        prefill: str | None = None,
        decode: str | None = None,
        gpu_layers: int | None = None,
        device: Any = "auto",
        gpu_memory: int | str | None = None,
        cpu_memory: int | str | None = None,
        link_bandwidth: float | str | None = None,
        dtype: Any = "auto",
        torch_dtype: Any = None,
        profile: str | Path | None = None,
        threads: int | None = None,
        **unknown: Any,
    ) -> FlexInfer:
        """Loads a folder in Hugging Face layout, a .gguf file or a hub id. "auto" and None leave a choice open.

        Sizes and rates are numbers or text such as "24GiB" and "8GB/s"; `dtype` and `device` may be torch's own. Raises
        UserError, ModelError and DoesNotFitError.
        """
        refuse_unknown(unknown, "from_pretrained", _LOAD_KEYWORDS)
        options = LoadOptions.resolve(
            strategy=_unless_auto(strategy),
            prefill=prefill,
            decode=decode,
            gpu_layers=gpu_layers,
            device=_unless_auto(_torch_name(device)),
            gpu_memory=gpu_memory,
            cpu_memory=cpu_memory,
            link_bandwidth=link_bandwidth,
            dtype=_unless_auto(_torch_name(dtype if torch_dtype is None else torch_dtype)),
            profile=profile,
            threads=threads,
        )
        model = cls.open(parse_path(path), options)
        model.check_fits()
        model.load()
        return model

    @classmethod
    def open(
        cls, model: str, options: LoadOptions, trace: bool = False, on_measure: OnMeasure | None = None
    ) -> FlexInfer:
        """As from_pretrained, but the weights are left for `load` or the first generation: it can plan already."""
        from flexinfer.engine.tokenizer import load_tokenizer
        from flexinfer.weights import check_weights, resolve_model

        if model in builtin_names() and not Path(model).exists():
            raise ModelError(
                f"{model} is a built-in configuration: sizes only, no weights; give a folder or .gguf file"
            )
        path = resolve_model(model)
        options = on_this_machine(options)
        spec = load_spec(path, options.dtype)
        check_weights(path, spec)  # before anything is measured and planned for a model that cannot run
        # Before the weights are loaded: what they will take is then still counted as free, as the plan counts them
        options = within(options, memory_limit_bytes())
        return cls(path, spec, load_tokenizer(path), options, trace=trace, on_measure=on_measure)

    def __init__(
        self,
        path: Path,
        spec: ModelSpec,
        tokenizer: Tokenizer | None,
        options: LoadOptions,
        profile: HardwareProfile | None = None,
        trace: bool = False,
        on_measure: OnMeasure | None = None,
    ) -> None:
        self.path, self.spec, self.tokenizer, self.options = path, spec, tokenizer, options
        self._profile = profile
        self._trace = trace
        self._on_measure = on_measure
        self._store: WeightStore | None = None
        self._engine: Engine | None = None
        self._turns = Turns()

    # -- planning ---------------------------------------------------------------------------------------------------

    @property
    def profile(self) -> HardwareProfile:
        """The device's part of the machine's profile. Where none is kept yet, first use measures it (10 seconds)."""
        from flexinfer.calibrate import cached_profile, named_profile

        if self._profile is None:
            name, threads = self.options.profile, self.options.threads
            machine = (
                named_profile(name, threads)
                if name is not None
                else cached_profile(threads, on_progress=self._on_measure)
            )
            self._profile = profile_on_device(machine, self.options)
        return self._profile

    def plan(self, batch: int = 1, prompt_len: int = 512, new_tokens: int = 128, cached_tokens: int = 0) -> ChosenPlan:
        """The fastest plan that fits for so many sequences. Raises DoesNotFitError and UserError."""
        workload = Workload(batch, prompt_len, new_tokens, cached_tokens)
        check_window(self.spec, cached_tokens + prompt_len, new_tokens)
        return choose(self.spec, workload, self.profile, self.options)

    def check_fits(self) -> None:
        """Raises DoesNotFitError when not even one token fits, so that nothing is loaded in vain."""
        choose(self.spec, Workload(1, 1, 1), self.profile, self.options)

    # -- generating -------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Any = None,
        *,
        input_ids: Any = None,
        attention_mask: Any = None,
        streamer: Any = None,
        chat: bool = False,
        **options: Any,
    ) -> Any:
        """Generates for one or many prompts: a text, texts, lists of ids, or a tensor of ids with its mask.

        Returns a GenerateResult; for a tensor, as transformers does, a tensor [batch, prompt + new] of ids, which
        carries the result's texts, token_ids, outputs, metrics, plan and seed as attributes. `streamer` has
        put(ids) and end(), as those of transformers. `chat` wraps each text in the model's chat template.
        """
        from flexinfer.engine.prompt import is_tensor, sequences_tensor
        from flexinfer.engine.streamer import StreamerListener

        request = self.request(prompts, input_ids=input_ids, attention_mask=attention_mask, chat=chat, **options)
        given = prompts if input_ids is None else input_ids
        if streamer is None:
            result = self.run(request)
        else:
            with StreamerListener(streamer, request.prompts) as listener:
                result = self.run(request, listener)
        if not is_tensor(given):
            return result
        pad = options.get("pad_token_id")
        if pad is None and self.tokenizer is not None:
            pad = self.tokenizer.pad_token_id
        sequences = sequences_tensor(given, result.token_ids, pad, request.rules.token_ids)
        for name in ("outputs", "texts", "token_ids", "metrics", "plan", "seed"):
            setattr(sequences, name, getattr(result, name))
        return sequences

    def stream(self, prompt: Any = None, *, input_ids: Any = None, chat: bool = False, **options: Any) -> Iterator[str]:
        """Pieces of one prompt's text as they become certain; takes generate's keywords.

        The request is checked at once. Generation runs on a thread of its own, from the first piece that is asked
        for; what it raises is raised here. Leaving the loop or closing the iterator ends it.
        """
        from flexinfer.engine.generation import Generation
        from flexinfer.engine.streaming import PieceQueue, stream_pieces

        if "streamer" in options:
            raise UnknownKeywordError("stream yields the text itself; to hear of it by a streamer, use generate")
        request = self.request(prompt, input_ids=input_ids, chat=chat, **options)
        if len(request.prompts) != 1:
            raise UserError(f"stream takes one prompt, not {len(request.prompts)}; use generate for several")
        if self.tokenizer is None:
            raise UserError("stream gives text, and this model has no tokenizer; use generate with a streamer")
        plan = self.plan_for(request)
        pieces = PieceQueue()
        generation = Generation(request, self.tokenizer.decode, pieces)
        return stream_pieces(lambda: self._generate(generation, plan), generation, pieces)

    def request(
        self,
        prompts: Any = None,
        *,
        input_ids: Any = None,
        attention_mask: Any = None,
        chat: bool = False,
        **options: Any,
    ) -> Request:
        """The keywords of generate as one checked request. Raises UserError."""
        from flexinfer.engine.request import GenerateOptions, build_request
        from flexinfer.engine.stopping import stop_token_ids

        known = {field.name for field in fields(GenerateOptions)}
        refuse_unknown({k: v for k, v in options.items() if k not in known}, "generate", _GENERATE_KEYWORDS)
        own = self.tokenizer.eos_token_ids if self.tokenizer is not None else ()
        return build_request(
            prompts,
            input_ids,
            attention_mask,
            GenerateOptions(**options),
            self.spec,
            self.tokenizer,
            stop_token_ids(self.path, self.spec.eos_token_ids, own),
            chat,
        )

    def plan_for(self, request: Request, reuse: bool = False) -> ChosenPlan:
        """The plan for a request. With `reuse`, tokens whose KV the last generation left count as cached."""
        cached = self._cached_prefix(request) if reuse else 0
        whole = request.workload
        workload = replace(whole, prompt_len=whole.prompt_len - cached, cached_tokens=cached)
        return choose(self.spec, workload, self.profile, self.options)

    def _cached_prefix(self, request: Request) -> int:
        """Leading tokens of the request that the cache holds as a prefill of it would write them.

        Dynamic rotary scaling turns keys by the length at the time they were written: such a cache is not reused.
        """
        held = self._engine.held if self._engine is not None else None
        if held is None or (self.spec.rope is not None and self.spec.rope.type == "dynamic"):
            return 0
        return held.common_prefix(request.prompts)

    def run(self, request: Request, listener: Listener | None = None, plan: ChosenPlan | None = None) -> GenerateResult:
        """Runs a request on the calling thread, by a plan made for it. Raises EngineError and DoesNotFitError."""
        from flexinfer.engine.generation import Generation

        decode = self.tokenizer.decode if self.tokenizer is not None else None
        return self._generate(Generation(request, decode, listener), plan or self.plan_for(request))

    def _generate(self, generation: Generation, plan: ChosenPlan) -> GenerateResult:
        with self._turns.take(generation):
            engine = self._ready_engine()
            cached = plan.workload.cached_tokens
            if cached and self._cached_prefix(generation.request) < cached:
                raise UserError("the plan counts on cached tokens that another generation has replaced; plan again")
            engine.prepare(plan.plan, plan.workload)
            prompts = [prompt[cached:] for prompt in generation.request.prompts]
            run = engine.generate(plan.plan, plan.workload, prompts, generation.pick, generation.on_tokens)
        generation.finish()
        outputs = tuple(
            Output(len(o.prompt), tuple(o.token_ids), o.text, o.finish_reason or "length") for o in generation.outputs
        )
        return GenerateResult(outputs, run.times, plan, generation.request.sampling.seed)

    # -- weights and engine -----------------------------------------------------------------------------------------

    def load(self, on_load: OnLoad | None = None) -> WeightStore:
        """Reads the weights, if that is not done yet. Raises ModelError."""
        from flexinfer.weights import load_weights

        self._turns.check_open()
        if self._store is None:
            self._store = load_weights(self.path, self.spec, on_load)
        return self._store

    def _ready_engine(self) -> Engine:
        from flexinfer.engine import Engine
        from flexinfer.engine.devices import DeviceConfig

        if self._engine is None:
            store, options = self.load(), self.options
            config = DeviceConfig(
                device=options.device,
                gpu_memory_bytes=options.gpu_memory_bytes,
                link_bytes_per_s=options.link_bytes_per_s,
                jitter_s=options.jitter_s,
                tracing=self._trace,
            )
            self._engine = Engine(self.spec, store, config, threads=options.threads)
        return self._engine

    def trace_events(self) -> list[dict[str, Any]]:
        """Chrome trace events of the last run; empty unless opened with `trace`."""
        return self._engine.trace_events() if self._engine is not None else []

    def close(self) -> None:
        """Ends the engine's threads and frees what it and the weights hold. The model can not be used after.

        A stream that is open fails. Raises UserError when a streamer closes the model that it listens to.
        """
        self._turns.end()
        if self._engine is not None:
            self._engine.close()
        if self._store is not None:
            self._store.close()
        self._engine = self._store = None

    def __enter__(self) -> FlexInfer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _unless_auto(value: Any) -> Any:
    return None if isinstance(value, str) and value == "auto" else value


def _torch_name(value: Any) -> Any:
    """ "float32" of torch.float32, "cuda:1" of such a torch.device; told without importing torch."""
    of_torch = type(value).__module__ == "torch" or isinstance(value, str)
    return str(value).removeprefix("torch.") if of_torch else value
