//! Models and datasets from the Hugging Face hub, through the cache that Hugging Face's own libraries use: files downloaded by either are
//! not downloaded again by the other.
//!
//! A branch is resolved once, and all files come from the commit that it pointed to.

mod cache;
mod card;
mod client;
mod error;
mod fetch;
mod listing;
mod model_files;
mod name;
mod patterns;
mod requests;
mod settings;
mod splits;

pub use error::{Error, Result};
pub use name::looks_like_name;
pub use settings::{HubSettings, HubTimeouts};

use crate::config::{files, printable, printable_path};
use cache::HubCache;
use card::{CARD, DatasetCard, SETTINGS};
use client::HubClient;
use listing::RepoListing;
use model_files::{BESIDE_TEMPLATES, BESIDE_WEIGHTS, CONFIG, HubShardIndex, INDEX, SMALL, TEMPLATES, WEIGHTS};
use name::{Repo, RepoKind};
use splits::SplitChoice;
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Files of one commit in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubSnapshot {
    /// `OWNER/NAME@COMMIT`, which always identifies the same files.
    pub name: String,
    /// Folder of the files.
    pub folder: PathBuf,
    /// Requested files.
    pub files: Vec<PathBuf>,
}

/// Fetches a model by its name on the hub that the environment configures.
///
/// # Errors
/// See [`Hub::model`].
pub fn model(name: &str) -> Result<HubSnapshot> {
    Hub::new(HubSettings::from_env()).model(name)
}

/// Fetches only the configuration of a model, by its name on the hub.
///
/// # Errors
/// See [`Hub::model_config`].
pub fn model_config(name: &str) -> Result<HubSnapshot> {
    Hub::new(HubSettings::from_env()).model_config(name)
}

/// Fetches the files with a model's chat template, by its name on the hub.
///
/// # Errors
/// See [`Hub::template`].
pub fn template(name: &str) -> Result<HubSnapshot> {
    Hub::new(HubSettings::from_env()).template(name)
}

/// Fetches the files of a dataset's split, by its name on the hub.
///
/// # Errors
/// See [`Hub::dataset`].
pub fn dataset(name: &str, split: &str) -> Result<HubSnapshot> {
    Hub::new(HubSettings::from_env()).dataset(name, split)
}

/// Maximum number of files in the folder of a local dataset.
const MOST_LOCAL: usize = 100_000;

/// Maximum depth of folders in the folder of a local dataset.
const DEEPEST: usize = 32;

/// Returns the files of a split in a local folder with the layout of a dataset on the hub; `None` if the folder has no data files. The
/// subset is one of those that the folder's card lists. If the split was not `chosen` and there is only one, that one is used. Subfolders
/// for which `is_output` holds are skipped.
///
/// # Errors
/// If there is no such split, if there are several subsets to choose from, or if the folder's card is wrong.
pub fn local_split(
    folder: &Path,
    subset: Option<&str>,
    (split, chosen): (&str, bool),
    is_output: fn(&Path) -> bool,
) -> Result<Option<DatasetSplit>> {
    let mut files = Vec::new();
    let unreadable = |source| Error::Io { path: folder.to_owned(), source };
    list(folder, "", is_output, &mut Vec::new(), &mut files).map_err(unreadable)?;
    files.sort_unstable();
    // The reader of the dataset reports what the folder holds instead.
    if !splits::has_data(&files) {
        return Ok(None);
    }
    let unfit = |detail: String| Error::Unfit { name: printable_path(folder), detail: printable(&detail, LONGEST_SAID) };
    let card = card_in(folder, unfit)?.unwrap_or_default();
    let mut choice = splits::choose_local(&files, &card, subset, (split, chosen)).map_err(unfit)?;
    choice.ignored.extend(splits::not_data(&files).cloned());
    let files = choice.files.iter().map(|file| folder.join(file)).collect();
    let (summary, ignored) = (summary(&choice), ignored(&choice));
    Ok(Some(DatasetSplit { files, name: choice.split, summary, ignored, unused: choice.unused }))
}

/// Files of a split, and notes for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetSplit {
    /// Files, in reading order.
    pub files: Vec<PathBuf>,
    /// Name of the split.
    pub name: String,
    /// Describes which files are read.
    pub summary: String,
    /// Lists data files that are in no split, if there are any.
    pub ignored: Option<String>,
    /// Lists settings of the folder's card that have no effect, if there are any.
    pub unused: Option<String>,
}

/// Splits a path such as `FOLDER/SUBSET` into folder and subset, if the folder's card lists that subset, or lists others and the path does
/// not exist. A listed subset takes precedence over a folder of the same name, which may also hold files of other splits.
pub fn local_subset(given: &str) -> Option<(PathBuf, String)> {
    let path = Path::new(given);
    let (folder, subset) = (path.parent()?, path.file_name()?.to_str()?);
    if path.is_file() {
        return None;
    }
    // A bare name refers to the working directory, or to a dataset on the hub.
    let is_bare = folder.as_os_str().is_empty();
    let folder = if is_bare { Path::new(".") } else { folder };
    let unfit = |detail: String| Error::Unfit { name: printable_path(folder), detail };
    let is_meant = match card_in(folder, unfit).transpose()? {
        Ok(card) if path.exists() || is_bare => card.names().contains(&subset),
        Ok(card) => !card.names().is_empty(),
        // Errors in a card are reported when it is read to choose files.
        Err(_) => !path.exists() && !is_bare,
    };
    is_meant.then(|| (folder.to_owned(), subset.to_owned()))
}

/// Reads the card of a local folder, if it has one. `unfit` converts a description of what is wrong into an error.
fn card_in(folder: &Path, unfit: impl Fn(String) -> Error) -> Result<Option<DatasetCard>> {
    let [card, settings] = [CARD, SETTINGS].map(|name| Some(folder.join(name)).filter(|path| path.is_file()));
    if card.is_none() && settings.is_none() {
        return Ok(None);
    }
    let read = |path: Option<PathBuf>| path.map_or(Ok(String::new()), |path| beginning(&path));
    DatasetCard::parse_with(&read(card)?, &read(settings)?).map(Some).map_err(unfit)
}

/// Reads the card of a dataset. `unfit` converts a description of what is wrong into an error.
fn read_card(path: &Path, unfit: impl Fn(String) -> Error) -> Result<DatasetCard> {
    DatasetCard::parse(&beginning(path)?).map_err(unfit)
}

/// Reads the first bytes of a file, as many as a card may have.
fn beginning(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let read = files::open(path).and_then(|file| file.take(card::READ).read_to_end(&mut bytes));
    read.map_err(|source| Error::Io { path: path.to_owned(), source })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Maximum number of files that a message names.
const NAMED: usize = 8;

/// Describes which files of a dataset are read.
fn summary(choice: &SplitChoice) -> String {
    let mut text = format!("reading {} for the split {}", named(&choice.files), printable(&choice.split, 64));
    if !choice.others.is_empty() {
        text += &format!("; other splits: {}", printable(&choice.others.join(", "), 512));
    }
    text
}

/// Lists the data files that are in no split, if there are any.
fn ignored(choice: &SplitChoice) -> Option<String> {
    (!choice.ignored.is_empty()).then(|| named(&choice.ignored))
}

/// Lists the names of some files, and the number of the others.
fn named(files: &[String]) -> String {
    let mut text = files.iter().take(NAMED).map(|file| printable(file, 128)).collect::<Vec<_>>().join(", ");
    if files.len() > NAMED {
        text += &format!(" and {} more", files.len() - NAMED);
    }
    text
}

/// Adds the files below a folder, as paths with slashes. `above` holds the real paths of the folder's ancestors, so that links to one of
/// them are not followed.
fn list(
    folder: &Path,
    before: &str,
    is_output: fn(&Path) -> bool,
    above: &mut Vec<PathBuf>,
    files: &mut Vec<String>,
) -> std::io::Result<()> {
    let real = folder.canonicalize()?;
    if above.contains(&real) {
        return Ok(());
    }
    if above.len() >= DEEPEST {
        return Err(std::io::Error::other(format!("it has folders more than {DEEPEST} deep")));
    }
    above.push(real);
    for entry in folder.read_dir()? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
        if files.len() >= MOST_LOCAL {
            return Err(std::io::Error::other(format!("it has more than {MOST_LOCAL} files")));
        }
        if entry.path().is_dir() && !is_output(&entry.path()) {
            list(&entry.path(), &format!("{before}{name}/"), is_output, above, files)?;
        } else if !entry.path().is_dir() {
            files.push(format!("{before}{name}"));
        }
    }
    above.pop();
    Ok(())
}

/// Maximum size in bytes of all files of a model or dataset. Weights and rows are held in memory.
const MOST: u64 = 1 << 40;

/// Maximum length of a message about a listing, in bytes.
const LONGEST_SAID: usize = 2048;

/// Branch on which the hub stores every dataset as Parquet.
const CONVERTED: &str = "refs/convert/parquet";

/// Hub, accessed through the cache.
pub struct Hub {
    settings: HubSettings,
    wire: HubClient,
}

impl Hub {
    /// Creates a hub with these settings.
    pub fn new(settings: HubSettings) -> Self {
        let wire = HubClient::new(&settings);
        Self { settings, wire }
    }

    /// Fetches the files that a model folder needs, and no others of the repository.
    ///
    /// # Errors
    /// If there is no such model, it is not accessible, it has no safetensors or no tokenizer, or the download fails.
    pub fn model(&self, name: &str) -> Result<HubSnapshot> {
        let repo = Repo::parse(RepoKind::Model, name)?;
        let cache = HubCache::new(&self.settings, &repo);
        let listing = self.listing(&repo, &cache, |listing| cache.has_model(listing))?;
        let unfit = |detail: String| Error::Unfit { name: repo.id.clone(), detail: printable(&detail, LONGEST_SAID) };
        let mut wanted = Vec::new();
        for (file, needed) in BESIDE_WEIGHTS {
            if listing.has(file) {
                wanted.push(file.to_owned());
            } else if needed {
                return Err(unfit(format!("has no {file}; it has {}", listing.names())));
            }
        }
        // A model may have both a single file and shards; the shards are then not read.
        if listing.has(WEIGHTS) {
            wanted.push(WEIGHTS.to_owned());
        } else if listing.has(INDEX) {
            let path = self.fetch(&repo, &cache, &listing.commit, INDEX, &mut { SMALL })?;
            let text = files::read_text(&path, SMALL).map_err(|source| Error::Io { path, source })?;
            let index: HubShardIndex =
                serde_json::from_str(&text).map_err(|e| unfit(format!("{INDEX} is not an index of shards: {e}")))?;
            let shards: BTreeSet<String> = index.weight_map.into_values().collect();
            if let Some(shard) = shards.iter().find(|shard| !listing.has(shard)) {
                return Err(unfit(format!("has no {shard}, which {INDEX} lists")));
            }
            wanted.push(INDEX.to_owned());
            wanted.extend(shards);
        } else {
            return Err(unfit(format!("has no {WEIGHTS}, the only supported weight format; it has {}", listing.names())));
        }
        self.snapshot(&repo, &cache, &listing, &wanted)
    }

    /// Fetches only the configuration of a model.
    ///
    /// # Errors
    /// If there is no such model, it is not accessible, or it has no configuration.
    pub fn model_config(&self, name: &str) -> Result<HubSnapshot> {
        let repo = Repo::parse(RepoKind::Model, name)?;
        let cache = HubCache::new(&self.settings, &repo);
        let listing = self.listing(&repo, &cache, |listing| listing.has(CONFIG))?;
        if !listing.has(CONFIG) {
            let detail = format!("has no {CONFIG}; it has {}", listing.names());
            return Err(Error::Unfit { name: repo.id, detail: printable(&detail, LONGEST_SAID) });
        }
        self.snapshot(&repo, &cache, &listing, &[CONFIG.to_owned()])
    }

    /// Fetches the files that may hold a model's chat template.
    ///
    /// # Errors
    /// If there is no such model, it is not accessible, it has neither tokenizer settings nor a template, or the download fails.
    pub fn template(&self, name: &str) -> Result<HubSnapshot> {
        let repo = Repo::parse(RepoKind::Model, name)?;
        let cache = HubCache::new(&self.settings, &repo);
        let held =
            |listing: &RepoListing| TEMPLATES.into_iter().filter(|file| listing.has(file)).map(str::to_owned).collect::<Vec<_>>();
        let listing = self.listing(&repo, &cache, |listing| !held(listing).is_empty())?;
        let mut wanted = held(&listing);
        if wanted.is_empty() {
            let detail = format!("has no {}; it has {}", TEMPLATES.join(" and no "), listing.names());
            return Err(Error::Unfit { name: repo.id, detail: printable(&detail, LONGEST_SAID) });
        }
        wanted.extend(BESIDE_TEMPLATES.into_iter().filter(|file| listing.has(file)).map(str::to_owned));
        self.snapshot(&repo, &cache, &listing, &wanted)
    }

    /// Fetches the files of a dataset's split. `OWNER/NAME/SUBSET` selects one of several subsets. Uses the hub's conversion to Parquet if
    /// the repository holds no readable files, or its file names don't tell the splits apart.
    ///
    /// # Errors
    /// If there is no such dataset, it is not accessible, it has no such split, it has several subsets to choose from, or the download
    /// fails.
    pub fn dataset(&self, name: &str, split: &str) -> Result<HubSnapshot> {
        let repo = Repo::parse(RepoKind::Dataset, name)?;
        let mut default = None;
        let first = match self.split(&repo, split, &mut default) {
            Err(error @ (Error::Unfit { .. } | Error::Unreachable { .. })) if repo.revision == "main" => error,
            other => return other,
        };
        // In the conversion, subsets have the names of the card's configs.
        let subset = repo.subset.clone().or(default);
        let converted = Repo { revision: CONVERTED.to_owned(), subset, ..repo };
        self.split(&converted, split, &mut None).map_err(|second| match second {
            // In the conversion, subsets and splits have the dataset's own names.
            Error::Unfit { .. } => second,
            _ => first,
        })
    }

    /// Fetches the files of a split. Stores the name of the card's `default` config, if there is one.
    fn split(&self, repo: &Repo, split: &str, default: &mut Option<String>) -> Result<HubSnapshot> {
        let cache = HubCache::new(&self.settings, repo);
        let unfit = |detail: String| Error::Unfit { name: repo.id.clone(), detail: printable(&detail, LONGEST_SAID) };
        let choose = |files: &[String], card: &DatasetCard| splits::choose(files, card, repo.subset.as_deref(), split);
        let whole = |listing: &RepoListing| {
            let path = cache.snapshot(&listing.commit).join(CARD);
            let card = if path.is_file() { read_card(&path, unfit) } else { Ok(DatasetCard::default()) };
            card.is_ok_and(|card| choose(&listing.files, &card).is_ok_and(|choice| splits::whole(&choice.files)))
        };
        let listing = self.listing(repo, &cache, whole)?;
        let card = if listing.has(CARD) && repo.revision != CONVERTED {
            let path = self.fetch(repo, &cache, &listing.commit, CARD, &mut { SMALL })?;
            read_card(&path, unfit)?
        } else {
            DatasetCard::default()
        };
        let is_name = |config: &str| Repo::parse(RepoKind::Dataset, &format!("{}/{config}", repo.id)).is_ok();
        *default = card.config(None).ok().flatten().map(|config| config.name.clone()).filter(|config| is_name(config));
        let choice = choose(&listing.files, &card).map_err(unfit)?;
        tracing::info!("{}: {}", repo.id, summary(&choice));
        if let Some(ignored) = ignored(&choice) {
            tracing::info!("{}: not read, since the split does not have them: {ignored}", repo.id);
        }
        if let Some(unused) = &choice.unused {
            tracing::warn!("{}: {unused}", repo.id);
        }
        self.snapshot(repo, &cache, &listing, &choice.files)
    }

    fn snapshot(&self, repo: &Repo, cache: &HubCache, listing: &RepoListing, wanted: &[String]) -> Result<HubSnapshot> {
        let mut left = MOST;
        let fetch = |file: &String| {
            let beside = repo.kind == RepoKind::Model && BESIDE_WEIGHTS.iter().any(|(name, _)| name == file);
            let mut small = SMALL;
            self.fetch(repo, cache, &listing.commit, file, if beside { &mut small } else { &mut left })
        };
        let files = wanted.iter().map(fetch).collect::<Result<Vec<_>>>()?;
        if listing.fresh {
            // Recorded last, so that the cache holds all files of every branch that it knows.
            cache.remember(&repo.revision, &listing.commit)?;
        }
        Ok(HubSnapshot { name: repo.pinned(&listing.commit), folder: cache.snapshot(&listing.commit), files })
    }
}

#[cfg(test)]
mod server;
#[cfg(test)]
mod tests;
