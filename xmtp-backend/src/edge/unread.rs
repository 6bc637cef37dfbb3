//! Ends answers that their readers do not read.
//!
//! A transport asks a body for its next part when there is room for one, and there is none while the
//! other end reads nothing. Then nobody asks the body, so it can not end itself. What polls it can be
//! ended: the task of its HTTP/2 stream, or of its HTTP/1.1 connection. Each such task has one
//! [`Waiting`], which the body of its answer sets, and [`overseen`] ends the task by it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body::{Frame, SizeHint};
use hyper::rt::Executor;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;
use tonic::body::Body;

use crate::limits::ANSWER_PIECE_BYTES;

tokio::task_local! {
    static WAITING: Arc<Waiting>;
}

/// Since when a part of an answer waits to be read.
#[derive(Debug, Default)]
struct Waiting(Mutex<Option<Instant>>);

impl Waiting {
    fn set(&self, since: Option<Instant>) {
        *self.0.lock() = since;
    }

    /// Comes back when a part has waited for so long.
    fn poll_over(
        &self,
        time: Duration,
        alarm: &mut Option<Pin<Box<Sleep>>>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let Some(since) = *self.0.lock() else {
            *alarm = None;
            return Poll::Pending;
        };
        let due = since + time;
        let alarm = alarm.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if alarm.deadline() != due {
            alarm.as_mut().reset(due);
        }
        alarm.as_mut().poll(cx)
    }
}

/// Runs what polls answers; drops it once a part of one has waited for `time`.
pub(super) async fn overseen<F: Future>(work: F, time: Duration) -> Option<F::Output> {
    let waiting = Arc::<Waiting>::default();
    let mut work = pin!(WAITING.scope(waiting.clone(), work));
    let mut alarm = None;
    poll_fn(|cx| {
        if let Poll::Ready(done) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        ready!(waiting.poll_over(time, &mut alarm, cx));
        Poll::Ready(None)
    })
    .await
}

/// Spawns the tasks of HTTP/2 streams, each overseen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tasks {
    /// How long a part of an answer may wait to be read.
    pub(super) time: Duration,
}

impl<F> Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, work: F) {
        tokio::spawn(overseen(work, self.time));
    }
}

/// Lets the body of an answer tell whoever oversees the task when a part of it waits.
pub(super) fn watched(response: Response<Body>) -> Response<Body> {
    let waiting = WAITING.try_with(Arc::clone);
    let Ok(waiting) = waiting else {
        return response;
    };
    // The head is the first that waits.
    waiting.set(Some(Instant::now()));
    response.map(|inner| {
        Body::new(Pieces {
            inner,
            waiting,
            rest: Bytes::new(),
            has_begun: false,
        })
    })
}

/// A body that tells when a part of it waits to be read.
///
/// - It hands out a part in pieces, because what a transport has taken it keeps when its task ends.
struct Pieces {
    inner: Body,
    waiting: Arc<Waiting>,
    /// What is left of the part that is handed out.
    rest: Bytes,
    has_begun: bool,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.rest.is_empty() {
            let frame = Pin::new(&mut self.inner).poll_frame(cx);
            let is_part = matches!(frame, Poll::Ready(Some(Ok(_))));
            self.waiting.set(is_part.then(Instant::now));
            self.has_begun |= is_part;
            match ready!(frame).transpose()?.map(Frame::into_data) {
                Some(Ok(data)) => self.rest = data,
                Some(Err(frame)) => return Poll::Ready(Some(Ok(frame))),
                None => return Poll::Ready(None),
            }
        }
        let length = self.rest.len().min(ANSWER_PIECE_BYTES);
        let piece = self.rest.split_to(length);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    /// Of a body that has begun the end is only told when it is asked for, so that whoever sends it
    /// stays until the last piece has gone.
    fn is_end_stream(&self) -> bool {
        !self.has_begun && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, inner) = (self.rest.len() as u64, self.inner.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.waiting.set(None);
    }
}
