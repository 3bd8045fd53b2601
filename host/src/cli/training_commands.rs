//! The table of the training commands.

/// A training command, with the keys that it sets.
pub(super) struct TrainingCommand {
    pub name: &'static str,
    pub(super) about: &'static str,
    pub sets: &'static [(&'static str, &'static str)],
}

/// The training commands. An algorithm's command has its name.
pub(super) const TRAINING: [TrainingCommand; 15] = [
    TrainingCommand { name: "train", about: "Train a model with any algorithm (the default command)", sets: &[] },
    TrainingCommand {
        name: "sft",
        about: "Fine-tune a model on given completions, texts or conversations (SFT)",
        sets: &[("algorithm", "sft"), ("learn_from", "dataset")],
    },
    TrainingCommand { name: "dpo", about: "Train on preference pairs (DPO and its variants)", sets: &[("algorithm", "dpo")] },
    TrainingCommand {
        name: "cpo",
        about: "Train on preference pairs without a reference model (CPO, SimPO)",
        sets: &[("algorithm", "cpo")],
    },
    TrainingCommand {
        name: "orpo",
        about: "Train on preference pairs with the odds ratio (ORPO)",
        sets: &[("algorithm", "orpo")],
    },
    TrainingCommand { name: "kto", about: "Train on desirable and undesirable answers (KTO)", sets: &[("algorithm", "kto")] },
    TrainingCommand {
        name: "reward",
        about: "Train a reward model on preference pairs (Bradley-Terry)",
        sets: &[("algorithm", "reward_model")],
    },
    TrainingCommand {
        name: "grpo",
        about: "Train with rewards, relative to a group of completions (GRPO)",
        sets: &[("algorithm", "grpo")],
    },
    TrainingCommand {
        name: "distillation",
        about: "Learn a teacher model's predictions, on the model's own completions or given ones (GKD)",
        sets: &[("algorithm", "distillation")],
    },
    TrainingCommand {
        name: "sdft",
        about: "Learn what the model itself predicts when it is told more, on its own completions (SDFT)",
        sets: &[("algorithm", "sdft")],
    },
    TrainingCommand {
        name: "sdpo",
        about: "Train with rewards on what the model itself predicts when it has seen a success or feedback (SDPO)",
        sets: &[("algorithm", "sdpo")],
    },
    TrainingCommand {
        name: "rloo",
        about: "Train with rewards and a leave-one-out baseline (RLOO)",
        sets: &[("algorithm", "rloo")],
    },
    TrainingCommand { name: "ppo", about: "Train with rewards and a critic (PPO)", sets: &[("algorithm", "ppo")] },
    TrainingCommand {
        name: "reinforce-pp",
        about: "Train with rewards and no critic (REINFORCE++)",
        sets: &[("algorithm", "reinforce_pp")],
    },
    TrainingCommand {
        name: "online-dpo",
        about: "Train on pairs of the model's own completions (Online DPO)",
        sets: &[("algorithm", "online_dpo")],
    },
];

/// Returns the training command with this name.
pub(super) fn training(name: &str) -> Option<&'static TrainingCommand> {
    TRAINING.iter().find(|training| training.name == name)
}

/// Returns whether a command has a flag for each key.
pub(super) fn takes_keys(command: &str) -> bool {
    training(command).is_some() || ["eval", "bench", "plan"].contains(&command)
}
