//! Arguments that name a plugin.

use crate::cli::grant_args::GrantArgs;
use crate::cli::settings::settings_given;
use crate::config::{self, KeyAssignment, Overrides, PluginLimits};
use crate::data::{self, Dataset, PromptForm, PromptRow, UnusableRows};
use crate::plugin::{self, AnyPlugin, PluginEngine, PluginSource, Role};
use crate::train;
use std::path::{Path, PathBuf};

/// A plugin and its settings.
#[derive(clap::Args)]
pub(super) struct PluginArgs {
    /// Plugin: a path, or the file name of a built-in plugin
    plugin: String,
    /// Setting of the plugin, as in --set target=8; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Dataset with prompts and columns to test a reward or an environment on
    #[arg(long)]
    pub(super) dataset: Option<PathBuf>,
    /// Rename its columns, as in prompt=question; separate several with commas or repeat the flag
    #[arg(long, value_name = "NAME=COLUMN", requires = "dataset")]
    columns: Vec<String>,
    /// Build its prompts from columns, as in '{question}'
    #[arg(long, alias = "prompt_template", value_name = "TEXT", requires = "dataset")]
    prompt_template: Option<String>,
    /// Folder with Python modules that a script may import; may be repeated
    #[arg(long, alias = "python_path", value_name = "FOLDER")]
    python_path: Vec<String>,
    #[command(flatten)]
    granted: GrantArgs,
}

impl PluginArgs {
    /// Opens the plugin, and creates an engine that lets it send the granted requests.
    pub(super) fn open(&self) -> anyhow::Result<(PluginEngine, PluginSource)> {
        plugin::set_python_path(&self.python_path);
        let (mut engine, source) = (PluginEngine::new()?, PluginSource::open(&self.plugin)?);
        self.granted.apply(&mut engine, source.name())?;
        Ok((engine, source))
    }

    /// Returns the names of the folders that the plugin may read.
    pub(super) fn granted_folders(&self) -> Vec<String> {
        self.granted.folder_names()
    }

    /// Reads the dataset to test on, if one is given.
    pub(super) fn prompts(&self) -> anyhow::Result<Option<Vec<PromptRow>>> {
        let Some(path) = self.dataset.as_deref() else { return Ok(None) };
        let named = [("dataset", path.display().to_string())].into_iter();
        let columns = self.columns.iter().map(|columns| ("columns", columns.clone()));
        let template = self.prompt_template.iter().map(|template| ("prompt_template", template.clone()));
        let flags = named.chain(columns).chain(template).map(|(key, text)| (key.to_owned(), text)).collect();
        let config = config::read(std::iter::empty::<&Path>(), &Overrides { flags, ..Overrides::default() })?;
        let dataset = Dataset { columns: config.columns(), ..train::local_dataset(path)? };
        let (form, mut refused) = (PromptForm::from_config(&config, false), UnusableRows::default());
        let rows = data::read_prompts_as(&dataset, form.as_ref(), &mut refused)?;
        if let Some(text) = refused.warning(rows.len())? {
            tracing::warn!("{text}");
        }
        Ok(Some(rows))
    }

    pub(super) fn load(&self, engine: &PluginEngine, source: &PluginSource, role: Role) -> anyhow::Result<AnyPlugin> {
        let settings = settings_given(&KeyAssignment::parse_all(&self.set)?)?;
        AnyPlugin::load(engine, source, role, &settings, &PluginLimits::default(), 0).map_err(|error| match error {
            plugin::Error::Config { name, detail } => {
                let detail = format!("{detail}; --set KEY=VALUE gives a setting, and `rlhost plugin inspect` lists them");
                plugin::Error::Config { name, detail }.into()
            }
            other => other.into(),
        })
    }
}
