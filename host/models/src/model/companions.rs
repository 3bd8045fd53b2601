//! Companion files of a model's weights (tokenizer, chat template and so on) that complete a copy of its folder. They are read once, since
//! the folder may be gone when a checkpoint is written.

use super::{Error, Result, json};
use crate::config::files;
use std::io::ErrorKind;
use std::path::Path;

/// The chat template.
const TEMPLATE: &str = "chat_template.jinja";

/// Chat template for conversations with tools, which belongs to [`TEMPLATE`].
const TOOL_TEMPLATE: &str = "additional_chat_templates/tool_use.jinja";

/// Names of the files, copied if the source has them.
const NAMES: [&str; 10] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    TEMPLATE,
    TOOL_TEMPLATE,
    "generation_config.json",
];

/// Maximum size of a file, in bytes.
const LARGEST: u64 = 64 << 20;

/// The files that copies of a model's folder have in addition to the weights.
#[derive(Debug, Default)]
pub(super) struct CompanionFiles {
    /// The text of the base model's `config.json`.
    pub config: String,
    files: Vec<(&'static str, Vec<u8>)>,
}

impl CompanionFiles {
    /// Reads the files of a model in the folder `base`. Those in an adapter's folder, `own`, take precedence.
    ///
    /// # Errors
    /// If one is not a regular file, is too large, or can't be read.
    pub(super) fn read(base: &Path, own: &Path) -> Result<Self> {
        let path = base.join("config.json");
        let config = json::read_text(&path)?.ok_or(Error::Missing { path })?;
        let mut this = Self { config, files: Vec::new() };
        this.add(base)?;
        if own != base {
            this.add(own)?;
        }
        Ok(this)
    }

    /// Adds the files of a folder, replacing files of the same names.
    fn add(&mut self, folder: &Path) -> Result<()> {
        for name in NAMES {
            let path = folder.join(name);
            match files::read(&path, LARGEST) {
                Ok(bytes) => {
                    self.files.retain(|(other, _)| *other != name);
                    self.files.push((name, bytes));
                }
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
                Err(source) => return Err(Error::Io { path, source }),
            }
        }
        Ok(())
    }

    /// Writes the files, except `config.json`, into an existing folder. A template for tools is omitted if the chat template is replaced.
    pub(super) fn write(&self, to: &Path, replaced: &[(&'static str, String)]) -> Result<()> {
        let has_own = !replaced.iter().any(|(name, _)| *name == TEMPLATE);
        for (name, bytes) in self.files.iter().filter(|(name, _)| has_own || *name != TOOL_TEMPLATE) {
            let path = to.join(name);
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder).map_err(|source| Error::Write { path: folder.to_owned(), source })?;
            }
            std::fs::write(&path, bytes).map_err(|source| Error::Write { path, source })?;
        }
        Ok(())
    }
}

/// Copies the tokenizer's files and the other companion files of a model's weights.
///
/// # Errors
/// If one is not a regular file, is too large, or can't be read or written.
pub fn copy_companions(from: &Path, to: &Path) -> Result<()> {
    let mut companions = CompanionFiles::default();
    companions.add(from)?;
    companions.write(to, &[])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelFolder;
    use crate::model::{WeightDtype, builtin, export, save};

    #[test]
    fn a_folder_that_has_gone_is_saved_as_it_was() {
        let place = tempfile::tempdir().unwrap();
        let [from, plain, gone] = ["from", "plain", "gone"].map(|name| place.path().join(name));
        for folder in [&from, &plain, &gone] {
            std::fs::create_dir(folder).unwrap();
        }
        builtin::write(&from).unwrap();
        std::fs::write(from.join("vocab.json"), "{}").unwrap();
        let source = ModelFolder::open(&from).unwrap().with_replaced_files(vec![("merges.txt", "a b".into())]);
        let weights = source.decoder().unwrap().weights().clone();
        save(&weights, &source, &plain).unwrap();
        let kept = source.clone().with_companions().unwrap();
        std::fs::remove_dir_all(&from).unwrap();
        assert!(save(&weights, &source, &gone).is_err());
        save(&weights, &kept, &gone).unwrap();
        for entry in plain.read_dir().unwrap().map(|entry| entry.unwrap()) {
            let [was, is] = [&plain, &gone].map(|folder| std::fs::read(folder.join(entry.file_name())).unwrap());
            assert!(was == is, "{:?}", entry.file_name());
        }
        assert!(["config.json", "tokenizer.json", "vocab.json", "merges.txt"].iter().all(|name| gone.join(name).exists()));
        assert!(export(&kept, &gone, WeightDtype::Bf16).is_err(), "the weights have gone");
    }

    #[test]
    fn another_chat_template_does_not_keep_the_models_one_for_tools() {
        let place = tempfile::tempdir().unwrap();
        let [from, kept, other] = ["from", "kept", "other"].map(|name| place.path().join(name));
        for folder in [&from.join("additional_chat_templates"), &kept, &other] {
            std::fs::create_dir_all(folder).unwrap();
        }
        builtin::write(&from).unwrap();
        std::fs::write(from.join(TOOL_TEMPLATE), "tools").unwrap();
        let source = ModelFolder::open(&from).unwrap();
        let weights = source.decoder().unwrap().weights().clone();
        save(&weights, &source, &kept).unwrap();
        assert_eq!(std::fs::read(kept.join(TOOL_TEMPLATE)).unwrap(), b"tools");
        save(&weights, &source.with_replaced_files(vec![(TEMPLATE, "other".into())]), &other).unwrap();
        assert_eq!(std::fs::read(other.join(TEMPLATE)).unwrap(), b"other");
        assert!(!other.join(TOOL_TEMPLATE).exists());
    }

    #[cfg(unix)]
    #[test]
    fn what_is_no_ordinary_file_is_refused_before_anything_is_written() {
        use std::os::unix::fs::symlink;
        let place = tempfile::tempdir().unwrap();
        builtin::write(place.path()).unwrap();
        let file = place.path().join("merges.txt");
        let refusal = || ModelFolder::open(place.path()).unwrap().with_companions().unwrap_err().to_string();
        symlink("/dev/zero", &file).unwrap();
        assert!(refusal().contains("merges.txt") && refusal().contains("a device"), "{}", refusal());
        std::fs::remove_file(&file).unwrap();
        symlink("nowhere", &file).unwrap();
        assert!(refusal().contains("a link to a file that does not exist"), "{}", refusal());
        std::fs::remove_file(&file).unwrap();
        std::fs::File::create(&file).unwrap().set_len(LARGEST + 1).unwrap();
        assert!(refusal().contains("larger than the limit of 64 MiB"), "{}", refusal());
    }
}
