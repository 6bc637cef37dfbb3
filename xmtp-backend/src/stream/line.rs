//! What the task of a stream and its response stream share, and the response streams themselves.
//!
//! The session stands behind one short lock, shared by exactly two: the task, which brings it
//! everything that happens, and the response stream, which takes frames. Taking a frame is the
//! moment of handing it to the transport, and the session learns of it there.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use futures_util::stream::Stream;
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::Status;
use xmtp_proto::backend::v1::{SubscribeResponse, SubscribeStaticResponse};

use super::ledger::Account;
use super::wire::{Changing, Fixed, message};
use crate::session::{End, Frame, Session, Tick};
use crate::telemetry::metrics;

/// What the task and the response stream share.
pub(super) struct Line {
    session: Mutex<Session>,
    opened: Instant,
    /// When the stream was opened by the clock of the server.
    opened_at: Tick,
    /// Wakes the response stream.
    frames: AtomicWaker,
    /// Wakes the task after frames were taken or the response stream was dropped.
    pub(super) taken: Notify,
    dropped: AtomicBool,
    pub(super) account: Account,
}

impl Line {
    /// Makes the line of a stream that is opened now, `opened_at` by the clock of the server.
    pub(super) fn new(session: Session, opened_at: Tick, account: Account) -> Arc<Self> {
        Arc::new(Self {
            session: Mutex::new(session),
            opened: Instant::now(),
            opened_at,
            frames: AtomicWaker::new(),
            taken: Notify::new(),
            dropped: AtomicBool::new(false),
            account,
        })
    }

    /// Returns the frames of the stream; to be asked for once.
    pub(super) fn frames(self: &Arc<Self>) -> RawFrames {
        RawFrames {
            line: self.clone(),
            done: false,
        }
    }

    /// Translates a time of the session.
    pub(super) fn instant(&self, tick: Tick) -> Instant {
        self.opened + tick
    }

    /// Tells whether nobody will take frames any more.
    pub(super) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// Brings something to the session and lets both sides see the effect.
    pub(super) fn with<T>(&self, bring: impl FnOnce(&mut Session, Tick) -> T) -> T {
        let result = self.look(bring);
        self.frames.wake();
        result
    }

    /// Looks at the session, or brings something that changes no frame.
    pub(super) fn look<T>(&self, look: impl FnOnce(&mut Session, Tick) -> T) -> T {
        let now = self.opened.elapsed();
        let mut session = self.session.lock();
        let result = look(&mut session, now);
        self.account
            .settle(session.held_alone(), self.opened_at + now);
        result
    }
}

/// The frames of one stream, as they go out.
///
/// - Dropping it ends the stream.
pub(crate) struct RawFrames {
    line: Arc<Line>,
    done: bool,
}

impl Stream for RawFrames {
    type Item = Result<Frame, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.done {
            return Poll::Ready(None);
        }
        self.line.frames.register(cx.waker());
        let take = |session: &mut Session, now| {
            let frame = session.take_frame(now);
            let waited = session.last_wait();
            (frame.map(|frame| (frame, waited)), session.end().cloned())
        };
        let (frame, end) = self.line.look(take);
        if let Some((frame, waited)) = frame {
            count(&frame, waited);
            self.line.taken.notify_one();
            return Poll::Ready(Some(Ok(frame)));
        }
        let Some(end) = end else { return Poll::Pending };
        self.done = true;
        match end {
            End::HalfClosed => Poll::Ready(None),
            End::Failed(status) | End::Refused(status) => Poll::Ready(Some(Err(status))),
        }
    }
}

/// Counts a frame that goes to the transport.
fn count(frame: &Frame, waited: Tick) {
    metrics::frame_sent(frame.kind());
    metrics::outbound_waited(waited);
    match frame {
        Frame::Applied { .. } => metrics::update_accepted(),
        Frame::Messages(rows) => metrics::envelopes_sent(rows.len() as u64),
        _ => {}
    }
}

impl Drop for RawFrames {
    fn drop(&mut self) {
        self.line.dropped.store(true, Ordering::Release);
        self.line.taken.notify_one();
    }
}

/// The frames of a stream whose interest changes, as messages.
///
/// - Dropping it ends the stream.
pub struct Frames(pub(crate) RawFrames);

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames").finish_non_exhaustive()
    }
}

impl Stream for Frames {
    type Item = Result<SubscribeResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let frame = ready!(Pin::new(&mut self.0).poll_next(cx));
        Poll::Ready(frame.map(|frame| frame.and_then(message::<Changing>)))
    }
}

/// The frames of a stream whose topics are fixed, as messages.
///
/// - Dropping it ends the stream.
pub struct StaticFrames(pub(crate) RawFrames);

impl fmt::Debug for StaticFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StaticFrames").finish_non_exhaustive()
    }
}

impl Stream for StaticFrames {
    type Item = Result<SubscribeStaticResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let frame = ready!(Pin::new(&mut self.0).poll_next(cx));
        Poll::Ready(frame.map(|frame| frame.and_then(message::<Fixed>)))
    }
}
