//! The functions of algorithms, uniform over all versions of the contract.

use super::super::function::ExportedFunction;
use super::super::plugin_instance::CallResult;
use super::sent_batch::SentBatch;
use crate::columns;
use crate::contract::{algorithm, estimator, pairing, teacher_prompts, types};
use crate::sandbox::Sandbox;
use crate::world::PACKAGE;
use types::WeightedReward;
use wasmtime::Store;
use wasmtime::component::{Component, Instance as Linked};

/// A converted answer, or the reason why it is invalid, such as columns whose lengths differ from the batch's.
pub(crate) type ConversionResult<R> = Result<R, String>;

/// A prepared call, which can be made more than once to compare the answers.
pub(crate) type PreparedCall<'a, R> = Box<dyn Fn(&mut Store<Sandbox>, &Linked) -> CallResult<ConversionResult<R>> + 'a>;

/// Calls to an algorithm of one version. Each is prepared first, which fails if the batch lacks something that the version requires.
pub(crate) trait AlgorithmInterface: Send + Sync {
    /// Returns the data that the algorithm learns from.
    fn data(&self, store: &mut Store<Sandbox>, linked: &Linked) -> CallResult<algorithm::Data>;

    /// Returns whether the algorithm exports an estimator and a pairing.
    fn sees_generations(&self) -> (bool, bool);

    /// Returns whether the algorithm knows which tokens count, so that its derivatives are 0 for the others.
    fn knows_mask(&self) -> bool {
        true
    }

    /// Returns the estimates that the loss reads but the estimator need not return.
    fn optional_estimates(&self) -> &'static [&'static str] {
        &[columns::MASK]
    }

    fn estimate<'a>(
        &'a self,
        sent: &'a SentBatch<'a>,
        rewards: &'a [WeightedReward],
    ) -> ConversionResult<PreparedCall<'a, estimator::Estimates>>;

    fn choose<'a>(
        &'a self,
        sent: &'a SentBatch<'a>,
        rewards: &'a [WeightedReward],
    ) -> ConversionResult<PreparedCall<'a, pairing::Choice>>;

    fn loss<'a>(&'a self, sent: &'a SentBatch<'a>) -> ConversionResult<PreparedCall<'a, algorithm::Gradient>>;

    /// Returns the function that writes what a teacher reads, if the algorithm exports it.
    fn teacher_prompts(&self) -> Option<TeacherPromptsExport> {
        None
    }
}

/// The function of an algorithm that writes what a teacher reads.
#[derive(Clone, Copy)]
pub(crate) struct TeacherPromptsExport(ExportedFunction);

impl TeacherPromptsExport {
    pub(super) fn write(
        self,
        store: &mut Store<Sandbox>,
        linked: &Linked,
        generation: &teacher_prompts::Generation,
    ) -> CallResult<teacher_prompts::Prompts> {
        self.0.ask(store, linked, (generation,))
    }
}

/// Functions of version 1.0.
pub(crate) struct CurrentAlgorithm {
    describe_data: ExportedFunction,
    loss: ExportedFunction,
    estimate: Option<ExportedFunction>,
    choose: Option<ExportedFunction>,
    teacher_prompts: Option<TeacherPromptsExport>,
}

impl CurrentAlgorithm {
    pub(crate) fn from_component(component: &Component) -> Option<Self> {
        let find = |interface: &str, name: &str| ExportedFunction::find(component, &format!("{PACKAGE}{interface}@1.0.0"), name);
        Some(Self {
            describe_data: find("algorithm", "describe-data")?,
            loss: find("algorithm", "loss")?,
            estimate: find("estimator", "estimate"),
            choose: find("pairing", "choose"),
            teacher_prompts: find("teacher-prompts", "write").map(TeacherPromptsExport),
        })
    }
}

impl AlgorithmInterface for CurrentAlgorithm {
    fn data(&self, store: &mut Store<Sandbox>, linked: &Linked) -> CallResult<algorithm::Data> {
        self.describe_data.ask(store, linked, ())
    }

    fn sees_generations(&self) -> (bool, bool) {
        (self.estimate.is_some(), self.choose.is_some())
    }

    fn estimate<'a>(
        &'a self,
        sent: &'a SentBatch<'a>,
        rewards: &'a [WeightedReward],
    ) -> ConversionResult<PreparedCall<'a, estimator::Estimates>> {
        let estimate = self.estimate.ok_or_else(|| format!("it does not export {PACKAGE}estimator"))?;
        Ok(Box::new(move |store, linked| Ok(estimate.ask(store, linked, (sent, rewards))?.map(Ok))))
    }

    fn choose<'a>(
        &'a self,
        sent: &'a SentBatch<'a>,
        rewards: &'a [WeightedReward],
    ) -> ConversionResult<PreparedCall<'a, pairing::Choice>> {
        let choose = self.choose.ok_or_else(|| format!("it does not export {PACKAGE}pairing"))?;
        Ok(Box::new(move |store, linked| Ok(choose.ask(store, linked, (sent, rewards))?.map(Ok))))
    }

    fn loss<'a>(&'a self, sent: &'a SentBatch<'a>) -> ConversionResult<PreparedCall<'a, algorithm::Gradient>> {
        Ok(Box::new(move |store, linked| Ok(self.loss.ask(store, linked, (sent,))?.map(Ok))))
    }

    fn teacher_prompts(&self) -> Option<TeacherPromptsExport> {
        self.teacher_prompts
    }
}
