//! Streams of a server without a socket.

use futures_util::stream::{self, StreamExt};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::{Code, Status};
use xmtp_proto::backend::v1::{PublishRequest, SubscribeRequest};

use xmtp_proto::id::{SequenceId, Topic};

use super::*;
use crate::hooks::{NoHooks, Point, SystemClock, Verdict};
use crate::limits::{STREAM_READS, WAITING_TOPICS};
use crate::services::Services;
use crate::session::Frame;
use crate::session::fixture::{group, ping, pong, update, zeros};
use crate::store::{EnvelopeKey, Hash, MemoryStore, PreparedEnvelope};
use crate::{Backend, Config};

pub(super) const PATIENCE: Tick = Tick::from_secs(20);

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

/// Holds streams at one point until the test lets them go.
#[derive(Debug)]
pub(super) struct HoldAt {
    point: Point,
    reached: mpsc::UnboundedSender<()>,
    pub(super) go: Semaphore,
}

impl HoldAt {
    pub(super) fn new(point: Point) -> (Arc<Self>, mpsc::UnboundedReceiver<()>) {
        let (reached, arrivals) = mpsc::unbounded_channel();
        let go = Semaphore::new(0);
        (Arc::new(Self { point, reached, go }), arrivals)
    }
}

#[tonic::async_trait]
impl Hooks for HoldAt {
    async fn reach(&self, point: Point) -> Verdict {
        if point == self.point {
            let _ = self.reached.send(());
            self.go.acquire().await.expect("it stays open").forget();
        }
        Verdict::Go
    }
}

/// An engine over a store.
pub(super) struct Rig {
    pub(super) store: Arc<dyn Store>,
    pub(super) engine: Engine,
    stored: u64,
}

/// The client's end of a stream, as the transport sees it.
pub(super) struct Peer {
    send: mpsc::UnboundedSender<Result<SubscribeRequest, Status>>,
    frames: RawFrames,
}

impl Rig {
    async fn new(hooks: Arc<dyn Hooks>, change: impl FnOnce(&mut StreamSettings)) -> Self {
        let store = Arc::new(MemoryStore::new(Arc::new(SystemClock)));
        Self::over(store, hooks, change).await
    }

    pub(super) async fn over(
        store: Arc<dyn Store>,
        hooks: Arc<dyn Hooks>,
        change: impl FnOnce(&mut StreamSettings),
    ) -> Self {
        let mut config = Config::ephemeral("org.example.test");
        config.limits.max_update_burst = 1_000;
        let mut settings = StreamSettings::new(&config);
        change(&mut settings);
        let engine = Engine::start(store.clone(), settings, hooks).await;
        Self {
            engine: engine.expect("it starts"),
            store,
            stored: 0,
        }
    }

    async fn plain(change: impl FnOnce(&mut StreamSettings)) -> Self {
        Self::new(Arc::new(NoHooks), change).await
    }

    /// Stores an envelope of so many bytes, which expires at once; returns its id.
    pub(super) async fn publish(&mut self, topic: Topic, bytes: usize) -> SequenceId {
        self.stored += 1;
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&self.stored.to_be_bytes());
        let envelope = PreparedEnvelope {
            key: EnvelopeKey {
                topic,
                hash: Hash(hash),
            },
            payload: zeros(bytes),
            is_commit_or_proposal: false,
            retention_ns: Some(1),
            identity: None,
            refused: None,
        };
        let stored = self.store.publish(vec![envelope]).await;
        stored.expect("it is stored")[0].sequence_id
    }

    pub(super) async fn open(&self) -> Peer {
        let (send, mut receive) = mpsc::unbounded_channel();
        let requests = stream::poll_fn(move |cx| receive.poll_recv(cx));
        let frames = self.engine.subscribe(requests).expect("it opens");
        let mut peer = Peer { send, frames };
        assert!(matches!(peer.frame().await, Frame::Started { .. }));
        peer
    }
}

impl Peer {
    pub(super) fn send(&self, request: SubscribeRequest) {
        self.send.send(Ok(request)).expect("it is read");
    }

    async fn next(&mut self) -> Result<Frame, Status> {
        let next = timeout(PATIENCE, self.frames.next()).await;
        next.expect("a frame in time").expect("no clean end")
    }

    pub(super) async fn frame(&mut self) -> Frame {
        self.next().await.expect("no failure")
    }

    pub(super) async fn applied(&mut self) {
        let frame = self.frame().await;
        assert!(matches!(frame, Frame::Applied { .. }), "{frame:?}");
    }

    /// Reads on until the stream fails.
    async fn failure(&mut self) -> Code {
        loop {
            if let Err(status) = self.next().await {
                return status.code();
            }
        }
    }
}

/// covers: STR-035
#[tokio::test]
async fn a_tail_lost_during_catch_up_ends_the_stream_and_its_fetch() {
    let (hooks, mut arrivals) = HoldAt::new(Point::Fetched);
    let mut rig = Rig::new(hooks.clone(), |_| {}).await;
    rig.publish(group(1), 9).await;
    let mut peer = rig.open().await;
    peer.send(update(1, &[(group(1), 0)], &[]));
    peer.applied().await;
    arrivals.recv().await.expect("it is fetched");
    rig.store.close().await;
    assert_eq!(peer.failure().await, Code::Unavailable);
    hooks.go.add_permits(1);
    timeout(PATIENCE, rig.engine.failed())
        .await
        .expect("it is known");
}

/// covers: STR-035
#[tokio::test]
async fn a_shutdown_during_an_update_ends_the_stream() {
    let (hooks, mut arrivals) = HoldAt::new(Point::Registered);
    let rig = Rig::new(hooks, |_| {}).await;
    let mut peer = rig.open().await;
    peer.send(update(1, &[(group(1), 0)], &[]));
    arrivals.recv().await.expect("it is registered");
    assert_eq!(rig.engine.registrations(), 1);
    rig.engine.shut_down();
    assert_eq!(peer.failure().await, Code::Unavailable);
    until(|| rig.engine.registrations() == 0).await;
}

/// Makes an update that adds as many topics as wait at most.
fn large_update(id: u64) -> SubscribeRequest {
    let topic = |number: u64| {
        let mut destination = [id as u8; 32];
        destination[..8].copy_from_slice(&number.to_be_bytes());
        (Topic::welcome_destination(destination), 0)
    };
    let adds: Vec<_> = (0..WAITING_TOPICS as u64).map(topic).collect();
    update(id, &adds, &[])
}

/// covers: STR-034
#[tokio::test]
async fn an_answer_behind_updates_is_read_before_the_end() {
    let (hooks, mut arrivals) = HoldAt::new(Point::Registered);
    let rig = Rig::new(hooks, |settings| {
        settings.session.keepalive_interval = Tick::from_millis(20);
        settings.session.max_pong_wait = Tick::from_millis(1500);
    })
    .await;
    let mut peer = rig.open().await;
    // The first is being applied, the second waits, and nothing after it is read.
    peer.send(large_update(1));
    peer.send(large_update(2));
    arrivals.recv().await.expect("it is registered");
    let Frame::Ping { nonce } = peer.frame().await else {
        panic!("not a ping");
    };
    peer.send(pong(nonce));
    let Frame::Ping { nonce: next } = peer.frame().await else {
        panic!("not a ping");
    };
    assert_ne!(next, nonce, "the first was answered");
}

/// Waits until something holds; it can only fail the test.
async fn until(holds: impl Fn() -> bool) {
    let held = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, held).await.expect("it comes to hold");
}

/// covers: STR-030
#[tokio::test]
async fn the_stream_that_holds_too_much_of_what_all_may_hold_ends() {
    let mut rig = Rig::plain(|settings| settings.all.unshared_bytes = 5_000_000).await;
    for (topic, count) in [(group(1), 4), (group(2), 2)] {
        for _ in 0..count {
            rig.publish(topic, 1_000_000).await;
        }
    }
    let held = |rig: &Rig| rig.engine.shared.ledger.held();
    let mut large = rig.open().await;
    large.send(update(1, &[(group(1), 0)], &[]));
    until(|| held(&rig) > 4_000_000).await;
    let mut small = rig.open().await;
    small.send(update(1, &[(group(2), 0)], &[]));
    until(|| held(&rig) < 3_000_000).await;
    assert_eq!(
        large.next().await.map_err(|status| status.code()),
        Err(Code::ResourceExhausted)
    );
    until(|| (2_000_000..3_000_000).contains(&held(&rig))).await;
    small.applied().await;
    assert!(
        matches!(small.frame().await, Frame::Messages(_)),
        "the other goes on"
    );
    drop(small);
    until(|| held(&rig) == 0).await;
}

/// covers: STR-030
#[tokio::test]
async fn what_is_told_to_many_streams_counts_for_none() {
    let mut rig = Rig::plain(|settings| settings.all.unshared_bytes = 1_000).await;
    let mut peers = [rig.open().await, rig.open().await];
    for peer in &mut peers {
        peer.send(update(1, &[(group(1), 0)], &[]));
        peer.applied().await;
    }
    for _ in 0..3 {
        rig.publish(group(1), 100_000).await;
    }
    for peer in &mut peers {
        let mut rows = 0;
        while rows < 3 {
            match peer.frame().await {
                Frame::Messages(more) => rows += more.len(),
                other => panic!("not messages: {other:?}"),
            }
        }
    }
}

/// covers: STR-030
#[tokio::test]
async fn a_turn_waits_until_the_turns_of_others_are_queued() {
    let (hooks, mut arrivals) = HoldAt::new(Point::Fetched);
    let mut rig = Rig::new(hooks.clone(), |settings| {
        settings.all.fetched_bytes = TURN_BYTES
    })
    .await;
    rig.publish(group(1), 9).await;
    let mut peers = [rig.open().await, rig.open().await];
    for peer in &mut peers {
        peer.send(update(1, &[(group(1), 0)], &[]));
        peer.applied().await;
    }
    arrivals.recv().await.expect("one fetches");
    for peer in &mut peers {
        peer.send(ping(1));
        assert_eq!(peer.frame().await, Frame::Pong { nonce: 1 });
    }
    assert!(
        arrivals.try_recv().is_err(),
        "the other waits, and answers meanwhile"
    );
    hooks.go.add_permits(2);
    for peer in &mut peers {
        assert!(matches!(peer.frame().await, Frame::Messages(_)));
    }
}

/// covers: STR-030, STR-033
#[tokio::test]
async fn registrations_beyond_the_rate_wait_while_the_stream_goes_on() {
    let mut rig = Rig::plain(|settings| {
        (
            settings.all.admitted_per_second,
            settings.all.admitted_burst,
        ) = (1, 2);
        settings.session.keepalive_interval = Tick::from_secs(3600);
        settings.session.max_pong_wait = Tick::from_secs(7200);
    })
    .await;
    let mut peer = rig.open().await;
    peer.send(update(1, &[(group(1), 0), (group(2), 0)], &[]));
    peer.applied().await;
    let other = rig.open().await;
    let topics: Vec<_> = (10..100).map(|number| (group(number), 0)).collect();
    other.send(update(1, &topics, &[]));
    let mut other = other;
    for nonce in 1..50 {
        other.send(ping(nonce));
        assert_eq!(
            other.frame().await,
            Frame::Pong { nonce },
            "it is not let in yet"
        );
        rig.publish(group(1), 9).await;
        assert!(matches!(peer.frame().await, Frame::Messages(_)));
    }
}

/// A storm of reads of heads waits here and not in the store, where a wait has a limit and ends the
/// stream, and that of whoever is catching up.
///
/// covers: STR-030
#[tokio::test]
async fn reads_of_heads_wait_for_their_turn_like_fetches() {
    let mut rig = Rig::plain(|settings| {
        settings.session.keepalive_interval = Tick::from_secs(3600);
        settings.session.max_pong_wait = Tick::from_secs(7200);
    })
    .await;
    rig.publish(group(1), 9).await;
    let all = rig.engine.shared.reads.acquire_many(STREAM_READS as u32);
    let all = all.await.expect("it stays open");
    let mut peer = rig.open().await;
    peer.send(update(1, &[(group(1), 0)], &[]));
    for nonce in 1..50 {
        peer.send(ping(nonce));
        let next = peer.frame().await;
        assert_eq!(next, Frame::Pong { nonce }, "no head is read yet");
    }
    drop(all);
    peer.applied().await;
    assert!(matches!(peer.frame().await, Frame::Messages(_)));
}

/// covers: STR-051, STR-052
#[tokio::test]
async fn a_fixed_stream_is_heard_like_any_other_and_lets_go_of_its_topics() {
    let mut rig = Rig::plain(|_| {}).await;
    rig.publish(group(1), 9).await;
    let topics = vec![(group(2), 0.into()), (group(1), 0.into())];
    let mut frames = rig.engine.subscribe_fixed(topics).expect("it opens");
    let next = frames.next().await.expect("no end").expect("no failure");
    let Frame::Started { targets, .. } = next else {
        panic!("not the start");
    };
    assert_eq!(targets, [(group(2), 0.into()), (group(1), 1.into())]);
    let next = frames.next().await.expect("no end").expect("no failure");
    assert!(matches!(next, Frame::Messages(rows) if rows.len() == 1));
    assert_eq!(rig.engine.registrations(), 2);
    drop(frames);
    until(|| rig.engine.registrations() == 0).await;
}
