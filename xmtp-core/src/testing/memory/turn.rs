//! The turn to write: one holder, first come first served, over threads and handles.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Condvar;

use super::Handle;
use crate::storage::StorageError;

thread_local! {
    /// The disks that this thread writes to.
    static WRITING: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Who writes, and who waits for it, first come first served.
#[derive(Default)]
pub(super) struct Turn {
    pub(super) holder: Option<u64>,
    pub(super) waiting: VecDeque<(u64, Arc<Condvar>)>,
    next_ticket: u64,
}

/// The turn to write, given back when dropped.
pub(super) struct Held {
    handle: Arc<Handle>,
    ticket: u64,
}

impl Held {
    pub(super) fn take(handle: &Arc<Handle>, patience: Duration) -> Result<Self, StorageError> {
        let disk = handle.shared.id;
        if WRITING.with_borrow(|disks| disks.contains(&disk)) {
            // Waiting for oneself would take the whole patience.
            return Err(StorageError::Busy { waited_ms: 0 });
        }
        let mut turn = handle.shared.turn.lock();
        let ticket = turn.next_ticket;
        turn.next_ticket += 1;
        if turn.holder.is_none() && turn.waiting.is_empty() {
            turn.holder = Some(ticket);
        } else {
            let waiter = Arc::new(Condvar::new());
            turn.waiting.push_back((ticket, waiter.clone()));
            let must_wait = |turn: &mut Turn| {
                let is_waiting = turn.waiting.iter().any(|(other, _)| *other == ticket);
                is_waiting && !handle.is_closed.load(Ordering::SeqCst)
            };
            waiter.wait_while_for(&mut turn, must_wait, patience);
            turn.waiting.retain(|(other, _)| *other != ticket);
        }
        let is_mine = turn.holder == Some(ticket);
        drop(turn);
        WRITING.with_borrow_mut(|disks| disks.push(disk));
        let held = Self {
            handle: handle.clone(),
            ticket,
        };
        handle.check()?;
        if is_mine {
            return Ok(held);
        }
        let waited_ms = patience.as_millis() as u64;
        Err(StorageError::Busy { waited_ms })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let disk = self.handle.shared.id;
        WRITING.with_borrow_mut(|disks| disks.retain(|other| *other != disk));
        let mut turn = self.handle.shared.turn.lock();
        if turn.holder != Some(self.ticket) {
            return;
        }
        turn.holder = None;
        if let Some((ticket, waiter)) = turn.waiting.pop_front() {
            turn.holder = Some(ticket);
            waiter.notify_all();
        }
    }
}
