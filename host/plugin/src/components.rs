//! Returns components for plugins' bytes, compiled or read from the cache on disk, and the built-in interpreters, which are read once per
//! process.

use super::cache::{self, CompilationCache};
use super::census::{self, CompileRefusal};
use super::compiler::{CompiledPlugin, Compiler, TrialVerdict, memory_of_one};
use super::configuration::CompileEffort;
use super::script::{Interpreters, Language};
use crate::config::PluginLimits;
use wasmtime::Engine;

/// Loads components; cheap to clone.
#[derive(Clone)]
pub(super) struct Components {
    cache: Option<CompilationCache>,
    compiler: Compiler,
    interpreters: Interpreters,
}

impl Components {
    /// Opens the cache, and compiles with this many threads.
    pub(super) fn open(threads: usize) -> Self {
        Self { cache: CompilationCache::open(), compiler: Compiler::new(threads), interpreters: Interpreters::default() }
    }

    /// Returns a copy that compiles with another number of threads.
    pub(super) fn with_threads(&self, threads: usize) -> Self {
        Self { compiler: Compiler::new(threads), ..self.clone() }
    }

    /// Returns a plugin's component, compiled or from the cache. Creates a trial instance of it within these limits, unless one was created
    /// before.
    pub(super) fn load_plugin(
        &self,
        engine: &Engine,
        bytes: &[u8],
        limits: &PluginLimits,
    ) -> Result<CompiledPlugin, CompileRefusal> {
        let file = self.cache.as_ref().map(|cache| (cache, cache.file(engine, bytes)));
        let kept = file.as_ref().and_then(|(cache, file)| cache.load(engine, file));
        let (mut code, component) = match kept {
            Some((code, component)) => (code, Some(component)),
            None => (self.compiler.compile(bytes, CompileEffort::Full, limits)?, None),
        };
        // The component may have been counted under other limits.
        census::check_memory(code.fixed() as u64, memory_of_one(limits))?;
        let is_new = component.is_none();
        let trial = self.compiler.try_out(&code, limits)?;
        if trial == TrialVerdict::Made {
            code.set_tried(memory_of_one(limits), limits.table_elements);
        }
        let unusable = || CompileRefusal::TooMuch("the compiler's output can't be used".to_owned());
        let component = component.or_else(|| cache::component(engine, &code)).ok_or_else(unusable)?;
        // A cache that is full or read-only only costs time.
        if let Some((cache, file)) = file.filter(|_| is_new || trial == TrialVerdict::Made)
            && let Err(e) = cache.store(&code, &file)
        {
            tracing::debug!("can't cache {}: {e}", file.display());
        }
        let unmade = if let TrialVerdict::Unmade(why) = trial { Some(why) } else { None };
        Ok(CompiledPlugin { component, fixed: code.fixed(), trial_error: unmade })
    }

    /// Returns the built-in interpreter of a language, compiled once per machine and read once per process.
    pub(super) fn interpreter(
        &self,
        engine: &Engine,
        language: Language,
        limits: &PluginLimits,
    ) -> Result<CompiledPlugin, CompileRefusal> {
        let compiled = self.interpreters.get(language, || self.cached_interpreter(engine, language))?;
        census::check_memory(compiled.fixed as u64, memory_of_one(limits))?;
        Ok(compiled)
    }

    /// Reads the compiled interpreter of a language from the cache, or compiles it. As a part of this program, it is exempt from plugins'
    /// limits and from the trial.
    fn cached_interpreter(&self, engine: &Engine, language: Language) -> Result<CompiledPlugin, CompileRefusal> {
        let file = self.cache.as_ref().map(|cache| (cache, cache.file(engine, language.compressed())));
        if let Some((code, component)) = file.as_ref().and_then(|(cache, file)| cache.load(engine, file)) {
            return Ok(CompiledPlugin { component, fixed: code.fixed(), trial_error: None });
        }
        let name = language.name();
        tracing::info!("compiling the {name} interpreter for this machine; this is done once and takes a few seconds");
        let damaged = |e: std::io::Error| CompileRefusal::Damaged(format!("the {name} interpreter: {e}"));
        let code =
            self.compiler.compile(&language.interpreter().map_err(damaged)?, CompileEffort::Less, &PluginLimits::default())?;
        let unusable = || CompileRefusal::TooMuch(format!("the compiled {name} interpreter can't be used"));
        let component = cache::component(engine, &code).ok_or_else(unusable)?;
        let kept = file
            .ok_or_else(|| "there is no cache folder".to_owned())
            .and_then(|(cache, file)| cache.store(&code, &file).map_err(|e| format!("{} can't be written: {e}", file.display())));
        if let Err(why) = kept {
            tracing::warn!("the {name} interpreter is compiled at each start, because {why}");
        }
        Ok(CompiledPlugin { component, fixed: code.fixed(), trial_error: None })
    }
}
