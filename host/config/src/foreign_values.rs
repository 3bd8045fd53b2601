//! Checks the values of TRL's options.

use super::foreign_options::OptionTreatment::{
    AppendedTo, Members, NotNeeded, Only, RewardFuncs, RewardModel, RewardWeights, Selects, Server, Sets, Shards,
};
use super::foreign_options::{ForeignOption, REWARDS, RewardSubstitute, is_off, lowercase, script_of, stand_in, texts};
use super::{servers, sharding};
use toml::Value;

impl ForeignOption {
    /// Accepts a value, and logs it if the option has no effect in rlhost.
    ///
    /// # Errors
    /// If the value can't be used; says why.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        let (text, is_off) = (lowercase(value), is_off(value));
        match self.treatment {
            NotNeeded if is_off => Ok(()),
            NotNeeded => {
                tracing::info!("{} is not needed: {}", self.name, self.why);
                Ok(())
            }
            AppendedTo(..) | RewardWeights => Ok(()),
            Sets(_) if value.is_str() => Ok(()),
            Sets(key) => Err(format!("is {value}; it must be text, as of {key}")),
            Server => servers::check_part(self.name, &text),
            Shards if is_off => Ok(()),
            Shards => sharding::check(self.name, value),
            RewardModel if is_off || value.is_str() => Ok(()),
            RewardModel => Err(format!("is {value}; it must be the path or the name of a model")),
            Members(known) => check_members(known, value),
            RewardFuncs => texts(value).try_for_each(|given| {
                if let Some(RewardSubstitute { name, plugin, difference, .. }) = stand_in(given) {
                    tracing::info!("{name} is {plugin} here: {difference}");
                } else if script_of(given).is_none() {
                    let known = REWARDS.each_ref().map(|reward| reward.name).join(", ");
                    return Err(format!(
                        "is {given}, and no file of that name is in this folder; name the script, as in --plugin FILE.py:FUNCTION, or one of \
                         {known}"
                    ));
                }
                Ok(())
            }),
            Selects(_, values) if values.iter().any(|(theirs, _)| *theirs == text) => Ok(()),
            Selects(_, values) => {
                let values: Vec<&str> = values.iter().map(|(theirs, _)| *theirs).collect();
                Err(format!("is {text}; it can only be {} here: {}", values.join(" or "), self.why))
            }
            Only(values) if values.contains(&text.as_str()) => Ok(()),
            Only(values) if is_off => {
                // The run will differ from what was requested.
                if !values.is_empty() {
                    tracing::warn!("{} {text}: {}", self.name, self.why);
                }
                Ok(())
            }
            Only([]) => Err(format!("rlhost does not have this option of TRL: {}", self.why)),
            Only(values) => Err(format!("is {text}; it can only be {} here: {}", values.join(", "), self.why)),
        }
    }
}

/// Checks the members of a table. Those in `ALWAYS_ON` have no effect, since rlhost always does the same.
fn check_members(known: &[(&str, &str)], value: &Value) -> Result<(), String> {
    const ALWAYS_ON: [(&str, Value); 3] =
        [("do_sample", Value::Boolean(true)), ("num_beams", Value::Integer(1)), ("use_cache", Value::Boolean(true))];
    let Some(members) = value.as_table() else { return Err(format!("is {value}; it must be a table")) };
    let anyway = |name: &str, value: &Value| ALWAYS_ON.iter().any(|(same, only)| *same == name && only == value);
    let unknown = members.iter().find(|(name, value)| !known.iter().any(|(one, _)| one == name) && !anyway(name, value));
    let names = || known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    unknown.map_or(Ok(()), |(name, value)| Err(format!("has {name} = {value}; the members supported here are {}", names())))
}
