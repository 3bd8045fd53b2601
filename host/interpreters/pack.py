"""Compresses built components into `built/`, with what they were built from: `python3 pack.py build` after both `build.sh build`."""

import hashlib
import json
import sys
from importlib import metadata
from pathlib import Path

import zstandard

HERE = Path(__file__).parent
# Within the window that zstd's decoders allow by default (128 MiB), and as large as the components.
WINDOW_LOG = 25
SOURCES = {"python": ("*.py", "rlhost_interpreter/*.py", "requirements.txt"), "javascript": ("*.js", "package.json", "runtime/*")}


def sources(name: str) -> str:
    """Returns the hash of all that a component is built from."""
    files = sorted(path for pattern in SOURCES[name] for path in (HERE / name).glob(pattern))
    files += [HERE / "wit/script.wit", HERE / "../../plugin-sdk/wit/rlhost-plugin.wit"]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def tools(name: str) -> dict[str, str]:
    """Returns the versions of the interpreter and of what built it."""
    if name == "python":
        return {"CPython": "3.14.0", "componentize-py": metadata.version("componentize-py")}
    wanted = json.loads((HERE / "javascript/package.json").read_text())["devDependencies"]
    return {"QuickJS": "quickjs-ng 0.16.2 of rquickjs 0.14.0", **wanted}


def main(folder: str) -> None:
    manifest = {}
    for name in SOURCES:
        component = Path(folder, f"{name}.wasm").read_bytes()
        parameters = zstandard.ZstdCompressionParameters.from_level(19, window_log=WINDOW_LOG, enable_ldm=True)
        packed = zstandard.ZstdCompressor(compression_params=parameters).compress(component)
        (HERE / f"built/{name}.wasm.zst").write_bytes(packed)
        manifest[f"{name}.wasm"] = {
            "sha256": hashlib.sha256(component).hexdigest(),
            "bytes": len(component),
            "sources": sources(name),
            "tools": tools(name),
        }
    (HERE / "built/manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
