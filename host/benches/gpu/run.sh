#!/usr/bin/env bash
# run.sh OUT TOKENIZER PROMPTS [PYTHON]: everything that is to be known on a machine with an NVIDIA device, into the folder OUT.
#
#   OUT        a folder that is not there yet
#   TOKENIZER  a folder with Qwen2's tokenizer.json
#   PROMPTS    TL;DR's prompts, JSON lines with the key "prompt"
#   PYTHON     a Python with torch, transformers, trl 1.16 and datasets, for the comparison; without it there is none
#
# The times of kernels need what trace.sh needs.
#
# Builds with the feature cuda (host/cuda/README.md says what that needs) unless RLHOST names a binary, which needs RLHOST_TESTS=no
# too where there is no cargo. What fails is said at the end, and does not keep the rest from being run.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
out=$(realpath -m "${1:?a folder for all output}")
tokenizer=$(realpath "${2:?a folder with the tokenizer of Qwen2}")
prompts=$(realpath "${3:?a file of prompts}")
python=${4:-}
[ -e "$out" ] && { echo "$out is there already" >&2; exit 2; }
mkdir -p "$out"
failed=

# step NAME COMMAND...: runs a command with its output in NAME.log.
step() {
    local name=$1
    shift
    echo "+ $name: $*" | tee -a "$out/commands.log"
    if "$@" > "$out/$name.log" 2>&1; then tail -n 3 "$out/$name.log"; else
        echo "  failed; see $out/$name.log"
        tail -n 5 "$out/$name.log"
        failed="$failed $name"
    fi
}

nvidia-smi > "$out/nvidia-smi.log" 2>&1 || echo "no nvidia-smi"
nvidia-smi --query-gpu=timestamp,utilization.gpu,memory.used,power.draw,clocks.sm --format=csv -lms 500 > "$out/card.csv" 2> /dev/null &
watch=$!
trap 'kill $watch 2> /dev/null' EXIT

cd "$root"
rlhost=${RLHOST:-}
if [ -z "$rlhost" ]; then
    step build cargo build --release --features rlhost/cuda
    rlhost=$root/target/release/rlhost
fi
if [ "${RLHOST_TESTS:-yes}" = yes ]; then
    step tests cargo test --release --features rlhost/cuda --test device --test device_step --test device_generation --test devices -- --nocapture --test-threads=1
fi

# Shapes as published; the weights are random, the tokenizer is the real one.
shape() {
    cat << JSON
{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": $1, "intermediate_size": $2,
 "num_hidden_layers": $3, "num_attention_heads": $4, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768,
 "max_window_layers": $3, "use_sliding_window": false, "sliding_window": 32768, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
 "tie_word_embeddings": true, "attention_dropout": 0.0, "initializer_range": 0.02, "torch_dtype": "bfloat16", "bos_token_id": 151643,
 "eos_token_id": 151643, "use_cache": true}
JSON
}
shape 896 4864 24 14 > "$out/qwen2-0.5b.json"
shape 1536 8960 28 12 > "$out/qwen2-1.5b.json"
step model "$rlhost" new-model "$out/model" --config "$out/qwen2-0.5b.json" --tokenizer "$tokenizer"

# The run that is compared: 8 groups of 8 completions of 128 tokens a step. Rewards differ within most groups, so that there are gradients.
reward=(--plugin keyword_reward.wasm --set 'plugin.keyword_reward.config.blocklist=["a","e","o"]' --set plugin.keyword_reward.config.floor=-10000.0
    --set plugin.keyword_reward.config.whole_words=false)
settings=(--per-device-train-batch-size 64 --num-generations 8 --max-completion-length 128 --max-steps 20 --learning-rate 1e-6)
grpo() {
    step "$1" "$rlhost" train "${reward[@]}" --model "$out/model" --dataset "$prompts" --device cuda "${settings[@]}" \
        --logging-steps 1 --save-steps 1000000 --log-completions none --output-dir "$out/$1" "${@:2}"
}
grpo grpo-bf16
grpo grpo-bf16-again
if cmp "$out"/grpo-bf16{,-again}/checkpoint-20/model.safetensors > "$out/same-bits.log" 2>&1; then
    echo "two runs gave the same weights, to the bit" | tee -a "$out/same-bits.log"
else
    echo "two runs gave different weights: $out/same-bits.log"
    failed="$failed same-bits"
fi
grpo grpo-f32 --bf16 false --max-steps 5

cat > "$out/qwen3-0.6b.json" << JSON
{"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
 "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000.0,
 "tie_word_embeddings": true}
JSON
step bench-lora "$rlhost" bench --model-config "$out/qwen3-0.6b.json" --tokenizer "$tokenizer" --device cuda --lora-r 16 \
    --per-device-train-batch-size 64 --num-generations 8 --max-completion-length 128 --prompt-length 512 --steps 5
cat "$out/bench-lora.log"
for size in 0.5b 1.5b; do
    step "bench-$size" "$rlhost" bench --model-config "$out/qwen2-$size.json" --tokenizer "$tokenizer" --device cuda \
        --per-device-train-batch-size 64 --num-generations 8 --max-completion-length 128 --prompt-length 512 --steps 5
    cat "$out/bench-$size.log"
done

# What other families add, in shapes as published but for the vocabulary, which is the tokenizer's: windows, norms of heads, offsets
# from one and GELU (Gemma 3 270M); layer norms, joined projections and parallel residuals (Pythia 410M); soft caps (four layers
# of Gemma 2 2B); experts (four layers of Qwen3-30B-A3B), whose steps are not recorded as graphs.
cat > "$out/gemma3.json" << JSON
{"model_type": "gemma3_text", "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 4,
 "num_key_value_heads": 1, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 512, "vocab_size": 151936,
 "max_position_embeddings": 32768}
JSON
cat > "$out/pythia.json" << JSON
{"model_type": "gpt_neox", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
 "rotary_pct": 0.25, "vocab_size": 151936, "max_position_embeddings": 2048}
JSON
cat > "$out/gemma2.json" << JSON
{"model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 4, "num_attention_heads": 8,
 "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096, "vocab_size": 151936,
 "max_position_embeddings": 8192}
JSON
cat > "$out/qwen3-moe.json" << JSON
{"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
 "num_experts_per_tok": 8, "norm_topk_prob": true, "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 4,
 "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000.0, "tie_word_embeddings": false}
JSON
for family in gemma3 pythia gemma2 qwen3-moe; do
    step "bench-$family" "$rlhost" bench --model-config "$out/$family.json" --tokenizer "$tokenizer" --device cuda \
        --per-device-train-batch-size 64 --num-generations 8 --max-completion-length 128 --prompt-length 512 --steps 5
    cat "$out/bench-$family.log"
done

step trace "$here/trace.sh" "$out/trace.txt" "$rlhost" bench --model-config "$out/qwen2-0.5b.json" --tokenizer "$tokenizer" --device cuda \
    --per-device-train-batch-size 64 --num-generations 8 --max-completion-length 128 --prompt-length 512 --steps 1
cat "$out/trace.log"

if [ -n "$python" ]; then
    step trl "$python" "$here/trl_step.py" "$out/model" "$prompts" --out "$out/trl"
    step trl-batching "$python" "$here/trl_step.py" "$out/model" "$prompts" --out "$out/trl-batching" --steps 5 --continuous-batching
    step compare "$python" "$here/trl_step.py" --compare "$out/grpo-bf16/metrics.jsonl" "$out"/trl*/steps.json
    cat "$out/compare.log"
fi
rm -rf "$out/model" "$out"/grpo-*/checkpoint-*
echo "all output: $out"
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
