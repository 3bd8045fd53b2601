//! Which server of a run takes the next job.

/// How busy a server is that takes jobs now, or soon.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemberLoad {
    /// The server's index.
    pub index: usize,
    /// Number of its sequences in flight.
    pub sequences: usize,
    /// Whether it has the current weights. Otherwise it is being given them.
    pub is_ready: bool,
    /// Whether it can take the next job.
    pub has_room: bool,
}

/// Returns the server that takes the next of the waiting jobs, which have `queued` sequences together: the least busy one that is ready.
/// While others get new weights, which rarely end at the same time, each takes its share alone; otherwise the first one that is ready would
/// take everything.
pub(super) fn next_member(loads: &[MemberLoad], queued: usize) -> Option<usize> {
    let ready = loads.iter().filter(|load| load.is_ready && load.has_room);
    let least = ready.min_by_key(|load| load.sequences)?;
    let share = (queued + loads.iter().map(|load| load.sequences).sum::<usize>()).div_ceil(loads.len());
    let is_complete = loads.iter().all(|load| load.is_ready);
    (is_complete || least.sequences < share).then_some(least.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives out jobs of `samples` sequences each until nobody takes one. Returns how many are left.
    fn give(loads: &mut [MemberLoad], samples: usize, mut jobs: usize) -> usize {
        while let Some(server) = (jobs > 0).then(|| next_member(loads, samples * jobs)).flatten() {
            loads.iter_mut().find(|load| load.index == server).unwrap().sequences += samples;
            jobs -= 1;
        }
        jobs
    }

    fn load(index: usize, is_ready: bool) -> MemberLoad {
        MemberLoad { index, sequences: 0, is_ready, has_room: true }
    }

    #[test]
    fn servers_that_are_ready_leave_the_others_their_share() {
        let mut loads = [load(0, true), load(1, false)];
        assert_eq!((give(&mut loads, 8, 4), loads[0].sequences), (2, 16));
        // Nothing is taken twice: what is under way counts.
        assert_eq!(next_member(&loads, 16), None);
        loads[1].is_ready = true;
        assert_eq!((give(&mut loads, 8, 2), loads[1].sequences), (0, 16));
        // One that no longer waits for another, which is then not among them, takes the rest.
        let mut alone = [load(3, true)];
        assert_eq!((give(&mut alone, 8, 5), alone[0].sequences), (0, 40));
        // A job that can't be divided is not left to a server that may not come.
        assert_eq!(give(&mut [load(0, false), load(1, true), load(2, false)], 4, 1), 0);
        // Servers without room, or without weights, take none.
        let full = MemberLoad { has_room: false, ..load(0, true) };
        assert_eq!((next_member(&[full, load(1, false)], 8), next_member(&[], 8)), (None, None));
        assert_eq!(next_member(&[full, MemberLoad { sequences: 90, ..load(1, true) }], 8), Some(1));
    }
}
