//! An independent reader that starts where the application says and goes on live.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use super::cursor::DeliveryCursor;
use super::error::StreamError;
use super::filter::{Filter, Scope, Selection};
use super::message::Message;
use super::scan::{Candidate, Floor, Judgement, Scanner, judge};
use super::step::HEADS_PER_STEP;
use crate::storage::{Changes, Database, Domain, Snapshot, StorageError};

const DOMAINS: u64 = Domain::Messages.bit() | Domain::Groups.bit();

/// Reads messages after a cursor, in local order, then those that are stored later (STR-100).
///
/// # Behavior
/// - It neither reads nor moves D and takes no lease; there may be any number.
/// - Each item's cursor resumes strictly after it; the application keeps it.
/// - Deleted and expired messages are not read, also when they were stored before the cursor's
///   time (STR-102).
/// - It ends when the database is closed, and after a failure, which it yields. Waiting for an
///   item may be given up at any time.
pub struct Replay {
    items: BoxStream<'static, Result<Message, StreamError>>,
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Replay")
    }
}

impl Stream for Replay {
    type Item = Result<Message, StreamError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.items.poll_next_unpin(context)
    }
}

/// Starts a replay after a cursor of this database.
pub(super) async fn replay(
    database: &Database,
    cursor: DeliveryCursor,
    scope: Scope,
    filter: Filter,
) -> Result<Replay, StreamError> {
    let id = database.id();
    let position = database
        .read_queued(move |snapshot| cursor.check(id, snapshot))
        .await?;
    let reader = Reader {
        database: database.clone(),
        selection: Arc::new(Selection::new(scope, filter)),
        scanner: Scanner::new(Floor::Position, position),
        changes: database.changes(),
    };
    let items = futures_util::stream::unfold(Some(reader), |reader| async {
        let mut reader = reader?;
        match reader.next().await {
            Ok(message) => Some((Ok(message), Some(reader))),
            Err(StreamError::Closed) => None,
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(Replay {
        items: items.fuse().boxed(),
    })
}

struct Reader {
    database: Database,
    selection: Arc<Selection>,
    scanner: Scanner,
    changes: Changes,
}

impl Reader {
    async fn next(&mut self) -> Result<Message, StreamError> {
        loop {
            let queue = self.scanner.queue.iter();
            let heads: Vec<Candidate> = queue.take(HEADS_PER_STEP).copied().collect();
            if !heads.is_empty() {
                let (consumed, message) = self.pick(heads).await?;
                self.scanner.queue.drain(..consumed);
                match message {
                    Some(message) => return Ok(message),
                    None => continue,
                }
            }
            if self.scanner.read(&self.database, &self.selection).await? {
                let changed = self.changes.changed_or_poll(DOMAINS).await;
                changed.map_err(|_| StreamError::Closed)?;
            }
        }
    }

    async fn pick(&self, heads: Vec<Candidate>) -> Result<(usize, Option<Message>), StorageError> {
        let (id, selection) = (self.database.id(), self.selection.clone());
        let now_ns = self.database.runtime().now_ns();
        let pick = move |snapshot: &dyn Snapshot| {
            for (at, candidate) in heads.iter().enumerate() {
                if let Judgement::Deliver(message) = judge(snapshot, candidate, &selection, now_ns)?
                {
                    let message = Message::new(id, candidate.number, *message)?;
                    return Ok((at + 1, Some(message)));
                }
            }
            Ok((heads.len(), None))
        };
        self.database.read_queued(pick).await
    }
}
