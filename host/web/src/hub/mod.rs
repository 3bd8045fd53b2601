//! Models and datasets by their names on the Hugging Face hub, through the cache that its own
//! libraries keep: what Python has fetched is not fetched again, and the other way round.
//!
//! What belongs to one commit is taken from one commit: a branch is looked up once, and every file
//! then comes from the commit that it was at.

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

/// Files of one commit, in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubSnapshot {
    /// `OWNER/NAME@COMMIT`, which means the same files for ever.
    pub name: String,
    /// The folder in which they lie.
    pub folder: PathBuf,
    /// The files that were asked for.
    pub files: Vec<PathBuf>,
}

/// A model by its name on the hub, as the environment says where that is.
///
/// # Errors
/// See [`Hub::model`].
pub fn model(name: &str) -> Result<HubSnapshot> {
    Hub::new(HubSettings::from_env()).model(name)
}

/// A model's configuration alone, by its name on the hub.
///
/// # Errors
/// See [`Hub::model_config`].
pub fn model_config(name: &str) -> Result<HubSnapshot> {
    Hub::new(HubSettings::from_env()).model_config(name)
}

/// The files with a model's chat template, by its name on the hub.
///
/// # Errors
/// See [`Hub::template`].
pub fn template(name: &str) -> Result<HubSnapshot> {
    Hub::new(HubSettings::from_env()).template(name)
}

/// The files of a split of a dataset, by its name on the hub.
///
/// # Errors
/// See [`Hub::dataset`].
pub fn dataset(name: &str, split: &str) -> Result<HubSnapshot> {
    Hub::new(HubSettings::from_env()).dataset(name, split)
}

/// Files of a local dataset's folder.
const MOST_LOCAL: usize = 100_000;

/// Folders within each other in a local dataset's folder.
const DEEPEST: usize = 32;

/// The files of a split in a local folder that is laid out like a dataset on the hub; none if it holds nothing that can be read. The
/// subset is one of those that the folder's card lists. A split that was not `chosen` may be another one, if there is only one. Folders
/// inside for which `is_output` holds are no part of it.
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
    // What it holds instead of data is said by who reads it.
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

/// The files of a split, and what the user should know of the choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetSplit {
    /// Its files, in the order in which they are read.
    pub files: Vec<PathBuf>,
    /// Its name.
    pub name: String,
    /// Says which files are read.
    pub summary: String,
    /// Names data files that are in no split, if there are any.
    pub ignored: Option<String>,
    /// Names what the folder's card sets without effect, if there is anything.
    pub unused: Option<String>,
}

/// Returns the folder and the subset that a path such as `FOLDER/SUBSET` means: the folder's card lists that subset; or it lists others
/// and nothing lies there. A listed subset comes before a folder of its name, which may have the files of other splits too.
pub fn local_subset(given: &str) -> Option<(PathBuf, String)> {
    let path = Path::new(given);
    let (folder, subset) = (path.parent()?, path.file_name()?.to_str()?);
    if path.is_file() {
        return None;
    }
    // A name alone means something in the working directory, or a dataset on the hub.
    let is_bare = folder.as_os_str().is_empty();
    let folder = if is_bare { Path::new(".") } else { folder };
    let unfit = |detail: String| Error::Unfit { name: printable_path(folder), detail };
    let is_meant = match card_in(folder, unfit).transpose()? {
        Ok(card) if path.exists() || is_bare => card.names().contains(&subset),
        Ok(card) => !card.names().is_empty(),
        // What is wrong with a card is said when it is read to choose files.
        Err(_) => !path.exists() && !is_bare,
    };
    is_meant.then(|| (folder.to_owned(), subset.to_owned()))
}

/// Reads the card of a local folder, if it has one. What is wrong with it makes an error by `unfit`.
fn card_in(folder: &Path, unfit: impl Fn(String) -> Error) -> Result<Option<DatasetCard>> {
    let [card, settings] = [CARD, SETTINGS].map(|name| Some(folder.join(name)).filter(|path| path.is_file()));
    if card.is_none() && settings.is_none() {
        return Ok(None);
    }
    let read = |path: Option<PathBuf>| path.map_or(Ok(String::new()), |path| beginning(&path));
    DatasetCard::parse_with(&read(card)?, &read(settings)?).map(Some).map_err(unfit)
}

/// Reads a dataset's card. What is wrong with it makes an error by `unfit`.
fn read_card(path: &Path, unfit: impl Fn(String) -> Error) -> Result<DatasetCard> {
    DatasetCard::parse(&beginning(path)?).map_err(unfit)
}

/// Reads as much of a file as a card may have.
fn beginning(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let read = files::open(path).and_then(|file| file.take(card::READ).read_to_end(&mut bytes));
    read.map_err(|source| Error::Io { path: path.to_owned(), source })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Maximum number of files that a message names.
const NAMED: usize = 8;

/// Says which files of a dataset are read.
fn summary(choice: &SplitChoice) -> String {
    let mut text = format!("reading {} for the split {}", named(&choice.files), printable(&choice.split, 64));
    if !choice.others.is_empty() {
        text += &format!("; other splits: {}", printable(&choice.others.join(", "), 512));
    }
    text
}

/// Names the data files that are in no split, if there are any.
fn ignored(choice: &SplitChoice) -> Option<String> {
    (!choice.ignored.is_empty()).then(|| named(&choice.ignored))
}

/// Returns the names of some files, and the number of the others.
fn named(files: &[String]) -> String {
    let mut text = files.iter().take(NAMED).map(|file| printable(file, 128)).collect::<Vec<_>>().join(", ");
    if files.len() > NAMED {
        text += &format!(" and {} more", files.len() - NAMED);
    }
    text
}

/// Adds the files below a folder, with slashes. `above` are the real paths of the folders that contain it, so that a link to one of
/// them is not followed.
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

/// Bytes of all files of a model or dataset together. Weights are held in memory, and so are rows.
const MOST: u64 = 1 << 40;

/// Bytes of what is said of a listing.
const LONGEST_SAID: usize = 2048;

/// The branch on which the hub keeps every dataset as Parquet.
const CONVERTED: &str = "refs/convert/parquet";

/// The hub, by way of a cache.
pub struct Hub {
    settings: HubSettings,
    wire: HubClient,
}

impl Hub {
    /// A hub that is reached as `settings` say.
    pub fn new(settings: HubSettings) -> Self {
        let wire = HubClient::new(&settings);
        Self { settings, wire }
    }

    /// Fetches what a model folder needs, and nothing else of what the repository holds.
    ///
    /// # Errors
    /// If there is no such model, none that may be read, none with safetensors and a tokenizer, or
    /// it does not come whole.
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
        // A model may have both; then shards are not read.
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

    /// Fetches a model's configuration, and nothing else of what the repository holds.
    ///
    /// # Errors
    /// If there is no such model, none that may be read, or none with a configuration.
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

    /// Fetches what may hold a model's chat template.
    ///
    /// # Errors
    /// If there is no such model, none that may be read, none with a tokenizer's settings or a template, or they don't come whole.
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

    /// Fetches the files of a split of a dataset. `OWNER/NAME/SUBSET` names one of several subsets.
    /// Where a repository holds nothing that can be read, or does not tell its splits by its files'
    /// names, the hub's own conversion to Parquet is taken.
    ///
    /// # Errors
    /// If there is no such dataset, none that may be read, no such split, several subsets to choose
    /// from, or it does not come whole.
    pub fn dataset(&self, name: &str, split: &str) -> Result<HubSnapshot> {
        let repo = Repo::parse(RepoKind::Dataset, name)?;
        let mut default = None;
        let first = match self.split(&repo, split, &mut default) {
            Err(error @ (Error::Unfit { .. } | Error::Unreachable { .. })) if repo.revision == "main" => error,
            other => return other,
        };
        // There, subsets have the names of the card's configs.
        let subset = repo.subset.clone().or(default);
        let converted = Repo { revision: CONVERTED.to_owned(), subset, ..repo };
        self.split(&converted, split, &mut None).map_err(|second| match second {
            // There, the names of subsets and splits are the dataset's own.
            Error::Unfit { .. } => second,
            _ => first,
        })
    }

    /// Fetches the files of a split. Notes the name of the `default` config, if the dataset's card has one.
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
            // Last, so that a branch that the cache knows is one of which everything is there.
            cache.remember(&repo.revision, &listing.commit)?;
        }
        Ok(HubSnapshot { name: repo.pinned(&listing.commit), folder: cache.snapshot(&listing.commit), files })
    }
}

#[cfg(test)]
mod server;
#[cfg(test)]
mod tests;
