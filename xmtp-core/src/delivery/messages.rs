//! The entry to everything that reads stored messages.

use std::fmt;

use xmtp_proto::{GroupId, MessageId};

use super::boundary::Boundary;
use super::consumer::MessageConsumer;
use super::cursor::DeliveryCursor;
use super::error::StreamError;
use super::filter::{Filter, Scope, Selection};
use super::history::{History, HistoryPage, Request};
use super::lease::{Ownership, Released};
use super::message::{Message, is_eligible};
use super::replay::{self, Replay};
use super::store;
use crate::storage::{Database, Snapshot, StorageError};

/// The stored messages of a database; make one per open database and clone it.
///
/// A clone knows of a consumer that another clone dropped before its lease is given back; an
/// entry of its own would be told `AlreadyActive` for that moment.
#[derive(Clone)]
pub struct Messages {
    database: Database,
    released: Released,
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Messages").field(&self.database).finish()
    }
}

impl Messages {
    /// Makes the entry to a database's messages.
    pub fn new(database: Database) -> Self {
        Self {
            database,
            released: Released::default(),
        }
    }

    /// Starts the default consumer above D of each group (STR-091).
    ///
    /// # Errors
    /// `AlreadyActive` while another one lives, in any process.
    pub async fn consume(
        &self,
        scope: impl Into<Scope>,
        filter: Filter,
    ) -> Result<MessageConsumer, StreamError> {
        let boundary = self.boundary(scope, filter).await?;
        Ok(MessageConsumer::new(boundary))
    }

    /// Starts the default consumer for a host that carries tokens itself (STR-104).
    ///
    /// # Errors
    /// `AlreadyActive` while another one lives, in any process.
    pub async fn boundary(
        &self,
        scope: impl Into<Scope>,
        filter: Filter,
    ) -> Result<Boundary, StreamError> {
        let scope = scope.into();
        let ownership = Ownership::acquire(&self.database, &self.released).await?;
        Ok(Boundary::new(&self.database, ownership, scope, filter))
    }

    /// Starts an independent reader after a cursor (STR-100).
    ///
    /// # Errors
    /// `WrongDatabase` and `AheadOfDatabase` for a cursor that is not of this database.
    pub async fn replay(
        &self,
        cursor: DeliveryCursor,
        scope: impl Into<Scope>,
        filter: Filter,
    ) -> Result<Replay, StreamError> {
        replay::replay(&self.database, cursor, scope.into(), filter).await
    }

    /// Answers the cursor before every message of this database.
    pub fn beginning(&self) -> DeliveryCursor {
        DeliveryCursor::beginning(self.database.id())
    }

    /// Reads the newest messages and the live edge from one snapshot (STR-099).
    ///
    /// At most `limit` messages and at most one local page.
    pub async fn history(
        &self,
        scope: impl Into<Scope>,
        filter: Filter,
        limit: u32,
    ) -> Result<History, StreamError> {
        let scope = scope.into();
        let request = self.request(scope.clone(), filter.clone(), limit);
        let (id, source) = (self.database.id(), self.clone());
        let read = move |snapshot: &dyn Snapshot| {
            let page = request.read(snapshot, u64::MAX)?;
            Ok::<_, StorageError>((page, store::newest_number(snapshot)?))
        };
        let (page, newest) = self.database.read_queued(read).await?;
        Ok(History {
            messages: page.messages,
            cursor: DeliveryCursor::new(id, newest),
            has_older: page.has_older,
            source,
            scope,
            filter,
        })
    }

    /// Reads the newest messages before a cursor.
    ///
    /// # Errors
    /// `WrongDatabase` and `AheadOfDatabase` for a cursor that is not of this database.
    pub async fn page(
        &self,
        before: DeliveryCursor,
        scope: impl Into<Scope>,
        filter: Filter,
        limit: u32,
    ) -> Result<HistoryPage, StreamError> {
        let request = self.request(scope.into(), filter, limit);
        let id = self.database.id();
        let read = move |snapshot: &dyn Snapshot| {
            let below = before.check(id, snapshot)?;
            Ok::<_, StreamError>(request.read(snapshot, below)?)
        };
        self.database.read_queued(read).await
    }

    /// Reads one message of a group, unless it is deleted or expired.
    pub async fn get(&self, group: GroupId, id: MessageId) -> Result<Option<Message>, StreamError> {
        let (database, now_ns) = (self.database.id(), self.database.runtime().now_ns());
        let read = move |snapshot: &dyn Snapshot| {
            let Some(number) = store::number_of(snapshot, &group, &id)? else {
                return Ok(None);
            };
            match store::message(snapshot, number)? {
                Some(message) if is_eligible(&message, now_ns) => {
                    Ok(Some(Message::new(database, number, message)?))
                }
                _ => Ok::<_, StreamError>(None),
            }
        };
        self.database.read_queued(read).await
    }

    fn request(&self, scope: Scope, filter: Filter, limit: u32) -> Request {
        Request {
            database: self.database.id(),
            selection: Selection::new(scope, filter),
            limit,
            now_ns: self.database.runtime().now_ns(),
        }
    }
}
