//! The guides: their commands run, and their links lead somewhere.

use rlhost_tests::{Place, binary};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn guides() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = std::fs::read_dir(root().join("host/docs")).unwrap().map(|e| e.unwrap().path()).collect();
    pages.sort();
    assert!(pages.len() >= 7, "{pages:?}");
    pages
}

/// The blocks of a page that are fenced with this language. Blocks of `sh` run; those of `console` need what a test can't have.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let (mut all, mut open) = (Vec::new(), None::<Vec<&str>>);
    for line in page.lines() {
        match (&mut open, line) {
            (None, line) if line == format!("```{language}") => open = Some(Vec::new()),
            (Some(lines), "```") => {
                all.push(lines.join("\n"));
                open = None;
            }
            (Some(lines), line) => lines.push(line),
            _ => {}
        }
    }
    assert!(open.is_none(), "a block of {language} is not closed");
    all
}

#[test]
fn the_commands_of_every_guide_run() {
    let binary = binary();
    let path = format!("{}:{}", binary.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut commands = 0;
    for page in guides() {
        let place = Place::new();
        for block in blocks(&std::fs::read_to_string(&page).unwrap(), "sh") {
            let mut shell = Command::new("sh");
            shell.args(["-euc", &block]).current_dir(place.path(".")).env("PATH", &path).env("NO_COLOR", "1");
            let out = shell.output().unwrap();
            let said = String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success(), "{}:\n{block}\n{said}", page.display());
            commands += block.matches("rlhost ").count();
        }
    }
    assert!(commands > 20, "only {commands} commands were found in the guides");
}

#[test]
fn links_lead_to_files() {
    let mut pages = guides();
    pages.extend(["README.md", "host/ARCHITECTURE.md", "host/SECURITY.md", "plugin-sdk/README.md"].map(|page| root().join(page)));
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            let found = file.is_empty() || file.contains("://") || page.parent().unwrap().join(file).exists();
            assert!(found, "{} links to {target}", page.display());
        }
    }
}
