//! A game with several turns: the model walks over a grid to a goal, one cell per turn, around walls. Moves that lead closer to it earn a
//! part of the reward, so that turns have different values.

mod grid;

use grid::{Grid, GridDirection};
use rlhost_plugin_sdk::environment::{Environment, Message, Opening, Reply, Start, Turn};
use rlhost_plugin_sdk::prelude::*;

/// Settings.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct GridWalkSettings {
    /// Width and height of a grid that is made up.
    #[schemars(range(min = 2, max = 20))]
    pub size: usize,
    /// Number of its walls; fewer if they would leave no way to the goal.
    #[schemars(range(max = 300))]
    pub walls: usize,
    /// Maximum number of moves.
    #[schemars(range(min = 1))]
    pub max_moves: u32,
    /// Reward of reaching the goal with the last move; the shortest way earns 1.
    pub late_reward: f32,
    /// Reward of a move that leads closer to the goal; one that leads away costs as much.
    pub closer: f32,
    /// Reward of a turn without a direction or against a wall, which also counts as a move.
    pub no_move: f32,
    /// Whether the game explains itself instead of the dataset's prompt, to which it adds the grid.
    pub own_prompt: bool,
}

impl Default for GridWalkSettings {
    fn default() -> Self {
        Self { size: 4, walls: 3, max_moves: 12, late_reward: 0.5, closer: 0.05, no_move: -0.1, own_prompt: true }
    }
}

/// The game.
pub struct GridWalk(GridWalkSettings);

/// A game being played.
pub struct GridWalkEpisode {
    grid: Grid,
    /// Number of moves of the shortest way from the start.
    shortest: u32,
    moves: u32,
    reached: bool,
}

impl Environment for GridWalk {
    type Config = GridWalkSettings;
    type Episode = GridWalkEpisode;

    fn new(settings: GridWalkSettings) -> Result<Self, Error> {
        if settings.size < 2 || settings.max_moves == 0 {
            return Err(Error::Config("size must be at least 2, and max_moves at least 1".into()));
        }
        Ok(Self(settings))
    }

    fn begin(&self, start: &Start) -> Result<(GridWalkEpisode, Opening), Error> {
        let grid = match start.column_as::<Vec<String>>("grid")? {
            Some(rows) => Grid::parse(&rows).map_err(|why| Error::Input(format!("the dataset's column \"grid\": {why}")))?,
            None => Grid::generate(self.0.size, self.0.walls, &mut start.random()),
        };
        let shortest = grid.distance().ok_or_else(|| Error::Input("the grid has no way from A to G".into()))?;
        let asked = match self.0.own_prompt {
            true => vec![Message::user(format!("Walk from A to G; # is a wall. Say up, down, left or right.\n{grid}"))],
            false => start.prompt.iter().cloned().chain([Message::user(grid.to_string())]).collect(),
        };
        Ok((GridWalkEpisode { grid, shortest, moves: 0, reached: false }, Opening::with_prompt(asked)))
    }

    fn step(&self, walking: &mut GridWalkEpisode, turn: &Turn) -> Result<Reply, Error> {
        let GridWalkSettings { max_moves, late_reward, closer, no_move, .. } = self.0;
        walking.moves += 1;
        let before = walking.grid.distance();
        let said = GridDirection::last_in(&turn.text);
        let moved = said.is_some_and(|direction| walking.grid.walk(direction));
        let after = walking.grid.distance();
        let reward = match (moved, before, after) {
            (true, Some(before), Some(after)) if after < before => closer,
            (true, ..) => -closer,
            (false, ..) => no_move,
        };
        if after == Some(0) {
            walking.reached = true;
            let spare = (max_moves - walking.moves.min(max_moves)) as f32;
            let most = (max_moves.saturating_sub(walking.shortest)).max(1) as f32;
            return Ok(Reply::end(reward + late_reward + (1.0 - late_reward) * (spare / most).min(1.0)));
        }
        if walking.moves >= max_moves {
            return Ok(Reply::end(reward));
        }
        let heard = match (moved, said) {
            (true, _) => walking.grid.to_string(),
            (false, Some(_)) => format!("There is no way.\n{}", walking.grid),
            (false, None) => "Say up, down, left or right.".to_owned(),
        };
        Ok(Reply::say(vec![Message::user(heard)]).with_reward(reward))
    }

    fn finish(&self, walking: GridWalkEpisode) -> Vec<Metric> {
        let mut metrics = vec![Metric::mean("grid_walk/reached", f64::from(u8::from(walking.reached)), 1.0)];
        if walking.reached {
            metrics.push(Metric::mean("grid_walk/detour", f64::from(walking.moves - walking.shortest), 1.0));
        }
        metrics
    }
}

environment_plugin!(GridWalk);

#[cfg(test)]
mod tests {
    use super::*;
    use rlhost_plugin_sdk::environment::testing::Play;

    /// A wall with one gap between A and G: six moves.
    const GRID: &str = r####"["A#G", ".#.", "..."]"####;
    const WAY: [&str; 6] = ["down", "Down.", "right", "I go right", "up", "UP"];

    fn play(settings: GridWalkSettings) -> Play<GridWalk> {
        Play::begin(settings, 1, &[("grid", GRID)]).unwrap()
    }

    #[test]
    fn the_shortest_way_earns_one_and_what_each_move_earns() {
        let mut game = play(GridWalkSettings::default());
        assert!(game.prompt()[0].content.ends_with("\nA#G\n.#.\n..."), "{:?}", game.prompt());
        for said in &WAY[..5] {
            let reply = game.says(said).unwrap();
            assert_eq!((reply.done, reply.reward), (false, Some(0.05)), "{said}");
        }
        let last = game.says(WAY[5]).unwrap();
        assert!(last.done && (last.reward.unwrap() - 1.05).abs() < 1e-6);
        assert_eq!(game.finish()[1].value, 0.0);
    }

    #[test]
    fn a_detour_earns_less_and_walls_and_silence_cost() {
        let mut game = play(GridWalkSettings { max_moves: 9, ..GridWalkSettings::default() });
        assert_eq!(
            game.says("right").unwrap(),
            Reply::say(vec![Message::user("There is no way.\nA#G\n.#.\n...")]).with_reward(-0.1)
        );
        assert_eq!(game.says("hm").unwrap(), Reply::say(vec![Message::user("Say up, down, left or right.")]).with_reward(-0.1));
        assert_eq!(game.says("upward or left").unwrap().reward, Some(-0.1));
        for said in &WAY[..5] {
            game.says(said).unwrap();
        }
        // All nine moves: half of the reward, plus six moves closer.
        assert!((game.says("up").unwrap().reward.unwrap() - 0.55).abs() < 1e-6);
        assert!((game.reward().unwrap() - (0.5 + 6.0 * 0.05 - 0.3)).abs() < 1e-6);
        let mut back = play(GridWalkSettings { max_moves: 2, ..GridWalkSettings::default() });
        back.says("down").unwrap();
        assert_eq!(back.says("up").unwrap(), Reply::end(-0.05));
    }

    #[test]
    fn grids_follow_from_the_seed_and_always_have_a_way() {
        let settings = GridWalkSettings { size: 5, walls: 12, ..GridWalkSettings::default() };
        let prompt = |seed| Play::<GridWalk>::begin(settings.clone(), seed, &[]).unwrap().prompt()[0].content.clone();
        let grid = |seed| prompt(seed).split_once('\n').unwrap().1.to_owned();
        let all: std::collections::BTreeSet<String> = (0..100).map(grid).collect();
        assert!(all.len() > 95 && grid(3) == grid(3));
        assert!(all.iter().all(|text| text.matches('A').count() == 1 && text.contains('#')));
    }

    #[test]
    fn grids_of_a_dataset_are_checked() {
        for wrong in ["[]", r#"["A"]"#, r#"["AG", "."]"#, r#"["AA", "GG"]"#, r####"["A#G"]"####, r#"["AGx"]"#, "3"] {
            assert!(Play::<GridWalk>::begin(GridWalkSettings::default(), 0, &[("grid", wrong)]).is_err(), "{wrong}");
        }
    }
}
