//! Shards a model's training state over the ranks (ZeRO; Rajbhandari et al. 2020, arXiv 1910.02054).
//!
//! Whole tensors are assigned to owners, since some optimizers need them whole, so that each rank gets about as many values. The owner of a
//! parameter holds its moments, applies its update and saves it. From stage 2 on, only the owner keeps the gradient, to which every
//! backward pass of every rank adds; in stage 3, only the owner keeps the parameter.

use crate::config::{ReduceDtype, ZeroStage};
use crate::dist::{Collectives, OwnedTensor, PendingCollective, ReductionSettings, World};
use crate::model::{self, Architecture, ModelFolder, ModelPart, PassDirection, PassObserver, Weights, is_critic_parameter};
use crate::ops;
use crate::{Error, Result};
use candle_core::{Tensor, TensorId};
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// Settings for gathering parameters outside of training passes, in which nothing is summed.
const GATHERING: ReductionSettings = ReductionSettings { dtype: ReduceDtype::Float32, overlap: true };

/// Number of parts whose gradients may wait to be summed while the next part's are computed.
const SUMS_AHEAD: usize = 1;

/// Assigns the parameters of a run's models to ranks.
pub(crate) struct Sharding {
    stage: ZeroStage,
    /// Whether frozen parameters are sharded, at any stage.
    frozen: bool,
    rank: usize,
    /// Number of values that each rank owns.
    loads: Vec<usize>,
    /// Owners of tensors, which models may share.
    owners: HashMap<TensorId, usize>,
    /// Owners of parameters that have not been read yet, by the prefix of their model and by name.
    planned: HashMap<(&'static str, String), usize>,
}

/// The shards of a model.
pub(crate) struct ModelShards {
    stage: ZeroStage,
    rank: usize,
    layers: usize,
    /// Owner of each parameter, by name.
    owners: HashMap<String, usize>,
    parts: BTreeMap<ModelPart, PartTensors>,
}

/// A parameter by name; the tensor is none if only other ranks have it.
pub(crate) type LocalParameter<'a> = (String, Option<&'a Tensor>);

/// Tensors of a part of a model.
#[derive(Default)]
struct PartTensors {
    /// Trained parameters.
    trained: Vec<OwnedTensor>,
    /// Parameters that only their owner keeps.
    sharded: Vec<OwnedTensor>,
    gradients: Vec<OwnedTensor>,
}

impl Sharding {
    /// Creates an assignment without models. A single process owns everything.
    pub(crate) fn new(stage: ZeroStage, frozen: bool, world: &World) -> Self {
        let (stage, frozen) = if world.size() == 1 { (ZeroStage::NOTHING, false) } else { (stage, frozen) };
        if stage != ZeroStage::NOTHING || frozen {
            ops::return_freed_memory();
        }
        let (rank, loads) = (world.rank(), vec![0; world.size()]);
        Self { stage, frozen, rank, loads, owners: HashMap::new(), planned: HashMap::new() }
    }

    /// Returns whether ranks share trained parameters or, if `trained` is false, frozen ones.
    pub(crate) fn shares(&self, trained: bool) -> bool {
        if trained { self.stage.shards_parameters() } else { self.frozen }
    }

    /// Returns the folder of a model that will be read with these sizes and sharded under this prefix, set up so that a rank only reads
    /// what it owns. `trained` says whether its parameters are trained.
    pub(crate) fn dividing(
        &mut self,
        prefix: &'static str,
        folder: ModelFolder,
        sizes: &Architecture,
        trained: bool,
    ) -> ModelFolder {
        if !self.shares(trained) {
            return folder;
        }
        let mut all = sizes.parameters();
        all.sort_by_key(|(_, shape)| Reverse(shape.iter().product::<usize>()));
        let mut kept = HashSet::new();
        for (name, shape) in all {
            let owner = self.least_loaded(shape.iter().product());
            if owner == self.rank {
                kept.insert(name.clone());
            }
            self.planned.insert((prefix, name), owner);
        }
        folder.with_resident_matrices(kept)
    }

    /// Records the tensors of a model that was read from [`Sharding::dividing`], since other models may share them.
    pub(crate) fn read(&mut self, prefix: &'static str, weights: &Weights) {
        for (name, t) in weights.named() {
            if let Some(owner) = self.planned.get(&(prefix, name)) {
                self.owners.insert(t.id(), *owner);
            }
        }
    }

    /// Shards the model of this prefix, with the gradients of its trained parameters. Parameters that only other ranks keep are freed.
    pub(crate) fn divide(
        &mut self,
        prefix: &'static str,
        weights: &Weights,
        gradients: &[(String, &Tensor)],
    ) -> ops::Result<ModelShards> {
        self.read(prefix, weights);
        let trained: HashSet<&str> = gradients.iter().map(|(name, _)| name.as_str()).collect();
        let owners = self.owners_of(weights, &trained);
        let owned =
            |name: &str, t: &Tensor| OwnedTensor { tensor: t.clone(), owner: owners.get(name).copied().unwrap_or_default() };
        let mut parts = BTreeMap::<ModelPart, PartTensors>::new();
        for (name, t) in weights.named() {
            let (part, is_trained) = (parts.entry(weights.part_of(&name)).or_default(), trained.contains(name.as_str()));
            if is_trained {
                part.trained.push(owned(&name, t));
            }
            // Vectors, and modules trained along with an adapter, are small and not sharded.
            let is_large = t.dims().len() > 1 && !is_critic_parameter(&name) && !(weights.lora.is_some() && is_trained);
            if self.shares(is_trained) && is_large {
                part.sharded.push(owned(&name, t));
            }
        }
        for (name, t) in gradients {
            parts.entry(weights.part_of(name)).or_default().gradients.push(owned(name, t));
        }
        let shards = ModelShards { stage: self.stage, rank: self.rank, layers: weights.layers.len(), owners, parts };
        shards.free_gradients()?;
        shards.release()?;
        Ok(shards)
    }

    /// Chooses the owners of a model's parameters: the largest first, each assigned to the rank that owns least so far.
    fn owners_of(&mut self, weights: &Weights, trained: &HashSet<&str>) -> HashMap<String, usize> {
        let mut all = weights.named();
        // Trained parameters come first, since they take several times as much memory.
        all.sort_by_key(|(name, t)| (!trained.contains(name.as_str()), Reverse(t.elem_count())));
        let mut owners = HashMap::new();
        for (name, t) in all {
            let known = self.owners.get(&t.id()).copied();
            let owner = known.unwrap_or_else(|| self.least_loaded(t.elem_count()));
            self.owners.insert(t.id(), owner);
            owners.insert(name, owner);
        }
        owners
    }

    /// Returns the rank that owns least, and assigns it this many further values.
    fn least_loaded(&mut self, values: usize) -> usize {
        let least = least(&self.loads);
        self.loads[least] += values;
        least
    }
}

/// Returns the number of values that each of `ranks` ranks owns of parameters of these sizes.
pub(crate) fn shares(sizes: &[usize], ranks: usize) -> Vec<usize> {
    let mut loads = vec![0; ranks.max(1)];
    let mut all = sizes.to_vec();
    all.sort_unstable_by_key(|size| Reverse(*size));
    for size in all {
        let least = least(&loads);
        loads[least] += size;
    }
    loads
}

/// Returns the rank that owns least; the first in case of a tie.
fn least(loads: &[usize]) -> usize {
    (0..loads.len()).min_by_key(|rank| loads[*rank]).unwrap_or_default()
}

impl ModelShards {
    /// Returns whether this model is sharded.
    pub(super) fn is_divided(&self) -> bool {
        self.stage != ZeroStage::NOTHING
    }

    /// Returns whether every backward pass sums gradients, so that all ranks must run the same number of passes.
    pub(super) fn sums_each_pass(&self) -> bool {
        self.stage.shards_gradients()
    }

    /// Returns whether passes gather parameters.
    pub(super) fn gathers(&self) -> bool {
        self.parts.values().any(|part| !part.sharded.is_empty())
    }

    /// Returns whether this rank owns the parameter of this name; without sharding, every rank does.
    pub(super) fn owns(&self, name: &str) -> bool {
        !self.is_divided() || self.owners.get(name) == Some(&self.rank)
    }

    /// Returns whether every rank always has a parameter.
    pub(super) fn is_everywhere(&self, t: &Tensor) -> bool {
        !self.parts.values().flat_map(|part| &part.sharded).any(|sharded| sharded.tensor.id() == t.id())
    }

    /// Returns a parameter with its tensor, unless only other ranks have it.
    pub(super) fn here<'a>(&self, name: String, t: &'a Tensor) -> LocalParameter<'a> {
        let is_here = self.is_everywhere(t) || ops::has_values(t);
        (name, is_here.then_some(t))
    }

    /// Sends updated parameters from their owners to all ranks, which must have synchronized directly before.
    pub(super) fn publish(&self, by: &Collectives<'_>) {
        if !self.is_divided() {
            return;
        }
        let is_kept = |owned: &&OwnedTensor| self.is_everywhere(&owned.tensor);
        let all = self.parts.values().flat_map(|part| &part.trained).filter(is_kept).cloned().collect();
        by.broadcast(all).wait();
    }

    /// Gathers all parameters on all ranks, which must have synchronized directly before.
    pub(super) fn gather(&self, by: &Collectives<'_>) {
        if self.gathers() {
            by.broadcast(self.parts.values().flat_map(|part| part.sharded.iter().cloned()).collect()).wait();
        }
    }

    /// Frees the parameters that only other ranks keep.
    pub(super) fn release(&self) -> ops::Result<()> {
        self.parts.values().try_for_each(|part| self.free(&part.sharded))
    }

    /// Frees the gradients that only other ranks keep.
    pub(super) fn free_gradients(&self) -> ops::Result<()> {
        if !self.sums_each_pass() {
            return Ok(());
        }
        self.parts.values().try_for_each(|part| self.free(&part.gradients))
    }

    fn free(&self, tensors: &[OwnedTensor]) -> ops::Result<()> {
        tensors.iter().filter(|owned| owned.owner != self.rank).try_for_each(|owned| ops::free_values(&owned.tensor))
    }

    /// Runs a pass without training for each `part` on this rank, and returns the results. If passes gather parameters, all ranks must call
    /// this, and a rank with fewer parts takes part in the others' passes.
    ///
    /// # Errors
    /// If a pass fails, or a rank has failed.
    pub(crate) fn passes<P, R>(
        &self,
        world: &World,
        parts: Vec<P>,
        mut pass: impl FnMut(Option<&dyn PassObserver>, P) -> Result<R>,
    ) -> Result<Vec<R>> {
        if !self.gathers() {
            return parts.into_iter().map(|part| pass(None, part)).collect();
        }
        let count = world.gather("passes", parts.len())?.into_iter().max().unwrap_or_default();
        let (mut parts, mut results) = (parts.into_iter(), Vec::new());
        for _ in 0..count {
            world.barrier("a pass")?;
            let done = world.communicate("parameters", GATHERING, |by| {
                let following = self.follow(by, false);
                let result = parts.next().map(|part| pass(Some(&following), part)).transpose();
                following.finish(PassDirection::Forward).map_err(Error::from).and(result)
            });
            // Parameters outside of layers are still gathered.
            self.release()?;
            results.extend(done??);
        }
        Ok(results)
    }

    /// Returns whether a parameter of another model is gathered with this one.
    pub(super) fn gathers_of(&self, other: &Self) -> bool {
        other.parts.values().flat_map(|part| &part.sharded).any(|sharded| !self.is_everywhere(&sharded.tensor))
    }

    /// Returns the collective operations of a pass, which sum gradients if `sums`, or if every pass does.
    pub(super) fn follow<'a>(&'a self, by: &'a Collectives<'a>, sums: bool) -> PassCollectives<'a> {
        PassCollectives {
            shards: self,
            by,
            sums: sums || self.sums_each_pass(),
            next: Cell::new(0),
            events: self.events(),
            pending: RefCell::default(),
            sums_ahead: RefCell::default(),
        }
    }

    /// Returns the events of a pass, in order.
    fn events(&self) -> Vec<PassEvent> {
        let layers = (0..self.layers).map(ModelPart::Layer);
        let each = |direction, part| [PassEvent { enters: true, direction, part }, PassEvent { enters: false, direction, part }];
        let enters = |direction, part| PassEvent { enters: true, direction, part };
        let leaves = |direction, part| PassEvent { enters: false, direction, part };
        let mut all = vec![enters(PassDirection::Forward, ModelPart::Bottom), enters(PassDirection::Forward, ModelPart::Top)];
        all.extend(layers.clone().flat_map(|layer| each(PassDirection::Forward, layer)));
        all.extend(each(PassDirection::Backward, ModelPart::Top));
        all.extend(layers.rev().flat_map(|layer| each(PassDirection::Backward, layer)));
        all.push(leaves(PassDirection::Backward, ModelPart::Bottom));
        all
    }
}

/// An event of a pass: it enters or leaves a part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PassEvent {
    enters: bool,
    direction: PassDirection,
    part: ModelPart,
}

/// Gathers parameters and sums gradients as a pass goes through a model.
pub(crate) struct PassCollectives<'a> {
    shards: &'a ModelShards,
    by: &'a Collectives<'a>,
    sums: bool,
    /// All events of the pass; `next` is the index of the next one.
    events: Vec<PassEvent>,
    next: Cell<usize>,
    /// Parameters of a layer that were requested ahead.
    pending: RefCell<Option<(ModelPart, PendingCollective)>>,
    /// Gradient sums that may be incomplete, so that gradients owned by others still take memory.
    sums_ahead: RefCell<VecDeque<PendingCollective>>,
}

impl PassCollectives<'_> {
    /// Completes the remaining events of a direction: a rank without rows, or with a failed pass, must not keep others waiting.
    ///
    /// # Errors
    /// If a tensor can't be allocated or freed.
    pub(super) fn finish(&self, direction: PassDirection) -> model::Result<()> {
        while let Some(event) = self.events.get(self.next.get()).filter(|event| event.direction == direction) {
            self.happens(*event)?;
        }
        Ok(())
    }

    fn happens(&self, event: PassEvent) -> model::Result<()> {
        debug_assert_eq!(self.events.get(self.next.get()), Some(&event), "a pass has another order");
        self.next.set(self.next.get() + 1);
        let PassEvent { enters, direction, part } = event;
        let Some(tensors) = self.shards.parts.get(&part) else { return Ok(()) };
        match (enters, direction) {
            (true, PassDirection::Forward) => self.gather(part),
            (false, PassDirection::Forward) => self.shards.free(&tensors.sharded)?,
            (true, PassDirection::Backward) => {
                if part == ModelPart::Top {
                    // A tied output matrix adds to the embedding's gradient.
                    return self.begin_gradients(&[ModelPart::Top, ModelPart::Bottom]);
                }
                self.gather(part);
                self.begin_gradients(&[part])?;
            }
            (false, PassDirection::Backward) => {
                if let ModelPart::Layer(_) = part {
                    self.shards.free(&tensors.sharded)?;
                }
                self.sum(&tensors.gradients);
            }
        }
        Ok(())
    }

    /// Waits for a part's parameters, and requests those of the next part.
    fn gather(&self, part: ModelPart) {
        if !self.shards.gathers() {
            return;
        }
        let request = |part: ModelPart| {
            let sharded = self.shards.parts.get(&part).map(|tensors| tensors.sharded.clone()).unwrap_or_default();
            self.by.broadcast(sharded)
        };
        let requested = self.pending.take().filter(|(of, _)| *of == part).map(|(_, pending)| pending);
        let own = requested.unwrap_or_else(|| request(part));
        let after = self.events[self.next.get()..].iter().find(|event| event.enters);
        let ahead = after.filter(|next| matches!(next.part, ModelPart::Layer(_)) && self.continues_to(**next));
        self.pending.replace(ahead.map(|next| (next.part, request(next.part))));
        own.wait();
    }

    /// Returns whether an event follows in the same direction, without the loss in between.
    fn continues_to(&self, event: PassEvent) -> bool {
        self.next.get().checked_sub(1).and_then(|now| self.events.get(now)).is_some_and(|now| now.direction == event.direction)
    }

    /// Allocates the gradients of parts where only other ranks keep them.
    fn begin_gradients(&self, parts: &[ModelPart]) -> model::Result<()> {
        if self.shards.sums_each_pass() {
            let mut ahead = self.sums_ahead.borrow_mut();
            while ahead.len() > SUMS_AHEAD {
                ahead.pop_front().into_iter().for_each(PendingCollective::wait);
            }
            for owned in parts.iter().filter_map(|part| self.shards.parts.get(part)).flat_map(|tensors| &tensors.gradients) {
                ops::allocate_values(&owned.tensor)?;
            }
        }
        Ok(())
    }

    /// Sums complete gradients, on all ranks or on their owners.
    fn sum(&self, gradients: &[OwnedTensor]) {
        if !self.sums || gradients.is_empty() {
            return;
        }
        match self.shards.is_divided() {
            false => self.by.sum(gradients.iter().map(|owned| owned.tensor.clone()).collect()),
            true => {
                self.sums_ahead.borrow_mut().push_back(self.by.sum_to_owners(gradients.to_vec(), self.shards.sums_each_pass()));
            }
        }
    }
}

impl PassObserver for PassCollectives<'_> {
    fn enter(&self, direction: PassDirection, part: ModelPart) -> model::Result<()> {
        self.happens(PassEvent { enters: true, direction, part })
    }

    fn leave(&self, direction: PassDirection, part: ModelPart) -> model::Result<()> {
        self.happens(PassEvent { enters: false, direction, part })
    }
}
