"""Ten faults on three seeds each must show their sign, and twenty healthy runs none.

    python3 tests/parity/check_diagnosis.py target/debug/rlhost [FOLDER] > tests/parity/check_diagnosis.txt

Real runs of the built-in model on one thread, some ten seconds each, in FOLDER; those already there are only diagnosed. The last output is
in check_diagnosis.txt."""

import json
import pathlib
import subprocess
import sys
import tempfile

rlhost = str(pathlib.Path(sys.argv[1]).resolve())
prompts = pathlib.Path(__file__).resolve().parents[2] / "examples/builtin-model/prompts.jsonl"
place = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp())
place.mkdir(exist_ok=True)

SHORT = [" my wife and I need help.", " I want to leave my job.", " my friend left me.", " I have no money.", " what now?"]
rows = [json.loads(line)["prompt"] for line in prompts.open()]


def data(name, row):
    lines = [json.dumps({"prompt": prompt, **row(i)}) for i, prompt in enumerate(rows)]
    (place / name).write_text("\n".join(lines) + "\n")


data("answers.jsonl", lambda i: {"answer": f"it is {1000 + i}"})
data("texts.jsonl", lambda i: {"completion": SHORT[i % 5]})
data("pairs.jsonl", lambda i: {"chosen": SHORT[i % 5], "rejected": " The the the of of it."})

LENGTH = ["--plugin", "tldr_length_reward.wasm", "--max-completion-length", "48"]
TWO = [*LENGTH, "--plugin", "repetition_reward.wasm"]
PAIRS = ["--dataset", "pairs.jsonl"]

FAULTS = {
    "rate_too_high": ["grpo", *LENGTH, "--learning-rate", "0.01"],
    "rate_too_low": ["grpo", *LENGTH, "--learning-rate", "1e-9"],
    "completions_cut_off": ["grpo", *LENGTH, "--max-completion-length", "12"],
    "answers_never_found": ["grpo", *LENGTH, "--plugin", "answer_reward.wasm", "--dataset", "answers.jsonl"],
    "reward_dominates": ["grpo", *TWO],
    "divergence_runs_away": ["grpo", *LENGTH, "--beta", "0.001", "--learning-rate", "0.001"],
    "length_exploited": ["grpo", *LENGTH, "--set", "plugin.tldr_length_reward.config.target=1", "--learning-rate", "0.0005"],
    "entropy_collapses": ["grpo", *LENGTH, "--set", "plugin.tldr_length_reward.config.target=1", "--learning-rate", "0.0005"],
    "ratios_clipped": ["grpo", *LENGTH, "--num-iterations", "4", "--learning-rate", "0.001"],
    "reward_constant": ["grpo", "--max-completion-length", "48", "--plugin", "keyword_reward.wasm", "--set",
                        'plugin.keyword_reward.config.allowlist=["xylophone"]'],
}

WEIGHED = [*TWO, "--set", "plugin.repetition_reward.weight=100"]
HEALTHY = [
    *[["grpo", *LENGTH, "--seed", str(seed)] for seed in (1, 2, 3)],
    *[["grpo", *WEIGHED, "--beta", "0.04", "--seed", str(seed)] for seed in (4, 5)],
    *[["grpo", *LENGTH, "--num-iterations", "2", "--seed", str(seed)] for seed in (6, 7)],
    *[["grpo", *LENGTH, "--loss-type", "dr_grpo", "--max-steps", "80", "--seed", "8"]],
    *[["grpo", *LENGTH, "--logging-steps", "5", "--max-steps", "80", "--seed", "9"]],
    *[["rloo", *LENGTH, "--seed", str(seed)] for seed in (10, 11)],
    *[["ppo", *LENGTH, "--seed", str(seed)] for seed in (12, 13)],
    *[["reinforce-pp", *LENGTH, "--seed", str(seed)] for seed in (14, 15)],
    *[["online-dpo", *LENGTH, "--num-generations", "2", "--per-device-train-batch-size", "8", "--seed", "16"]],
    *[["sft", "--dataset", "texts.jsonl", "--seed", "17"]],
    *[["dpo", *PAIRS, "--seed", "18"]],
    *[["orpo", *PAIRS, "--seed", "19"]],
    *[["kto", *PAIRS, "--seed", "20"]],
]


def found(name, arguments):
    run = str(place / name)
    common = ["--max-steps", "40", "--logging-steps", "1", "--num-threads", "1", "--report-to", "none", "--output-dir", run]
    given = [flag for flag in common[::2] if flag in arguments]
    common = [part for i in range(0, len(common), 2) if common[i] not in given for part in common[i : i + 2]]
    if not (place / name / "report.html").exists():
        subprocess.run([rlhost, "-q", *arguments, *common], check=True, cwd=place, stderr=subprocess.DEVNULL)
    said = json.loads(subprocess.run([rlhost, "diagnose", run, "--json"], check=True, stdout=subprocess.PIPE).stdout)
    assert said["enough"] and not said["notes"], said
    return said["findings"]


missed = 0
for fault, arguments in FAULTS.items():
    for seed in (1, 2, 3):
        findings = found(f"{fault}-{seed}", [*arguments, "--seed", str(seed)])
        held = [f for f in findings if f["name"] == fault]
        others = ", ".join(f["name"] for f in findings if f["name"] != fault)
        missed += not held
        print(f"{fault}, seed {seed}: {held[0]['sentence'] if held else 'NOT FOUND'}{' (also ' + others + ')' if others else ''}", flush=True)
cried = 0
for i, arguments in enumerate(HEALTHY):
    findings = found(f"healthy-{i}", arguments)
    cried += bool(findings)
    words = " ".join(arguments).replace(" --plugin tldr_length_reward.wasm --max-completion-length 48", "")
    print(f"healthy: {words}: {'; '.join(f['sentence'] for f in findings) or 'no sign'}", flush=True)
print(f"{missed} of {3 * len(FAULTS)} faults were missed; {cried} of {len(HEALTHY)} healthy runs show a sign")
sys.exit(bool(missed or cried))
