//! The contract between the default consumer and whatever carries its items to the application.
//!
//! | the host calls | the boundary does |
//! | --- | --- |
//! | `next(None)`, nothing outstanding | selects the next item and hands it over |
//! | `next(None)`, an item outstanding | hands the same item with the same token again |
//! | `next(t)`, `t` outstanding | stores D under the lease, then goes on |
//! | `next(t)`, `t` was stored last | stores nothing, hands again or goes on |
//! | a second hand-off | judges the item again: scope, filter, deleted, expired |
//! | any other token | `StaleToken`; nothing moves |
//! | the lease is gone | `OwnershipLost`; nothing moves, for good |
//! | D cannot be stored | a few tries, then `AckNotStored`, for good |
//! | a second `next` at a time | `ConcurrentNext` |
//!
//! A host keeps a token until a newer hand-off arrives, sends it with its next request only, and
//! never sends it when it breaks off, fails or is dropped (STR-104).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, watch};

use super::error::StreamError;
use super::filter::{Filter, Scope, Selection};
use super::lease::{self, LeaseToken, Ownership};
use super::message::Message;
use super::scan::{Candidate, Floor, Scanner};
use super::scope::{EndHandle, ScopeHandle};
use super::step::{self, HEADS_PER_STEP, Step};
use crate::limits::DEFAULT_CONSUMER_RENEWAL;
use crate::runtime::{RuntimeExt, TaskHandle};
use crate::storage::{Changes, Database, Domain, Durability, Priority, StorageError};

/// Pause before a renewal that failed is tried again.
const RENEWAL_RETRY: Duration = Duration::from_secs(1);
/// What may bring a new item.
const DOMAINS: u64 = Domain::Messages.bit() | Domain::Groups.bit();

/// Names one hand-off of one owner.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token {
    owner: LeaseToken,
    number: u64,
    handoff: u64,
}

impl Token {
    /// The length of a token, in bytes.
    pub const LEN: usize = 32;

    /// Answers the token as opaque bytes, for a host of another language.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&self.owner.0);
        bytes[16..24].copy_from_slice(&self.number.to_be_bytes());
        bytes[24..].copy_from_slice(&self.handoff.to_be_bytes());
        bytes
    }

    /// Reads a token; whether it is current is decided when it is used.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let part = |at: usize| {
            let mut part = [0; 8];
            part.copy_from_slice(&bytes[at..at + 8]);
            part
        };
        let mut owner = [0; 16];
        owner.copy_from_slice(&bytes[..16]);
        Self {
            owner: LeaseToken(owner),
            number: u64::from_be_bytes(part(16)),
            handoff: u64::from_be_bytes(part(24)),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}#{})", self.number, self.handoff)
    }
}

/// One item on its way to the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handoff {
    /// The item.
    pub message: Message,
    /// What acknowledges it, with the next request.
    pub token: Token,
}

/// The answer to a request for the next item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// An item.
    Handoff(Handoff),
    /// [`Boundary::interrupt`] was called while the request waited.
    Interrupted,
    /// The consumer was ended, or its database closed; there are no more items.
    End,
}

/// What others tell a consumer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Control {
    pub(super) is_ending: bool,
    is_lost: bool,
    interrupts: u64,
}

#[derive(Clone, Copy, Debug)]
struct Handed {
    token: Token,
    candidate: Candidate,
}

/// What changes with each request; every change happens after the await that caused it.
#[derive(Debug)]
struct Core {
    scanner: Scanner,
    generation: u64,
    changes: Changes,
    handed: Option<Handed>,
    /// The application asked to acknowledge `handed`; stays set until that is stored.
    is_acking: bool,
    stored: Option<Token>,
    handoffs: u64,
    stopped: Option<StreamError>,
}

/// The default consumer of a database, for hosts that carry tokens; one at a time (STR-023).
///
/// # Behavior
/// - At most one item is unacknowledged.
/// - Dropping a request loses nothing: the next one continues it.
/// - Dropping the boundary acknowledges nothing and gives the lease back.
pub struct Boundary {
    database: Database,
    ownership: Ownership,
    scope: ScopeHandle,
    control: Arc<watch::Sender<Control>>,
    core: Mutex<Core>,
    renewal: TaskHandle,
}

impl fmt::Debug for Boundary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Boundary")
            .field("scope", &self.scope)
            .finish()
    }
}

impl Drop for Boundary {
    fn drop(&mut self) {
        self.renewal.abort();
    }
}

impl Boundary {
    pub(super) fn new(
        database: &Database,
        ownership: Ownership,
        scope: Scope,
        filter: Filter,
    ) -> Self {
        let control = Arc::new(watch::Sender::new(Control::default()));
        let renewing = renew(database.clone(), ownership.token, control.clone());
        let core = Core {
            scanner: Scanner::new(Floor::Delivered, 0),
            generation: 0,
            changes: database.changes(),
            handed: None,
            is_acking: false,
            stored: None,
            handoffs: 0,
            stopped: None,
        };
        Self {
            renewal: database.runtime().spawn("consumer-lease", renewing),
            database: database.clone(),
            ownership,
            scope: ScopeHandle::new(scope, filter),
            control,
            core: Mutex::new(core),
        }
    }

    /// Acknowledges the item of `ack`, if one is given, then waits for the next item.
    ///
    /// # Errors
    /// As the table of this module says; `Storage` may be retried by the same call.
    pub async fn next(&self, ack: Option<Token>) -> Result<Next, StreamError> {
        let mut core = self
            .core
            .try_lock()
            .map_err(|_| StreamError::ConcurrentNext)?;
        let mut control = self.control.subscribe();
        core.accept(ack)?;
        let outcome = self.advance(&mut core, &mut control).await;
        self.settle(&mut core, outcome)
    }

    /// Acknowledges an item as the last one, then closes.
    pub async fn finish(&self, ack: Token) -> Result<(), StreamError> {
        let mut core = self
            .core
            .try_lock()
            .map_err(|_| StreamError::ConcurrentNext)?;
        core.accept(Some(ack))?;
        if core.is_acking {
            let selection = self.scope.selection.borrow().clone();
            let outcome = self.step(&mut core, &selection, Vec::new()).await;
            self.settle(&mut core, outcome.map(|_| Next::End))?;
        }
        drop(core);
        self.close().await
    }

    /// Makes a request that waits answer `Interrupted`; without one it does nothing.
    pub fn interrupt(&self) {
        self.control.send_modify(|control| control.interrupts += 1);
    }

    /// Ends the consumer and gives the lease back; acknowledges nothing; idempotent.
    pub async fn close(&self) -> Result<(), StreamError> {
        self.end_handle().end();
        self.renewal.abort();
        Ok(self.ownership.release().await?)
    }

    /// Answers the handle that changes scope and filter.
    pub fn scope(&self) -> ScopeHandle {
        self.scope.clone()
    }

    /// Answers a handle that ends the consumer.
    pub fn end_handle(&self) -> EndHandle {
        EndHandle {
            control: self.control.clone(),
        }
    }

    async fn advance(
        &self,
        core: &mut Core,
        control: &mut watch::Receiver<Control>,
    ) -> Result<Next, StreamError> {
        let before = control.borrow_and_update().interrupts;
        let mut selections = self.scope.selection.subscribe();
        loop {
            let selection = selections.borrow_and_update().clone();
            core.follow(&selection);
            let heads = core.heads();
            let has_work = core.is_acking || !heads.is_empty();
            if has_work && let Some(handoff) = self.step(core, &selection, heads).await? {
                return Ok(Next::Handoff(handoff));
            }
            let now = *self.control.borrow();
            if now.is_ending {
                return Ok(Next::End);
            }
            if now.is_lost {
                return Err(StreamError::OwnershipLost);
            }
            if now.interrupts != before {
                return Ok(Next::Interrupted);
            }
            if !core.heads().is_empty() || !core.scanner.read(&self.database, &selection).await? {
                continue;
            }
            tokio::select! {
                biased;
                _ = control.changed() => {}
                _ = selections.changed() => {}
                commit = core.changes.changed_or_poll(DOMAINS) => {
                    commit.map_err(|_| StreamError::Closed)?;
                }
            }
        }
    }

    /// Stores what is acknowledged and picks the next of `heads`, in one transaction.
    async fn step(
        &self,
        core: &mut Core,
        selection: &Arc<Selection>,
        heads: Vec<Candidate>,
    ) -> Result<Option<Handoff>, StreamError> {
        let is_again = core.handed.is_some() && !core.is_acking;
        let acked = core.handed.filter(|_| core.is_acking);
        let step = Step {
            owner: self.ownership.token,
            ack: acked.map(|handed| handed.candidate),
            heads,
            selection: selection.clone(),
        };
        let stepped = step::run(&self.database, step).await?;
        if core.is_acking {
            core.stored = core.handed.take().map(|handed| handed.token);
            core.is_acking = false;
        }
        if is_again && stepped.item.is_none() {
            core.handed = None;
        }
        // What was taken out of scope meanwhile is not handed over.
        let is_stale = self.scope.generation() != selection.generation;
        if is_stale || self.control.borrow().is_ending {
            return Ok(None);
        }
        if !is_again {
            core.scanner.queue.drain(..stepped.consumed);
        }
        Ok(stepped.item.map(|(candidate, message)| Handoff {
            token: core.hand(candidate, self.ownership.token),
            message,
        }))
    }

    /// Decides what the end of a request means for later ones.
    fn settle(
        &self,
        core: &mut Core,
        outcome: Result<Next, StreamError>,
    ) -> Result<Next, StreamError> {
        let is_over = self.control.borrow().is_ending;
        match outcome {
            Err(StreamError::Closed | StreamError::OwnershipLost) if is_over && !core.is_acking => {
                Ok(Next::End)
            }
            Err(StreamError::OwnershipLost) if is_over => Err(StreamError::Closed),
            Err(StreamError::Closed) if !core.is_acking => Ok(Next::End),
            Err(error) => {
                let is_final = matches!(
                    error,
                    StreamError::OwnershipLost | StreamError::AckNotStored { .. }
                );
                core.stopped = is_final.then(|| error.clone());
                Err(error)
            }
            outcome => outcome,
        }
    }
}

impl Core {
    /// Takes the token of a request.
    fn accept(&mut self, ack: Option<Token>) -> Result<(), StreamError> {
        if let Some(error) = &self.stopped {
            return Err(error.clone());
        }
        let Some(token) = ack else {
            return Ok(());
        };
        if self.handed.is_some_and(|handed| handed.token == token) {
            self.is_acking = true;
            return Ok(());
        }
        match self.stored == Some(token) {
            true => Ok(()),
            false => Err(StreamError::StaleToken),
        }
    }

    /// Starts selecting anew when the scope is another one.
    fn follow(&mut self, selection: &Selection) {
        if selection.generation != self.generation {
            self.generation = selection.generation;
            self.scanner.restart();
        }
    }

    /// Answers what may be handed over next: an outstanding item alone, or the queue.
    fn heads(&self) -> Vec<Candidate> {
        match self.handed {
            Some(handed) if !self.is_acking => vec![handed.candidate],
            _ => {
                let queue = self.scanner.queue.iter();
                queue.take(HEADS_PER_STEP).copied().collect()
            }
        }
    }

    /// Marks an item as handed over, under its old token when it was before.
    fn hand(&mut self, candidate: Candidate, owner: LeaseToken) -> Token {
        if let Some(handed) = self.handed {
            return handed.token;
        }
        self.handoffs += 1;
        let token = Token {
            owner,
            number: candidate.number,
            handoff: self.handoffs,
        };
        let _span = tracing::debug_span!("delivery").entered();
        tracing::trace!("an item is handed over");
        self.handed = Some(Handed { token, candidate });
        token
    }
}

/// Keeps the lease while the consumer lives, also during a long callback.
async fn renew(database: Database, owner: LeaseToken, control: Arc<watch::Sender<Control>>) {
    let mut pause = DEFAULT_CONSUMER_RENEWAL;
    loop {
        database.runtime().sleep(pause).await;
        let renewed = database
            .write_queued(Priority::Foreground, Durability::Ordered, move |txn| {
                lease::renew(txn, owner)
            })
            .await;
        pause = match renewed {
            Ok(()) => DEFAULT_CONSUMER_RENEWAL,
            Err(StreamError::OwnershipLost) => {
                control.send_modify(|control| control.is_lost = true);
                return;
            }
            Err(StreamError::Closed | StreamError::Storage(StorageError::Closed)) => return,
            Err(_) => RENEWAL_RETRY,
        };
    }
}
