//! How far a fetch turn goes, the same for every engine.

use super::record::TurnBudget;
use crate::limits::OVERHEAD_BYTES;

/// Counts what a turn has taken.
#[derive(Debug)]
pub(super) struct Meter {
    budget: TurnBudget,
    /// Bytes that the turn may still take.
    left: usize,
    turn_rows: usize,
    topic_rows: usize,
    topic_bytes: usize,
}

/// Says whether the next row of a topic is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// It is taken.
    Taken,
    /// The topic has had its share; it was visited.
    NextTurn,
    /// The turn has no room for the topic's first row; it was not visited.
    Unvisited,
}

impl Meter {
    pub(super) fn new(budget: TurnBudget) -> Self {
        Self {
            budget,
            left: budget.bytes,
            turn_rows: 0,
            topic_rows: 0,
            topic_bytes: 0,
        }
    }

    /// Begins the next topic.
    pub(super) fn next_topic(&mut self) {
        (self.topic_rows, self.topic_bytes) = (0, 0);
    }

    /// Offers the next row of the topic.
    ///
    /// - The first row of a turn is always taken, so a turn always brings something.
    /// - The first row of a topic may exceed the topic's share, but not what the turn has left.
    pub(super) fn offer(&mut self, payload_bytes: usize) -> Room {
        let bytes = payload_bytes + OVERHEAD_BYTES;
        let first = self.topic_rows == 0;
        let fits = bytes <= self.left || self.turn_rows == 0;
        if first && !fits {
            return Room::Unvisited;
        }
        let in_share = self.topic_rows < self.budget.topic_rows
            && self.topic_bytes + bytes <= self.budget.topic_bytes;
        if !fits || !(first || in_share) {
            return Room::NextTurn;
        }
        self.left = self.left.saturating_sub(bytes);
        self.topic_bytes += bytes;
        self.topic_rows += 1;
        self.turn_rows += 1;
        Room::Taken
    }
}
