//! Tests of the binary, from outside: each module runs real commands in a folder of its own. They are one program, so that they are
//! linked once and all run side by side.
//!
//! `cargo test --workspace --test e2e resume::` runs the modules of a folder, `... --test e2e runs::bf16` those of a file.

mod cli {
    mod command_line;
    mod compare;
    mod diagnosis;
    mod dry_run;
    mod from_trl;
    mod init;
    mod mistakes;
    mod output;
    mod rollouts;
    mod sweep;
    mod terminal;
    mod trackers;
    mod trl_commands;
    mod watch;
}

mod data {
    mod datasets;
    mod hub_sources;
    mod large;
    mod odd_rows;
    mod prompt_templates;
    mod row_formats;
    mod templates;
}

mod episodes {
    mod agents;
    mod drivers;
    mod openenv;
    mod runs;
}

mod models {
    mod experts;
    mod folders;
    mod gguf;
    mod latent;
    mod lora;
    mod process_rewards;
    mod quantized;
    mod recurrent;
    mod reward_models;
    mod varied;
}

mod plugins {
    mod check;
    mod granted_folders;
    mod hostile_algorithms;
    mod hostile_runs;
    mod judges;
    mod languages;
    mod model_swaps;
    mod replay;
    mod sandbox;
    mod sandbox_limits;
    mod scripts;
    mod swaps;
    mod versions;
    mod windows;
}

mod ranks {
    mod devices;
    #[allow(clippy::print_stdout)]
    mod namespaces;
    mod rollouts;
    mod runs;
    mod settings;
    mod sharding;
}

mod repository {
    mod cycles;
    mod docs;
    mod generated;
    mod house;
    mod imports;
    mod layers;
    mod names;
}

mod resume {
    mod checkpoints;
    mod folders;
    mod forks;
    mod grants;
    mod layouts;
    mod plugins;
    mod rollout_log;
    mod rollouts;
    mod runs;
}

mod runs {
    mod algorithms;
    mod bench;
    mod bf16;
    mod control;
    mod critic;
    mod distillation;
    mod ends;
    mod evaluation;
    mod filtering;
    mod finetuning;
    mod labelled;
    mod mini_batches;
    mod mixed_completions;
    mod order;
    mod own_successes;
    mod plan;
    mod processors;
    mod references;
    mod sampling;
    mod settings;
    mod teacher_tokens;
    mod whole;
}

mod serving {
    mod clients;
    mod interfaces;
    mod rollouts;
    mod routes;
    mod sglang;
    mod ui;
    mod weights;
}
