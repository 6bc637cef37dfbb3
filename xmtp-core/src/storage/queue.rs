//! Two bounded queues in front of the one writer.
//!
//! The queues decide only which job is next; a [`Lane`] runs them one at a time. Each job handed
//! in asks the lane once for "the next job", so a job that is withdrawn leaves an empty turn.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::runtime::{Job, Lane};

/// Most jobs that wait in one queue.
pub(super) const QUEUE_JOBS: usize = 256;
/// Most foreground jobs in a row while a background job waits.
pub(super) const FOREGROUND_RUN: u32 = 8;

/// Which queue a job waits in.
///
/// # Behavior
/// - A foreground job goes before every background job that waits.
/// - A background job waits for at most 8 foreground jobs once it is first of its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Somebody waits for it: a send, an acknowledgement.
    Foreground,
    /// Receipt, processing and upkeep.
    Background,
}

/// A place in a queue, taken before a job is handed in.
pub(super) struct Slot {
    priority: Priority,
    permit: OwnedSemaphorePermit,
}

struct Entry {
    id: u64,
    job: Job,
    _permit: OwnedSemaphorePermit,
}

#[derive(Default)]
struct State {
    foreground: VecDeque<Entry>,
    background: VecDeque<Entry>,
    foreground_run: u32,
    next_id: u64,
    is_closed: bool,
}

/// The queues of one database.
pub(super) struct Queue {
    lane: Arc<dyn Lane>,
    state: Mutex<State>,
    foreground_slots: Arc<Semaphore>,
    background_slots: Arc<Semaphore>,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queue")
    }
}

impl Queue {
    /// Makes empty queues whose jobs run on `lane`.
    pub(super) fn new(lane: Arc<dyn Lane>) -> Arc<Self> {
        Arc::new(Self {
            lane,
            state: Mutex::default(),
            foreground_slots: Arc::new(Semaphore::new(QUEUE_JOBS)),
            background_slots: Arc::new(Semaphore::new(QUEUE_JOBS)),
        })
    }

    /// Waits for a place; nothing when the queue is closed.
    pub(super) async fn slot(&self, priority: Priority) -> Option<Slot> {
        let slots = match priority {
            Priority::Foreground => &self.foreground_slots,
            Priority::Background => &self.background_slots,
        };
        let permit = slots.clone().acquire_owned().await.ok()?;
        Some(Slot { priority, permit })
    }

    /// Hands a job in. Dropping the ticket before the job has started withdraws it.
    pub(super) fn submit(self: &Arc<Self>, slot: Slot, job: Job) -> Ticket {
        let id = {
            let mut state = self.state.lock();
            let id = state.next_id;
            state.next_id += 1;
            let entry = Entry {
                id,
                job,
                _permit: slot.permit,
            };
            if !state.is_closed {
                state.queue(slot.priority).push_back(entry);
            }
            id
        };
        let queue = self.clone();
        self.lane.run(Box::new(move || queue.run_next()));
        Ticket {
            queue: self.clone(),
            priority: slot.priority,
            id,
        }
    }

    /// Drops every job that waits and refuses later ones.
    pub(super) fn close(&self) {
        self.foreground_slots.close();
        self.background_slots.close();
        let (foreground, background) = {
            let mut state = self.state.lock();
            state.is_closed = true;
            (
                std::mem::take(&mut state.foreground),
                std::mem::take(&mut state.background),
            )
        };
        // Dropping a job wakes its caller, which must not find the lock taken.
        drop((foreground, background));
    }

    fn run_next(&self) {
        let next = self.state.lock().next();
        if let Some(entry) = next {
            (entry.job)();
        }
    }
}

impl State {
    fn queue(&mut self, priority: Priority) -> &mut VecDeque<Entry> {
        match priority {
            Priority::Foreground => &mut self.foreground,
            Priority::Background => &mut self.background,
        }
    }

    fn next(&mut self) -> Option<Entry> {
        let owes_background = !self.background.is_empty() && self.foreground_run >= FOREGROUND_RUN;
        if owes_background || self.foreground.is_empty() {
            self.foreground_run = 0;
            return self.background.pop_front();
        }
        self.foreground_run = match self.background.is_empty() {
            true => 0,
            false => self.foreground_run + 1,
        };
        self.foreground.pop_front()
    }
}

/// A job that was handed in.
pub(super) struct Ticket {
    queue: Arc<Queue>,
    priority: Priority,
    id: u64,
}

impl Ticket {
    /// Takes the job back; answers `false` when it has started.
    pub(super) fn withdraw(&self) -> bool {
        let entry = {
            let mut state = self.queue.state.lock();
            let queue = state.queue(self.priority);
            let at = queue.iter().position(|entry| entry.id == self.id);
            at.and_then(|at| queue.remove(at))
        };
        entry.is_some()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.withdraw();
    }
}
