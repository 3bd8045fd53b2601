"""Runs an interpreter's component outside rlhost, with PyPI's `wasmtime`: for `check.py` and `bench.py`."""

import hashlib
import json
import tempfile
import time
from pathlib import Path

import wasmtime
from wasmtime import component

CONTRACT = "rlhost:plugin/{}@1.0.0"


def unpacked(name: str) -> Path:
    """Returns the kept component of this name, unpacked into the folder of temporary files."""
    import zstandard

    data = zstandard.ZstdDecompressor().decompress((Path(__file__).parent / f"built/{name}.wasm.zst").read_bytes())
    path = Path(tempfile.gettempdir(), f"rlhost-{name}-{hashlib.sha256(data).hexdigest()[:16]}.wasm")
    if not path.exists():
        path.write_bytes(data)
    return path


class Failed(Exception):
    """The component answered with the contract's error."""


def engine() -> wasmtime.Engine:
    """Returns an engine with the settings that rlhost has."""
    config = wasmtime.Config()
    config.epoch_interruption = True
    return wasmtime.Engine(config)


def compiled(engine: wasmtime.Engine, path: Path) -> tuple[component.Component, float]:
    """Returns a component and the seconds that compiling it took, 0 if its code was kept beside it."""
    kept = path.with_suffix(".cwasm")
    if kept.exists() and kept.stat().st_mtime > path.stat().st_mtime:
        return component.Component.deserialize_file(engine, str(kept)), 0.0
    started = time.perf_counter()
    made = component.Component.from_file(engine, str(path))
    seconds = time.perf_counter() - started
    kept.write_bytes(made.serialize())
    return made, seconds


class Instance:
    """An instance, whose functions are called by their names."""

    def __init__(self, engine: wasmtime.Engine, made: component.Component, memory: int | None = None, ticks: int = 1 << 40):
        """Makes an instance, which may be limited in its memory in bytes and in its time in the engine's ticks."""
        self.logged: list[str] = []
        linker = component.Linker(engine)
        linker.add_wasip2()
        with linker.root() as root, root.add_instance(CONTRACT.format("host")) as host:
            host.add_func("log", lambda store, level, message: self.logged.append(message))
        self.store = wasmtime.Store(engine)
        self.store.set_wasi(wasmtime.WasiConfig())
        self.store.set_epoch_deadline(ticks)
        if memory is not None:
            self.store.set_limits(memory_size=memory)
        self.instance = linker.instantiate(self.store, made)

    def call(self, interface: str, function: str, *arguments):
        name = interface if ":" in interface else CONTRACT.format(interface)
        outer = self.instance.get_export_index(self.store, name)
        at = self.instance.get_export_index(self.store, function, outer)
        called = self.instance.get_func(self.store, at)
        answer = called(self.store, *arguments)
        called.post_return(self.store)
        if isinstance(answer, component.Variant) and answer.tag in ("config", "input", "unsupported", "internal"):
            raise Failed(f"{answer.tag}: {answer.payload}")
        if isinstance(answer, component.Variant) and answer.tag in ("ok", "err"):
            if answer.tag == "err":
                raise Failed(f"{answer.payload.tag}: {answer.payload.payload}")
            return answer.payload
        return answer

    def configure(self, path: Path, function: str | None = None, settings: dict | None = None) -> None:
        script = {"name": path.name, "source": path.read_text(), "function": function}
        self.call("plugin", "configure", json.dumps({"script": script, "settings": settings or {}}))

    def score(self, batch) -> list[float | None]:
        return self.call("reward", "score", batch).rewards


def record(**fields) -> component.Record:
    """Returns a record of the contract."""
    made = component.Record()
    for name, value in fields.items():
        setattr(made, name.replace("_", "-"), value)
    return made


def batch(step: int, prompts: list[str], columns: dict[str, list], rows: list[dict]) -> component.Record:
    """Returns a batch of rows with `prompt`, `text` and `ids`."""
    offsets = [0]
    for row in rows:
        offsets.append(offsets[-1] + len(row["ids"]))
    return record(
        step=step,
        seed=1,
        prompts=prompts,
        columns=[record(name=name, values=[json.dumps(v) for v in values]) for name, values in columns.items()],
        prompt_of=[row["prompt"] for row in rows],
        completions=[row["text"] for row in rows],
        finished=[True] * len(rows),
        offsets=offsets,
        token_ids=[token for row in rows for token in row["ids"]],
    )
