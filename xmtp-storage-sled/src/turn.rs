//! Who may write: one at a time, first come first served, each with its own patience.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use xmtp_core::storage::StorageError;

#[derive(Default)]
struct State {
    is_held: bool,
    is_closed: bool,
    waiting: VecDeque<u64>,
    next_ticket: u64,
}

/// The queue for the one writer.
#[derive(Default)]
pub(crate) struct Turn {
    state: Mutex<State>,
    changed: Condvar,
}

/// The turn to write, given back when dropped.
pub(crate) struct Held<'t> {
    turn: &'t Turn,
}

impl Turn {
    /// Waits for the turn.
    pub(crate) fn take(&self, patience: Duration) -> Result<Held<'_>, StorageError> {
        let start = Instant::now();
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(StorageError::Closed);
        }
        if !state.is_held && state.waiting.is_empty() {
            state.is_held = true;
            return Ok(Held { turn: self });
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting.push_back(ticket);
        let must_wait = |state: &mut State| {
            !state.is_closed && (state.is_held || state.waiting.front() != Some(&ticket))
        };
        self.changed.wait_while_for(&mut state, must_wait, patience);
        let is_mine = !state.is_held && state.waiting.front() == Some(&ticket);
        state.waiting.retain(|other| *other != ticket);
        if state.is_closed || !is_mine {
            // Whoever came next may be first now.
            self.changed.notify_all();
        }
        if state.is_closed {
            return Err(StorageError::Closed);
        }
        if !is_mine {
            let waited_ms = start.elapsed().as_millis() as u64;
            return Err(StorageError::Busy { waited_ms });
        }
        state.is_held = true;
        Ok(Held { turn: self })
    }

    /// Refuses all who wait or come, then waits for the one who writes; false when it stays.
    pub(crate) fn close(&self, patience: Duration) -> bool {
        let mut state = self.state.lock();
        state.is_closed = true;
        self.changed.notify_all();
        self.changed
            .wait_while_for(&mut state, |state| state.is_held, patience);
        !state.is_held
    }

    /// Tells whether the queue was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.turn.state.lock().is_held = false;
        self.turn.changed.notify_all();
    }
}
