//! The tail of a store whose one writer tells what it committed.
//!
//! The writer's word is a hint that carries the payload; the store is the source of truth. A tail
//! that falls behind its bytes forgets what it holds and reads the store from its last position,
//! which is correct because ids grow with commits.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Notify;
use xmtp_proto::id::SequenceId;

use super::record::Envelope;
use super::{ReadError, Tail, TailError};
use crate::limits::{TAIL_BYTES, TAIL_PAGE_BYTES, TAIL_PAGE_ROWS};

/// Reads rows by position, whatever their topic.
#[async_trait]
pub(super) trait Positions: fmt::Debug + Send + Sync {
    /// Returns the lowest rows above `after` and up to `through`; empty if there is none.
    async fn rows_after(
        &self,
        after: SequenceId,
        through: SequenceId,
        max_rows: usize,
        max_bytes: usize,
    ) -> Result<Vec<Envelope>, ReadError>;
}

/// The writer's end.
#[derive(Debug)]
pub(super) struct Feed {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The greatest id that is committed.
    last: SequenceId,
    closed: bool,
    /// Whether the store can not be written, and tails are lost.
    lost: bool,
    queues: Vec<Weak<Queue>>,
}

#[derive(Debug, Default)]
struct Queue {
    rows: Mutex<Rows>,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Rows {
    held: VecDeque<Envelope>,
    bytes: usize,
    /// The greatest id that was told.
    last: SequenceId,
    /// Set when rows were told and not kept.
    lagged: bool,
    /// Why nothing more will be told.
    ended: Option<TailError>,
}

impl Feed {
    /// Creates the feed of a store whose greatest committed id is `last`.
    pub(super) fn new(last: SequenceId) -> Self {
        Self {
            state: Mutex::new(State {
                last,
                closed: false,
                lost: false,
                queues: Vec::new(),
            }),
        }
    }

    /// Tells the tails about rows that are committed and visible, in commit order.
    pub(super) fn tell(&self, rows: &[Envelope]) {
        let Some(newest) = rows.last() else { return };
        let mut state = self.state.lock();
        state.last = newest.meta.sequence_id;
        state.queues.retain(|queue| {
            let Some(queue) = queue.upgrade() else {
                return false;
            };
            queue.rows.lock().add(rows);
            queue.filled.notify_one();
            true
        });
    }

    /// Ends every tail: nothing will be told any more.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.end_all(TailError::Final);
    }

    /// Ends every tail: the store can not be written now. Others may be opened later.
    pub(super) fn lose(&self) {
        let mut state = self.state.lock();
        state.lost = true;
        state.end_all(TailError::Lost);
    }

    /// Says that the store can be written.
    pub(super) fn found(&self) {
        self.state.lock().lost = false;
    }

    /// Tells whether the last that was heard of the store is that it can not be written.
    pub(super) fn is_lost(&self) -> bool {
        self.state.lock().lost
    }

    /// Opens a tail at the present.
    pub(super) fn tail(&self, store: Arc<dyn Positions>) -> FeedTail {
        let mut state = self.state.lock();
        let queue = Arc::new(Queue::default());
        {
            let mut rows = queue.rows.lock();
            rows.ended = state.closed.then_some(TailError::Final);
            rows.last = state.last;
        }
        state.queues.push(Arc::downgrade(&queue));
        FeedTail {
            queue,
            store,
            after: state.last,
            missed: None,
        }
    }
}

impl State {
    fn end_all(&mut self, error: TailError) {
        for queue in self.queues.drain(..).filter_map(|queue| queue.upgrade()) {
            queue.rows.lock().ended = Some(error);
            queue.filled.notify_one();
        }
    }
}

impl Rows {
    fn add(&mut self, rows: &[Envelope]) {
        self.last = rows.last().map_or(self.last, |row| row.meta.sequence_id);
        let bytes: usize = rows.iter().map(|row| row.payload.len()).sum();
        if self.lagged || self.bytes + bytes > TAIL_BYTES {
            self.held.clear();
            (self.bytes, self.lagged) = (0, true);
            return;
        }
        self.bytes += bytes;
        self.held.extend(rows.iter().cloned());
    }
}

/// The reader's end.
#[derive(Debug)]
pub(super) struct FeedTail {
    queue: Arc<Queue>,
    store: Arc<dyn Positions>,
    /// The last id that was given out.
    after: SequenceId,
    /// The last id that must be read from the store.
    missed: Option<SequenceId>,
}

impl FeedTail {
    fn take(&mut self) -> Result<Vec<Envelope>, TailError> {
        let mut rows = self.queue.rows.lock();
        if rows.lagged {
            rows.lagged = false;
            self.missed = Some(rows.last);
            return Ok(Vec::new());
        }
        if let Some(error) = rows.ended.filter(|_| rows.held.is_empty()) {
            return Err(error);
        }
        rows.bytes = 0;
        Ok(rows.held.drain(..).collect())
    }

    async fn read(&mut self, through: SequenceId) -> Result<Vec<Envelope>, ReadError> {
        let page = (TAIL_PAGE_ROWS, TAIL_PAGE_BYTES);
        let rows = self
            .store
            .rows_after(self.after, through, page.0, page.1)
            .await?;
        let last = rows.last().map(|row| row.meta.sequence_id);
        if last.is_none_or(|last| last == through) {
            self.missed = None;
        }
        Ok(rows)
    }
}

#[async_trait]
impl Tail for FeedTail {
    async fn next(&mut self) -> Result<Vec<Envelope>, TailError> {
        loop {
            let rows = match self.missed {
                Some(through) => self.read(through).await.map_err(of_read)?,
                None => self.take()?,
            };
            if let Some(newest) = rows.last() {
                self.after = newest.meta.sequence_id;
                return Ok(rows);
            }
            if self.missed.is_none() {
                self.queue.filled.notified().await;
            }
        }
    }
}

/// A read that failed for now leaves the store as it was; the tail has lost its place.
fn of_read(error: ReadError) -> TailError {
    match error {
        ReadError::TimedOut => TailError::Lost,
        ReadError::Unavailable | ReadError::TooLarge | ReadError::Broken(_) => TailError::Final,
    }
}
