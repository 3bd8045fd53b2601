//! Trajectories of agents: the tree of texts that the model was asked to continue, as one rollout to train on.
//!
//! A call to the model has a prompt and the tokens sampled after it. A prompt that extends the text of an earlier call extends that call's
//! branch; any other prompt starts a branch at the end of the longest prefix that it shares. So the tree has each token once, and each
//! sampled token is trained on once, whichever later calls read it.

use super::branch::{Branch, pieces};
use super::generator::Rollout;

/// A finished call to the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentCall {
    /// Tokens that the model read.
    pub prompt: Vec<u32>,
    /// Tokens that the model generated, at least one.
    pub tokens: Vec<u32>,
    /// Log-probability of each generated token.
    pub logp: Vec<f32>,
    /// Whether the call ended on its own rather than at a limit.
    pub finished: bool,
}

/// The tree of an agent's calls.
#[derive(Clone, Debug, Default)]
pub struct Trajectory {
    opening: Vec<u32>,
    rollout: Rollout,
    /// Positions of the tokens that each call read and wrote, in the order of prompt and rollout.
    paths: Vec<Vec<usize>>,
    /// Number of tokens that were read again in a branch, though an earlier call had sampled or read them at another position.
    reread: usize,
}

impl Trajectory {
    /// Adds a call. Calls must be added in the order in which they began.
    pub fn add(&mut self, call: &AgentCall) {
        if self.paths.is_empty() {
            self.opening.clone_from(&call.prompt);
            self.paths.push((0..call.prompt.len()).collect());
            self.write(0, call);
            return;
        }
        let shared =
            |path: &Vec<usize>| path.iter().zip(&call.prompt).take_while(|(place, token)| self.token(**place) == **token).count();
        // Of equally long prefixes, chooses the newest call's, which the call most likely continues.
        let lengths = self.paths.iter().map(shared).enumerate();
        let (of, length) = lengths.max_by_key(|(call, length)| (*length, *call)).unwrap_or_default();
        let mut path = self.paths[of][..length].to_vec();
        let (begin, after) = (self.rollout.tokens.len(), path.last().map_or(0, |place| place + 1));
        if after != self.opening.len() + begin {
            self.rollout.branches.push(Branch { start: begin, after });
            self.reread += call.prompt.len() - length;
        }
        let context = &call.prompt[length..];
        path.extend((0..context.len()).map(|i| self.opening.len() + begin + i));
        self.rollout.tokens.extend(context);
        self.rollout.logp.resize(self.rollout.tokens.len(), 0.0);
        self.rollout.replies.push((begin, begin + context.len()));
        self.paths.push(path);
        self.write(self.paths.len() - 1, call);
    }

    /// Appends the tokens that a call generated to its path.
    fn write(&mut self, index: usize, call: &AgentCall) {
        let begin = self.opening.len() + self.rollout.tokens.len();
        self.paths[index].extend((0..call.tokens.len()).map(|i| begin + i));
        self.rollout.tokens.extend(&call.tokens);
        self.rollout.logp.extend(&call.logp);
        self.rollout.finished = call.finished;
    }

    fn token(&self, place: usize) -> u32 {
        place.checked_sub(self.opening.len()).map_or_else(|| self.opening[place], |place| self.rollout.tokens[place])
    }

    /// Returns the number of calls.
    pub fn calls(&self) -> usize {
        self.paths.len()
    }

    /// Returns the number of branches after the first, and the number of tokens read in them beyond the shared prefix.
    pub fn branches(&self) -> (usize, usize) {
        (self.rollout.branches.len(), self.reread)
    }

    /// Returns the first call's prompt, and the tree as a rollout that continues it. Calls become turns, and the tokens that later calls
    /// read become replies, which may be empty.
    pub fn into_rollout(self) -> (Vec<u32>, Rollout) {
        (self.opening, self.rollout)
    }
}

impl Rollout {
    /// Returns the number of tokens of the rollout's longest text, with a prompt of this length.
    pub fn longest_text(&self, prompt: usize) -> usize {
        let mut ends: Vec<(usize, usize)> = Vec::new();
        let pieces = pieces(prompt, self.tokens.len(), &self.branches, []);
        for piece in pieces {
            let before = ends.iter().find(|(end, _)| *end == piece.after).map_or(0, |(_, length)| *length);
            ends.push((piece.end, before + piece.end - piece.start));
        }
        ends.into_iter().map(|(_, length)| length).max().unwrap_or(prompt)
    }

    /// Returns whether each branch starts within the rollout's tokens and continues an earlier token.
    pub fn has_sound_branches(&self, prompt: usize) -> bool {
        let sound = |branch: &Branch| branch.start < self.tokens.len() && branch.after <= prompt + branch.start;
        self.branches.iter().all(sound) && self.branches.is_sorted_by(|a, b| a.start < b.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(prompt: &[u32], tokens: &[u32]) -> AgentCall {
        let logp = tokens.iter().map(|token| -(*token as f32)).collect();
        AgentCall { prompt: prompt.to_vec(), tokens: tokens.to_vec(), logp, finished: true }
    }

    fn tree(calls: &[AgentCall]) -> (Vec<u32>, Rollout) {
        let mut trajectory = Trajectory::default();
        calls.iter().for_each(|call| trajectory.add(call));
        assert_eq!(trajectory.calls(), calls.len());
        trajectory.into_rollout()
    }

    /// Returns the text that ends with the rollout's token at this index.
    fn text_to(opening: &[u32], rollout: &Rollout, index: usize) -> Vec<u32> {
        let all: Vec<u32> = opening.iter().chain(&rollout.tokens).copied().collect();
        let (mut text, mut place) = (Vec::new(), opening.len() + index + 1);
        while place > 0 {
            text.push(all[place - 1]);
            let branch = rollout.branches.iter().find(|branch| opening.len() + branch.start == place - 1);
            place = branch.map_or(place - 1, |branch| branch.after);
        }
        text.reverse();
        text
    }

    #[test]
    fn calls_that_extend_one_another_are_one_text() {
        let (opening, rollout) = tree(&[call(&[1, 2], &[3, 4]), call(&[1, 2, 3, 4, 5], &[6]), call(&[1, 2, 3, 4, 5, 6], &[7])]);
        assert_eq!((opening, &rollout.tokens[..]), (vec![1, 2], &[3, 4, 5, 6, 7][..]));
        assert_eq!((&rollout.replies[..], rollout.branches.len()), (&[(2, 3), (4, 4)][..], 0));
        assert_eq!(rollout.mask(), [1, 1, 0, 1, 1]);
        assert_eq!(rollout.logp, [-3.0, -4.0, 0.0, -6.0, -7.0]);
    }

    #[test]
    fn calls_with_another_history_branch_where_it_begins_to_differ() {
        let calls = [
            call(&[1, 2, 3], &[4, 5]),
            // Branches within the first call's output, within its prompt, at its end, and from nothing.
            call(&[1, 2, 3, 4, 9], &[6]),
            call(&[1, 2, 8], &[7]),
            call(&[1, 2, 3, 4, 5, 2], &[3]),
            call(&[7, 7], &[1]),
            // Repeats the first prompt, then continues the second call.
            call(&[1, 2, 3], &[4, 6]),
            call(&[1, 2, 3, 4, 9, 6, 1], &[2]),
        ];
        let (opening, rollout) = tree(&calls);
        assert_eq!(rollout.branches.iter().map(|branch| branch.after).collect::<Vec<_>>(), [4, 2, 5, 0, 3, 7]);
        assert_eq!(rollout.sampled(), calls.iter().map(|call| call.tokens.len()).sum::<usize>());
        // Each call's text leads to its last token, and the mask selects its sampled tokens.
        let ends = rollout.replies.iter().skip(1).map(|(begin, _)| *begin).chain([rollout.tokens.len()]);
        let ends: Vec<usize> = std::iter::once(rollout.replies[0].0).chain(ends).collect();
        for (call, end) in calls.iter().zip(&ends) {
            assert_eq!(text_to(&opening, &rollout, end - 1), [&call.prompt[..], &call.tokens].concat());
            let own = end - call.tokens.len()..*end;
            assert!(rollout.mask()[own.clone()].iter().all(|mask| *mask == 1));
            assert_eq!(rollout.logp[own], call.logp);
        }
        assert_eq!(rollout.longest_text(opening.len()), 8);
        assert!(rollout.has_sound_branches(opening.len()));
        let unsound = Branch { start: 3, after: opening.len() + 4 };
        assert!(!Rollout { branches: vec![unsound], ..rollout.clone() }.has_sound_branches(opening.len()));
        assert!(!Rollout { branches: vec![Branch { start: 99, after: 0 }], ..rollout }.has_sound_branches(opening.len()));
    }
}
