//! Configuration: plain structs with TRL's names and defaults, their validation, and merging of files and flags. This crate depends neither
//! on tensors nor on plugins.

pub mod activity;
mod address;
mod agents;
mod batches;
mod changes;
mod choices;
mod clock;
mod completion_source;
mod deepspeed;
mod default;
mod device;
mod entries;
mod episodes;
mod error;
mod evaluation;
pub mod files;
mod foreign_options;
mod foreign_values;
mod fsdp;
mod grants;
mod inheritance;
pub mod json;
pub mod json_lines;
mod key_display;
mod keys;
mod layers;
mod limit;
mod lines;
mod lora;
mod lr_kwargs;
mod named_keys;
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
mod spelling;
mod suggestion;
mod tables;
mod teacher;
mod threads;
mod validate;
mod values;
pub mod words;
mod yaml;

pub use address::Address;
pub use agents::AgentEntry;
pub use batches::BatchSizes;
pub use changes::{changes, same};
pub use choices::{
    CompletionLogging, CompletionSource, IntervalStrategy, ModelDtype, OldLogpSource, PackingStrategy, ReduceDtype, ReportTarget,
    RolloutDtype, RolloutLogMode, RolloutSync, SaveErrorAction, TeacherModelKind, ZeroStage,
};
pub use clock::{local_now, now};
pub use device::Device;
pub use entries::{ComparisonTarget, PluginEntry, PluginLimits, RewardErrorAction};
pub use error::{Error, Result};
pub use foreign_options::{ForeignOption, OptionTreatment, option as foreign_option, options as foreign_options};
pub use grants::{Grants, Host, HttpLimits, Secret, is_local};
pub use key_display::{KeyDisplay, shown};
pub use keys::{ConfigKey, InheritanceRule, ResumeRule, key, keys};
pub use layers::{BootstrapConfig, ConfigFile, LARGEST, read, read_files};
pub use named_keys::NamedKeys;
pub use optimizer::{AdafactorArgs, LrAdjustment, MuonArgs, OptimizerName, OptimizerRule, RmsPropArgs, SgdArgs};
pub use options::{DEFAULT_ALGORITHM, RunConfig};
pub use overrides::Overrides;
pub use period::Period;
pub use printable::{
    hex, is_hidden, is_shown, is_variation_selector, printable, printable_lines, printable_path, shell_word, shortest,
};
pub use prompt_template::PromptTemplate;
pub use reach::Grant;
pub use schedule::{
    CosineArgs, CosineMinLrArgs, CosineRestartsArgs, CosineWarmupMinLrArgs, InverseSqrtArgs, LrSchedule, LrShape,
    MetricDirection, PlateauArgs, PolynomialArgs, RampShape, StableDecayArgs, ThresholdMode,
};
pub use script_path::ScriptPath;
pub use set::KeyAssignment;
pub use suggestion::{did_you_mean, nearest};
pub use tables::{TableKey, entry_tables};
pub use teacher::TeacherServerEntry;
pub use threads::{PLUGIN_STACK, STACK, on_own_stack};
pub use values::{scalar, switched};
pub use yaml::{front_matter, yaml_document};
