//! Packages that a Python script lists in its header, as defined by PEP 723:
//!
//! ```text
//! # /// script
//! # dependencies = ["sympy"]
//! # ///
//! ```
//!
//! The user's own uv or pip fetches them once, as wheels without compiled code. They are stored under a hash of their names. None of their
//! code runs outside the interpreter.

use crate::config::{files, hex, printable};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{PoisonError, RwLock};

/// Version of the interpreter that packages must work with.
const PYTHON: &str = "3.14";

/// Release of the interpreter.
const RELEASE: [u32; 3] = [3, 14, 0];

/// Maximum size of a package's description, in bytes.
const LARGEST_METADATA: u64 = 1 << 20;

/// Maximum size of the installer's errors shown, in bytes.
const LONGEST: usize = 1024;

/// Folders that are searched for modules in addition to a script's own: `python_path` in the configuration.
static PATH: RwLock<Vec<PathBuf>> = RwLock::new(Vec::new());

/// Sets the folders that are searched for modules in addition to a script's own.
pub fn set_python_path(folders: &[String]) {
    let folders: Vec<PathBuf> =
        folders.iter().map(|folder| std::path::absolute(folder).unwrap_or_else(|_| folder.into())).collect();
    for folder in folders.iter().filter(|folder| !folder.is_dir()) {
        tracing::warn!("--python-path: {} is no folder", folder.display());
    }
    *PATH.write().unwrap_or_else(PoisonError::into_inner) = folders;
}

/// Returns the folders that are searched for a script's modules in addition to its own.
///
/// # Errors
/// If the script's header can't be read, or a package can't be fetched.
pub(super) fn folders(source: &str) -> io::Result<Vec<PathBuf>> {
    let mut folders = PATH.read().unwrap_or_else(PoisonError::into_inner).clone();
    let dependencies = dependencies(source).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    if !dependencies.is_empty() {
        folders.push(fetched(&dependencies)?);
    }
    Ok(folders)
}

/// The fields of a script's header that are read.
#[derive(Deserialize)]
struct ScriptHeader {
    #[serde(default)]
    dependencies: Vec<String>,
    #[serde(default, rename = "requires-python")]
    requires_python: String,
}

/// Returns whether a header's Python version specifiers, such as `>=3.11,<4`, admit the interpreter's version. Returns `None` if they can't
/// be parsed.
fn admits(specifiers: &str) -> Option<bool> {
    let parts = |version: &str| version.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>();
    let mut admitted = true;
    for specifier in specifiers.split(',').map(str::trim).filter(|specifier| !specifier.is_empty()) {
        let (operator, version) = specifier.split_at(specifier.find(|c: char| !"<>=!~".contains(c))?);
        let (version, is_prefix) = version.trim().strip_suffix(".*").map_or((version.trim(), false), |prefix| (prefix, true));
        let mut version = parts(version)?;
        let begins = |version: &[u32]| RELEASE.starts_with(version);
        let (before_last, prefixed) = (version.split_last().map_or(&[][..], |(_, before)| before), begins(&version));
        let compatible = begins(before_last);
        // 3.14 is 3.14.0.
        version.resize(version.len().max(RELEASE.len()), 0);
        let ordering = RELEASE.as_slice().cmp(&version);
        let equal = if is_prefix { prefixed } else { ordering.is_eq() };
        admitted &= match operator {
            ">=" => ordering.is_ge(),
            "<=" => ordering.is_le(),
            ">" => ordering.is_gt(),
            "<" => ordering.is_lt(),
            "==" => equal,
            "!=" => !equal,
            "~=" => ordering.is_ge() && compatible,
            _ => return None,
        };
    }
    Some(admitted)
}

/// Returns the packages that a script's header lists, in a fixed order. The error is a sentence.
fn dependencies(source: &str) -> Result<Vec<String>, String> {
    let mut lines = source.lines().skip_while(|line| line.trim_end() != "# /// script").skip(1);
    let mut text = String::new();
    loop {
        match lines.next().map(str::trim_end) {
            Some("# ///") => break,
            Some(line) if line.starts_with('#') => {
                text.push_str(line[1..].strip_prefix(' ').unwrap_or(&line[1..]));
                text.push('\n');
            }
            _ if text.is_empty() => return Ok(Vec::new()),
            _ => return Err("its header begins with \"# /// script\" and does not end with \"# ///\"".to_owned()),
        }
    }
    let header: ScriptHeader = toml::from_str(&text).map_err(|e| format!("its header: {}", e.message()))?;
    match admits(&header.requires_python) {
        Some(true) => {}
        Some(false) => {
            return Err(format!("its header requires Python {}; scripts run in Python {PYTHON}", header.requires_python));
        }
        None => return Err(format!("its header: requires-python = {:?} is no list of versions", header.requires_python)),
    }
    let mut all = header.dependencies;
    // The installer would read a name that begins like an option as an option.
    if let Some(wrong) = all.iter().find(|name| !name.trim().starts_with(|c: char| c.is_ascii_alphanumeric())) {
        return Err(format!("its header: {wrong:?} is no package"));
    }
    all.sort();
    all.dedup();
    Ok(all)
}

/// Returns the folder with these packages. Fetches them unless they were fetched before.
fn fetched(dependencies: &[String]) -> io::Result<PathBuf> {
    let cache =
        files::cache_folder().ok_or_else(|| io::Error::other("there is no cache folder for the packages of its header"))?;
    let parent = cache.join("python");
    let names = dependencies.join(", ");
    let key = hex(&Sha256::digest(format!("{PYTHON}\n{}", dependencies.join("\n"))));
    let folder = parent.join(&key[..32]);
    if folder.is_dir() {
        return Ok(folder);
    }
    fs::create_dir_all(&parent)?;
    let temporary = tempfile::Builder::new().prefix(".fetching-").tempdir_in(&parent)?;
    tracing::info!("fetching {names}, which the script's header names; this is done once");
    let mut reasons = Vec::new();
    for (installer, mut command) in installers(temporary.path()) {
        match command.args(dependencies).output() {
            Ok(output) if output.status.success() => {
                // Another process may have fetched the same packages meanwhile.
                return match fs::rename(temporary.path(), &folder) {
                    Err(e) if !folder.is_dir() => Err(e),
                    _ => Ok(folder),
                };
            }
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr);
                let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it failed");
                reasons.push(format!("{installer}: {}", printable(last.trim(), LONGEST)));
                break;
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => reasons.push(format!("{installer}: {e}")),
        }
    }
    let why = if reasons.is_empty() { "neither uv nor pip is installed".to_owned() } else { reasons.join("; ") };
    Err(io::Error::other(format!(
        "{names}, which its header names, can't be fetched: {why}. A script can use packages without compiled code"
    )))
}

/// Returns the metadata of the packages in these folders, by relative path, which `importlib.metadata` reads.
pub(super) fn metadata(folders: &[PathBuf]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let file = entry.path().join("METADATA");
        if name.ends_with(".dist-info")
            && let Ok(bytes) = files::read(&file, LARGEST_METADATA)
        {
            // The description below the fields is long.
            let text = String::from_utf8_lossy(&bytes);
            let fields = text.split("\n\n").next().unwrap_or_default();
            found.push((format!("{name}/METADATA"), format!("{fields}\n")));
        }
    }
    found.sort();
    found
}

/// Returns the commands that can fetch packages into a folder.
fn installers(into: &Path) -> [(&'static str, Command); 3] {
    let mut uv = Command::new("uv");
    uv.args(["pip", "install", "--quiet", "--no-build", "--python-version", PYTHON, "--target"]).arg(into);
    let pip = |python: &str| {
        let mut pip = Command::new(python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--no-input"]);
        pip.args(["--only-binary=:all:", "--platform", "any", "--implementation", "py", "--abi", "none"]);
        pip.args(["--python-version", PYTHON, "--target"]).arg(into);
        pip
    };
    [("uv", uv), ("pip", pip("python3")), ("pip", pip("python"))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_packages() {
        let header = "#!/usr/bin/env python\n\n# /// script\n# requires-python = \">=3.11\"\n# dependencies = [\n#   \"sympy==1.14\",\n#   \"mpmath\",\n# ]\n# ///\nimport sympy\n";
        assert_eq!(dependencies(header).unwrap(), ["mpmath", "sympy==1.14"]);
        assert_eq!(dependencies("import re\n# dependencies = ['x']\n").unwrap(), Vec::<String>::new());
        assert!(dependencies("# /// script\n# dependencies = ['x']\nimport x\n").unwrap_err().contains("does not end"));
        for (versions, admitted) in [
            ("", true),
            (">=3.11", true),
            (">= 3.11, <4", true),
            ("==3.*", true),
            ("==3.14", true),
            ("~=3.10", true),
            ("<3.14.5", true),
            ("~=3.14.1", false),
            ("<=3.14.2", true),
            ("!=3.13.*", true),
            (">=3.15", false),
            ("<3.14", false),
            ("==3.13.*", false),
            ("~=2.7", false),
        ] {
            let header = format!("# /// script\n# requires-python = {versions:?}\n# ///\n");
            let refused = dependencies(&header).err();
            assert_eq!(refused.is_none(), admitted, "{versions}: {refused:?}");
        }
        assert!(dependencies("# /// script\n# requires-python = 'new'\n# ///\n").unwrap_err().contains("no list of versions"));
        assert!(dependencies("# /// script\n# dependencies = 3\n# ///\n").unwrap_err().contains("header"));
        assert!(dependencies("# /// script\n# dependencies = ['--index-url=x']\n# ///\n").unwrap_err().contains("no package"));
    }
}
