//! The waiting half of a stream: a task that brings a session everything that happens.

use std::sync::Arc;

use futures_util::future::{BoxFuture, Fuse, FusedFuture, FutureExt};
use futures_util::stream::{self, Stream, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};
use tonic::{Code, Status};
use tracing::Instrument;
use xmtp_proto::backend::v1::SubscribeRequest;
use xmtp_proto::backend::v1::subscribe_request::Request;
use xmtp_proto::id::{SequenceId, Topic};

use super::line::{Line, RawFrames};
use super::mailbox::Mailbox;
use super::{Engine, Gate, Shared};
use crate::hooks::{Point, Verdict};
use crate::limits::{HEAD_TOPICS, TURN_BYTES};
use crate::services::unavailable;
use crate::session::{Batch, Effect, End, Fetched, Held, Row, Session, SessionLimits};
use crate::store::{ReadError, Served, Want};
use crate::telemetry::{metrics, step};

impl Engine {
    /// Opens a stream whose interest the client changes as it goes.
    pub(crate) fn subscribe<S>(&self, requests: S) -> Result<RawFrames, Status>
    where
        S: Stream<Item = Result<SubscribeRequest, Status>> + Send + Unpin + 'static,
    {
        self.open(Session::new, requests)
    }

    /// Opens a stream whose topics are fixed; they are distinct.
    ///
    /// - It has no requests, so no end of them ends it.
    pub(crate) fn subscribe_fixed(
        &self,
        topics: Vec<(Topic, SequenceId)>,
    ) -> Result<RawFrames, Status> {
        self.open(|limits| Session::fixed(limits, topics), stream::pending())
    }

    fn open<S>(
        &self,
        session: impl FnOnce(SessionLimits) -> Session,
        requests: S,
    ) -> Result<RawFrames, Status>
    where
        S: Stream<Item = Result<SubscribeRequest, Status>> + Send + Unpin + 'static,
    {
        let shared = self.shared.clone();
        let gate = shared.gate.subscribe();
        let opened = *gate.borrow();
        let Gate::Open(tail) = opened else {
            return Err(opened.status());
        };
        let session = session(shared.settings.session);
        let line = Line::new(session, shared.now(), shared.ledger.open());
        let frames = line.frames();
        let run = Owner::new(line, shared, tail).run(requests, gate);
        tokio::spawn(run.in_current_span());
        Ok(frames)
    }
}

type Reading<T> = Fuse<BoxFuture<'static, Result<T, Status>>>;

/// A turn, and the room that it takes until its rows are queued.
type Turned = (Fetched, OwnedSemaphorePermit);

/// The task that brings a session everything that happens.
///
/// - However it ends, no topic of its session stays registered.
struct Owner {
    line: Arc<Line>,
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    heads: Reading<Vec<SequenceId>>,
    turn: Reading<Turned>,
    /// When a shutdown ends the stream.
    leaves: Option<Instant>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let (kind, code) = self.line.with(|session, _| {
            let code = session.end().map_or(Code::Cancelled, End::code);
            session.fail(unavailable());
            (session.kind(), code)
        });
        self.perform();
        self.shared.ending.leave();
        metrics::stream_ended(kind, code);
    }
}

impl Owner {
    fn new(line: Arc<Line>, shared: Arc<Shared>, tail: u64) -> Self {
        shared.ending.enter();
        metrics::stream_opened(line.look(|session, _| session.kind()));
        Self {
            line,
            shared,
            mailbox: Arc::new(Mailbox::new(tail)),
            heads: Fuse::terminated(),
            turn: Fuse::terminated(),
            leaves: None,
        }
    }

    async fn run<S>(mut self, mut requests: S, mut gate: watch::Receiver<Gate>)
    where
        S: Stream<Item = Result<SubscribeRequest, Status>> + Send + Unpin,
    {
        let (mailbox, line) = (self.mailbox.clone(), self.line.clone());
        let opened = Gate::Open(mailbox.tail());
        loop {
            self.perform();
            if line.is_dropped() {
                return;
            }
            let look = |session: &mut Session, _| {
                let is_open = session.end().is_none();
                is_open.then(|| (session.wants_input(), session.deadline()))
            };
            let Some((wants_input, deadline)) = line.look(look) else {
                break;
            };
            let deadline = deadline.map(|deadline| line.instant(deadline));
            tokio::select! {
                gate = closed(&mut gate, opened), if self.leaves.is_none() => self.close(gate),
                request = requests.next(), if wants_input => receive(&line, request),
                heads = &mut self.heads, if !self.heads.is_terminated() => match heads {
                    Ok(heads) => line.with(|session, now| session.heads_read(now, heads)),
                    Err(status) => line.with(|session, _| session.fail(status)),
                },
                turn = &mut self.turn, if !self.turn.is_terminated() => match turn {
                    Ok((turn, _room)) => line.with(|session, now| session.fetched(now, turn)),
                    Err(status) => line.with(|session, _| session.fail(status)),
                },
                () = mailbox.filled() => deliver(&line, &mailbox),
                () = line.taken.notified() => {}
                () = line.account.called_in() => line.with(|session, _| session.give_up_queue()),
                () = at(deadline) => tick(&line, &mut requests),
                () = at(self.leaves) => {
                    line.with(|session, _| session.fail(unavailable()));
                }
            }
        }
        // Nothing is told any more; what is queued before a refusal may still be read, for as long
        // as the queue may stand still.
        drop(self);
        linger(&line).await;
    }

    /// Ends the stream now if its tail is lost, or soon if the server shuts down.
    fn close(&mut self, gate: Gate) {
        if gate == Gate::ShutDown {
            let place = self.shared.ending.place(self.shared.settings.drain);
            self.leaves = Some(Instant::now() + place);
        } else {
            self.line.with(|session, _| session.fail(gate.status()));
        }
    }

    /// Does what the session asks for.
    fn perform(&mut self) {
        while let Some(effect) = self.line.look(|session, _| session.next_effect()) {
            let (shared, registry) = (self.shared.clone(), &self.shared.registry);
            match effect {
                Effect::Register(topics) => {
                    metrics::topics_registered(topics.len() as f64);
                    let topics = topics.into_iter();
                    topics.for_each(|topic| registry.register(topic, &self.mailbox));
                }
                Effect::Deregister(topics) => {
                    let topics = topics.into_iter();
                    let told = topics.filter(|topic| registry.deregister(*topic, &self.mailbox));
                    metrics::topics_registered(-(told.count() as f64));
                }
                Effect::ReadHeads(topics) => {
                    let read = step!("stream.update", read_heads(shared, topics));
                    self.heads = read.boxed().fuse();
                }
                Effect::Fetch(wants) => {
                    let fetch = step!("stream.fetch", fetch(shared, wants));
                    self.turn = fetch.boxed().fuse();
                }
            }
        }
    }
}

/// Waits until a moment; for ever without one.
async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Waits until streams may not go on as they were opened, and says why.
async fn closed(gate: &mut watch::Receiver<Gate>, opened: Gate) -> Gate {
    let closed = gate.wait_for(|gate| *gate != opened).await;
    closed.map_or(Gate::ShutDown, |gate| *gate)
}

/// Waits until the last frames of a refused stream are read or the queue is given up.
async fn linger(line: &Line) {
    while !line.is_dropped() {
        let Some(deadline) = line.look(|session, _| session.deadline()) else {
            return;
        };
        tokio::select! {
            () = line.taken.notified() => {}
            () = line.account.called_in() => line.with(|session, _| session.give_up_queue()),
            () = sleep_until(line.instant(deadline)) => {
                let _ = line.with(|session, now| session.tick(now));
            }
        }
    }
}

fn receive(line: &Line, request: Option<Result<SubscribeRequest, Status>>) {
    if let Some(Ok(request)) = &request {
        metrics::frame_received(match request.request {
            Some(Request::Update(_)) => "update",
            Some(Request::Ping(_)) => "ping",
            Some(Request::Pong(_)) => "pong",
            None => "unset",
        });
    }
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
    while line.look(|session, _| session.end().is_none()) {
        match requests.next().now_or_never() {
            Some(request) => receive(line, request),
            None => break,
        }
    }
    line.with(|session, now| session.expire_pong(now));
}

/// Reads heads in parts, each when its topics are let in; the stream goes on meanwhile.
async fn read_heads(shared: Arc<Shared>, topics: Vec<Topic>) -> Result<Vec<SequenceId>, Status> {
    reach(&shared, Point::Registered).await?;
    let mut heads = Vec::with_capacity(topics.len());
    for part in topics.chunks(HEAD_TOPICS) {
        let now = shared.now();
        let due = shared.admission.due(now, part.len());
        if due > now {
            sleep_until(shared.instant(due)).await;
        }
        let permit = shared.reads.acquire().await;
        let _permit = permit.map_err(|_| unavailable())?;
        let read = shared.store.heads(part.to_vec());
        heads.extend(read.await.map_err(failed_read)?);
    }
    reach(&shared, Point::HeadsRead).await?;
    Ok(heads)
}

/// Reads a turn, once there is room for its rows, and encodes them.
async fn fetch(shared: Arc<Shared>, wants: Vec<Want>) -> Result<Turned, Status> {
    let asked = Instant::now();
    let room = shared.fetched.clone().acquire_many_owned(TURN_BYTES as u32);
    let room = room.await.map_err(|_| unavailable())?;
    let turn = {
        let permit = shared.reads.acquire().await;
        let _permit = permit.map_err(|_| unavailable())?;
        metrics::fetch_waited(asked.elapsed());
        let turn = shared.store.fetch_turn(wants, shared.settings.turn);
        turn.await.map_err(failed_read)?
    };
    reach(&shared, Point::Fetched).await?;
    let batches = turn.served.into_iter().map(encoded).collect();
    Ok((Fetched { batches }, room))
}

fn encoded(served: Served) -> Batch {
    let rows = served.rows.iter().map(|row| Row::encode(row, Held::Alone));
    Batch {
        rows: rows.collect(),
        complete: served.complete,
    }
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
