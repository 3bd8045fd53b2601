//! Waiting rollouts in a checkpoint: their numbers are tensors in one file; everything else is a manifest in `snapshot.json`. Older
//! checkpoints store all of it there.

use super::fault::SnapshotFault;
use crate::columns::NamedColumns;
use crate::experience::{Experience, Pair, RewardScoreColumn};
use crate::plugin::columns::{ADVANTAGE, HostColumn, OLD_LOGP, OLD_VALUE, REF_LOGP, RETURN, SAMPLING_LOGP};
use crate::plugin::{Column, Unit};
use crate::rollout::Rollout;
use crate::stored_rollouts::{self, RolloutTensors, of_u8, of_u32, take};
use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};

/// Manifest of an [`Experience`], without what can be recomputed from the dataset or from its columns.
#[derive(Default, Deserialize, Serialize)]
pub(super) struct ExperienceManifest {
    /// Positions of the prompts among those in use.
    pub prompts: Vec<usize>,
    /// Rollouts; in checkpoints of this version, without their tokens and log-probabilities.
    pub rollouts: Vec<Rollout>,
    texts: Vec<String>,
    /// Name, weight and scores of each reward.
    rewards: Vec<(String, f32, Vec<Option<f32>>)>,
    pairs: Vec<Pair>,
    /// Entries of the columns that are stored as tensors; none in older checkpoints.
    #[serde(default)]
    columns: Option<Vec<ColumnEntry>>,
    /// Policy version of all rollouts, in checkpoints whose rollouts lack their own.
    #[serde(default, skip_serializing)]
    generated_at: Option<u64>,
    /// Columns in older checkpoints.
    #[serde(default, skip_serializing)]
    old_logp: Option<Vec<f32>>,
    #[serde(default, skip_serializing)]
    ref_logp: Option<Vec<f32>>,
    #[serde(default, skip_serializing)]
    values: Option<Vec<f32>>,
    #[serde(default, skip_serializing)]
    advantages: Vec<f32>,
    #[serde(default, skip_serializing)]
    returns: Option<Vec<f32>>,
    #[serde(default, skip_serializing)]
    mask: Vec<u8>,
}

/// Entry of a column that is stored as a tensor.
#[derive(Deserialize, Serialize)]
struct ColumnEntry {
    name: String,
    per: ColumnUnit,
}

/// Unit of a column.
#[derive(Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum ColumnUnit {
    Token,
    Sequence,
}

/// Waiting rollouts that have been read but not checked.
pub(super) struct WaitingRollouts {
    pub prompts: Vec<usize>,
    pub rollouts: Vec<Rollout>,
    pub texts: Vec<String>,
    pub rewards: Vec<RewardScoreColumn>,
    pub mask: Vec<u8>,
    pub columns: NamedColumns,
    pub pairs: Vec<Pair>,
    /// Whether the numbers were stored as tensors.
    pub has_tensors: bool,
}

/// Returns the prefix of the names of an experience's tensors; `place` is its index.
fn prefix(place: usize) -> String {
    format!("{place}/")
}

/// Returns the name of a tensor of an experience; `place` is its index.
fn tensor_name(place: usize, what: &str) -> String {
    prefix(place) + what
}

fn column_name(place: usize, column: &str) -> String {
    format!("{place}/column/{column}")
}

fn missing_name(place: usize, column: &str) -> String {
    format!("{place}/missing/{column}")
}

impl ExperienceManifest {
    /// Returns the manifest of an experience, and adds its tensors to `tensors`; `place` is its index.
    pub(super) fn from_experience(e: &Experience, place: usize, tensors: &mut RolloutTensors) -> candle_core::Result<Self> {
        stored_rollouts::add(&e.rollouts, &prefix(place), tensors)?;
        let mut add = |what: String, tensor: Tensor| tensors.insert(what, tensor);
        if !e.mask.is_empty() {
            add(tensor_name(place, "mask"), Tensor::new(&e.mask[..], &Device::Cpu)?);
        }
        let mut columns = Vec::new();
        for column in e.columns.iter() {
            // A checkpoint that can't be resumed must not replace an older one.
            check_finite(column).map_err(candle_core::Error::Msg)?;
            let per = if column.unit == Unit::Token { ColumnUnit::Token } else { ColumnUnit::Sequence };
            columns.push(ColumnEntry { name: column.name.clone(), per });
            add(column_name(place, &column.name), Tensor::new(&column.values[..], &Device::Cpu)?);
            if !column.missing.is_empty() {
                add(missing_name(place, &column.name), Tensor::new(&column.missing[..], &Device::Cpu)?);
            }
        }
        Ok(Self {
            prompts: e.prompts.iter().map(|p| p.index).collect(),
            rollouts: e.rollouts.iter().map(stored_rollouts::without_numbers).collect(),
            texts: e.texts.clone(),
            rewards: e.rewards.iter().map(|r| (r.name.clone(), r.weight, r.values.clone())).collect(),
            pairs: e.pairs.clone().unwrap_or_default(),
            columns: Some(columns),
            ..Self::default()
        })
    }

    /// Returns the newest policy version among the completions.
    pub(super) fn newest_version(&self) -> Option<u64> {
        self.rollouts.iter().map(|rollout| rollout.policy_version).chain(self.generated_at).max()
    }

    /// Returns whether the numbers are stored as tensors.
    pub(super) fn has_tensors(&self) -> bool {
        self.columns.is_some()
    }

    /// Reads the numbers of the experience; `place` is its index.
    pub(super) fn read(self, place: usize, tensors: &mut RolloutTensors) -> Result<WaitingRollouts, SnapshotFault> {
        let has_tensors = self.has_tensors();
        let Self { prompts, mut rollouts, texts, rewards, pairs, columns, mut mask, .. } = self;
        let columns = if let Some(entries) = columns {
            stored_rollouts::fill(&mut rollouts, &prefix(place), tensors).map_err(SnapshotFault::in_rollouts)?;
            mask =
                tensors.remove(&tensor_name(place, "mask")).map_or(Ok(Vec::new()), of_u8).map_err(SnapshotFault::in_rollouts)?;
            let columns = entries.into_iter().map(|entry| entry.read(place, tensors)).collect::<Result<NamedColumns, _>>()?;
            if let Some(logp) = columns.values(SAMPLING_LOGP) {
                stored_rollouts::divide(&mut rollouts, logp).map_err(SnapshotFault::in_rollouts)?;
            }
            columns
        } else {
            if let Some(version) = self.generated_at {
                rollouts.iter_mut().for_each(|rollout| rollout.policy_version = version);
            }
            let advantages = Some(self.advantages).filter(|advantages| !advantages.is_empty());
            let of_policy = [(OLD_LOGP, self.old_logp), (REF_LOGP, self.ref_logp), (OLD_VALUE, self.values)];
            let mut columns = NamedColumns::default();
            for (name, values) in of_policy.into_iter().chain([(ADVANTAGE, advantages), (RETURN, self.returns)]) {
                columns.set_per_token(name, values);
            }
            columns
        };
        let rewards = rewards.into_iter().map(|(name, weight, values)| RewardScoreColumn { name, weight, values }).collect();
        Ok(WaitingRollouts { prompts, rollouts, texts, rewards, mask, columns, pairs, has_tensors })
    }
}

impl ColumnEntry {
    fn read(self, place: usize, tensors: &mut RolloutTensors) -> Result<Column, SnapshotFault> {
        let unit = match self.per {
            ColumnUnit::Token => Unit::Token,
            ColumnUnit::Sequence => Unit::Sequence,
        };
        if let Some(known) = HostColumn::find(&self.name).filter(|known| known.unit != unit) {
            let (wanted, found) = (known.unit.noun(), unit.noun());
            let detail = format!("column {} has one value for each {found} instead of each {wanted}", self.name);
            return Err(SnapshotFault::in_rest(detail));
        }
        self.numbers(unit, place, tensors).map_err(SnapshotFault::in_rollouts)
    }

    /// Returns the column's values from the tensors.
    fn numbers(self, unit: Unit, place: usize, tensors: &mut RolloutTensors) -> Result<Column, String> {
        let values = take(tensors, &column_name(place, &self.name))?;
        let values = values.to_vec1::<f32>().map_err(|e| format!("column {}: {e}", self.name))?;
        let missing = tensors.remove(&missing_name(place, &self.name)).map_or(Ok(Vec::new()), of_u32)?;
        let ascends = missing.is_sorted_by(|a, b| a < b) && missing.last().is_none_or(|last| (*last as usize) < values.len());
        if !ascends {
            return Err(format!("column {} misses entries that it does not have", self.name));
        }
        let column = Column { name: self.name, unit, values, missing };
        check_finite(&column)?;
        Ok(column)
    }
}

/// Checks that all values are finite.
///
/// # Errors
/// Names the column, if they are not.
fn check_finite(column: &Column) -> Result<(), String> {
    match column.values.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(format!("column {} has the value {value}, which is not finite", column.name)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::support::Support;

    /// Returns an experience with two completions of one prompt, one of them scored among the tokens that could be sampled.
    fn experience() -> Experience {
        let mut support = Support::new(1.5);
        (support.ends, support.words) = (vec![2, 3], vec![7, 9, 8]);
        let rollout = |sample: usize, tokens: &[u32]| Rollout {
            sample,
            tokens: tokens.to_vec(),
            logp: tokens.iter().map(|token| -(*token as f32)).collect(),
            policy_version: 4 + sample as u64,
            replies: vec![(0, sample)],
            support: (sample == 1).then(|| support.clone()),
            ..Rollout::default()
        };
        let mut e = Experience::new(Vec::new(), vec![rollout(0, &[5]), rollout(1, &[7, 8])]);
        e.texts = vec!["a".into(), "b".into()];
        e.mask = vec![1, 0, 1];
        e.rewards = vec![RewardScoreColumn { name: "r".into(), weight: 0.5, values: vec![Some(1.0), None] }];
        e.columns.set_per_token(ADVANTAGE, Some(vec![0.25, f32::MIN_POSITIVE, -3.0]));
        e.columns.set(Column::sparse("own", Unit::Sequence, [None, Some(2.0)]));
        e
    }

    /// Writes an experience as in a checkpoint, and reads it back.
    fn read_again(change: impl FnOnce(&mut ExperienceManifest, &mut RolloutTensors)) -> Result<WaitingRollouts, SnapshotFault> {
        let mut tensors = RolloutTensors::new();
        let manifest = ExperienceManifest::from_experience(&experience(), 3, &mut tensors).unwrap();
        let mut manifest: ExperienceManifest = serde_json::from_str(&serde_json::to_string(&manifest).unwrap()).unwrap();
        change(&mut manifest, &mut tensors);
        manifest.read(3, &mut tensors)
    }

    #[test]
    fn waiting_rollouts_are_read_as_they_were_written() {
        let (waiting, e) = (read_again(|_, _| ()).unwrap(), experience());
        assert_eq!(format!("{:?}", waiting.rollouts), format!("{:?}", e.rollouts));
        assert_eq!((waiting.texts, waiting.mask, waiting.rewards), (e.texts, e.mask, e.rewards));
        let columns = |columns: &NamedColumns| columns.iter().cloned().collect::<Vec<_>>();
        assert_eq!(columns(&waiting.columns), columns(&e.columns));
    }

    #[test]
    fn what_could_not_be_read_again_is_not_written() {
        let mut e = experience();
        e.columns.set_per_token(ADVANTAGE, Some(vec![0.25, f32::NAN, -3.0]));
        let said = ExperienceManifest::from_experience(&e, 0, &mut RolloutTensors::new())
            .err()
            .map(|e| e.to_string())
            .unwrap_or_default();
        assert!(said.contains("column advantage has the value NaN"), "{said}");
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        type Change = fn(&mut ExperienceManifest, &mut RolloutTensors);
        fn flat(values: &[u32]) -> Tensor {
            Tensor::new(values, &Device::Cpu).unwrap()
        }
        fn per_sequence(manifest: &mut ExperienceManifest, _: &mut RolloutTensors) {
            let of_sampling = |column: &&mut ColumnEntry| column.name == SAMPLING_LOGP;
            manifest.columns.iter_mut().flatten().filter(of_sampling).for_each(|column| column.per = ColumnUnit::Sequence);
        }
        let changes: [(&str, Change); 6] = [
            ("snapshot.json: column sampling_logp has one value for each sequence instead of each token", per_sequence),
            ("rollouts.safetensors: 3 values in 1 parts for 2 completions", |_, t| {
                drop(t.insert("3/lengths".into(), flat(&[3])));
            }),
            ("values in 2 parts", |_, t| drop(t.insert("3/lengths".into(), flat(&[u32::MAX, 4])))),
            ("misses entries", |_, t| drop(t.insert("3/missing/own".into(), flat(&[1, 0])))),
            ("misses entries", |_, t| drop(t.insert("3/missing/own".into(), flat(&[2])))),
            ("no tensor 3/support/words", |_, t| drop(t.remove("3/support/words"))),
        ];
        for (expected, change) in changes {
            let said = read_again(change).err().map(|fault| fault.to_string()).unwrap_or_default();
            assert!(said.contains(expected), "{expected}: {said}");
        }
    }
}
