//! The grid: the positions of the player and the goal, and the distance between them.

use rlhost_plugin_sdk::environment::Random;
use std::collections::VecDeque;
use std::fmt;

/// Width and height of the largest grid.
const LARGEST: usize = 20;

/// A step to a neighbouring cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GridDirection {
    Up,
    Down,
    Left,
    Right,
}

impl GridDirection {
    const ALL: [(&'static str, Self); 4] = [("up", Self::Up), ("down", Self::Down), ("left", Self::Left), ("right", Self::Right)];

    /// Returns the last direction that a text names as a separate word.
    pub(crate) fn last_in(text: &str) -> Option<Self> {
        let mut words = text.rsplit(|c: char| !c.is_alphanumeric());
        words.find_map(|word| Self::ALL.into_iter().find(|(name, _)| word.eq_ignore_ascii_case(name)).map(|(_, of)| of))
    }
}

/// Column and row.
type GridCell = (usize, usize);

/// A grid with a player.
#[derive(Clone)]
pub(crate) struct Grid {
    width: usize,
    walls: Vec<bool>,
    at: GridCell,
    goal: GridCell,
}

impl Grid {
    /// Parses a grid with one `A`, one `G`, `#` and `.`. The error is the end of a sentence.
    pub(crate) fn parse(rows: &[String]) -> Result<Self, String> {
        let cells: Vec<Vec<char>> = rows.iter().map(|row| row.chars().collect()).collect();
        let width = cells.first().map_or(0, Vec::len);
        if width == 0 || width > LARGEST || cells.len() > LARGEST || cells.iter().any(|row| row.len() != width) {
            return Err(format!("its rows must have the same length, and no side more than {LARGEST} cells"));
        }
        let all = || cells.iter().enumerate().flat_map(|(y, row)| row.iter().enumerate().map(move |(x, c)| ((x, y), *c)));
        if let Some((_, odd)) = all().find(|(_, c)| !"AG#.".contains(*c)) {
            return Err(format!("it has a {odd:?}; cells are A, G, # and ."));
        }
        let only = |wanted: char| match all().filter(|(_, c)| *c == wanted).collect::<Vec<_>>()[..] {
            [(cell, _)] => Ok(cell),
            _ => Err(format!("it must have one {wanted}")),
        };
        Ok(Self { width, walls: all().map(|(_, c)| c == '#').collect(), at: only('A')?, goal: only('G')? })
    }

    /// Generates a random square grid. A wall that would block the way to the goal is omitted.
    pub(crate) fn generate(size: usize, walls: usize, random: &mut Random) -> Self {
        let size = size.clamp(2, LARGEST);
        let mut cell = || (random.below(size as u64) as usize, random.below(size as u64) as usize);
        let (at, mut goal) = (cell(), cell());
        while goal == at {
            goal = cell();
        }
        let mut grid = Self { width: size, walls: vec![false; size * size], at, goal };
        for (x, y) in (0..walls).map(|_| cell()).filter(|cell| *cell != at && *cell != goal).collect::<Vec<_>>() {
            let before = std::mem::replace(&mut grid.walls[y * size + x], true);
            if grid.distance().is_none() {
                grid.walls[y * size + x] = before;
            }
        }
        grid
    }

    /// Returns the neighbouring cell in a direction, if it is free.
    fn next(&self, (x, y): GridCell, direction: GridDirection) -> Option<GridCell> {
        let (x, y) = match direction {
            GridDirection::Up => (x, y.checked_sub(1)?),
            GridDirection::Down => (x, y + 1),
            GridDirection::Left => (x.checked_sub(1)?, y),
            GridDirection::Right => (x + 1, y),
        };
        (x < self.width && !self.walls.get(y * self.width + x).copied().unwrap_or(true)).then_some((x, y))
    }

    /// Takes a step; returns whether the cell was free.
    pub(crate) fn walk(&mut self, direction: GridDirection) -> bool {
        let next = self.next(self.at, direction);
        self.at = next.unwrap_or(self.at);
        next.is_some()
    }

    /// Returns the number of steps to the goal, if there is a way.
    pub(crate) fn distance(&self) -> Option<u32> {
        let mut seen = vec![false; self.walls.len()];
        let mut waiting = VecDeque::from([(self.at, 0)]);
        while let Some((cell, steps)) = waiting.pop_front() {
            if cell == self.goal {
                return Some(steps);
            }
            if std::mem::replace(&mut seen[cell.1 * self.width + cell.0], true) {
                continue;
            }
            waiting.extend(GridDirection::ALL.iter().filter_map(|(_, to)| Some((self.next(cell, *to)?, steps + 1))));
        }
        None
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, wall) in self.walls.iter().enumerate() {
            let cell = (place % self.width, place / self.width);
            let shown = match cell {
                cell if cell == self.at => 'A',
                cell if cell == self.goal => 'G',
                _ if *wall => '#',
                _ => '.',
            };
            let line = if cell.0 == 0 && place > 0 { "\n" } else { "" };
            write!(f, "{line}{shown}")?;
        }
        Ok(())
    }
}
