//! The default consumer as a Rust program uses it.

use std::fmt;
use std::ops::Deref;

use thiserror::Error;

use super::boundary::{Boundary, Next, Token};
use super::error::StreamError;
use super::message::Message;
use super::scope::{EndHandle, ScopeHandle};

/// The default consumer: lends one message at a time.
///
/// # Behavior
/// - Asking for the next message acknowledges the one before; nothing else does. Dropping the
///   consumer, a panic, or an error out of the loop acknowledges nothing, and the message comes
///   again, to whoever consumes next, under the same id.
/// - There is one per database, over all processes (STR-023).
/// - It is no `Stream`: a combinator that holds two items would acknowledge the first before it
///   was handled. Use [`MessageConsumer::for_each`], or a replay.
///
/// Two deliveries cannot be held at once (STR-094):
///
/// ```compile_fail,E0499
/// # use xmtp_core::delivery::{MessageConsumer, StreamError};
/// # async fn two(mut consumer: MessageConsumer) -> Result<(), StreamError> {
/// let first = consumer.next().await?;
/// let second = consumer.next().await?;
/// drop((first, second));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MessageConsumer {
    boundary: Boundary,
    token: Option<Token>,
    current: Option<Message>,
}

/// A message lent to the application; asking for the next one acknowledges it.
pub struct Delivery<'a> {
    message: &'a Message,
}

impl Deref for Delivery<'_> {
    type Target = Message;

    fn deref(&self) -> &Message {
        self.message
    }
}

impl fmt::Debug for Delivery<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message.fmt(f)
    }
}

/// What a callback wants after it handled a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Acknowledge it and go on.
    Continue,
    /// Acknowledge it and close.
    Stop,
}

/// Why [`MessageConsumer::for_each`] ended early.
#[derive(Debug, Error)]
pub enum ForEachError<E> {
    /// The callback failed; its message is not acknowledged and comes again.
    #[error("the callback failed; its message is delivered again")]
    Callback(E),
    /// The stream failed.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

impl MessageConsumer {
    pub(super) fn new(boundary: Boundary) -> Self {
        Self {
            boundary,
            token: None,
            current: None,
        }
    }

    /// Acknowledges the message before, then waits for the next; `None` once it was ended.
    ///
    /// Dropping the future loses nothing: the next call goes on from there.
    pub async fn next(&mut self) -> Result<Option<Delivery<'_>>, StreamError> {
        loop {
            match self.boundary.next(self.token).await? {
                Next::Handoff(handoff) => {
                    self.token = Some(handoff.token);
                    let message = &*self.current.insert(handoff.message);
                    return Ok(Some(Delivery { message }));
                }
                Next::Interrupted => {}
                Next::End => return Ok(None),
            }
        }
    }

    /// Calls `f` for each message and acknowledges it once `f` has succeeded.
    ///
    /// Work that `f` starts and does not wait for is outside the acknowledgement.
    pub async fn for_each<E>(
        mut self,
        mut f: impl AsyncFnMut(&Message) -> Result<Flow, E>,
    ) -> Result<(), ForEachError<E>> {
        loop {
            let Some(message) = self.next().await? else {
                return Ok(self.close().await?);
            };
            match f(&message).await {
                Ok(Flow::Continue) => {}
                Ok(Flow::Stop) => return Ok(self.finish().await?),
                Err(error) => {
                    // The callback's own error says more than a failed release, which lapses.
                    let _ = self.close().await;
                    return Err(ForEachError::Callback(error));
                }
            }
        }
    }

    /// Acknowledges the message lent last, then closes.
    pub async fn finish(self) -> Result<(), StreamError> {
        match self.token {
            Some(token) => self.boundary.finish(token).await,
            None => self.boundary.close().await,
        }
    }

    /// Closes: keeps D, gives the lease back, and acknowledges nothing (STR-097).
    pub async fn close(self) -> Result<(), StreamError> {
        self.boundary.close().await
    }

    /// Answers the handle that changes scope and filter.
    pub fn scope(&self) -> ScopeHandle {
        self.boundary.scope()
    }

    /// Answers a handle that ends the consumer from elsewhere.
    pub fn end_handle(&self) -> EndHandle {
        self.boundary.end_handle()
    }
}
