//! Everything that can be configured: plain structs with TRL's names and defaults, their validation, and how files and flags are
//! merged into one. Knows neither tensors nor plugins.

pub mod activity;
mod address;
mod agents;
mod batches;
mod changes;
mod choices;
mod clock;
mod deepspeed;
mod default;
mod device;
mod entries;
mod episodes;
mod error;
mod evaluation;
pub mod files;
mod foreign;
mod foreign_values;
mod fsdp;
mod grants;
mod inherited;
pub mod json;
pub mod json_lines;
mod keys;
mod layers;
mod limit;
mod lines;
mod lora;
mod lr_kwargs;
mod meant;
mod named;
mod nearest;
mod optim_args;
mod optimizer;
mod options;
mod overrides;
mod period;
mod printable;
mod prompt_template;
mod reach;
mod rewards;
mod schedule;
mod script_path;
mod servers;
mod set;
mod sharding;
mod sharding_settings;
mod shown;
mod tables;
mod threads;
mod validate;
mod values;
pub mod words;
mod yaml;

pub use address::Address;
pub use agents::AgentEntry;
pub use batches::Batches;
pub use changes::{changes, same};
pub use choices::{
    LearnFrom, LogCompletions, ModelDtype, OldLogp, OnSaveError, PackingStrategy, ReduceDtype, ReportTo, RolloutDtype,
    RolloutLog, RolloutSync, Strategy, ZeroStage,
};
pub use clock::{local_now, now};
pub use device::Device;
pub use entries::{Compare, Limits, OnError, PluginEntry};
pub use error::{Error, Result};
pub use foreign::{Foreign, Treatment, option as foreign_option, options as foreign_options};
pub use grants::{Grants, Host, HttpLimits, Secret, is_here};
pub use keys::{Inherited, Key, OnResume, key, keys};
pub use layers::{Asked, ConfigFile, LARGEST, read, read_files};
pub use named::NamedKeys;
pub use nearest::{did_you_mean, nearest};
pub use optimizer::{AdafactorArgs, AdjustLr, MuonArgs, Optim, RmsPropArgs, Rule, SgdArgs};
pub use options::{Config, DEFAULT_ALGORITHM};
pub use overrides::Overrides;
pub use period::Period;
pub use printable::{
    hex, is_hidden, is_shown, is_variation_selector, printable, printable_lines, printable_path, shell_word, shortest,
};
pub use prompt_template::PromptTemplate;
pub use reach::Grant;
pub use schedule::{
    Better, InverseSqrt, LrSchedule, LrShape, MinLr, OnPlateau, Polynomial, Restarts, Slope, StableDecay, Threshold, WarmedMinLr,
    Waves,
};
pub use script_path::ScriptPath;
pub use set::Set;
pub use shown::{Shown, shown};
pub use tables::{TableKey, entry_tables};
pub use threads::{PLUGIN_STACK, STACK, on_own_stack};
pub use values::{scalar, switched};
pub use yaml::{front_matter, yaml_document};
