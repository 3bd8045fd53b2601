//! Episodes of a configuration, with an environment or with an agent.

use super::RunConfig;

impl RunConfig {
    /// Returns whether completions are episodes: with an environment or an agent.
    pub fn has_episodes(&self) -> bool {
        !(self.environment.is_empty() && self.agent.is_empty())
    }

    /// Returns whether the rows of the dataset name one of several environments, agents or teachers.
    pub fn chooses_by_row(&self) -> bool {
        self.environment.len() > 1 || self.agent.len() > 1 || self.teacher_server.len() > 1
    }

    /// Checks the run's agents. The error is the invalid key, and the valid values.
    pub(super) fn check_agents(&self) -> Result<(), (&'static str, String)> {
        if self.agent.is_empty() {
            return Ok(());
        }
        if !self.environment.is_empty() {
            let detail = "the run has both an agent and an environment, but an episode is either's; leave one out";
            return Err(("agent", detail.into()));
        }
        if self.score_sampling_support == Some(true) {
            let detail = "is not supported with an agent; leave it out, or use an environment";
            return Err(("score_sampling_support", detail.into()));
        }
        if !self.stop.is_empty() {
            return Err(("stop", "is not supported with an agent, whose requests say what stops them; leave it out".into()));
        }
        self.check_each_agent().map_err(|wrong| ("agent", wrong))
    }

    /// Checks the entries of agents, and that their names are unique.
    fn check_each_agent(&self) -> Result<(), String> {
        for (at, agent) in self.agent.iter().enumerate() {
            agent.check().map_err(|wrong| if self.agent.len() > 1 { format!("{}: {wrong}", agent.name) } else { wrong })?;
            if let Some(entry) = self.plugin.iter().find(|entry| entry.name().eq_ignore_ascii_case(&agent.name)) {
                return Err(format!("{} is the name of a reward, too; set another name in the agent's table", entry.name()));
            }
            if self.agent[..at].iter().any(|other| other.name.eq_ignore_ascii_case(&agent.name)) {
                return Err(format!("two agents are named {:?}; set a name in the [[agent]] table of each", agent.name));
            }
        }
        match self.agent.iter().find(|agent| agent.listen.is_some()) {
            Some(agent) if self.agent.len() > 1 => Err(format!(
                "{} listens for drivers, which play all episodes, but the run has other agents; leave them out, and let the driver choose \
                 by the row",
                agent.name
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{AgentEntry, KeyAssignment, Overrides, RewardErrorAction, RunConfig, read};
    use std::time::Duration;

    fn agents(text: &str) -> Result<Vec<AgentEntry>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run.toml");
        std::fs::write(&file, text).unwrap();
        let config: RunConfig = read([file.as_path()], &Overrides::default()).map_err(|e| e.to_string())?;
        Ok(config.agent)
    }

    #[test]
    fn an_agent_is_a_command_line_or_a_table() {
        let by_line = agents("agent = \"python 'my agent.py' --n 3\"").unwrap();
        assert_eq!(by_line[0].command, ["python", "my agent.py", "--n", "3"]);
        let by_table = agents("[[agent]]\ncommand = [\"python\", \"my agent.py\", \"--n\", \"3\"]").unwrap();
        assert_eq!(by_line, by_table);
        let one = agents("[agent]\ncommand = [\"a\"]\ntimeout_s = 1.5\nmax_concurrent = 2").unwrap();
        assert_eq!((one[0].timeout(), one[0].max_concurrent, one[0].name.as_str()), (Duration::from_millis(1500), 2, "agent"));
        assert_eq!(one[0].on_error, RewardErrorAction::Unscorable);
    }

    #[test]
    fn an_agent_without_a_command_listens() {
        let address = |listen: &str| agents(&format!("[[agent]]\nlisten = \"{listen}\"")).unwrap().remove(0);
        assert_eq!(address("127.0.0.1:8300").address(), Some(("127.0.0.1", 8300)));
        assert_eq!(address("[::1]:0").address(), Some(("::1", 0)));
        // In the form of a flag.
        assert_eq!(agents("agent = '{ listen = \"a:1\" }'").unwrap()[0].address(), Some(("a", 1)));
        assert_eq!(agents("agent = \"a\"").unwrap()[0].address(), None);
    }

    #[test]
    fn the_keys_of_the_only_agent_are_set_by_their_names() {
        let set = |more: &[&str]| {
            let all = ["agent=python agent.py"].iter().chain(more).map(|set| KeyAssignment::parse(set).unwrap()).collect();
            read([], &Overrides { sets: all, ..Overrides::default() })
        };
        let entry = set(&["agent.timeout_s=5", "agent.pass_env=[\"HOME\"]"]).unwrap().agent.remove(0);
        assert_eq!((entry.timeout_s, &entry.pass_env[..], entry.command.len()), (5.0, &["HOME".to_owned()][..], 2));
        assert!(set(&["agent.turns=5"]).unwrap_err().to_string().contains("unknown key `turns`"));
        let none =
            read([], &Overrides { sets: vec![KeyAssignment::parse("agent.timeout_s=5").unwrap()], ..Overrides::default() });
        assert!(none.unwrap_err().to_string().contains("the run has no agent"));
    }

    #[test]
    fn the_keys_of_several_agents_are_set_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("run.toml");
        std::fs::write(&file, "[[agent]]\nname = \"shop\"\ncommand = [\"a\"]\n[[agent]]\nname = \"maths\"\ncommand = [\"b\"]")
            .unwrap();
        let set = |text: &str| {
            let sets = vec![KeyAssignment::parse(text).unwrap()];
            read([file.as_path()], &Overrides { sets, ..Overrides::default() }).map_err(|e| e.to_string())
        };
        let config = set("agent.maths.timeout_s=5").unwrap();
        assert_eq!(config.agent.iter().map(|agent| agent.timeout_s).collect::<Vec<_>>(), [600.0, 5.0]);
        assert!(config.chooses_by_row());
        assert!(set("agent.timeout_s=5").unwrap_err().contains("several agents (shop, maths), whose keys"));
        assert!(set("agent.maths=5").unwrap_err().contains("several agents (shop, maths), whose keys"));
        assert!(set("agent.chess.timeout_s=5").unwrap_err().contains("no agent is named \"chess\""));
        assert!(set("agent.maths.turns=5").unwrap_err().contains("unknown key `turns`"));
    }

    #[test]
    fn what_is_wrong_with_an_agent_is_said() {
        for (text, part) in [
            ("agent = \"python 'open\"", "has an open quote"),
            ("agent = 7", "it must be a command"),
            ("agent = \"\"", "must name a program"),
            ("[[agent]]\ncommand = []", "must name a program"),
            ("[[agent]]\nlisten = \"127.0.0.1\"", "must be an address with a port"),
            ("[[agent]]\nlisten = \":8300\"", "must be an address with a port"),
            ("[[agent]]\nlisten = \"127.0.0.1:83000\"", "must be an address with a port"),
            ("[[agent]]\nlisten = \"a:1\"\ncommand = [\"b\"]", "command is for a program that the run starts"),
            ("[[agent]]\nlisten = \"a:1\"\npersistent = true", "persistent is for a program that the run starts"),
            ("[[agent]]\ncommand = [\"a\"]\napi_key_file = \"b\"", "api_key_file is for drivers elsewhere"),
            ("[[agent]]\ncommand = [\"a\"]\ntimeout_s = 0", "timeout_s is 0"),
            ("[[agent]]\ncommand = [\"a\"]\nmax_concurrent = 0", "max_concurrent must be at least 1"),
            ("[[agent]]\ncommand = [\"a\"]\non_error = \"previous\"", "on_error is previous"),
            ("[[agent]]\ncommand = [\"a\"]\npass_env = [\"A=B\"]", "pass_env has \"A=B\""),
            ("[[agent]]\ncommand = [\"a\"]\nturns = 3", "unknown"),
            ("agent = [\"a\", \"b\"]", "two agents are named \"agent\""),
            ("[[agent]]\ncommand = [\"a\"]\n[[agent]]\nname = \"Agent\"\ncommand = [\"b\"]", "two agents are named"),
            ("[[agent]]\ncommand = [\"a\"]\n[[agent]]\nname = \"b\"\ncommand = [\"b\"]\ntimeout_s = 0", "b: timeout_s is 0"),
            ("[[agent]]\ncommand = [\"a\"]\n[[agent]]\nname = \"b\"\nlisten = \"a:1\"", "b listens for drivers"),
            ("agent = \"a\"\nenvironment = \"calculator_tool\"", "both an agent and an environment"),
            ("agent = \"a\"\nstop = [\"x\"]", "whose requests say what stops them"),
            ("[[agent]]\ncommand = [\"a\"]\nname = \"episodes\"", "are the run's own"),
            ("agent = \"a\"\nscore_sampling_support = true", "score_sampling_support"),
        ] {
            let wrong = agents(text).unwrap_err();
            assert!(wrong.contains(part), "{text}: {wrong}");
        }
    }
}
