//! Compiles a plugin's bytes in a separate process. Reading and compiling untrusted code may take any amount of time and memory, overflow a
//! stack or abort; in a separate process, that costs only an error message.
//!
//! The other process is this program, started as `rlhost compile-plugin`. It reads the plugin from standard input, writes the code to
//! standard output, which is a file that only this user can read, and writes errors to standard error. It sets its own limits before it
//! reads a byte. A program that uses this library without being `rlhost` (a test, a benchmark) does not have that subcommand. Unless it
//! calls [`compile_in_subprocesses`], it compiles in its own process, with checks but without limits.

use super::census::{self, CompileRefusal};
use super::code::{CompiledCode, LARGEST_CODE, LARGEST_FILE};
use super::configuration::{CompileEffort, configuration};
use super::error::LONGEST_TEXT;
use super::files::LARGEST;
use super::trial::TrialOrder;
use super::wrap;
use crate::config::{PluginLimits, files, printable};
use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::Duration;
use wasmtime::component::Component;

/// The subcommand, hidden from help.
const COMMAND: &str = "compile-plugin";

/// Values of the argument for the effort.
const FULL: &str = "full";
const LESS: &str = "less";

/// Maximum number of bytes read of the other process's error text.
const SAID: u64 = 16 << 10;

/// Wall-clock seconds allowed per second of CPU time, since other processes may be using the processors.
const WALL: u64 = 4;

/// Maximum number of threads of the other process. Each takes some of its limited address space.
const MOST_THREADS: usize = 8;

/// Exit codes of the other process.
const DAMAGED: u8 = 3;
const REFUSED: u8 = 4;
pub(super) const NOT_INSTANTIATED: u8 = 5;
pub(super) const UNLINKED: u8 = 6;

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Compiles plugins in separate processes from now on. Only for a program that handles [`CompileOrder`] first in `main`.
pub fn compile_in_subprocesses() {
    // On Linux, this path is the running program, even if its file has been replaced since.
    let own = Path::new("/proc/self/exe");
    let program = if own.exists() { Ok(own.to_owned()) } else { std::env::current_exe() };
    match program {
        Ok(program) => drop(PROGRAM.set(program)),
        Err(error) => tracing::debug!("plugins are compiled in this process: {error}"),
    }
}

/// A plugin that can be instantiated.
#[derive(Clone)]
pub(super) struct CompiledPlugin {
    pub component: Component,
    /// Memory of each instance besides its memories and tables, in bytes.
    pub fixed: usize,
    /// Why the trial instance could not be created, if it failed; loading the plugin then fails with this error.
    pub trial_error: Option<String>,
}

/// The outcome of a trial.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TrialVerdict {
    /// An instance was created.
    Made,
    /// No instance could be created, for a reason other than memory.
    Unmade(String),
    /// No trial took place: the system has no such limit, the plugin was tried before, or it imports something that is not offered.
    Omitted,
}

/// A request from another process to compile a plugin in this one.
pub struct CompileOrder {
    /// Limit on address space, in bytes.
    pub memory: u64,
    /// Limit on processor time, in seconds.
    pub seconds: u64,
    /// Memory that each of the plugin's instances may take, in bytes.
    each: u64,
    effort: CompileEffort,
}

impl CompileOrder {
    /// Parses the program's arguments (its name first). Returns `None` if they don't request compiling a plugin.
    #[must_use]
    pub fn parse(arguments: &[OsString]) -> Option<Self> {
        let [_, command, memory, seconds, each, effort] = arguments else { return None };
        let effort = match effort.to_str()? {
            FULL => CompileEffort::Full,
            LESS => CompileEffort::Less,
            _ => return None,
        };
        let number = |given: &OsString| given.to_str()?.parse().ok();
        (command == COMMAND).then_some(Self { memory: number(memory)?, seconds: number(seconds)?, each: number(each)?, effort })
    }

    /// Compiles the plugin on standard input. The caller has set the limits.
    #[must_use]
    pub fn carry_out(&self) -> ExitCode {
        let unread = |e: io::Error| match e.kind() {
            io::ErrorKind::OutOfMemory => CompileRefusal::TooMuch(e.to_string()),
            _ => CompileRefusal::Damaged(e.to_string()),
        };
        exit_code(files::read_limited(io::stdin().lock(), LARGEST).map_err(unread).and_then(|bytes| {
            let code = compiled(&bytes, self.effort, self.each)?;
            let mut out = io::stdout().lock();
            let written = out.write_all(code.as_bytes()).and_then(|()| out.flush());
            written.map_err(|e| CompileRefusal::TooMuch(format!("can't store its code: {e}")))
        }))
    }
}

/// Returns the exit code of such a process and writes its error to standard error.
pub(super) fn exit_code(done: Result<(), CompileRefusal>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            let (code, said) = match refusal {
                CompileRefusal::Damaged(said) => (DAMAGED, said),
                CompileRefusal::TooMuch(said) => (REFUSED, said),
            };
            // The caller sees the exit code even if the text is lost.
            let _ = io::stderr().write_all(printable(&said, LONGEST_TEXT).as_bytes());
            ExitCode::from(code)
        }
    }
}

/// Returns the component that a plugin is or is wrapped into, and the memory of each instance besides its memories and tables, in bytes.
/// Rejects a plugin that contains more than allowed or whose instances take more than `each` bytes of that memory.
pub(super) fn check_component(bytes: &[u8], each: u64) -> Result<(Cow<'_, [u8]>, u64), CompileRefusal> {
    let component = wrap::as_component(bytes).map_err(CompileRefusal::Damaged)?;
    let fixed = census::check(&component, each)?;
    Ok((component, fixed))
}

/// Checks and compiles a plugin in this process.
fn compiled(bytes: &[u8], effort: CompileEffort, each: u64) -> Result<CompiledCode, CompileRefusal> {
    let engine = wasmtime::Engine::new(&configuration(effort)).map_err(|e| CompileRefusal::TooMuch(format!("{e:#}")))?;
    let (component, fixed) = check_component(bytes, each)?;
    let code = engine.precompile_component(&component).map_err(|e| match e.root_cause().is::<wasmtime::OutOfMemory>() {
        true => CompileRefusal::TooMuch(e.to_string()),
        false => CompileRefusal::Damaged(e.root_cause().to_string()),
    })?;
    if code.len() as u64 > LARGEST_CODE {
        let most = LARGEST_CODE >> 20;
        return Err(CompileRefusal::TooMuch(format!("its code has {} MiB; the limit is {most}", code.len() >> 20)));
    }
    Ok(CompiledCode::new(fixed, &code))
}

/// Returns the memory that one instance may take, in bytes.
pub(super) fn memory_of_one(limits: &PluginLimits) -> u64 {
    limits.memory().min(limits.total_memory()) as u64
}

/// Creates an unnamed file for the code, in memory where the system supports that, which needs no folder and no disk space.
fn scratch() -> io::Result<File> {
    #[cfg(target_os = "linux")]
    if let Ok(file) = rustix::fs::memfd_create("rlhost", rustix::fs::MemfdFlags::CLOEXEC) {
        return Ok(file.into());
    }
    tempfile::tempfile()
}

/// Compiles plugins, in another process if it has a program for that.
#[derive(Clone)]
pub(super) struct Compiler {
    /// The program that compiles. If there is none, this process compiles.
    program: Option<PathBuf>,
    threads: usize,
}

impl Compiler {
    pub(super) fn new(threads: usize) -> Self {
        Self { program: PROGRAM.get().cloned(), threads }
    }

    /// Compiles a plugin, within limits.
    pub(super) fn compile(
        &self,
        bytes: &[u8],
        effort: CompileEffort,
        limits: &PluginLimits,
    ) -> Result<CompiledCode, CompileRefusal> {
        let failed = |e: io::Error| CompileRefusal::TooMuch(format!("can't create a file for its code: {e}"));
        let Some(program) = &self.program else { return compiled(bytes, effort, memory_of_one(limits)) };
        let mut file = scratch().map_err(failed)?;
        let seconds = limits.compile_timeout_s;
        let mut command = Command::new(program);
        command.arg(COMMAND).arg(limits.compile_memory().to_string()).arg(seconds.to_string());
        command.arg(memory_of_one(limits).to_string()).arg(if effort == CompileEffort::Full { FULL } else { LESS });
        command.env("RAYON_NUM_THREADS", self.threads.clamp(1, MOST_THREADS).to_string()).env_remove("RUST_BACKTRACE");
        // Each of glibc's arenas reserves address space too.
        command.env("MALLOC_ARENA_MAX", "2");
        let out = file.try_clone().map_err(failed)?;
        command.stdin(Stdio::piped()).stdout(out).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|e| CompileRefusal::TooMuch(format!("can't start the process that compiles it: {e}")))?;
        let (status, said) = attend(&mut child, bytes, Duration::from_secs(seconds.saturating_mul(WALL)))
            .map_err(|e| CompileRefusal::TooMuch(format!("lost the process that compiles it: {e}")))?;
        match status {
            Some(status) if status.success() => {
                file.rewind().map_err(failed)?;
                let whole = files::read_limited(file, LARGEST_FILE).map_err(failed)?;
                CompiledCode::parse(whole).ok_or_else(|| CompileRefusal::TooMuch("the compiler's output is damaged".to_owned()))
            }
            Some(status) if status.code() == Some(DAMAGED.into()) => Err(CompileRefusal::Damaged(said)),
            Some(status) if status.code() == Some(REFUSED.into()) && !lacked_memory(&said) => Err(CompileRefusal::TooMuch(said)),
            status => Err(CompileRefusal::TooMuch(why(status, &said, limits))),
        }
    }
}

impl Compiler {
    /// Creates an instance of a compiled plugin in a separate process, which may use slightly more memory than the plugin's limits allow.
    /// If that is not enough, the count was too low and the plugin is rejected.
    pub(super) fn try_out(&self, code: &CompiledCode, limits: &PluginLimits) -> Result<TrialVerdict, CompileRefusal> {
        let each = memory_of_one(limits);
        let is_due = TrialOrder::IS_BOUNDED && !code.was_tried(each, limits.table_elements);
        let Some(program) = self.program.as_ref().filter(|_| is_due) else {
            return Ok(TrialVerdict::Omitted);
        };
        let mut command = Command::new(program);
        let seconds = limits.call_timeout().as_secs().saturating_add(1);
        command.args(TrialOrder::arguments(limits));
        command.env("RAYON_NUM_THREADS", "1").env_remove("RUST_BACKTRACE");
        // Memory that an allocator holds ready would count from the start, and could be taken without counting.
        command.env("MALLOC_ARENA_MAX", "1").env("MIMALLOC_ARENA_EAGER_COMMIT", "0");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|e| CompileRefusal::TooMuch(format!("can't start the process that tries it: {e}")))?;
        let longest = Duration::from_secs(seconds.saturating_mul(WALL).saturating_add(60));
        let (status, said) = attend(&mut child, code.as_bytes(), longest)
            .map_err(|e| CompileRefusal::TooMuch(format!("lost the process that tries it: {e}")))?;
        match status {
            Some(status) if status.success() => Ok(TrialVerdict::Made),
            Some(status) if status.code() == Some(NOT_INSTANTIATED.into()) => {
                Ok(TrialVerdict::Unmade(printable(&said, LONGEST_TEXT)))
            }
            Some(status) if status.code() == Some(UNLINKED.into()) => Ok(TrialVerdict::Omitted),
            _ if lacked_memory(&said) => {
                let most = each >> 20;
                Err(CompileRefusal::TooMuch(format!("an instance of it takes more than {most} MiB of memory (limits.memory_mb)")))
            }
            None => Err(CompileRefusal::TooMuch(format!("making an instance of it took longer than {} s", longest.as_secs()))),
            Some(status) => {
                let said = said.lines().next().map(|line| format!(": {line}")).unwrap_or_default();
                Err(CompileRefusal::TooMuch(format!("the process that made an instance of it ended with {status}{said}")))
            }
        }
    }
}

/// Sends a process its input and reads its error text until it exits. After `longest`, kills it and returns no status.
fn attend(child: &mut Child, input: &[u8], longest: Duration) -> io::Result<(Option<ExitStatus>, String)> {
    let (Some(mut stdin), Some(stderr)) = (child.stdin.take(), child.stderr.take()) else {
        return Err(io::Error::other("it has no standard input or error"));
    };
    let (sender, ended) = channel();
    std::thread::scope(|scope| {
        // The process may exit without having read everything.
        let write = move || drop(stdin.write_all(input));
        let read = move || {
            let mut said = Vec::new();
            let mut stderr = stderr.take(SAID);
            let _ = stderr.read_to_end(&mut said);
            let _ = io::copy(&mut stderr.into_inner(), &mut io::sink());
            // Standard error closes when the process exits.
            let _ = sender.send(said);
        };
        let started = Builder::new().spawn_scoped(scope, write).and_then(|_| Builder::new().spawn_scoped(scope, read));
        if let Err(error) = started {
            child.kill()?;
            child.wait()?;
            return Err(error);
        }
        let said = ended.recv_timeout(longest);
        if said.is_err() {
            child.kill()?;
        }
        let status = child.wait()?;
        let text = said.as_deref().map(|said| String::from_utf8_lossy(said).trim().to_owned()).unwrap_or_default();
        Ok((said.is_ok().then_some(status), text))
    })
}

/// Returns whether a process reports that it ran out of memory.
fn lacked_memory(said: &str) -> bool {
    ["memory allocation of", "out of memory", "Cannot allocate memory"].iter().any(|words| said.contains(words))
}

/// Describes why the process ended.
fn why(status: Option<ExitStatus>, said: &str, limits: &PluginLimits) -> String {
    let seconds = limits.compile_timeout_s;
    let Some(status) = status else {
        return format!("compiling it took longer than {} s (limits.compile_timeout_s)", seconds.saturating_mul(WALL));
    };
    if lacked_memory(said) {
        let most = limits.compile_memory_mb;
        return format!("compiling it needed more than {most} MiB of memory (limits.compile_memory_mb)");
    }
    if said.contains("overflowed its stack") {
        return "compiling it overflowed the stack: it is nested too deeply".to_owned();
    }
    #[cfg(unix)]
    if std::os::unix::process::ExitStatusExt::signal(&status) == Some(signal_hook::consts::SIGXCPU) {
        return format!("compiling it took longer than {seconds} s of processor time (limits.compile_timeout_s)");
    }
    let said = said.lines().find(|line| !line.trim().is_empty()).map(|line| format!(": {line}")).unwrap_or_default();
    // A crash may come from lack of memory.
    let most = limits.compile_memory_mb;
    format!(
        "the process that compiled it ended with {status}{said}; its limit is {most} MiB of memory (limits.compile_memory_mb)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_three_numbers_and_an_effort_and_nothing_else_is_one() {
        let of = |arguments: &[&str]| CompileOrder::parse(&arguments.iter().map(OsString::from).collect::<Vec<_>>());
        let order = of(&["rlhost", "compile-plugin", "1024", "3", "64", "full"]).unwrap();
        assert_eq!((order.memory, order.seconds, order.each), (1024, 3, 64));
        for other in [
            &["rlhost", "compile-plugin", "x", "3", "1", "full"][..],
            &["rlhost", "train", "1", "3", "1", "full"],
            &["rlhost", "compile-plugin"],
            &["rlhost", "compile-plugin", "1", "3", "1", "most"],
        ] {
            assert!(of(other).is_none(), "{other:?}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_process_is_heard_and_ended_when_its_time_is_over() {
        let start = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let long = Duration::from_secs(60);
        let input = vec![0; 1 << 20];
        let (status, said) = attend(&mut start("echo said >&2; exit 4"), &input, long).unwrap();
        assert_eq!((status.unwrap().code(), said.as_str()), (Some(4), "said"));
        // More than is read, and more than a pipe's buffer.
        let (status, said) = attend(&mut start("cat >/dev/null; yes | head -c 1000000 >&2"), &input, long).unwrap();
        assert!(status.unwrap().success() && said.len() <= SAID as usize);
        let (status, _) = attend(&mut start("exec sleep 600"), &input, Duration::from_millis(50)).unwrap();
        assert!(why(status, "", &PluginLimits::default()).contains("limits.compile_timeout_s"));
        let (status, said) = attend(&mut start("kill -XCPU $$"), &input, long).unwrap();
        assert!(why(status, &said, &PluginLimits::default()).contains("300 s of processor time"));
        let (status, said) = attend(&mut start("echo 'x has overflowed its stack' >&2; kill -ABRT $$"), &input, long).unwrap();
        assert!(why(status, &said, &PluginLimits::default()).contains("nested too deeply"));
        let (status, said) =
            attend(&mut start("echo 'out of memory (failed to allocate 8 bytes)' >&2; exit 3"), &input, long).unwrap();
        assert!(why(status, &said, &PluginLimits::default()).contains("limits.compile_memory_mb"));
        let (status, said) = attend(&mut start("kill -KILL $$"), &input, long).unwrap();
        assert!(why(status, &said, &PluginLimits::default()).contains("signal: 9"));
    }
}
