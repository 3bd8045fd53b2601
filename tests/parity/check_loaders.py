#!/usr/bin/env python3
"""Train a checkpoint of each kind and open it as other programs do.

    python -m venv venv && venv/bin/pip install torch transformers peft safetensors mlx[cpu] mlx-lm
    mkdir sources && cd sources
    ../venv/bin/pip download --no-deps vllm sglang && ../venv/bin/pip download --no-deps --no-binary llama-cpp-python llama-cpp-python
    cargo build
    venv/bin/python tests/parity/check_loaders.py target/debug sources

The kinds are a whole model, an adapter, a reward model, a mixture of experts and a policy with a critic (PPO), trained for two steps.
transformers, peft and mlx-lm open the folder. Of vLLM and SGLang, which need a GPU, the functions that list and filter a folder's weights
are taken from the packages and called; what they list must be the file of the model, with the names of tensors that transformers has,
and they must know the architecture. llama.cpp's converters come with the sources of llama-cpp-python; they map every tensor, without
the vocabulary, since they know tokenizers by a list of hashes. The last part does the same with the files of the run moved to where
versions before the folder `trainer` had them. The last output is check_loaders.txt beside this file.

Exits 1 if a program that should open a checkpoint does not, or opens more than its model. Programs without a source are named and
skipped.
"""

import __future__

import argparse
import ast
import fnmatch
import glob
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import torch
from checks import Rlhost, be_quiet, make, opened, write_rows
from peft import AutoPeftModelForCausalLM
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME

STEPS = 2


class Refused(Exception):
    """Says why a program does not open a folder."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binaries", type=Path, help="where cargo has put rlhost")
    parser.add_argument("sources", type=Path, help="where pip has put the packages")
    given = parser.parse_args()
    be_quiet()
    with tempfile.TemporaryDirectory() as place:
        place = Path(place)
        kinds = train(Rlhost(given.binaries, place))
        programs = {
            "transformers, peft": with_transformers,
            "mlx-lm": with_mlx,
            "vLLM": of_vllm(given.sources),
            "SGLang": of_sglang(given.sources),
            "llama.cpp": of_llama_cpp(given.sources, place),
        }
        failed = check("", kinds, programs)
        for kind, (folder, *_) in kinds.items():
            flatten(folder)
        check("before, ", {kind: kinds[kind] for kind in ("whole model", "adapter", "policy of PPO")}, programs, must=False)
    return 1 if failed else 0


def train(rlhost):
    """The checkpoint of each kind, the model under it, and the file of its weights."""
    place = rlhost.place
    write_rows(place, STEPS)
    pair = '{"prompt": "question", "chosen": " abc", "rejected": " xyz"}\n'
    (place / "pairs.jsonl").write_text(pair * 8)
    dense, mixture = place / "dense", place / "mixture"
    make("llama", dense, rlhost.run, 256)
    changed = dict(mlp_only_layers=[], norm_topk_prob=True, attention_bias=False, use_sliding_window=False, sliding_window=None)
    make("qwen3_moe", mixture, rlhost.run, 256, changed)
    # Under the keys of models on the hub, where mlx-lm looks for them.
    config = json.loads((mixture / "config.json").read_text())
    config["num_experts"] = config.pop("num_local_experts", config.get("num_experts"))
    config["rope_theta"] = config.pop("rope_parameters", {}).get("rope_theta", 10000.0)
    (mixture / "config.json").write_text(json.dumps(config))
    rlhost.sft(dense, place / "whole", STEPS)
    rlhost.sft(dense, place / "adapter", STEPS, "--lora-r", 4)
    rlhost.sft(mixture, place / "experts", STEPS)
    steps = ["--max-steps", STEPS, "--learning-rate", 1e-3, "--per-device-train-batch-size", 4]
    rlhost.run("reward", "--model", dense, "--dataset", "pairs.jsonl", "--output-dir", "judge", *steps)
    short = ["--num-generations", 2, "--max-completion-length", 8]
    rewarded = ["--plugin", "tldr_length_reward.wasm", "--dataset", "rows.jsonl"]
    rlhost.run("ppo", "--model", dense, "--output-dir", "ppo", *rewarded, *steps, *short)
    last = f"checkpoint-{STEPS}"
    return {
        "whole model": (place / "whole" / last, dense, "model.safetensors"),
        "adapter": (place / "adapter" / last, dense, "adapter_model.safetensors"),
        "reward model": (place / "judge" / last, dense, "model.safetensors"),
        "mixture of experts": (place / "experts" / last, mixture, "model.safetensors"),
        "policy of PPO": (place / "ppo" / last, dense, "model.safetensors"),
    }


def check(when, kinds, programs, must=True):
    """Prints what each program says of each kind; returns whether one that must open a checkpoint did not."""
    failed = False
    # Their own formats, or no class for it: as of any other folder of that kind.
    never = {("adapter", "mlx-lm"), ("reward model", "mlx-lm"), ("reward model", "llama.cpp")}
    for kind, (folder, base, weights) in kinds.items():
        for name, program in programs.items():
            if program is None:
                print(f"skipped  {when}{kind}: {name}: its package is not among the sources", flush=True)
                continue
            try:
                said, verdict = program(folder, base, weights), "opens"
            except Refused as refusal:
                said, verdict = str(refusal), "refuses"
            bad = must and (verdict == "opens") == ((kind, name) in never)
            failed |= bad
            print(f"{'FAIL' if bad else verdict:8} {when}{kind}: {name}: {said}", flush=True)
    return failed


def flatten(folder):
    for path in (folder / "trainer").iterdir():
        shutil.move(path, folder / path.name)
    (folder / "trainer").rmdir()


def names_in(files):
    names = []
    for path in files:
        with safe_open(path, "pt") as tensors:
            names += tensors.keys()
    return sorted(names)


def architecture(folder, base):
    path = folder if (folder / "config.json").exists() else base
    return json.loads((path / "config.json").read_text())["architectures"][0]


def with_transformers(folder, base, weights):
    if weights.startswith("adapter"):
        model = AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model.save_pretrained(folder.parent / "again")
    else:
        kind = AutoModelForSequenceClassification if "Classification" in architecture(folder, base) else AutoModelForCausalLM
        model, info = kind.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
        wrong = {what: sorted(names) for what, names in info.items() if names}
        if wrong:
            raise Refused(f"{wrong}")
        model.save_pretrained(folder.parent / "again")
    wanted, found = names_in([folder.parent / "again" / weights]), names_in([folder / weights])
    if wanted != found:
        raise Refused(f"names of tensors that only one has: {sorted(set(wanted) ^ set(found))[:3]}")
    return f"{len(found)} tensors, under the names that it writes"


def with_mlx(folder, base, weights):
    import mlx.core as mx
    from mlx_lm.tuner.utils import load_adapters
    from mlx_lm.utils import load_model

    try:
        if weights.startswith("adapter"):
            load_adapters(load_model(base)[0], str(folder))
            return "the adapter"
        model, _ = load_model(folder)
    except Exception as error:
        raise Refused(str(error).splitlines()[0][:160].replace(str(folder), "the folder")) from error
    ids = torch.arange(1, 12)[None]
    with torch.no_grad():
        want = opened(folder)(input_ids=ids, use_cache=False).logits
    got = torch.tensor(model(mx.array(ids.numpy())).astype(mx.float32).tolist())
    return f"logits at most {(got - want).abs().max() / want.abs().max():.0e} of the largest from transformers'"


class Package:
    """The text of a package's files."""

    def __init__(self, path):
        self.version = path.name.split("-")[1]
        self.files = zipfile.ZipFile(path)

    def read(self, name):
        return self.files.read(name).decode()

    def functions(self, name, wanted, given):
        """Some functions of a file, by name, run with these globals; a method is taken out of its class."""
        definitions = {}
        for node in ast.walk(ast.parse(self.read(name))):
            # The first of a name is the one of the default loader.
            if isinstance(node, ast.FunctionDef) and node.name in wanted:
                definitions.setdefault(node.name, node)
        for node in definitions.values():
            node.decorator_list = []
        tree = ast.Module(list(definitions.values()), [])
        exec(compile(tree, name, "exec", __future__.annotations.compiler_flag), given)
        return SimpleNamespace(**{name: given[name] for name in wanted})


def find(sources, pattern):
    found = sorted(sources.glob(pattern))
    return found[-1] if found else None


def common():
    return dict(os=os, glob=glob, json=json, SAFE_WEIGHTS_INDEX_NAME=SAFE_WEIGHTS_INDEX_NAME)


def only_the_model(files, folder, weights):
    names = sorted(Path(path).name for path in files)
    if names != [weights]:
        raise Refused(f"takes {', '.join(names)} for weights")
    return f"takes {weights} alone for weights"


def of_vllm(sources):
    path = find(sources, "vllm-*.whl")
    if path is None:
        return None
    package, loaders = Package(path), "vllm/model_executor/model_loader/"
    given = common()
    filters = ["filter_duplicate_safetensors_files", "filter_files_not_needed_for_inference"]
    package.functions(loaders + "weight_utils.py", filters, given)

    def listed(model_name_or_path, allow_patterns, revision):
        # As its list of a local folder: all below it, by their last names.
        files = [path for path in Path(model_name_or_path).rglob("*") if path.is_file()]
        return [path for path in files if any(fnmatch.fnmatch(path.name, pattern) for pattern in allow_patterns)]

    given |= dict(maybe_download_from_modelscope=lambda *_: None, list_filtered_repo_files=listed)
    rules = package.functions(loaders + "default_loader.py", ["_prepare_weights"], given)
    known = package.read("vllm/model_executor/models/registry.py")
    loader = SimpleNamespace(load_config=SimpleNamespace(load_format="auto", download_dir=None, ignore_patterns=None))

    def check(folder, base, weights):
        if weights.startswith("adapter"):
            # It opens this file by its name.
            if f'"{weights}"' not in package.read("vllm/lora/lora_model.py"):
                raise Refused(f"does not name {weights}")
            return f"{package.version}: reads {weights} by its name"
        _, files, *_ = rules._prepare_weights(loader, str(folder), None, None, True, None)
        said = only_the_model(files, folder, weights)
        # Of a model for classification it makes the class from the one that predicts tokens.
        name = architecture(folder, base).replace("ForSequenceClassification", "ForCausalLM")
        if f'"{name}"' not in known:
            raise Refused(f"does not know {name}")
        return f"{package.version}: {said}"

    return check


def of_sglang(sources):
    path = find(sources, "sglang-*.whl")
    if path is None:
        return None
    package, loaders = Package(path), "sglang/srt/model_loader/"
    given = common()
    filters = ["filter_duplicate_safetensors_files", "filter_files_not_needed_for_inference"]
    package.functions(loaders + "weight_utils.py", filters, given)
    formats = ["AUTO", "SAFETENSORS", "FASTSAFETENSORS", "INSTANTTENSOR", "MISTRAL", "PT", "NPCACHE", "DUMMY"]
    given |= dict(
        LoadFormat=SimpleNamespace(**{name: name for name in formats}), get_server_args=lambda: None,
        envs=SimpleNamespace(SGLANG_SORT_WEIGHT_FILES=SimpleNamespace(get=lambda: -1)),
    )
    rules = package.functions(loaders + "loader.py", ["_prepare_weights"], given)
    models = [name for name in package.files.namelist() if name.startswith("sglang/srt/models/") and name.endswith(".py")]
    known = "".join(map(package.read, models))
    loader = SimpleNamespace(
        load_config=SimpleNamespace(load_format="AUTO", download_dir=None, ignore_patterns=None),
        _maybe_download_from_modelscope=lambda model, revision: model,
    )

    def check(folder, base, weights):
        # The same lists an adapter's.
        _, files, *_ = rules._prepare_weights(loader, str(folder), None, True)
        said = only_the_model(files, folder, weights)
        name = architecture(folder, base)
        if f"class {name}(" not in known:
            raise Refused(f"does not know {name}")
        return f"{package.version}: {said}"

    return check


def of_llama_cpp(sources, place):
    path = find(sources, "llama_cpp_python-*.tar.gz")
    if path is None:
        return None
    version, root = path.name.removesuffix(".tar.gz").split("-")[1], place / "llama.cpp"
    parts = ("conversion/", "gguf-py/", "convert_hf_to_gguf.py", "convert_lora_to_gguf.py")
    with tarfile.open(path) as files:
        for member in files.getmembers():
            member.name = member.name.partition("/vendor/llama.cpp/")[2]
            if member.name.startswith(parts):
                files.extract(member, root, filter="data")
    # Without the vocabulary.
    convert = (
        "import sys, pathlib, torch; sys.path[:0] = [sys.argv[1], sys.argv[1] + '/gguf-py']\n"
        "import gguf; from conversion import ModelBase, ModelType, get_model_architecture, get_model_class\n"
        "folder, out = map(pathlib.Path, sys.argv[2:]); hparams = ModelBase.load_hparams(folder, False)\n"
        "made = get_model_class(get_model_architecture(hparams, ModelType.TEXT))(folder, gguf.LlamaFileType.ALL_F32, out)\n"
        "with torch.inference_mode(): made.prepare_tensors()\n"
        "print(sum(len(tensors) for tensors in made.gguf_writer.tensors))\n"
    )

    def check(folder, base, weights):
        if weights.startswith("adapter"):
            command = [root / "convert_lora_to_gguf.py", "--base", base, "--outfile", place / "adapter.gguf", folder]
        else:
            command = ["-c", convert, root, folder, place / "out.gguf"]
        done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)
        if done.returncode != 0:
            raise Refused(done.stderr.strip().splitlines()[-1][:160].replace(str(folder), "the folder"))
        return f"of {version}: " + ("the adapter" if weights.startswith("adapter") else f"{done.stdout.split()[-1]} tensors")

    return check


if __name__ == "__main__":
    sys.exit(main())
