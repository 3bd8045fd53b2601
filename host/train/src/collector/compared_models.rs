//! The models that the policy is compared with.

use super::teacher_server::TeacherServers;
use crate::plan::ReferencePlan;
use crate::shared_model::SharedModel;
use std::rc::Rc;

/// The models whose log-probabilities of completions are compared with the policy's.
pub(super) struct ComparedModels {
    pub reference: Option<SharedModel>,
    /// Plan of the reference model.
    pub plan: ReferencePlan,
    pub teacher: Option<Teacher>,
}

/// A teacher of algorithms that learn from another model's predictions.
pub(crate) enum Teacher {
    /// A model in this process.
    Model(Rc<SharedModel>),
    /// Models on inference servers.
    Servers(TeacherServers),
}
