//! The pages: their commands run, or have flags that exist; their links and the files that they name lead somewhere; and README and the
//! map stay short.

use rlhost_tests::{TestFolder, binary};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(page: &Path) -> String {
    std::fs::read_to_string(page).unwrap_or_else(|e| panic!("{}: {e}", page.display()))
}

/// All pages below a folder.
fn pages_in(folder: &Path) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            pages.extend(pages_in(&path));
        } else if path.extension().is_some_and(|ending| ending == "md") {
            pages.push(path);
        }
    }
    pages.sort();
    pages
}

/// The pages of the book that are its own.
fn book() -> Vec<PathBuf> {
    let pages = pages_in(&root().join("host/docs"));
    assert!(pages.len() >= 30, "{pages:?}");
    pages
}

/// The other pages, most of which the book has too.
fn others() -> Vec<PathBuf> {
    let named =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "host/ARCHITECTURE.md", "host/SECURITY.md", "host/benches/README.md"];
    let more = ["host/cuda/README.md", "plugin-sdk/README.md", "plugins/README.md"];
    let examples = std::fs::read_dir(root().join("examples")).unwrap().map(|entry| entry.unwrap().path().join("README.md"));
    named.iter().chain(&more).map(|page| root().join(page)).chain(examples.filter(|page| page.exists())).collect()
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

/// PATH with the binary first.
fn path() -> OsString {
    let (binary, others) = (binary(), std::env::var_os("PATH").unwrap_or_default());
    let folders = std::iter::once(binary.parent().unwrap().to_owned()).chain(std::env::split_paths(&others));
    std::env::join_paths(folders).unwrap()
}

/// Runs the commands of pages, those of each in a folder of its own, and returns their number.
fn run_commands(pages: impl Iterator<Item = PathBuf>) -> usize {
    let (path, mut commands) = (path(), 0);
    for page in pages {
        let place = TestFolder::new();
        for block in blocks(&read(&page), "sh") {
            let mut shell = Command::new("sh");
            shell.args(["-euc", &block]).current_dir(place.path(".")).env("PATH", &path).env("NO_COLOR", "1");
            let out = shell.output().unwrap();
            let said = String::from_utf8_lossy(&out.stderr);
            assert!(out.status.success(), "{}:\n{block}\n{said}", page.display());
            commands += block.matches("rlhost ").count();
        }
    }
    commands
}

fn is_tutorial(page: &Path) -> bool {
    page.parent().is_some_and(|folder| folder.ends_with("tutorials"))
}

#[test]
fn the_commands_of_every_guide_run() {
    let commands = run_commands(book().into_iter().filter(|page| !is_tutorial(page)));
    assert!(commands > 50, "only {commands} commands were found in the guides");
}

#[test]
fn the_commands_of_every_tutorial_run() {
    let commands = run_commands(book().into_iter().filter(|page| is_tutorial(page)));
    assert!(commands > 15, "only {commands} commands were found in the tutorials");
}

/// The commands of rlhost in a page that no test runs: those of `console`, of indented blocks and, outside of the book, of `sh`. Lines
/// that end with a backslash go on.
fn commands_not_run(page: &str, is_guide: bool) -> Vec<String> {
    let mut lines: Vec<String> = blocks(page, "console").iter().flat_map(|block| block.lines()).map(str::to_owned).collect();
    if !is_guide {
        lines.extend(blocks(page, "sh").iter().flat_map(|block| block.lines()).map(str::to_owned));
    }
    // Within a fence, four spaces continue a line.
    let mut fenced = false;
    for line in page.lines() {
        fenced ^= line.starts_with("```");
        if let Some(line) = line.strip_prefix("    ").filter(|_| !fenced) {
            lines.push(line.to_owned());
        }
    }
    let joined = lines.join("\n").replace("\\\n", " ");
    let own = |line: &str| {
        let at = line.find("rlhost ").filter(|at| is_program(&line[..*at]))?;
        // What follows is another command; and dots stand for more.
        Some(line[at..].split(" && ").next()?.replace(" ...", ""))
    };
    joined.lines().filter_map(|line| own(line.trim().trim_start_matches("$ "))).collect()
}

/// Whether what comes before `rlhost` in a line leaves it the name of a program that is run.
fn is_program(before: &str) -> bool {
    before.is_empty()
        || before.starts_with("mpirun ")
        || before.ends_with("&& ")
        || before.ends_with('/') && !before.contains(' ')
}

/// A command with `--help` at its end succeeds if it has all of the flags before that.
#[test]
fn the_commands_that_nobody_runs_have_flags_that_exist() {
    let (path, book) = (path(), book());
    let (mut checked, mut wrong) = (0, Vec::new());
    let place = TestFolder::new();
    for page in book.iter().chain(&others()) {
        for command in commands_not_run(&read(page), book.contains(page)) {
            let shell = format!("rlhost() {{ command rlhost \"$@\" --help > help; }}; {command}");
            let out = Command::new("sh").args(["-euc", &shell]).current_dir(place.path(".")).env("PATH", &path).output().unwrap();
            if !out.status.success() {
                wrong.push(format!("{}: {command}\n{}", page.display(), String::from_utf8_lossy(&out.stderr)));
            }
            checked += 1;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 60, "only {checked} commands were found");
}

#[test]
fn links_lead_to_files() {
    for page in book().into_iter().chain(others()) {
        let text = read(&page);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            if file.contains("://") {
                continue;
            }
            let to = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(to.exists(), "{} links to {target}", page.display());
            let is_page = to.extension().is_some_and(|ending| ending == "md");
            let found = anchor.is_empty() || !is_page || anchors(&read(&to)).contains(anchor);
            assert!(found, "{} links to {target}, which is no heading", page.display());
        }
    }
}

/// The anchors of a page's headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut fenced = false;
    let headings = page.lines().filter(|line| {
        fenced ^= line.starts_with("```");
        !fenced && line.starts_with('#')
    });
    let anchor = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        kept.collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn every_page_of_the_book_is_in_its_summary() {
    let docs = root().join("host/docs");
    let summary = read(&docs.join("SUMMARY.md"));
    let listed: BTreeSet<PathBuf> =
        summary.split("](").skip(1).filter_map(|rest| rest.split(')').next()).map(|file| docs.join(file)).collect();
    let written: BTreeSet<PathBuf> = book().into_iter().filter(|page| !page.ends_with("SUMMARY.md")).collect();
    assert_eq!(listed, written);
}

/// Code moves, and the pages about it have to follow.
#[test]
fn files_that_the_map_and_the_designs_name_exist() {
    let (root, mut named) = (root(), 0);
    let bases = ["", "host", "host/src", "host/models/src", "host/records/src", "host/web/src", "host/ops", "plugins", "tests"];
    let bases = bases.map(|base| root.join(base));
    let mut pages = pages_in(&root.join("host/docs/design"));
    pages.extend(["host/ARCHITECTURE.md", "CONTRIBUTING.md"].map(|page| root.join(page)));
    for page in pages {
        for file in read(&page).split('`').skip(1).step_by(2).filter(|code| is_file_name(code)) {
            let of_crate = file.split_once('/').map(|(name, file)| root.join("host").join(name).join("src").join(file));
            let found = bases.iter().map(|base| base.join(file)).chain(of_crate).any(|path| path.exists());
            assert!(found, "{} names {file}, which does not exist", page.display());
            named += 1;
        }
    }
    assert!(named > 150, "{named}");
}

/// Whether code in a page names a file of ours, with its folder. What a build makes in `target` is in no fresh clone.
fn is_file_name(code: &str) -> bool {
    let endings = [".rs", ".py", ".sh", ".cu", ".wit", ".wat"];
    code.contains('/')
        && !code.starts_with("target/")
        && endings.iter().any(|ending| code.ends_with(ending))
        && !code.contains(['*', ' ', '<', 'F'])
}

#[test]
fn the_map_and_readme_are_short() {
    let lines = |page: &str| read(&root().join(page)).lines().count();
    assert!(lines("host/ARCHITECTURE.md") <= 200 && lines("README.md") <= 130);
    for line in read(&root().join("README.md")).lines().filter(|line| line.starts_with('|')) {
        let longest = line.split('|').map(|cell| cell.split_whitespace().count()).max();
        assert!(longest <= Some(12), "{line}");
    }
}

/// The metrics that the page has, with `NAME` for a reward or plugin. In a row, names after the first may lack its beginning.
fn described(page: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let mut folder = String::new();
        for name in row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2) {
            names.insert(name.to_owned());
            names.insert(format!("{folder}{name}"));
            if let Some((before, _)) = name.rsplit_once('/') {
                folder = format!("{before}/");
            }
        }
    }
    names
}

/// The name of a metric as the page has it; none for those that a plugin reports.
fn general(metric: &str, plugins: &[&str]) -> Option<String> {
    let parts: Vec<&str> = metric.split('/').map(|part| if plugins.contains(&part) { "NAME" } else { part }).collect();
    let name = parts.join("/");
    let plain = name.strip_prefix("eval_").filter(|name| !name.contains('@')).unwrap_or(&name);
    let is_evaluations = ["runtime", "samples_per_second"].contains(&plain);
    let plain = if is_evaluations { &name } else { plain };
    // Completions of a prompt, and its standard error.
    let plain = plain.strip_suffix("/stderr").unwrap_or(plain);
    let plain = plain.split_once('@').map_or(plain.to_owned(), |(kind, _)| format!("{kind}@k"));
    (!plain.starts_with("NAME/") && !plain.starts_with("rewards/NAME/stderr") && plain != "rewards/NAME").then_some(plain)
}

#[test]
fn the_page_of_metrics_has_all_that_runs_log() {
    let place = TestFolder::new();
    for kind in ["gsm8k", "dpo", "sft", "agent"] {
        place.run(&["init", kind]).succeeded();
    }
    let length = ["--plugin", "tldr_length_reward.wasm", "--max-completion-length", "8"];
    let pairs = ["--dataset", "dpo.jsonl", "--per-device-train-batch-size", "4"];
    let evaluated = "--eval-dataset gsm8k.jsonl --eval-steps 1 --eval-pass-threshold 1 --beta 0.04 --max-completion-length 8";
    let evaluated: Vec<&str> = evaluated.split(' ').collect();
    let runs: [(&str, &[&str]); 10] = [
        ("grpo", &[&["--config", "gsm8k.toml"], &evaluated[..]].concat()),
        ("dpo", &["--config", "dpo.toml"]),
        ("sft", &["--config", "sft.toml"]),
        ("train", &["--config", "agent.toml", "--max-completion-length", "8"]),
        ("ppo", &length),
        ("reinforce-pp", &length),
        ("online-dpo", &length),
        ("kto", &pairs),
        ("orpo", &pairs),
        ("reward", &pairs),
    ];
    let page = described(&read(&root().join("host/docs/metrics.md")));
    let plugins = ["answer_reward", "format_reward", "tldr_length_reward", "calculator_tool"];
    let mut logged = BTreeSet::new();
    for (command, flags) in runs {
        let common = [command, "--max-steps", "1", "--logging-steps", "1", "--output-dir", command, "--quiet"];
        place.run(&[&common[..], flags].concat()).succeeded();
        for row in place.lines(&format!("{command}/metrics.jsonl")) {
            logged.extend(row.as_object().unwrap().keys().filter_map(|metric| general(metric, &plugins)));
        }
    }
    let missing: Vec<&String> = logged.difference(&page).collect();
    assert!(missing.is_empty() && logged.len() > 80, "host/docs/metrics.md does not have {missing:?}, of {}", logged.len());
}
