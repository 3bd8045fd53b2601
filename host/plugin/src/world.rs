//! The roles of plugins. Checks a component against a role, with readable errors.

use super::error::LONGEST_TEXT;
use super::{Error, Result, wasi};
use crate::config::printable;
use wasmtime::component::Component;
use wasmtime::component::types::ComponentItem;

/// The role of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Scores completions.
    Reward,
    /// Computes a loss, and advantages or pairs if it learns from generated completions.
    Algorithm,
    /// Plays episodes with several turns.
    Environment,
}

/// Package of the contract's interfaces.
pub(super) const PACKAGE: &str = "rlhost:plugin/";

/// Supported versions of `plugin`, the interface that every plugin exports. Each implies the versions of all other interfaces.
const VERSIONS: [&str; 2] = ["1.0", "0.1"];

/// Returns the version of an interface that goes with this version of `plugin`: 0.2 added interfaces to 0.1 and changed none.
fn interface_version(version: &'static str, interface: &str) -> &'static str {
    let of_0_2 = ["inside", "environment", "reward-model", "labelled"];
    if version == "0.1" && of_0_2.contains(&interface) { "0.2" } else { version }
}

/// Returns whether an export is an interface of this version; patch versions are compatible.
fn is(export: &str, interface: &str, version: &str) -> bool {
    let rest =
        export.strip_prefix(PACKAGE).and_then(|rest| rest.strip_prefix(interface)?.strip_prefix('@')?.strip_prefix(version));
    rest.is_some_and(|rest| rest.starts_with('.'))
}

/// Names of a component's exports.
struct ExportedInterfaces(Vec<String>);

impl ExportedInterfaces {
    fn from_component(component: &Component, engine: &wasmtime::Engine) -> Self {
        let ty = component.component_type();
        let instances = ty.exports(engine).filter(|(_, item)| matches!(item.ty, ComponentItem::ComponentInstance(_)));
        Self(instances.map(|(name, _)| name.to_owned()).collect())
    }

    fn has(&self, interface: &str, version: &str) -> bool {
        self.0.iter().any(|export| is(export, interface, version))
    }

    /// Returns the newest supported version of `plugin` that is exported.
    fn version(&self) -> Option<&'static str> {
        VERSIONS.into_iter().find(|version| self.has("plugin", version))
    }

    /// Returns the role that the exports match.
    fn role(&self) -> Option<Role> {
        let version = self.version()?;
        let all =
            |interfaces: &[&str]| interfaces.iter().all(|interface| self.has(interface, interface_version(version, interface)));
        let roles = if version == "1.0" { &Role::ALL } else { &Role::OLD[..] };
        roles.iter().find(|(_, interfaces)| all(interfaces)).map(|(role, _)| *role)
    }

    /// Returns the export of this interface in whatever version.
    fn another(&self, interface: &str) -> Option<&String> {
        let prefix = format!("{PACKAGE}{interface}@");
        self.0.iter().find(|export| export.starts_with(&prefix))
    }

    fn listed(&self) -> String {
        if self.0.is_empty() { "no interface".to_owned() } else { self.0.join(", ") }
    }
}

impl Role {
    /// All roles with the interfaces that each requires.
    const ALL: [(Self, &'static [&'static str]); 3] =
        [(Self::Algorithm, &["algorithm"]), (Self::Reward, &["reward"]), (Self::Environment, &["environment"])];

    /// All roles of versions 0.1 and 0.2, which have several kinds of algorithms, with the interfaces that each requires.
    const OLD: [(Self, &'static [&'static str]); 6] = [
        (Self::Algorithm, &["policy"]),
        (Self::Algorithm, &["preference"]),
        (Self::Algorithm, &["labelled"]),
        (Self::Algorithm, &["reward-model"]),
        (Self::Reward, &["reward"]),
        (Self::Environment, &["environment"]),
    ];

    /// Returns the name of the interface that defines this role, without the version.
    fn interface(self) -> &'static str {
        match self {
            Self::Reward => "reward",
            Self::Environment => "environment",
            Self::Algorithm => "algorithm",
        }
    }

    /// Returns the full name of the interface that defines this role.
    pub(super) fn exported(self) -> String {
        format!("{PACKAGE}{}@{}.0", self.interface(), VERSIONS[0])
    }

    /// Returns the role with its article.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reward => "a reward",
            Self::Algorithm => "an algorithm",
            Self::Environment => "an environment",
        }
    }

    /// Returns the role that a component's exports match.
    pub(super) fn from_component(component: &Component, engine: &wasmtime::Engine) -> Option<Self> {
        ExportedInterfaces::from_component(component, engine).role()
    }

    /// Returns the role of a component with exports of these names.
    pub(super) fn from_exports<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        ExportedInterfaces(names.into_iter().map(str::to_owned).collect()).role()
    }

    /// Checks exports and imports by name. Types are checked when the component is linked.
    pub(super) fn check(self, name: &str, component: &Component, engine: &wasmtime::Engine) -> Result<()> {
        let fail = |detail: String| Error::WrongWorld {
            name: name.to_owned(),
            wanted: self.name(),
            detail: printable(&detail, LONGEST_TEXT),
        };
        self.check_exports(&ExportedInterfaces::from_component(component, engine)).map_err(fail)?;
        for (import, _) in component.component_type().imports(engine) {
            let offered = wasi::offers(import) || import.starts_with(PACKAGE);
            if !offered {
                return Err(fail(format!(
                    "it imports {import}, which rlhost does not offer; plugins get WASI 0.2 and {PACKAGE}host"
                )));
            }
        }
        Ok(())
    }

    fn check_exports(self, exports: &ExportedInterfaces) -> std::result::Result<(), String> {
        let Some(version) = exports.version() else {
            return Err(match exports.another("plugin") {
                Some(other) => format!("it exports {other}; this rlhost supports versions {} of plugin", VERSIONS.join(" and ")),
                None => format!("it does not export {PACKAGE}plugin@{}.0; it exports {}", VERSIONS[0], exports.listed()),
            });
        };
        let all = |(_, interfaces): &&(Self, &[&str])| {
            interfaces.iter().all(|interface| exports.has(interface, interface_version(version, interface)))
        };
        let known = if version == VERSIONS[0] { &Self::ALL[..] } else { &Self::OLD };
        if known.iter().filter(|(role, _)| *role == self).any(|role| all(&role)) {
            return Ok(());
        }
        let interface = known.iter().find(|(role, _)| *role == self).map_or(self.interface(), |(_, interfaces)| interfaces[0]);
        let version = interface_version(version, interface);
        Err(match exports.another(interface) {
            Some(other) => format!("it exports {other}; this rlhost supports version {version} of {interface}"),
            None => {
                let is = exports.role().map(|role| format!("it is {}; ", role.name())).unwrap_or_default();
                format!("{is}it does not export {PACKAGE}{interface}@{version}.0; it exports {}", exports.listed())
            }
        })
    }
}

/// Returns the first of these interfaces that a component imports.
pub(super) fn imported<'a>(component: &Component, engine: &wasmtime::Engine, interfaces: &[&'a str]) -> Option<&'a str> {
    let ty = component.component_type();
    interfaces.iter().copied().find(|interface| ty.imports(engine).any(|(import, _)| import == *interface))
}
