//! The waiting half of a stream: a task around a session, and the stream of its frames.
//!
//! The session stands behind one short lock, shared by exactly two: the task, which brings it
//! everything that happens, and the response stream, which takes frames. Taking a frame is the
//! moment of handing it to the transport, and the session learns of it there.

use std::collections::HashSet;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::{BoxFuture, Fuse, FusedFuture, FutureExt};
use futures_util::stream::{Stream, StreamExt};
use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tonic::Status;
use xmtp_proto::backend::v1::subscribe_response::{Applied, Messages, Response, Started};
use xmtp_proto::backend::v1::{
    CatchupTarget, Ping, Pong, SubscribeRequest, SubscribeResponse, Topic as WireTopic,
};
use xmtp_proto::id::{SequenceId, Topic};

use super::mailbox::Mailbox;
use super::{Engine, Gate, Shared};
use crate::hooks::{Point, Verdict};
use crate::services::{server_envelope, unavailable};
use crate::session::{Effect, End, Frame, Session, Tick};
use crate::store::{ReadError, Turn, Want};

/// A deadline that is not meant to come.
const FAR: Tick = Tick::from_secs(86_400);

/// The frames of one stream.
///
/// - Dropping it ends the stream.
pub struct Frames {
    line: Arc<Line>,
    done: bool,
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames")
            .field("done", &self.done)
            .finish_non_exhaustive()
    }
}

/// What the task and the response stream share.
struct Line {
    session: Mutex<Session>,
    opened: Instant,
    /// Wakes the response stream.
    frames: AtomicWaker,
    /// Wakes the task after frames were taken or the response stream was dropped.
    taken: Notify,
    dropped: watch::Sender<bool>,
}

impl Line {
    fn now(&self) -> Tick {
        self.opened.elapsed()
    }

    /// Brings something to the session and lets both sides see the effect.
    fn with<T>(&self, bring: impl FnOnce(&mut Session, Tick) -> T) -> T {
        let result = bring(&mut self.session.lock(), self.now());
        self.frames.wake();
        result
    }
}

impl Stream for Frames {
    type Item = Result<SubscribeResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.done {
            return Poll::Ready(None);
        }
        self.line.frames.register(cx.waker());
        let (frame, end) = {
            let mut session = self.line.session.lock();
            let frame = session.take_frame(self.line.now());
            (frame, session.end().cloned())
        };
        if let Some(frame) = frame {
            self.line.taken.notify_one();
            let response = wire_frame(frame);
            self.done = response.is_err();
            return Poll::Ready(Some(response));
        }
        let Some(end) = end else { return Poll::Pending };
        self.done = true;
        match end {
            End::HalfClosed => Poll::Ready(None),
            End::Failed(status) | End::Refused(status) => Poll::Ready(Some(Err(status))),
        }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.line.dropped.send_replace(true);
    }
}

impl Engine {
    /// Opens a stream.
    pub(crate) fn subscribe<S>(&self, requests: S) -> Result<Frames, Status>
    where
        S: Stream<Item = Result<SubscribeRequest, Status>> + Send + Unpin + 'static,
    {
        let gate = self.shared.gate.subscribe();
        let opened = *gate.borrow();
        let Gate::Open(tail) = opened else {
            return Err(opened.status());
        };
        let line = Arc::new(Line {
            session: Mutex::new(Session::new(self.shared.settings.session)),
            opened: Instant::now(),
            frames: AtomicWaker::new(),
            taken: Notify::new(),
            dropped: watch::Sender::new(false),
        });
        let registered = Registered {
            shared: self.shared.clone(),
            mailbox: Arc::new(Mailbox::new(tail)),
            topics: HashSet::new(),
        };
        tokio::spawn(Owner::new(line.clone(), registered).run(requests, gate));
        Ok(Frames { line, done: false })
    }
}

/// The topics of one stream in the registry; none stays when the stream ends, however it ends.
struct Registered {
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    topics: HashSet<Topic>,
}

impl Registered {
    fn add(&mut self, topics: Vec<Topic>) {
        for topic in topics {
            if self.topics.insert(topic) {
                self.shared.registry.register(topic, &self.mailbox);
            }
        }
    }

    fn remove(&mut self, topics: Vec<Topic>) {
        for topic in topics {
            if self.topics.remove(&topic) {
                self.shared.registry.deregister(topic, &self.mailbox);
            }
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        for topic in &self.topics {
            self.shared.registry.deregister(*topic, &self.mailbox);
        }
    }
}

type Reading<T> = Fuse<BoxFuture<'static, Result<T, Status>>>;

/// The task that brings a session everything that happens.
struct Owner {
    line: Arc<Line>,
    registered: Registered,
    heads: Reading<Vec<SequenceId>>,
    turn: Reading<Turn>,
}

impl Owner {
    fn new(line: Arc<Line>, registered: Registered) -> Self {
        Self {
            line,
            registered,
            heads: Fuse::terminated(),
            turn: Fuse::terminated(),
        }
    }

    async fn run<S>(mut self, mut requests: S, mut gate: watch::Receiver<Gate>)
    where
        S: Stream<Item = Result<SubscribeRequest, Status>> + Send + Unpin,
    {
        let mut dropped = self.line.dropped.subscribe();
        let mailbox = self.registered.mailbox.clone();
        let line = self.line.clone();
        let opened = Gate::Open(mailbox.tail());
        loop {
            self.perform();
            let (wants_input, deadline) = {
                let session = line.session.lock();
                if session.end().is_some() {
                    break;
                }
                (session.wants_input(), session.deadline())
            };
            let deadline = line.opened + deadline.unwrap_or(FAR);
            tokio::select! {
                _ = dropped.wait_for(|dropped| *dropped) => return,
                shut = gate.wait_for(|gate| *gate != opened) => {
                    let status = shut.map_or_else(|_| unavailable(), |gate| gate.status());
                    line.with(|session, _| session.fail(status));
                }
                request = requests.next(), if wants_input => receive(&line, request),
                heads = &mut self.heads, if !self.heads.is_terminated() => match heads {
                    Ok(heads) => line.with(|session, now| session.heads_read(now, heads)),
                    Err(status) => line.with(|session, _| session.fail(status)),
                },
                turn = &mut self.turn, if !self.turn.is_terminated() => match turn {
                    Ok(turn) => line.with(|session, now| session.fetched(now, turn)),
                    Err(status) => line.with(|session, _| session.fail(status)),
                },
                () = mailbox.filled() => deliver(&line, &mailbox),
                () = line.taken.notified() => {}
                () = tokio::time::sleep_until(deadline) => tick(&line, &mut requests),
            }
        }
        // Nothing is told any more; what is queued before a refusal may still be read, for as long
        // as the queue may stand still.
        drop(self);
        line.frames.wake();
        linger(&line, dropped).await;
    }

    /// Does what the session asks for.
    fn perform(&mut self) {
        loop {
            let effect = self.line.session.lock().next_effect();
            match effect {
                None => return,
                Some(Effect::Register(topics)) => self.registered.add(topics),
                Some(Effect::Deregister(topics)) => self.registered.remove(topics),
                Some(Effect::ReadHeads(topics)) => {
                    self.heads = read_heads(self.registered.shared.clone(), topics)
                        .boxed()
                        .fuse();
                }
                Some(Effect::Fetch(wants)) => {
                    self.turn = fetch(self.registered.shared.clone(), wants).boxed().fuse();
                }
            }
        }
    }
}

/// Waits until the last frames of a refused stream are read or the queue is given up.
async fn linger(line: &Line, mut dropped: watch::Receiver<bool>) {
    loop {
        let deadline = line.session.lock().deadline();
        let Some(deadline) = deadline else { return };
        tokio::select! {
            _ = dropped.wait_for(|dropped| *dropped) => return,
            () = line.taken.notified() => {}
            () = tokio::time::sleep_until(line.opened + deadline) => {
                let _ = line.with(|session, now| session.tick(now));
            }
        }
    }
}

fn receive(line: &Line, request: Option<Result<SubscribeRequest, Status>>) {
    line.with(|session, now| match request {
        None => session.half_closed(),
        Some(Ok(request)) => session.receive(now, request),
        Some(Err(status)) => session.fail(status),
    });
}

fn deliver(line: &Line, mailbox: &Mailbox) {
    let mail = mailbox.take();
    line.with(|session, now| {
        mail.rows.iter().for_each(|row| session.told(now, row));
        for (topic, id) in mail.positions {
            session.behind(now, topic, id);
        }
    });
}

/// Lets time pass. Before an overdue answer ends the stream, what the client has already sent is
/// taken once, without waiting.
fn tick<S>(line: &Line, requests: &mut S)
where
    S: Stream<Item = Result<SubscribeRequest, Status>> + Unpin,
{
    let overdue = line.with(|session, now| session.tick(now));
    if !overdue {
        return;
    }
    while line.session.lock().end().is_none() {
        match requests.next().now_or_never() {
            Some(request) => receive(line, request),
            None => break,
        }
    }
    line.with(|session, now| session.expire_pong(now));
}

async fn read_heads(shared: Arc<Shared>, topics: Vec<Topic>) -> Result<Vec<SequenceId>, Status> {
    reach(&shared, Point::Registered).await?;
    let heads = shared.store.heads(topics).await.map_err(failed_read)?;
    reach(&shared, Point::HeadsRead).await?;
    Ok(heads)
}

async fn fetch(shared: Arc<Shared>, wants: Vec<Want>) -> Result<Turn, Status> {
    let turn = {
        let permit = shared.turns.acquire().await;
        let _permit = permit.map_err(|_| unavailable())?;
        shared
            .store
            .fetch_turn(wants, shared.settings.turn)
            .await
            .map_err(failed_read)?
    };
    reach(&shared, Point::Fetched).await?;
    Ok(turn)
}

async fn reach(shared: &Shared, point: Point) -> Result<(), Status> {
    match shared.hooks.reach(point).await {
        Verdict::Go => Ok(()),
        Verdict::Unavailable => Err(unavailable()),
    }
}

/// A stream that can not read on ends; whatever the cause, the client opens another.
fn failed_read(error: ReadError) -> Status {
    tracing::warn!(%error, "a stream ends because a read failed");
    unavailable()
}

fn wire_frame(frame: Frame) -> Result<SubscribeResponse, Status> {
    let wire_topic = |topic: &Topic| WireTopic {
        topic: topic.as_bytes().to_vec().into(),
    };
    let response = match frame {
        Frame::Started {
            keepalive_interval_ms,
        } => Response::Started(Started {
            keepalive_interval_ms,
        }),
        Frame::Applied { id, added } => {
            let target = |(topic, head): &(Topic, SequenceId)| CatchupTarget {
                topic: Some(wire_topic(topic)),
                through_sequence_id: head.get(),
            };
            Response::Applied(Applied {
                id,
                added_targets: added.iter().map(target).collect(),
            })
        }
        Frame::Messages(rows) => {
            let envelopes = rows.iter().map(server_envelope).collect::<Result<_, _>>()?;
            Response::Messages(Messages { envelopes })
        }
        Frame::Ping { nonce } => Response::Ping(Ping { nonce }),
        Frame::Pong { nonce } => Response::Pong(Pong { nonce }),
    };
    Ok(SubscribeResponse {
        response: Some(response),
    })
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use tokio::sync::mpsc;
    use tokio::time::timeout;
    use tonic::Code;
    use xmtp_proto::backend::v1::PublishRequest;

    use super::*;
    use crate::services::Services;
    use crate::session::fixture::{group, update};
    use crate::{Backend, Config};

    const PATIENCE: Tick = Tick::from_secs(20);

    async fn services() -> Services {
        Backend::services(&Config::ephemeral("org.example.test"))
            .await
            .expect("it starts")
    }

    /// Opens a stream with one topic and returns its two ends.
    async fn registered(
        services: &Services,
    ) -> (
        mpsc::UnboundedSender<Result<SubscribeRequest, Status>>,
        Frames,
    ) {
        let (send, mut receive) = mpsc::unbounded_channel();
        send.send(Ok(update(1, &[(group(1), 0)], &[])))
            .expect("it is read");
        let requests = stream::poll_fn(move |cx| receive.poll_recv(cx));
        let mut frames = services.subscribe(requests).await.expect("it opens");
        for _ in 0..2 {
            frames.next().await.expect("no end").expect("no failure");
        }
        assert_eq!(services.registrations(), 1);
        (send, frames)
    }

    /// Waits until no stream has a topic; it can only fail the test.
    async fn nothing_registered(services: &Services) {
        let gone = async {
            while services.registrations() > 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, gone)
            .await
            .expect("the topics are let go");
    }

    /// covers: STR-035
    #[tokio::test]
    async fn every_end_lets_go_of_the_topics() {
        let services = services().await;
        let (_send, frames) = registered(&services).await;
        drop(frames);
        nothing_registered(&services).await;

        let (send, mut frames) = registered(&services).await;
        drop(send);
        assert!(
            frames.next().await.is_none(),
            "a half-close ends it cleanly"
        );
        nothing_registered(&services).await;

        let (send, mut frames) = registered(&services).await;
        send.send(Ok(update(1, &[], &[]))).expect("it is read");
        let failure = frames.next().await.expect("no end").expect_err("a failure");
        assert_eq!(failure.code(), Code::InvalidArgument);
        assert!(frames.next().await.is_none());
        nothing_registered(&services).await;
    }

    /// covers: STR-035
    #[tokio::test]
    async fn a_store_that_tells_no_more_ends_streams_as_unavailable() {
        let services = services().await;
        let (_send, mut frames) = registered(&services).await;
        services.close_store().await;
        let failure = frames.next().await.expect("no end").expect_err("a failure");
        assert_eq!(failure.code(), Code::Unavailable);
        timeout(PATIENCE, services.failed())
            .await
            .expect("the server knows");
        nothing_registered(&services).await;
        let late = services
            .subscribe(stream::pending())
            .await
            .expect_err("no stream");
        assert_eq!(late.code(), Code::Unavailable);
        let late = services
            .publish(PublishRequest {
                envelopes: vec![Default::default()],
            })
            .await;
        assert!(late.is_err());
    }
}
