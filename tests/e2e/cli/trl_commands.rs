//! The commands of TRL's documentation, with the program's name replaced, on a local model and local data.

use rlhost_tests::{CommandOutcome, TestFolder, tiny};
use serde_json::{Value, json};

/// Commands as the scripts of TRL 1.16 and its page on the command line have them, with the kind of rows of their datasets.
const COMMANDS: [(&str, &str, &str); 10] = [
    (
        "sft",
        "talk",
        "--model_name_or_path Qwen/Qwen2-0.5B --dataset_name trl-lib/Capybara --learning_rate 2.0e-5 --num_train_epochs 1 --packing \
         --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --eos_token <|im_end|> --eval_strategy steps \
         --eval_steps 100 --output_dir Qwen2-0.5B-SFT --push_to_hub",
    ),
    (
        "sft",
        "talk",
        "--model_name_or_path Qwen/Qwen2-0.5B --dataset_name trl-lib/Capybara --learning_rate 2.0e-4 --num_train_epochs 1 --packing \
         --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --eos_token <|im_end|> --eval_strategy steps \
         --eval_steps 100 --use_peft --lora_r 32 --lora_alpha 16 --output_dir Qwen2-0.5B-SFT --push_to_hub",
    ),
    ("sft", "text", "--model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name stanfordnlp/imdb"),
    (
        "dpo",
        "talked_pairs",
        "--dataset_name trl-lib/ultrafeedback_binarized --model_name_or_path Qwen/Qwen2-0.5B-Instruct --learning_rate 5.0e-7 \
         --num_train_epochs 1 --per_device_train_batch_size 2 --max_steps 1000 --gradient_accumulation_steps 8 \
         --eval_strategy steps --eval_steps 50 --output_dir Qwen2-0.5B-DPO --no_remove_unused_columns",
    ),
    (
        "dpo",
        "talked_pairs",
        "--dataset_name trl-lib/ultrafeedback_binarized --model_name_or_path Qwen/Qwen2-0.5B-Instruct --learning_rate 5.0e-6 \
         --num_train_epochs 1 --per_device_train_batch_size 2 --max_steps 1000 --gradient_accumulation_steps 8 \
         --eval_strategy steps --eval_steps 50 --output_dir Qwen2-0.5B-DPO --no_remove_unused_columns --use_peft --lora_r 32 \
         --lora_alpha 16",
    ),
    ("dpo", "whole_pairs", "--model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name anthropic/hh-rlhf"),
    (
        "kto",
        "talked_labels",
        "--dataset_name trl-lib/kto-mix-14k --model_name_or_path=trl-lib/qwen1.5-1.8b-sft --per_device_train_batch_size 16 \
         --num_train_epochs 1 --learning_rate 5e-7 --lr_scheduler_type=cosine --gradient_accumulation_steps 1 --eval_steps 500 \
         --output_dir=kto-aligned-model --warmup_steps 0.1 --logging_first_step",
    ),
    (
        "cpo",
        "talked_pairs",
        "--dataset_name trl-lib/ultrafeedback_binarized --model_name_or_path=gpt2 --per_device_train_batch_size 4 --max_steps 1000 \
         --learning_rate 8e-6 --gradient_accumulation_steps 1 --logging_steps 10 --eval_steps 500 --output_dir gpt2-aligned-cpo \
         --warmup_steps 150 --report_to wandb --bf16 --logging_first_step --no_remove_unused_columns",
    ),
    (
        "grpo",
        "solutions",
        "--model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name HuggingFaceH4/Polaris-Dataset-53K --reward_funcs accuracy_reward",
    ),
    (
        "rloo",
        "solutions",
        "--model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name AI-MO/NuminaMath-TIR --reward_funcs accuracy_reward think_format_reward",
    ),
];

fn place() -> TestFolder {
    let place = TestFolder::new();
    place.copy(tiny(), "chatty");
    let template =
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
    place.write("chatty/tokenizer_config.json", json!({"chat_template": template}).to_string());
    let rows = |row: &dyn Fn(usize) -> Value| (0..24).map(|i| format!("{}\n", row(i))).collect::<String>();
    place.write("text.jsonl", rows(&|i| json!({"text": format!("text {i} {}", "ab ".repeat(i % 5))})));
    // As the datasets that are named have them: conversations, pairs of whole conversations or texts, and labelled answers.
    let (asked, said) = (|i: usize| format!("row {i}"), |c: &str, i: usize| format!(" {c}").repeat(1 + i % 5));
    let turns = |i: usize, c: &str| json!([{"role": "user", "content": asked(i)}, {"role": "assistant", "content": said(c, i)}]);
    place.write("talk.jsonl", rows(&|i| json!({"messages": turns(i, "a")})));
    place.write("talked_pairs.jsonl", rows(&|i| json!({"chosen": turns(i, "a"), "rejected": turns(i, "b")})));
    let human = |i: usize, c: &str| format!("\n\nHuman: {}\n\nAssistant:{}", asked(i), said(c, i));
    place.write("whole_pairs.jsonl", rows(&|i| json!({"chosen": human(i, "a"), "rejected": human(i, "b")})));
    let labelled = |i: usize| {
        let turns = turns(i, "a");
        json!({"prompt": [turns[0]], "completion": [turns[1]], "label": i.is_multiple_of(2)})
    };
    place.write("talked_labels.jsonl", rows(&labelled));
    place.write("solutions.jsonl", rows(&|i| json!({"prompt": format!("What is {i}?"), "solution": format!("{i}")})));
    place
}

/// Runs a command of TRL's with a local model and dataset in the place of those that it names, for one short step.
fn run(place: &TestFolder, run: usize, command: &str, rows: &str, arguments: &str) -> CommandOutcome {
    let mut all = vec![command.to_owned()];
    let mut replaced = None;
    for argument in arguments.split_whitespace() {
        let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
        match replaced.take() {
            Some(local) => all.push(local),
            None => all.push(if value.is_empty() { argument.to_owned() } else { name.to_owned() }),
        }
        replaced = match name {
            "--model_name_or_path" => Some("chatty".to_owned()),
            "--dataset_name" => Some(format!("{rows}.jsonl")),
            // The ending token of the model that is named.
            "--eos_token" => Some("<|endoftext|>".to_owned()),
            _ => None,
        };
        if !value.is_empty() {
            all.push(replaced.take().unwrap_or_else(|| value.to_owned()));
        }
    }
    let shorter = ["--max_steps", "1", "--output_dir", &format!("run-{run}")].map(str::to_owned);
    all.extend(shorter);
    if ["grpo", "rloo"].contains(&command) {
        all.extend(["--max_completion_length", "8"].map(str::to_owned));
    }
    place.run(&all.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn the_commands_of_trls_documentation_run() {
    let place = place();
    for (i, (command, rows, arguments)) in COMMANDS.iter().enumerate() {
        run(&place, i, command, rows, arguments).succeeded();
        let steps = place.lines(&format!("run-{i}/metrics.jsonl")).len();
        assert_eq!(steps, 1, "{command} {arguments}");
    }
    let rewards = place.lines("run-9/metrics.jsonl").remove(0);
    for name in ["rewards/accuracy_reward/mean", "rewards/think_format_reward/mean"] {
        assert!(rewards.get(name).is_some(), "{name}: {rewards}");
    }
}

#[test]
fn other_names_of_keys_set_them() {
    let place = place();
    let ppo = "--model_name_or_path a --dataset_name b --reward_funcs think_format_reward --response_length 8 --num_ppo_epochs 2 \
               --log_completions";
    run(&place, 0, "ppo", "solutions", ppo).succeeded();
    let other = "--model_name_or_path a --dataset_name b --reward_funcs think_format_reward --max_new_tokens 9";
    run(&place, 1, "ppo", "solutions", other).succeeded();
    // A file of TRL's, with rewards as a list.
    let yaml = "reward_funcs:\n  - accuracy_reward\n  - think_format_reward\nreward_weights: [1.0, 0.5]\nmax_steps: 1\nnum_generations: 4\n";
    place.write("grpo.yaml", format!("{yaml}model_name_or_path: {}\ndataset_name: solutions.jsonl\n", tiny()));
    let short = ["--output_dir", "listed", "--per_device_train_batch_size", "4", "--max_completion_length", "8"];
    place.run(&[&["grpo", "--config", "grpo.yaml"], &short[..]].concat()).succeeded();
    let line = place.lines("listed/metrics.jsonl").remove(0);
    assert!(line["rewards/accuracy_reward/mean"].is_number() && line["rewards/think_format_reward/mean"].is_number(), "{line}");
    // A reward model by the name that TRL's scripts have for it.
    place.train_reward_model("rm", &[]);
    let judged = "--model_name_or_path a --dataset_name b --reward_model_name_or_path rm";
    run(&place, 3, "rloo", "solutions", judged).succeeded();
    assert!(place.lines("run-3/metrics.jsonl")[0]["rewards/rm/mean"].is_number());
    let config = |run: usize| std::fs::read_to_string(place.path(&format!("run-{run}/config.toml"))).unwrap();
    for set in ["max_completion_length = 8", "num_iterations = 2", "log_completions = \"all\""] {
        assert!(config(0).contains(set), "{set}: {}", config(0));
    }
    assert!(config(1).contains("max_completion_length = 9"), "{}", config(1));
}

/// TRL logs each of its rewards under its own name, and two of them are one plugin here.
#[test]
fn both_rewards_for_right_answers_work_side_by_side() {
    let place = place();
    let rewards = "--model_name_or_path a --dataset_name b --reward_weights 1 3 --reward_funcs accuracy_reward \
                   reasoning_accuracy_reward";
    run(&place, 0, "grpo", "solutions", rewards).succeeded();
    place.run(&["resume", "run-0", "--max-steps", "2"]).succeeded();
    for line in place.lines("run-0/metrics.jsonl") {
        for name in ["accuracy_reward", "reasoning_accuracy_reward"] {
            assert!(line[format!("rewards/{name}/mean")].is_number(), "{line}");
        }
    }
    let config = std::fs::read_to_string(place.path("run-0/config.toml")).unwrap();
    assert!(config.contains("weight = 3.0") && config.matches("answer_reward.wasm").count() == 2, "{config}");
    // The completions that only one of them finds right are recorded as such.
    let other = ["replay", "run-0", "--plugin", "answer_reward.wasm", "--set", "plugin.answer_reward.config.column=solution"];
    let plain = place.run(&[&other[..], &["--with", "accuracy_reward"]].concat());
    assert!(plain.succeeded().stdout.contains("no completion has a different score"), "{}", plain.stdout);
    // What training takes for a plugin, a replay takes.
    let keys = ["--set", "plugin.answer_reward.weight=2", "--set", "plugin.answer_reward.limits.memory_mb=64"];
    let weighted = place.run(&[&other[..], &["--with", "accuracy_reward"], &keys].concat());
    assert_eq!(weighted.succeeded().stdout, plain.stdout);
    assert!(weighted.stderr.contains("without weights"), "{}", weighted.stderr);
    let refused = place.run(&[&other[..], &["--set", "plugin.other.weight=2"]].concat());
    assert!(refused.error().contains("no reward plugin is named \"other\""), "{}", refused.stderr);
    let refused = place.run(&[&other[..], &["--set", "plugin.answer_reward.limits.memory_mb=x"]].concat());
    assert!(refused.code == Some(2) && refused.error().contains("memory_mb"), "{}", refused.stderr);
}

#[test]
fn what_they_ask_for_and_is_not_there_is_said() {
    let place = place();
    let (_, rows, kto) = COMMANDS[6];
    let quantized = format!("{kto} --use_peft --load_in_4bit --lora_target_modules=all-linear");
    run(&place, 1, "kto", rows, &quantized).succeeded();
    let other = run(&place, 0, "kto", rows, &format!("{quantized} --bnb_4bit_quant_type fp4"));
    assert!(other.code == Some(2) && other.error().contains("bnb_4bit_quant_type"), "{}", other.stderr);
    let (_, rows, cpo) = COMMANDS[7];
    let adapted = format!("{cpo} --use_peft --lora_r=16 --lora_alpha=16");
    run(&place, 2, "cpo", rows, &format!("{adapted} --optim rmsprop")).succeeded();
    let optimizer = run(&place, 0, "cpo", rows, &format!("{adapted} --optim ademamix"));
    assert!(optimizer.code == Some(2) && optimizer.error().contains("ademamix"), "{}", optimizer.stderr);
    let function = run(&place, 0, "grpo", "solutions", "--model_name_or_path a --dataset_name b --reward_funcs my_lib.mine");
    assert!(function.code == Some(2) && function.error().contains("accuracy_reward"), "{}", function.stderr);
}
