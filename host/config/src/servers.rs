//! Inference servers of a configuration, which generate its completions.

use super::entries::duration;
use super::{Address, RolloutDtype, RolloutLogMode, RunConfig, shortest};
use std::time::Duration;
use toml::{Table, Value};

/// TRL's default address of a server.
const OF_TRL: (&str, &str) = ("0.0.0.0", "8000");

/// Maximum number of servers.
const MOST: usize = 256;

/// Maximum staleness of completions.
const MOST_STALE: u64 = 64;

impl RunConfig {
    /// Makes this process generate the completions, instead of rollout servers or a replayed run.
    pub fn generate_locally(&mut self) {
        self.replay_rollouts = None;
        self.rollout_server.clear();
        (self.rollout_sync, self.rollout_sync_dir, self.max_staleness) = (None, None, 0);
    }

    /// Returns which generations the rollout log keeps; never `Auto`.
    pub fn rollout_log(&self) -> RolloutLogMode {
        let repeats = self.agent.is_empty() && self.rollout_server.is_empty();
        match self.rollout_log {
            _ if self.replay_rollouts.is_some() => RolloutLogMode::None,
            RolloutLogMode::Auto if repeats => RolloutLogMode::None,
            RolloutLogMode::Auto => RolloutLogMode::Unsaved,
            given => given,
        }
    }

    /// Returns the maximum response time of a rollout server, or of a teacher's.
    pub fn rollout_timeout(&self) -> Duration {
        duration(self.rollout_timeout_s)
    }

    /// Checks the rollout servers. The error is the invalid key, and the valid values.
    pub(super) fn check_servers(&self) -> Result<(), (&'static str, String)> {
        if self.rollout_timeout_s.is_nan() || self.rollout_timeout_s <= 0.0 {
            return Err(("rollout_timeout_s", format!("is {}; it must be greater than 0", shortest(self.rollout_timeout_s))));
        }
        if self.replay_rollouts.as_deref() == Some("") {
            return Err(("replay_rollouts", "is empty; name a run's folder, or leave it out".into()));
        }
        if self.replay_rollouts.is_some() && self.rollout_log == RolloutLogMode::All {
            return Err(("rollout_log", "is of no use with replay_rollouts: the run that is replayed has the log".into()));
        }
        self.check_staleness()?;
        if self.rollout_server.is_empty() {
            let of_servers =
                [("rollout_sync", self.rollout_sync.is_some()), ("rollout_sync_dir", self.rollout_sync_dir.is_some())];
            return match of_servers.into_iter().find(|(_, given)| *given) {
                Some((key, _)) => Err((key, "is about rollout servers; name one with rollout_server, or leave it out".into())),
                None => Ok(()),
            };
        }
        if self.rollout_server.len() > MOST {
            return Err(("rollout_server", format!("names {} servers; the maximum is {MOST}", self.rollout_server.len())));
        }
        let mut known = Vec::new();
        for url in &self.rollout_server {
            let server = Address::parse(url).map_err(|detail| ("rollout_server", detail))?.server();
            if known.contains(&server) {
                return Err(("rollout_server", format!("names {server} twice")));
            }
            known.push(server);
        }
        if self.has_episodes() {
            let detail = "can't generate the turns of episodes yet; leave it out, or the environment or agent";
            return Err(("rollout_server", detail.into()));
        }
        if self.rollout_dtype != RolloutDtype::Auto {
            return Err((
                "rollout_dtype",
                "is about generation in this process; rollout servers have their own precision".into(),
            ));
        }
        if self.score_sampling_support == Some(true) {
            let detail = "is not supported with rollout_server: servers don't say which tokens they could sample; use false";
            return Err(("score_sampling_support", detail.into()));
        }
        Ok(())
    }
}

impl RunConfig {
    /// Checks how far generation may be ahead of training.
    fn check_staleness(&self) -> Result<(), (&'static str, String)> {
        if self.max_staleness == 0 {
            return Ok(());
        }
        if self.rollout_server.is_empty() && self.agent.is_empty() {
            let detail = "is about rollout servers and agents, which write completions while training goes on; name one with \
                          rollout_server or agent, or leave it out";
            return Err(("max_staleness", detail.into()));
        }
        if self.max_staleness > MOST_STALE {
            let detail = format!(
                "is {}; it must be at most {MOST_STALE}, since a generation that waits needs memory for its weights or completions",
                self.max_staleness
            );
            return Err(("max_staleness", detail));
        }
        if self.filters_prompts() {
            let key = if self.filter_groups { "filter_groups" } else { "skip_groups" };
            return Err((key, "is not supported with max_staleness, which draws prompts before rewards are known".into()));
        }
        Ok(())
    }
}

/// Checks an option of TRL that is a part of a server's URL.
///
/// # Errors
/// If the value is invalid; says what is valid.
pub(super) fn check_part(option: &str, value: &str) -> Result<(), String> {
    match (option, value) {
        ("vllm_mode", "server" | "colocate") => Ok(()),
        ("vllm_mode", _) => Err(format!("is {value}; it must be server or colocate")),
        ("vllm_server_port", _) if value.parse::<u16>().is_err() => Err(format!("is {value}; it must be a port")),
        _ => Address::parse(&format!("http://{value}")).map(drop),
    }
}

/// Inserts a part of a server's URL, from an option of TRL, into the key that names the servers. A complete URL is not changed.
pub(super) fn put_part(option: &str, value: &Value, table: &mut Table) {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let known = match table.get("rollout_server") {
        Some(Value::Array(all)) => all.first().and_then(Value::as_str),
        Some(one) => one.as_str(),
        None => None,
    };
    let (host, port) = match known.map(|url| url.strip_prefix("http://").and_then(|rest| rest.rsplit_once(':'))) {
        None => OF_TRL,
        Some(Some(parts)) if parts.0 == OF_TRL.0 || parts.1 == OF_TRL.1 => parts,
        Some(_) => return,
    };
    let url = match option {
        "vllm_mode" if text.eq_ignore_ascii_case("server") => format!("http://{host}:{port}"),
        "vllm_server_host" => format!("http://{text}:{port}"),
        "vllm_server_port" => format!("http://{host}:{text}"),
        _ => return,
    };
    table.insert("rollout_server".to_owned(), Value::Array(vec![Value::String(url)]));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(change: impl FnOnce(&mut RunConfig)) -> Option<(&'static str, String)> {
        let mut config = RunConfig { rollout_server: vec!["http://node1:8000".into()], ..RunConfig::default() };
        change(&mut config);
        config.check_servers().err()
    }

    #[test]
    fn options_of_trl_become_a_url() {
        let url = |options: &[(&str, &str)]| {
            let mut table = Table::new();
            options.iter().for_each(|(option, value)| put_part(option, &Value::String((*value).to_owned()), &mut table));
            table.get("rollout_server").map(|all| all[0].as_str().unwrap().to_owned())
        };
        assert_eq!(url(&[("vllm_mode", "colocate")]), None);
        assert_eq!(url(&[("vllm_mode", "server")]).unwrap(), "http://0.0.0.0:8000");
        for order in [["vllm_server_host", "vllm_server_port"], ["vllm_server_port", "vllm_server_host"]] {
            let value = |option: &str| if option == "vllm_server_host" { "node1" } else { "9000" };
            assert_eq!(url(&order.map(|option| (option, value(option)))).unwrap(), "http://node1:9000", "{order:?}");
        }
        assert!(check_part("vllm_mode", "paged").unwrap_err().contains("server or colocate"));
        assert!(check_part("vllm_server_port", "x").unwrap_err().contains("a port"));
        assert!(check_part("vllm_server_host", "a b").is_err() && check_part("vllm_server_host", "node1").is_ok());
    }

    #[test]
    fn the_longest_timeouts_can_be_added_to_a_time() {
        let mut config = RunConfig { rollout_timeout_s: f64::MAX, ..RunConfig::default() };
        let agent = serde_json::json!({"command": ["a"], "timeout_s": f64::MAX});
        config.agent = vec![serde_json::from_value(agent).unwrap()];
        let now = std::time::Instant::now();
        assert!(now.checked_add(config.rollout_timeout()).is_some() && now.checked_add(config.agent[0].timeout()).is_some());
    }

    #[test]
    fn what_is_wrong_with_servers_is_named_by_its_key() {
        assert_eq!(fault(|_| ()), None);
        type Case = (&'static str, &'static str, fn(&mut RunConfig));
        let cases: [Case; 10] = [
            ("rollout_server", "neither an https nor an http URL", |c| c.rollout_server[0] = "ftp://node1".into()),
            ("rollout_server", "is not a URL", |c| c.rollout_server[0] = "node one".into()),
            ("rollout_server", "http://node1:8000 twice", |c| c.rollout_server.push("http://node1:8000/v1".into())),
            ("rollout_timeout_s", "greater than 0", |c| c.rollout_timeout_s = -1.0),
            ("rollout_sync_dir", "name one with rollout_server", |c| {
                c.rollout_server.clear();
                c.rollout_sync_dir = Some("/shared".into());
            }),
            ("max_staleness", "rollout servers and agents", |c| {
                c.rollout_server.clear();
                c.max_staleness = 1;
            }),
            ("max_staleness", "it must be at most 64", |c| c.max_staleness = 65),
            ("rollout_dtype", "their own precision", |c| c.rollout_dtype = RolloutDtype::Int8),
            ("score_sampling_support", "use false", |c| c.score_sampling_support = Some(true)),
            ("rollout_server", "the maximum is 256", |c| {
                c.rollout_server = (0..257).map(|i| format!("http://node{i}")).collect();
            }),
        ];
        for (key, expected, change) in cases {
            let (named, detail) = fault(change).unwrap_or_else(|| panic!("{key}: {expected} was accepted"));
            assert!(named == key && detail.contains(expected), "{key} {expected}: {named} {detail}");
        }
    }
}
