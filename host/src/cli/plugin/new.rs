//! `rlhost plugin new`: creates a plugin project in a given language, which builds and passes `check` unchanged. The projects are those of
//! `examples/languages/`, which the repository's own checks build.

use crate::cli::unfinished_output::make_folder;
use crate::config::{ScriptPath, did_you_mean, shell_word};
use anyhow::anyhow;
use std::fs;
use std::path::{Path, PathBuf};

/// Files of the projects: language, path in the project, contents.
static FILES: &[(&str, &str, &str)] = include!(concat!(env!("OUT_DIR"), "/templates.rs"));

/// The contract, for tools that generate bindings from it.
const WIT: &str = include_str!("../../../../plugin-sdk/wit/rlhost-plugin.wit");

/// The Rust SDK's files (path, contents), copied into a project because its machine may have no checkout of rlhost.
static SDK: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/sdk.rs"));

/// Dependency on the SDK in the examples' manifests.
const DEPENDENCY: &str = "path = \"../../../plugin-sdk\"";

/// Suffix of the names of environment projects.
const ENVIRONMENT: &str = "-environment";

/// Suffix of the names of agent projects.
const AGENT: &str = "-agent";

/// Suffix of the names of projects that build components in languages that also have scripts.
const COMPONENT: &str = "-component";

/// Next commands in an agent's project.
const AGENT_STEPS: [&str; 2] = [
    "python3 test_agent.py",
    "rlhost grpo --model Qwen/Qwen3-0.6B --dataset rows.jsonl --agent 'python3 agent.py' --max-completion-length 256",
];

const SHORT: [(&str, &str); 5] =
    [("js", "javascript"), ("ts", "typescript"), ("py", "python"), ("as", "assemblyscript"), ("c++", "cpp")];

/// Keywords of Python, JavaScript and Rust that can't be function names.
const KEYWORDS: [&str; 73] = [
    "abstract",
    "and",
    "as",
    "assert",
    "async",
    "await",
    "become",
    "box",
    "break",
    "case",
    "catch",
    "class",
    "const",
    "continue",
    "crate",
    "debugger",
    "def",
    "default",
    "del",
    "delete",
    "do",
    "dyn",
    "elif",
    "else",
    "enum",
    "except",
    "export",
    "extends",
    "extern",
    "false",
    "final",
    "finally",
    "fn",
    "for",
    "from",
    "function",
    "global",
    "if",
    "impl",
    "import",
    "in",
    "instanceof",
    "is",
    "lambda",
    "let",
    "loop",
    "macro",
    "match",
    "mod",
    "move",
    "mut",
    "new",
    "nonlocal",
    "not",
    "or",
    "override",
    "pass",
    "priv",
    "pub",
    "raise",
    "ref",
    "return",
    "self",
    "static",
    "struct",
    "super",
    "switch",
    "test",
    "trait",
    "true",
    "try",
    "while",
    "with",
];

/// Arguments of `new`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Name of the plugin or agent, and of its folder
    name: String,
    /// Language: python, javascript or typescript for a script; rust, c, cpp, zig, assemblyscript, go, python-component,
    /// javascript-component or typescript-component for a component; rust-loss or c-loss for an algorithm
    #[arg(long, default_value = "rust", default_value_if("agent", "true", "python"))]
    lang: String,
    /// Create an environment instead of a reward; in python, python-component or rust
    #[arg(long)]
    environment: bool,
    /// Create an agent instead of a reward: a program that asks the policy over HTTP, with its test; in python
    #[arg(long, conflicts_with = "environment")]
    agent: bool,
    /// Where to create the folder
    #[arg(long, default_value = ".")]
    path: PathBuf,
}

/// Returns the names of the languages.
fn languages() -> Vec<&'static str> {
    let mut all: Vec<&str> = FILES.iter().map(|(language, ..)| *language).filter(|language| *language != "include").collect();
    all.dedup();
    all
}

/// Returns the project's language, with the suffix of its kind.
fn language(args: &Args) -> anyhow::Result<String> {
    let suffix = if args.agent || args.lang.ends_with(AGENT) {
        AGENT
    } else if args.environment || args.lang.ends_with(ENVIRONMENT) {
        ENVIRONMENT
    } else {
        ""
    };
    let short = args.lang.strip_suffix(suffix).unwrap_or(&args.lang);
    let short = SHORT.iter().find(|(of, _)| *of == short).map_or(short, |(_, long)| long);
    let known = languages();
    let whole = |short: &str| format!("{short}{suffix}");
    // Languages without scripts get a component.
    let component = format!("{short}{COMPONENT}");
    let candidates = [whole(short), whole(&component)];
    if let Some(found) = candidates.into_iter().find(|candidate| known.contains(&candidate.as_str())) {
        return Ok(found);
    }
    let of_kind =
        |name: &&str| [ENVIRONMENT, AGENT].iter().find(|other| name.ends_with(**other)).map_or("", |other| other) == suffix;
    let fitting: Vec<&str> = known.iter().filter(|name| of_kind(name)).filter_map(|name| name.strip_suffix(suffix)).collect();
    let (meant, of) = (
        did_you_mean(short, fitting.iter().copied()),
        match suffix {
            AGENT => " of agents",
            ENVIRONMENT => " of environments",
            _ => "",
        },
    );
    Err(anyhow!("--lang {short}: unknown language; the languages{of} are {}{meant}", fitting.join(", ")))
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let language = &language(args)?;
    let fine = args.name.starts_with(|c: char| c.is_ascii_lowercase())
        && args.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_');
    if !fine {
        return Err(anyhow!(
            "{:?}: a plugin's name must start with a letter and contain only lowercase letters, digits, - and _",
            args.name
        ));
    }
    if KEYWORDS.contains(&args.name.as_str()) {
        return Err(anyhow!("{:?} is a word of a language; a plugin needs another name", args.name));
    }
    let folder = args.path.join(&args.name);
    if folder.exists() {
        return Err(anyhow!("{} already exists", folder.display()));
    }
    let steps = make_folder(&folder, |to| fill(to, language, &args.name))?;
    say!("created {}; next:\n    cd {}\n{}", folder.display(), shell_word(&folder), indented(&steps));
    Ok(())
}

/// Writes a project in this language. Returns the commands to run next.
fn fill(folder: &Path, language: &str, name: &str) -> anyhow::Result<Vec<String>> {
    for (_, inside, text) in FILES.iter().filter(|(of, inside, _)| *of == language && *inside != "README.md") {
        write(&folder.join(adapted(inside, language, name)), adapted(text, language, name).as_bytes())?;
    }
    let sources: String = FILES.iter().filter(|(of, ..)| *of == language).map(|(.., text)| *text).collect();
    if sources.contains("../include") {
        for (_, inside, text) in FILES.iter().filter(|(of, ..)| *of == "include") {
            write(&folder.join("include").join(inside), text.as_bytes())?;
        }
    }
    if sources.contains("plugin-sdk/wit") {
        write(&folder.join("wit/rlhost-plugin.wit"), WIT.as_bytes())?;
    }
    if sources.contains(DEPENDENCY) {
        for (inside, contents) in SDK {
            write(&folder.join("sdk").join(inside), contents)?;
        }
    }
    let agent = language.ends_with(AGENT);
    let is_script = |inside: &&str| ScriptPath::parse(inside).is_some() && !inside.contains("test");
    let script = FILES.iter().filter(|(of, ..)| *of == language).map(|(_, inside, _)| *inside).find(is_script);
    let (kind, steps) = if agent {
        ("An agent", AGENT_STEPS.map(str::to_owned).to_vec())
    } else {
        ("A plugin", steps(folder, script.map(|script| adapted(script, language, name))))
    };
    let about = format!("# {name}\n\n{kind} for rlhost. From this folder:\n\n{}\n", indented(&steps));
    write(&folder.join("README.md"), about.as_bytes())?;
    Ok(steps)
}

/// Returns the commands to run next in the project; `script` is the plugin's file if nothing is built.
fn steps(folder: &Path, script: Option<String>) -> Vec<String> {
    let has = |name: &str| folder.join(name).exists();
    let mut steps = Vec::new();
    if let Some(script) = script.filter(|_| !has("build.sh")) {
        steps.push(format!("rlhost plugin check {script}"));
        steps.push(format!("rlhost --plugin {script}"));
        return steps;
    }
    if has("requirements.txt") {
        steps.push("python3 -m venv .venv && . .venv/bin/activate && pip install -r requirements.txt".to_owned());
    }
    if has("package.json") {
        steps.push("npm install".to_owned());
    }
    steps.push("sh build.sh build".to_owned());
    steps.push("rlhost plugin check build/plugin.wasm".to_owned());
    steps
}

fn indented(steps: &[String]) -> String {
    steps.iter().map(|step| format!("    {step}")).collect::<Vec<_>>().join("\n")
}

/// Returns a project's file with the plugin's name filled in, and without paths that lead out of its folder.
fn adapted(text: &str, language: &str, name: &str) -> String {
    let example =
        text.replace("../../../plugin-sdk/wit", "wit").replace(DEPENDENCY, "path = \"sdk\"").replace("../include", "include");
    let under = |name: &str| name.replace('-', "_");
    let old = match (language.strip_suffix("-loss"), language.strip_suffix(ENVIRONMENT)) {
        (Some(language), _) => format!("reinforce-{language}"),
        (_, Some(language)) => format!("echo-{language}"),
        _ => format!("words-{language}"),
    };
    example.replace(&old, name).replace(&under(&old), &under(name))
}

fn write(path: &Path, contents: &[u8]) -> anyhow::Result<()> {
    let fail = |e: std::io::Error| anyhow!("can't write {}: {e}", path.display());
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(fail)?;
    }
    fs::write(path, contents).map_err(fail)
}
