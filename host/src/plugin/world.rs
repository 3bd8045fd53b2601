//! The contract's bindings for wasmtime, and the check of a component against a role, with errors in words.

use super::{Error, LONGEST_TEXT, Result, wasi};
use crate::config::printable;
use wasmtime::component::Component;
use wasmtime::component::types::ComponentItem;

#[allow(missing_docs)]
mod described {
    wasmtime::component::bindgen!({
        inline: "
            package rlhost:host;
            world described {
                import rlhost:plugin/types@0.1.0;
                import rlhost:plugin/host@0.1.0;
                export rlhost:plugin/plugin@0.1.0;
            }
        ",
        path: "../plugin-sdk/wit/0.1",
    });
}

#[allow(missing_docs)]
mod rewarding {
    wasmtime::component::bindgen!({
        inline: "
            package rlhost:host;
            world rewarding {
                import rlhost:plugin/types@0.1.0;
                export rlhost:plugin/reward@0.1.0;
            }
        ",
        path: "../plugin-sdk/wit/0.1",
        with: { "rlhost:plugin/types": super::described::rlhost::plugin::types },
    });
}

#[allow(missing_docs)]
mod guiding {
    wasmtime::component::bindgen!({
        inline: "
            package rlhost:host;
            world guiding {
                import rlhost:plugin/types@0.1.0;
                export rlhost:plugin/policy@0.1.0;
            }
        ",
        path: "../plugin-sdk/wit/0.1",
        with: { "rlhost:plugin/types": super::described::rlhost::plugin::types },
    });
}

#[allow(missing_docs)]
mod preferring {
    wasmtime::component::bindgen!({
        inline: "
            package rlhost:host;
            world preferring {
                import rlhost:plugin/types@0.1.0;
                export rlhost:plugin/preference@0.1.0;
            }
        ",
        path: "../plugin-sdk/wit/0.1",
        with: { "rlhost:plugin/types": super::described::rlhost::plugin::types },
    });
}

#[allow(missing_docs)]
mod weighing {
    wasmtime::component::bindgen!({
        inline: "
            package rlhost:host;
            world weighing {
                import rlhost:plugin/types@0.1.0;
                export rlhost:plugin/preference@0.1.0;
                export rlhost:plugin/weighted-preference@0.2.0;
            }
        ",
        path: ["../plugin-sdk/wit/0.1", "../plugin-sdk/wit/0.2"],
        with: { "rlhost:plugin/types@0.1.0": super::described::rlhost::plugin::types },
    });
}

#[allow(missing_docs)]
mod prompted {
    wasmtime::component::bindgen!({
        inline: "
            package rlhost:host;
            world prompted {
                import rlhost:plugin/types@0.1.0;
                export rlhost:plugin/preference@0.1.0;
                export rlhost:plugin/prompted-preference@0.2.0;
            }
        ",
        path: ["../plugin-sdk/wit/0.1", "../plugin-sdk/wit/0.2"],
        with: { "rlhost:plugin/types@0.1.0": super::described::rlhost::plugin::types },
    });
}

#[allow(missing_docs)]
mod turning {
    wasmtime::component::bindgen!({
        inline: "
            package rlhost:host;
            world turning {
                import rlhost:plugin/types@0.1.0;
                export rlhost:plugin/policy@0.1.0;
                export rlhost:plugin/turn-policy@0.2.0;
            }
        ",
        path: ["../plugin-sdk/wit/0.1", "../plugin-sdk/wit/0.2"],
        with: { "rlhost:plugin/types@0.1.0": super::described::rlhost::plugin::types },
    });
}

#[allow(missing_docs)]
mod valuing {
    wasmtime::component::bindgen!({
        inline: "
            package rlhost:host;
            world valuing {
                import rlhost:plugin/types@0.1.0;
                export rlhost:plugin/reward-model@0.2.0;
            }
        ",
        path: ["../plugin-sdk/wit/0.1", "../plugin-sdk/wit/0.2"],
        with: { "rlhost:plugin/types@0.1.0": super::described::rlhost::plugin::types },
    });
}

#[allow(missing_docs)]
mod pairing_up {
    wasmtime::component::bindgen!({
        inline: "
            package rlhost:host;
            world pairing-up {
                import rlhost:plugin/types@0.1.0;
                export rlhost:plugin/pairing@0.1.0;
            }
        ",
        path: "../plugin-sdk/wit/0.1",
        with: { "rlhost:plugin/types": super::described::rlhost::plugin::types },
    });
}

#[allow(missing_docs)]
mod observing {
    wasmtime::component::bindgen!({
        inline: "
            package rlhost:host;
            world observing {
                import rlhost:plugin/types@0.1.0;
                export rlhost:plugin/observer@0.1.0;
            }
        ",
        path: "../plugin-sdk/wit/0.1",
        with: { "rlhost:plugin/types": super::described::rlhost::plugin::types },
    });
}

#[allow(missing_docs)]
mod remembering {
    wasmtime::component::bindgen!({
        inline: "
            package rlhost:host;
            world remembering {
                import rlhost:plugin/types@0.1.0;
                export rlhost:plugin/state@0.1.0;
            }
        ",
        path: "../plugin-sdk/wit/0.1",
        with: { "rlhost:plugin/types": super::described::rlhost::plugin::types },
    });
}

#[allow(missing_docs)]
mod confining {
    wasmtime::component::bindgen!({
        inline: "
            package rlhost:confining;
            world confining {
                import rlhost:plugin/cells@0.2.0;
                export rlhost:plugin/inside@0.2.0;
            }
        ",
        path: ["../plugin-sdk/wit/0.1", "../plugin-sdk/wit/0.2"],
    });
}

#[allow(missing_docs)]
mod acting {
    wasmtime::component::bindgen!({
        inline: "
            package rlhost:host;
            world acting {
                import rlhost:plugin/types@0.1.0;
                export rlhost:plugin/environment@0.2.0;
            }
        ",
        path: ["../plugin-sdk/wit/0.1", "../plugin-sdk/wit/0.2"],
        with: { "rlhost:plugin/types@0.1.0": super::described::rlhost::plugin::types },
        additional_derives: [PartialEq],
    });
}

#[allow(missing_docs)]
mod labelling {
    wasmtime::component::bindgen!({
        inline: "
            package rlhost:host;
            world labelling {
                import rlhost:plugin/types@0.1.0;
                export rlhost:plugin/labelled@0.2.0;
            }
        ",
        path: ["../plugin-sdk/wit/0.1", "../plugin-sdk/wit/0.2"],
        with: { "rlhost:plugin/types@0.1.0": super::described::rlhost::plugin::types },
    });
}

// One set of bindings per interface, so that an instance is asked only for what its role has.
pub(super) use acting::Acting;
pub(super) use acting::exports::rlhost::plugin0_2_0::environment;
pub(super) use confining::Confining;
pub(super) use confining::rlhost::plugin0_2_0::cells;
pub(super) use described::Described;
pub(super) use described::exports::rlhost::plugin::plugin;
pub(super) use described::rlhost::plugin::{host, types};
pub(super) use guiding::Guiding;
pub(super) use guiding::exports::rlhost::plugin::policy;
pub(super) use labelling::Labelling;
pub(super) use labelling::exports::rlhost::plugin0_2_0::labelled;
pub(super) use observing::Observing;
pub(super) use pairing_up::PairingUp;
pub(super) use pairing_up::exports::rlhost::plugin::pairing;
pub(super) use preferring::Preferring;
pub(super) use preferring::exports::rlhost::plugin::preference;
pub(super) use prompted::Prompted;
pub(super) use prompted::exports::rlhost::plugin0_1_0::preference as with_prompts;
pub(super) use prompted::exports::rlhost::plugin0_2_0::prompted_preference;
pub(super) use remembering::Remembering;
pub(super) use rewarding::Rewarding;
pub(super) use rewarding::exports::rlhost::plugin::reward;
pub(super) use turning::Turning;
pub(super) use turning::exports::rlhost::plugin0_1_0::policy as turned;
pub(super) use turning::exports::rlhost::plugin0_2_0::turn_policy;
pub(super) use valuing::Valuing;
pub(super) use valuing::exports::rlhost::plugin0_2_0::reward_model;
pub(super) use weighing::Weighing;
pub(super) use weighing::exports::rlhost::plugin0_1_0::preference as weighed;
pub(super) use weighing::exports::rlhost::plugin0_2_0::weighted_preference;

/// The role of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Scores completions.
    Reward,
    /// Computes advantages and a loss for completions.
    Policy,
    /// Computes a loss for pairs.
    Preference,
    /// Chooses pairs of completions and computes a loss for them.
    OnlinePreference,
    /// Plays episodes with several turns.
    Environment,
    /// Computes a loss for labelled completions.
    Labelled,
    /// Computes a loss for pairs of completions with one value each.
    RewardModel,
}

const PACKAGE: &str = "rlhost:plugin/";

/// Returns the contract version in which an interface was added, which it keeps.
fn version(interface: &str) -> &'static str {
    match interface {
        "cells"
        | "inside"
        | "http"
        | "environment"
        | "reward-model"
        | "labelled"
        | "weighted-preference"
        | "prompted-preference"
        | "turn-policy" => "0.2",
        _ => "0.1",
    }
}

impl Role {
    /// All roles. Those whose exports include another's come first.
    const ALL: [Self; 7] = [
        Self::OnlinePreference,
        Self::Preference,
        Self::Labelled,
        Self::Policy,
        Self::RewardModel,
        Self::Reward,
        Self::Environment,
    ];

    fn interfaces(self) -> &'static [&'static str] {
        match self {
            Self::Reward => &["reward"],
            Self::Policy => &["policy"],
            Self::Preference => &["preference"],
            Self::OnlinePreference => &["preference", "pairing"],
            Self::Environment => &["environment"],
            Self::Labelled => &["labelled"],
            Self::RewardModel => &["reward-model"],
        }
    }

    /// Returns the full name of the interface that a plugin in this role exports first.
    pub(super) fn exported(self) -> String {
        let interface = self.interfaces()[0];
        format!("{PACKAGE}{interface}@{}.0", version(interface))
    }

    /// Returns the role as words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reward => "a reward",
            Self::Policy => "an algorithm",
            Self::Preference => "a preference algorithm",
            Self::OnlinePreference => "an online preference algorithm",
            Self::Environment => "an environment",
            Self::Labelled => "an algorithm for labelled completions",
            Self::RewardModel => "a loss of reward models",
        }
    }

    /// Returns the role that a component's exports match.
    pub(super) fn of(component: &Component, engine: &wasmtime::Engine) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.interfaces().iter().all(|interface| exports(component, engine, interface)))
    }

    /// Checks exports and imports by name. Types are checked when the component is linked.
    pub(super) fn check(self, name: &str, component: &Component, engine: &wasmtime::Engine) -> Result<()> {
        let fail = |detail: String| Error::WrongWorld {
            name: name.to_owned(),
            wanted: self.name(),
            detail: printable(&detail, LONGEST_TEXT),
        };
        let ty = component.component_type();
        let exports: Vec<String> = ty
            .exports(engine)
            .filter(|(_, item)| matches!(item.ty, ComponentItem::ComponentInstance(_)))
            .map(|(name, _)| name.to_owned())
            .collect();
        for wanted in std::iter::once(&"plugin").chain(self.interfaces()) {
            let (prefix, version) = (format!("{PACKAGE}{wanted}@"), version(wanted));
            match exports.iter().find(|e| e.starts_with(&prefix)) {
                Some(export) if export[prefix.len()..].starts_with(&format!("{version}.")) => {}
                Some(export) => {
                    return Err(fail(format!("it exports {export}; this rlhost supports version {version} of {wanted}")));
                }
                None => return Err(fail(format!("it does not export {prefix}{version}.0; it exports {}", listed(&exports)))),
            }
        }
        for (import, _) in ty.imports(engine) {
            let offered = wasi::offers(import) || import.starts_with(PACKAGE);
            if !offered {
                return Err(fail(format!(
                    "it imports {import}, which rlhost does not offer; plugins get WASI 0.2 and {PACKAGE}host"
                )));
            }
        }
        Ok(())
    }
}

/// Returns whether a component exports an optional interface of the contract.
pub(super) fn exports(component: &Component, engine: &wasmtime::Engine, interface: &str) -> bool {
    let name = format!("{PACKAGE}{interface}@{}.", version(interface));
    component.component_type().exports(engine).any(|(export, _)| export.starts_with(&name))
}

/// Returns whether a component imports an interface.
pub(super) fn imports(component: &Component, engine: &wasmtime::Engine, interface: &str) -> bool {
    component.component_type().imports(engine).any(|(import, _)| import == interface)
}

fn listed(exports: &[String]) -> String {
    if exports.is_empty() { "no interface".to_owned() } else { exports.join(", ") }
}
