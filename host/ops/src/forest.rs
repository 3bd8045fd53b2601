//! The batch type: packed tokens in segments that can continue one another.

#[cfg(feature = "cuda")]
use super::cuda::ForestPlan;
#[cfg(feature = "cuda")]
use std::sync::{Arc, OnceLock};

/// A run of tokens that continues its `prefix` segment, or starts a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index of the first token in the packed arrays.
    pub start: usize,
    /// Number of tokens, at least 1.
    pub len: usize,
    /// The segment that this one continues, which always comes earlier.
    pub prefix: Option<usize>,
}

impl Segment {
    /// Returns the packed indices of this segment's tokens.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.len
    }
}

/// Packed tokens `[N]` with their positions `[N]`, in segments. A token sees the earlier tokens of its segment and all tokens of its prefix
/// segments. So a prompt with many completions is stored and computed once. There is no padding.
#[derive(Clone, Debug, Default)]
pub struct Forest {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    segments: Vec<Segment>,
    /// Copy of the forest on the device that computed with it.
    #[cfg(feature = "cuda")]
    plan: OnceLock<Arc<ForestPlan>>,
}

impl Forest {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a segment and returns its index. Positions continue from the end of `prefix`.
    ///
    /// # Panics
    /// If `tokens` is empty or `prefix` is not a segment of this forest.
    pub fn push(&mut self, tokens: &[u32], prefix: Option<usize>) -> usize {
        assert!(!tokens.is_empty(), "a segment needs at least one token");
        #[cfg(feature = "cuda")]
        self.plan.take();
        let first = prefix.map_or(0, |p| self.positions[self.segments[p].range().end - 1] + 1);
        let start = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.positions.extend((0..tokens.len() as u32).map(|i| first + i));
        self.segments.push(Segment { start, len: tokens.len(), prefix });
        self.segments.len() - 1
    }

    /// Returns the token ids, `[N]`.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the position of each token in its own text, `[N]`.
    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// Returns all segments, each prefix before the segments that continue it.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Returns the number of packed tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns whether the forest is empty.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns a forest of only the segments that start a text.
    pub fn roots(&self) -> Self {
        let mut roots = Self::new();
        for segment in self.segments.iter().filter(|segment| segment.prefix.is_none()) {
            roots.push(&self.tokens[segment.range()], None);
        }
        roots
    }

    /// Returns the packed indices of the hidden states that predict segment `index`'s tokens: the end of its prefix, then each of its own
    /// tokens except the last. In a segment without a prefix, no state predicts the first token, so there is one index fewer.
    pub fn predictors(&self, index: usize) -> Vec<usize> {
        let segment = self.segments[index];
        let before = segment.prefix.map(|p| self.segments[p].range().end - 1);
        before.into_iter().chain(segment.start..segment.range().end - 1).collect()
    }

    /// Returns the number of complete texts that contain each token, `[N]`. A segment that no other continues ends a text.
    pub fn texts_of_tokens(&self) -> Vec<f32> {
        let mut of_segments = vec![0f32; self.segments.len()];
        // Segments come after those that they continue.
        for (i, segment) in self.segments.iter().enumerate().rev() {
            of_segments[i] = of_segments[i].max(1.0);
            if let Some(prefix) = segment.prefix {
                of_segments[prefix] += of_segments[i];
            }
        }
        self.segments.iter().zip(of_segments).flat_map(|(segment, texts)| std::iter::repeat_n(texts, segment.len)).collect()
    }

    /// Returns the length of the longest complete text that contains each token, `[N]`.
    pub fn lengths_of_texts(&self) -> Vec<usize> {
        let mut longest = vec![0; self.segments.len()];
        for (i, segment) in self.segments.iter().enumerate().rev() {
            longest[i] = longest[i].max(self.positions[segment.range().end - 1] as usize + 1);
            if let Some(prefix) = segment.prefix {
                longest[prefix] = longest[prefix].max(longest[i]);
            }
        }
        self.segments.iter().zip(longest).flat_map(|(segment, length)| std::iter::repeat_n(length, segment.len)).collect()
    }

    /// Returns the forest in the form that a device's kernels read.
    #[cfg(feature = "cuda")]
    pub(super) fn plan(&self, device: &candle_core::CudaDevice) -> super::Result<&ForestPlan> {
        if self.plan.get().is_none() {
            let segments: Vec<_> = self.segments.iter().map(Segment::range).collect();
            let paths: Vec<_> = (0..segments.len()).map(|index| self.path(index)).collect();
            let _ = self.plan.set(Arc::new(ForestPlan::new(device, &self.positions, &segments, &paths)?));
        }
        let missing = || super::Error::Shape { op: "forest", detail: "no plan".into() };
        self.plan.get().map(|plan| &**plan).ok_or_else(missing)
    }

    /// Returns the packed index of the token that is `distance` tokens before the one at `offset` in segment `index`; `None` if that is
    /// before the start of the text.
    pub(super) fn before(&self, index: usize, offset: usize, distance: usize) -> Option<usize> {
        let segment = self.segments[index];
        if distance <= offset {
            return Some(segment.start + offset - distance);
        }
        let (mut left, mut prefix) = (distance - offset, segment.prefix);
        while let Some(index) = prefix {
            let segment = self.segments[index];
            if left <= segment.len {
                return Some(segment.range().end - left);
            }
            (left, prefix) = (left - segment.len, segment.prefix);
        }
        None
    }

    /// Returns the prefix segments of `index`, outermost first, and `index` itself.
    pub(super) fn path(&self, index: usize) -> Vec<usize> {
        let mut path = vec![index];
        while let Some(p) = self.segments[path[path.len() - 1]].prefix {
            path.push(p);
        }
        path.reverse();
        path
    }

    /// Returns segment indices by tree. Each list starts with a segment without a prefix and contains all segments that continue it.
    pub(super) fn trees(&self) -> Vec<Vec<usize>> {
        let mut tree_of = Vec::with_capacity(self.segments.len());
        let mut trees: Vec<Vec<usize>> = Vec::new();
        for (i, s) in self.segments.iter().enumerate() {
            let tree = match s.prefix {
                Some(p) => tree_of[p],
                None => {
                    trees.push(Vec::new());
                    trees.len() - 1
                }
            };
            tree_of.push(tree);
            trees[tree].push(i);
        }
        trees
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_continue_the_prefix_and_predictors_start_at_its_end() {
        let mut f = Forest::new();
        let p = f.push(&[5, 6, 7], None);
        let a = f.push(&[8, 9], Some(p));
        let q = f.push(&[1], None);
        let b = f.push(&[2, 3, 4], Some(p));
        let c = f.push(&[2], Some(a));
        assert_eq!(f.positions(), &[0, 1, 2, 3, 4, 0, 3, 4, 5, 5]);
        assert_eq!(f.predictors(a), vec![2, 3]);
        assert_eq!(f.predictors(b), vec![2, 6, 7]);
        assert_eq!(f.predictors(c), vec![4]);
        assert_eq!(f.predictors(p), vec![0, 1]);
        assert!(f.predictors(q).is_empty());
        assert_eq!(f.texts_of_tokens(), [2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!([(0, 0), (0, 2), (0, 5), (0, 6)].map(|(at, back)| f.before(c, at, back)), [Some(9), Some(3), Some(0), None]);
        assert_eq!([f.before(b, 2, 1), f.before(b, 1, 3)], [Some(7), Some(1)]);
        assert_eq!(f.path(c), vec![p, a, c]);
        assert_eq!(f.trees(), vec![vec![p, a, b, c], vec![q]]);
        assert_eq!((f.roots().tokens(), f.roots().segments().len()), (&[5, 6, 7, 1][..], 2));
    }
}
