//! Divides what training holds of a model among the ranks (ZeRO; Rajbhandari et al. 2020, arXiv 1910.02054).
//!
//! Whole tensors are divided, since some optimizers need them whole, so that each rank gets about as many values. An owner has a
//! parameter's moments, makes its update, and saves it. From stage 2 on it alone keeps the gradient, to which every backward pass of
//! every rank adds, and in stage 3 it alone keeps the parameter.

use crate::config::{ReduceDtype, ZeroStage};
use crate::dist::{Collectives, Owned, Pending, Reduction, World};
use crate::model::{self, Architecture, Direction, ModelFolder, Part, Watch, Weights, of_critic};
use crate::ops;
use crate::{Error, Result};
use candle_core::{Tensor, TensorId};
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// How parameters are gathered outside of passes that learn: nothing is summed.
const GATHERING: Reduction = Reduction { dtype: ReduceDtype::Float32, beside: true };

/// Number of parts whose gradients may wait to be summed while the next one's are computed.
const SUMS_AHEAD: usize = 1;

/// Divides the models of a run among its ranks.
pub(crate) struct Sharding {
    stage: ZeroStage,
    /// Whether parameters that are not trained are divided, at any stage.
    frozen: bool,
    rank: usize,
    /// Values that each rank owns.
    loads: Vec<usize>,
    /// Models may share tensors.
    owners: HashMap<TensorId, usize>,
    /// The owners of parameters that are not read yet, by the prefix of their model and by name.
    planned: HashMap<(&'static str, String), usize>,
}

/// What the ranks own of a model.
pub(crate) struct Shards {
    stage: ZeroStage,
    rank: usize,
    layers: usize,
    /// The owner of each parameter, by name.
    owners: HashMap<String, usize>,
    parts: BTreeMap<Part, Tensors>,
}

/// A parameter by name; none where only other ranks have it.
pub(crate) type TensorHere<'a> = (String, Option<&'a Tensor>);

/// Tensors of a part of a model.
#[derive(Default)]
struct Tensors {
    /// Parameters that are trained.
    trained: Vec<Owned>,
    /// Parameters that only their owner keeps.
    sharded: Vec<Owned>,
    gradients: Vec<Owned>,
}

impl Sharding {
    /// Divides nothing yet. A single process has everything itself.
    pub(crate) fn new(stage: ZeroStage, frozen: bool, world: &World) -> Self {
        let (stage, frozen) = if world.size() == 1 { (ZeroStage::NOTHING, false) } else { (stage, frozen) };
        if stage != ZeroStage::NOTHING || frozen {
            ops::return_freed_memory();
        }
        let (rank, loads) = (world.rank(), vec![0; world.size()]);
        Self { stage, frozen, rank, loads, owners: HashMap::new(), planned: HashMap::new() }
    }

    /// Returns whether ranks share parameters that are trained, or those that are not.
    pub(crate) fn shares(&self, trained: bool) -> bool {
        if trained { self.stage.shards_parameters() } else { self.frozen }
    }

    /// Returns the folder of a model that is then read with these sizes and divided under this prefix, such that a rank holds only what it
    /// owns from the start. `trained` says whether its parameters are.
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
        folder.keeping_only(kept)
    }

    /// Takes note of the tensors of a model that was read from [`Sharding::dividing`]: others may share them.
    pub(crate) fn read(&mut self, prefix: &'static str, weights: &Weights) {
        for (name, t) in weights.named() {
            if let Some(owner) = self.planned.get(&(prefix, name)) {
                self.owners.insert(t.id(), *owner);
            }
        }
    }

    /// Divides a model of this prefix, with the gradients of what is trained of it. Parameters that only other ranks keep are freed.
    pub(crate) fn divide(
        &mut self,
        prefix: &'static str,
        weights: &Weights,
        gradients: &[(String, &Tensor)],
    ) -> ops::Result<Shards> {
        self.read(prefix, weights);
        let trained: HashSet<&str> = gradients.iter().map(|(name, _)| name.as_str()).collect();
        let owners = self.owners_of(weights, &trained);
        let owned = |name: &str, t: &Tensor| Owned { tensor: t.clone(), owner: owners.get(name).copied().unwrap_or_default() };
        let mut parts = BTreeMap::<Part, Tensors>::new();
        for (name, t) in weights.named() {
            let (part, is_trained) = (parts.entry(weights.part_of(&name)).or_default(), trained.contains(name.as_str()));
            if is_trained {
                part.trained.push(owned(&name, t));
            }
            // Vectors, and what is trained beside an adapter, are small and stay where they are.
            let is_large = t.dims().len() > 1 && !of_critic(&name) && !(weights.lora.is_some() && is_trained);
            if self.shares(is_trained) && is_large {
                part.sharded.push(owned(&name, t));
            }
        }
        for (name, t) in gradients {
            parts.entry(weights.part_of(name)).or_default().gradients.push(owned(name, t));
        }
        let shards = Shards { stage: self.stage, rank: self.rank, layers: weights.layers.len(), owners, parts };
        shards.free_gradients()?;
        shards.release()?;
        Ok(shards)
    }

    /// Chooses the owners of a model's parameters: the largest first, each for the rank that owns least so far.
    fn owners_of(&mut self, weights: &Weights, trained: &HashSet<&str>) -> HashMap<String, usize> {
        let mut all = weights.named();
        // What is trained first: it takes several times as much.
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

    /// Returns the rank that owns least, which gets so many values more.
    fn least_loaded(&mut self, values: usize) -> usize {
        let least = least(&self.loads);
        self.loads[least] += values;
        least
    }
}

/// Returns how many values each of so many ranks owns of parameters of these sizes.
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

/// Returns the rank that owns least, the first of several.
fn least(loads: &[usize]) -> usize {
    (0..loads.len()).min_by_key(|rank| loads[*rank]).unwrap_or_default()
}

impl Shards {
    /// Returns whether ranks have different things of this model.
    pub(super) fn is_divided(&self) -> bool {
        self.stage != ZeroStage::NOTHING
    }

    /// Returns whether every backward pass sums gradients, so that all ranks must make as many passes.
    pub(super) fn sums_each_pass(&self) -> bool {
        self.stage.shards_gradients()
    }

    /// Returns whether passes gather parameters.
    pub(super) fn gathers(&self) -> bool {
        self.parts.values().any(|part| !part.sharded.is_empty())
    }

    /// Returns whether this rank owns the parameter of this name: without sharding, each rank does.
    pub(super) fn owns(&self, name: &str) -> bool {
        !self.is_divided() || self.owners.get(name) == Some(&self.rank)
    }

    /// Returns whether every rank has a parameter now and always.
    pub(super) fn is_everywhere(&self, t: &Tensor) -> bool {
        !self.parts.values().flat_map(|part| &part.sharded).any(|sharded| sharded.tensor.id() == t.id())
    }

    /// Returns the tensor of a parameter of this name, unless only other ranks have it.
    pub(super) fn here<'a>(&self, name: String, t: &'a Tensor) -> TensorHere<'a> {
        let is_here = self.is_everywhere(t) || ops::has_values(t);
        (name, is_here.then_some(t))
    }

    /// Copies what the owners have updated to all ranks, which must have reported in a gathering directly before.
    pub(super) fn publish(&self, by: &Collectives<'_>) {
        if !self.is_divided() {
            return;
        }
        let is_kept = |owned: &&Owned| self.is_everywhere(&owned.tensor);
        let all = self.parts.values().flat_map(|part| &part.trained).filter(is_kept).cloned().collect();
        by.broadcast(all).wait();
    }

    /// Gathers all parameters on all ranks, which must have reported in a gathering directly before.
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

    fn free(&self, tensors: &[Owned]) -> ops::Result<()> {
        tensors.iter().filter(|owned| owned.owner != self.rank).try_for_each(|owned| ops::free_values(&owned.tensor))
    }

    /// Runs a pass that learns nothing for each `part` that this rank has, and returns their results. If passes gather parameters, all
    /// ranks must call this, and a rank with fewer parts takes part in the passes of the others.
    ///
    /// # Errors
    /// If a pass fails, or a rank has failed.
    pub(crate) fn passes<P, R>(
        &self,
        world: &World,
        parts: Vec<P>,
        mut pass: impl FnMut(Option<&dyn Watch>, P) -> Result<R>,
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
                following.finish(Direction::Forward).map_err(Error::from).and(result)
            });
            // What is in no layer has stayed.
            self.release()?;
            results.extend(done??);
        }
        Ok(results)
    }

    /// Returns whether a parameter of another model is gathered with those of this one.
    pub(super) fn gathers_of(&self, other: &Self) -> bool {
        other.parts.values().flat_map(|part| &part.sharded).any(|sharded| !self.is_everywhere(&sharded.tensor))
    }

    /// Follows a pass, which sums its gradients if this `sums`.
    pub(super) fn follow<'a>(&'a self, by: &'a Collectives<'a>, sums: bool) -> Following<'a> {
        Following {
            shards: self,
            by,
            sums: sums || self.sums_each_pass(),
            next: Cell::new(0),
            events: self.events(),
            pending: RefCell::default(),
            sums_ahead: RefCell::default(),
        }
    }

    /// Returns what happens in a pass, in order.
    fn events(&self) -> Vec<Event> {
        let layers = (0..self.layers).map(Part::Layer);
        let each = |direction, part| [Event { enters: true, direction, part }, Event { enters: false, direction, part }];
        let enters = |direction, part| Event { enters: true, direction, part };
        let leaves = |direction, part| Event { enters: false, direction, part };
        let mut all = vec![enters(Direction::Forward, Part::Bottom), enters(Direction::Forward, Part::Top)];
        all.extend(layers.clone().flat_map(|layer| each(Direction::Forward, layer)));
        all.extend(each(Direction::Backward, Part::Top));
        all.extend(layers.rev().flat_map(|layer| each(Direction::Backward, layer)));
        all.push(leaves(Direction::Backward, Part::Bottom));
        all
    }
}

/// A step of a pass through a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Event {
    enters: bool,
    direction: Direction,
    part: Part,
}

/// Gathers parameters and sums gradients as a pass goes through a model.
pub(crate) struct Following<'a> {
    shards: &'a Shards,
    by: &'a Collectives<'a>,
    sums: bool,
    /// All that happens, and what is next.
    events: Vec<Event>,
    next: Cell<usize>,
    /// Parameters of a layer that were requested before it is entered.
    pending: RefCell<Option<(Part, Pending)>>,
    /// Sums of gradients that may not have been made, so that they take memory where they are not kept.
    sums_ahead: RefCell<VecDeque<Pending>>,
}

impl Following<'_> {
    /// Does what is left of a direction. A rank that has no rows, or where the pass failed, must not keep the others waiting.
    ///
    /// # Errors
    /// If a tensor can't be allocated or freed.
    pub(super) fn finish(&self, direction: Direction) -> model::Result<()> {
        while let Some(event) = self.events.get(self.next.get()).filter(|event| event.direction == direction) {
            self.happens(*event)?;
        }
        Ok(())
    }

    fn happens(&self, event: Event) -> model::Result<()> {
        debug_assert_eq!(self.events.get(self.next.get()), Some(&event), "a pass has another order");
        self.next.set(self.next.get() + 1);
        let Event { enters, direction, part } = event;
        let Some(tensors) = self.shards.parts.get(&part) else { return Ok(()) };
        match (enters, direction) {
            (true, Direction::Forward) => self.gather(part),
            (false, Direction::Forward) => self.shards.free(&tensors.sharded)?,
            (true, Direction::Backward) => {
                if part == Part::Top {
                    // An output matrix that is the embedding adds to its gradient.
                    return self.begin_gradients(&[Part::Top, Part::Bottom]);
                }
                self.gather(part);
                self.begin_gradients(&[part])?;
            }
            (false, Direction::Backward) => {
                if let Part::Layer(_) = part {
                    self.shards.free(&tensors.sharded)?;
                }
                self.sum(&tensors.gradients);
            }
        }
        Ok(())
    }

    /// Waits for a part's parameters, and requests those of the part after it.
    fn gather(&self, part: Part) {
        if !self.shards.gathers() {
            return;
        }
        let request = |part: Part| {
            let sharded = self.shards.parts.get(&part).map(|tensors| tensors.sharded.clone()).unwrap_or_default();
            self.by.broadcast(sharded)
        };
        let requested = self.pending.take().filter(|(of, _)| *of == part).map(|(_, pending)| pending);
        let own = requested.unwrap_or_else(|| request(part));
        let after = self.events[self.next.get()..].iter().find(|event| event.enters);
        let ahead = after.filter(|next| matches!(next.part, Part::Layer(_)) && self.continues_to(**next));
        self.pending.replace(ahead.map(|next| (next.part, request(next.part))));
        own.wait();
    }

    /// Returns whether a pass goes on to an event without a loss in between.
    fn continues_to(&self, event: Event) -> bool {
        self.next.get().checked_sub(1).and_then(|now| self.events.get(now)).is_some_and(|now| now.direction == event.direction)
    }

    /// Allocates the gradients of parts where others keep them.
    fn begin_gradients(&self, parts: &[Part]) -> model::Result<()> {
        if self.shards.sums_each_pass() {
            let mut ahead = self.sums_ahead.borrow_mut();
            while ahead.len() > SUMS_AHEAD {
                ahead.pop_front().into_iter().for_each(Pending::wait);
            }
            for owned in parts.iter().filter_map(|part| self.shards.parts.get(part)).flat_map(|tensors| &tensors.gradients) {
                ops::allocate_values(&owned.tensor)?;
            }
        }
        Ok(())
    }

    /// Sums complete gradients: for all ranks, or for their owners.
    fn sum(&self, gradients: &[Owned]) {
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

impl Watch for Following<'_> {
    fn enter(&self, direction: Direction, part: Part) -> model::Result<()> {
        self.happens(Event { enters: true, direction, part })
    }

    fn leave(&self, direction: Direction, part: Part) -> model::Result<()> {
        self.happens(Event { enters: false, direction, part })
    }
}
