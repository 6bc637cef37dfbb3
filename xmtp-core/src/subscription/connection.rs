//! One stream from open to end: a thin loop around the session.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt};
use xmtp_proto::Topic;
use xmtp_proto::backend::v1;

use super::controller::Subscriptions;
use super::pause::{self, Paused};
use super::reconnect::Backoff;
use super::session::{Event, Session, SessionLimits};
use super::unproven::Unproven;
use crate::engine::context::Context;
use crate::engine::fetch::{FetchError, fetch_page};
use crate::engine::receive::{receive, received};
use crate::error::Coded;
use crate::limits::{ACTIVE_DATABASE_POLL_INTERVAL, STANDARD_REQUEST_TIMEOUT};
use crate::receipt::{AdmissionError, Batch, Capacity, CapacityScope};
use crate::runtime::RuntimeExt;
use crate::storage::StorageError;
use crate::transport::{SubscriptionRequests, TransportError};

/// Why a stream is over.
#[derive(Debug)]
pub(super) enum Ended {
    /// The backend ended it without an error.
    Clean,
    /// The wire failed, or broke its contract.
    Transport(TransportError),
    /// The database failed; F is as it was.
    Storage(StorageError),
}

impl From<TransportError> for Ended {
    fn from(error: TransportError) -> Self {
        Self::Transport(error)
    }
}

impl From<StorageError> for Ended {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

type Frame = Result<v1::SubscribeResponse, TransportError>;
type Sending = BoxFuture<'static, (Box<dyn SubscriptionRequests>, Result<(), TransportError>)>;

/// Opens a stream and serves it until it ends.
pub(super) async fn serve(
    context: &Context,
    subscriptions: &Subscriptions,
    backoff: &mut Backoff,
) -> Ended {
    let opened = tokio::select! {
        biased;
        opened = context.transport.subscribe() => opened,
        () = context.runtime.sleep(STANDARD_REQUEST_TIMEOUT) => {
            Err(TransportError::DeadlineExceeded)
        }
    };
    let opened = match opened {
        Ok(opened) => opened,
        Err(error) => return error.into(),
    };
    let now = context.runtime.monotonic();
    let connection = Connection {
        context,
        subscriptions,
        backoff,
        session: Session::new(SessionLimits::default(), now),
        outbox: Outbox::new(opened.requests),
        paused: Paused::new(),
        unproven: Unproven::default(),
        gone_back: BTreeSet::new(),
        is_stale: true,
        looked: now,
    };
    match connection.run(opened.frames).await {
        Err(ended) => ended,
        Ok(never) => match never {},
    }
}

/// Requests on their way, one at a time, so that reading never waits for writing.
struct Outbox {
    idle: Option<Box<dyn SubscriptionRequests>>,
    sending: Option<Sending>,
    queue: VecDeque<v1::SubscribeRequest>,
}

impl Outbox {
    fn new(requests: Box<dyn SubscriptionRequests>) -> Self {
        Self {
            idle: Some(requests),
            sending: None,
            queue: VecDeque::new(),
        }
    }

    fn push(&mut self, request: v1::SubscribeRequest) {
        self.queue.push_back(request);
        self.start();
    }

    fn start(&mut self) {
        if self.sending.is_some() || self.queue.is_empty() {
            return;
        }
        let request = self.queue.pop_front();
        if let (Some(mut requests), Some(request)) = (self.idle.take(), request) {
            self.sending = Some(Box::pin(async move {
                let sent = requests.send(request).await;
                (requests, sent)
            }));
        }
    }

    /// Completes when the request under way is handed over; never while none is.
    async fn sent(&mut self) -> Result<(), TransportError> {
        let Some(sending) = &mut self.sending else {
            return std::future::pending().await;
        };
        let (requests, sent) = sending.await;
        self.sending = None;
        self.idle = Some(requests);
        self.start();
        sent
    }
}

struct Connection<'a> {
    context: &'a Context,
    subscriptions: &'a Subscriptions,
    backoff: &'a mut Backoff,
    session: Session,
    outbox: Outbox,
    paused: Paused,
    /// Topics that are not registered until the primary may be asked for a proof again.
    unproven: Unproven,
    /// Topics whose order went back; not registered again while this stream lives.
    gone_back: BTreeSet<Topic>,
    /// Whether registrations may differ from what is wanted.
    is_stale: bool,
    /// When the database was last asked for room.
    looked: Duration,
}

enum Step {
    Frame(Option<Frame>),
    Sent(Result<(), TransportError>),
    Wanted,
    Timer,
    Closed,
}

impl Connection<'_> {
    async fn run(
        mut self,
        mut frames: BoxStream<'static, Frame>,
    ) -> Result<std::convert::Infallible, Ended> {
        let mut interests = self.context.interests.watch();
        let mut changes = self.context.database.changes();
        loop {
            self.look_for_room().await?;
            self.update_registrations().await?;
            let timer = self.context.runtime.sleep_until(self.next_timer());
            let step = tokio::select! {
                biased;
                sent = self.outbox.sent() => Step::Sent(sent),
                _ = interests.changed() => Step::Wanted,
                frame = frames.next() => Step::Frame(frame),
                // No domain at all: this ends only when the database closes.
                _ = changes.changed(0) => Step::Closed,
                () = timer => Step::Timer,
            };
            match step {
                Step::Sent(sent) => sent?,
                Step::Wanted => self.is_stale = true,
                Step::Frame(None) => return Err(Ended::Clean),
                Step::Frame(Some(frame)) => self.frame(frame?).await?,
                Step::Closed => return Err(StorageError::Closed.into()),
                Step::Timer => self.check_silence()?,
            }
        }
    }

    fn next_timer(&self) -> Duration {
        let mut next = self.session.silent_at();
        if !self.paused.is_empty() {
            next = next.min(self.looked + ACTIVE_DATABASE_POLL_INTERVAL);
        }
        next = next.min(self.unproven.next().unwrap_or(next));
        let may_update = self.session.may_update_at();
        if self.is_stale && may_update > self.context.runtime.monotonic() {
            next = next.min(may_update);
        }
        next
    }

    fn check_silence(&self) -> Result<(), TransportError> {
        if self.context.runtime.monotonic() >= self.session.silent_at() {
            tracing::debug!("the stream is silent");
            return Err(TransportError::DeadlineExceeded);
        }
        Ok(())
    }

    async fn frame(&mut self, frame: v1::SubscribeResponse) -> Result<(), Ended> {
        let now = self.context.runtime.monotonic();
        match self.session.frame(frame, now)? {
            Event::Started => {
                self.backoff.connected(now);
                self.subscriptions.connected();
                self.is_stale = true;
            }
            Event::Applied { added, removed } => {
                self.subscriptions.activated(&added, &removed);
                self.is_stale = true;
            }
            Event::Messages(batches) => self.admit(batches).await?,
            Event::Reply(request) => self.outbox.push(request),
            Event::Alive => {}
        }
        self.session
            .resume_reading(self.context.runtime.monotonic());
        Ok(())
    }

    /// Hands a frame to the receive path.
    async fn admit(&mut self, batches: Vec<Batch>) -> Result<(), Ended> {
        let topics: Vec<Topic> = batches.iter().map(|batch| batch.topic).collect();
        let outcomes = receive(self.context, batches).await?;
        for (topic, outcome) in topics.into_iter().zip(outcomes) {
            match outcome {
                Ok(admitted) => {
                    if let Some(capacity) = admitted.left_out {
                        self.pause(topic, capacity).await?;
                    }
                }
                Err(AdmissionError::Capacity(capacity)) => self.pause(topic, capacity).await?,
                // What is missing comes with a new registration from F (STR-062).
                Err(AdmissionError::StartsBeyond { .. }) => self.withdraw(&topic),
                Err(AdmissionError::Unproven { .. }) => self.prove(topic).await?,
                Err(AdmissionError::WentBack { .. }) => self.give_up(topic),
                Err(AdmissionError::Shape { rule }) => {
                    return Err(TransportError::Protocol { rule }.into());
                }
                Err(AdmissionError::Storage(error)) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads a topic that goes on behind a fence from the primary, which shows whether its order
    /// holds what is received; it is registered again from F, if it does. While the primary does
    /// not answer, the topic alone has no registration.
    async fn prove(&mut self, topic: Topic) -> Result<(), Ended> {
        self.withdraw(&topic);
        if !self.unproven.may_ask(self.context.runtime.monotonic()) {
            self.unproven.hold(topic);
            return Ok(());
        }
        let fetched = fetch_page(self.context, &[topic]).await;
        let now = self.context.runtime.monotonic();
        let fetched = match fetched {
            Ok(fetched) => fetched,
            Err(
                FetchError::Storage(error) | FetchError::Admission(AdmissionError::Storage(error)),
            ) => {
                return Err(error.into());
            }
            Err(FetchError::Transport(error)) => {
                tracing::debug!(code = error.code(), "the primary proves nothing yet");
                self.unproven.failed(now, error.asked_pause());
                self.unproven.hold(topic);
                return Ok(());
            }
            Err(FetchError::Admission(error)) => {
                tracing::warn!(code = error.code(), "a page of the primary is refused");
                self.unproven.answered();
                self.unproven.refused(topic, now);
                return Ok(());
            }
        };
        self.unproven.answered();
        if fetched.gone_back.contains(&topic) {
            self.give_up(topic);
        }
        for (topic, capacity) in fetched.paused {
            self.pause(topic, capacity).await?;
        }
        Ok(())
    }

    /// Ends receipt of a topic whose order went back; the others go on.
    fn give_up(&mut self, topic: Topic) {
        self.withdraw(&topic);
        self.gone_back.insert(topic);
        self.subscriptions.went_back(topic);
    }

    fn withdraw(&mut self, topic: &Topic) {
        self.session.withdraw(topic);
        self.subscriptions.withdrawn(topic);
        self.is_stale = true;
    }

    /// Pauses a topic at its bound; at a kind's bound, those that hold the most as well.
    async fn pause(&mut self, topic: Topic, capacity: Capacity) -> Result<(), Ended> {
        tracing::debug!(topic = %topic.short(), %capacity, "receipt is paused");
        let mut pausing = vec![topic];
        if capacity.scope == CapacityScope::Kind {
            let kind = capacity.kind;
            let heaviest = self
                .context
                .database
                .read_queued(move |snapshot| pause::heaviest(snapshot, kind))
                .await?;
            let active = |topic: &Topic| self.session.target(topic).is_some();
            pausing.extend(heaviest.into_iter().filter(active));
        }
        for topic in pausing {
            self.withdraw(&topic);
            self.paused.insert(topic, capacity);
        }
        self.subscriptions.set_paused(&self.paused);
        Ok(())
    }

    /// Lets paused topics go on when processing made room.
    async fn look_for_room(&mut self) -> Result<(), Ended> {
        let now = self.context.runtime.monotonic();
        if self.paused.is_empty() || now < self.looked + ACTIVE_DATABASE_POLL_INTERVAL {
            return Ok(());
        }
        self.looked = now;
        let interests = &self.context.interests;
        self.paused.retain(|topic, _| interests.is_wanted(topic));
        let paused = self.paused.clone();
        let resumable = self
            .context
            .database
            .read_queued(move |snapshot| pause::resumable(snapshot, &paused))
            .await?;
        for topic in &resumable {
            self.paused.remove(topic);
        }
        self.is_stale |= !resumable.is_empty();
        self.subscriptions.set_paused(&self.paused);
        Ok(())
    }

    /// Sends the next update, if registrations differ from what is wanted and one may go out.
    async fn update_registrations(&mut self) -> Result<(), Ended> {
        let now = self.context.runtime.monotonic();
        let interests = &self.context.interests;
        self.is_stale |= self
            .unproven
            .let_go(now, |topic| interests.is_wanted(topic));
        if !self.is_stale || now < self.session.may_update_at() {
            return Ok(());
        }
        let mut wanted: BTreeSet<Topic> = self.context.interests.wanted();
        wanted.retain(|topic| {
            !self.paused.contains_key(topic)
                && !self.unproven.holds(topic)
                && !self.gone_back.contains(topic)
        });
        let Some(plan) = self.session.plan(&wanted) else {
            // Its Applied, or the next change, looks again.
            self.is_stale = false;
            return Ok(());
        };
        let floors = received(self.context, plan.adds.clone()).await?;
        for topic in &plan.removes {
            self.subscriptions.withdrawn(topic);
        }
        let request = self.session.update(plan, &floors, now);
        self.outbox.push(request);
        Ok(())
    }
}
