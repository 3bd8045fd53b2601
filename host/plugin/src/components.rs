//! Components by the bytes of plugins: compiled, or read from the cache on disk; and the carried interpreters, read once per process.

use super::cache::{self, Cache};
use super::census::{self, Refusal};
use super::compiler::{Compiled, Compiler, Trial, memory_of_one};
use super::configuration::Effort;
use super::script::{Interpreters, Language};
use crate::config::Limits;
use wasmtime::Engine;

/// Where components come from; cheap to clone.
#[derive(Clone)]
pub(super) struct Components {
    cache: Option<Cache>,
    compiler: Compiler,
    interpreters: Interpreters,
}

impl Components {
    /// Opens the cache, and compiles with this many threads.
    pub(super) fn open(threads: usize) -> Self {
        Self { cache: Cache::open(), compiler: Compiler::new(threads), interpreters: Interpreters::default() }
    }

    /// Returns the same with another number of threads.
    pub(super) fn compiling_with(&self, threads: usize) -> Self {
        Self { compiler: Compiler::new(threads), ..self.clone() }
    }

    /// Returns a plugin's component, compiled now or cached. An instance of it is made on trial within these limits, unless one was.
    pub(super) fn of_plugin(&self, engine: &Engine, bytes: &[u8], limits: &Limits) -> Result<Compiled, Refusal> {
        let file = self.cache.as_ref().map(|cache| (cache, cache.file(engine, bytes)));
        let kept = file.as_ref().and_then(|(cache, file)| cache.kept(engine, file));
        let (mut code, component) = match kept {
            Some((code, component)) => (code, Some(component)),
            None => (self.compiler.compile(bytes, Effort::Full, limits)?, None),
        };
        // It may have been counted under other limits.
        census::bounded(code.fixed() as u64, memory_of_one(limits))?;
        let is_new = component.is_none();
        let trial = self.compiler.try_out(&code, limits)?;
        if trial == Trial::Made {
            code.set_tried(memory_of_one(limits), limits.table_elements);
        }
        let unusable = || Refusal::TooMuch("the compiler's output can't be used".to_owned());
        let component = component.or_else(|| cache::component(engine, &code)).ok_or_else(unusable)?;
        // A cache that is full or read-only only costs time.
        if let Some((cache, file)) = file.filter(|_| is_new || trial == Trial::Made)
            && let Err(e) = cache.keep(&code, &file)
        {
            tracing::debug!("can't cache {}: {e}", file.display());
        }
        let unmade = if let Trial::Unmade(why) = trial { Some(why) } else { None };
        Ok(Compiled { component, fixed: code.fixed(), unmade })
    }

    /// Returns the carried interpreter of a language, compiled once per machine and read once per process.
    pub(super) fn interpreter(&self, engine: &Engine, language: Language, limits: &Limits) -> Result<Compiled, Refusal> {
        let compiled = self.interpreters.get(language, || self.cached_interpreter(engine, language))?;
        census::bounded(compiled.fixed as u64, memory_of_one(limits))?;
        Ok(compiled)
    }

    /// Reads the compiled interpreter of a language from the cache, or compiles it. It is part of this program, so it isn't what a
    /// plugin's limits are for, nor is it tried apart.
    fn cached_interpreter(&self, engine: &Engine, language: Language) -> Result<Compiled, Refusal> {
        let file = self.cache.as_ref().map(|cache| (cache, cache.file(engine, language.compressed())));
        if let Some((code, component)) = file.as_ref().and_then(|(cache, file)| cache.kept(engine, file)) {
            return Ok(Compiled { component, fixed: code.fixed(), unmade: None });
        }
        let name = language.name();
        tracing::info!("compiling the {name} interpreter for this machine; this is done once and takes a few seconds");
        let damaged = |e: std::io::Error| Refusal::Damaged(format!("the {name} interpreter: {e}"));
        let code = self.compiler.compile(&language.interpreter().map_err(damaged)?, Effort::Less, &Limits::default())?;
        let unusable = || Refusal::TooMuch(format!("the compiled {name} interpreter can't be used"));
        let component = cache::component(engine, &code).ok_or_else(unusable)?;
        let kept = file
            .ok_or_else(|| "there is no cache folder".to_owned())
            .and_then(|(cache, file)| cache.keep(&code, &file).map_err(|e| format!("{} can't be written: {e}", file.display())));
        if let Err(why) = kept {
            tracing::warn!("the {name} interpreter is compiled at each start, because {why}");
        }
        Ok(Compiled { component, fixed: code.fixed(), unmade: None })
    }
}
