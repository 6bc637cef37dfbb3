//! The state of the scripted backend: topics, streams, and the script.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::task::Waker;
use std::time::Duration;

use xmtp_proto::backend::v1;
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::message_hash::Hash;
use xmtp_proto::backend::v1::subscribe_request::{Request, Update};
use xmtp_proto::backend::v1::subscribe_response::{Applied, Messages, Response, Started};
use xmtp_proto::backend::v1::welcome_message::Version;
use xmtp_proto::limits::{
    BACKEND_DEFAULT_MAX_NEWEST_METADATA_TOPICS, BACKEND_DEFAULT_MAX_QUERY_LIMIT,
    BACKEND_DEFAULT_MAX_QUERY_TOPICS,
};
use xmtp_proto::{GroupId, InboxId, InstallationId, Topic, envelope};

use super::faults::{Call, Fault, FrameFault};
use crate::transport::TransportError;

/// Envelopes of one frame.
const FRAME_ENVELOPES: usize = 8;

type Frame = Result<v1::SubscribeResponse, TransportError>;

#[derive(Default)]
pub(super) struct Server {
    last_sequence: u64,
    topics: BTreeMap<Topic, BTreeMap<u64, v1::ServerEnvelope>>,
    streams: BTreeMap<u64, Stream>,
    pub(super) faults: BTreeMap<Call, VecDeque<Fault>>,
    pub(super) frame_faults: VecDeque<Option<FrameFault>>,
    pub(super) skips_started: bool,
    pub(super) lag: Option<u64>,
    pub(super) keepalive_ms: u32,
    pub(super) calls: BTreeMap<Call, usize>,
    pub(super) queries: Vec<BTreeMap<Topic, u64>>,
    pub(super) requests: Vec<(u64, v1::SubscribeRequest)>,
    pub(super) opened: Vec<Duration>,
    pub(super) handed_out: usize,
    is_blackhole: bool,
}

/// One open stream.
#[derive(Default)]
struct Stream {
    frames: VecDeque<Frame>,
    registered: BTreeMap<Topic, u64>,
    last_update: u64,
    is_ended: bool,
    waker: Option<Waker>,
}

impl Stream {
    fn push(&mut self, response: Response) {
        self.frames.push_back(Ok(v1::SubscribeResponse {
            response: Some(response),
        }));
        self.wake();
    }

    fn end(&mut self, error: Option<TransportError>) {
        self.frames.extend(error.map(Err));
        self.is_ended = true;
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

fn refused(message: &str) -> TransportError {
    TransportError::InvalidArgument {
        index: None,
        reason: None,
        message: message.to_owned(),
    }
}

/// Derives the topic of an envelope, as the backend does.
fn topic_of(envelope: &v1::ClientEnvelope) -> Option<Topic> {
    match envelope.payload.as_ref()? {
        Payload::GroupMessage(message) => {
            let group = GroupId::try_from(message.data.get(..16)?).ok()?;
            Some(Topic::group(&group))
        }
        Payload::WelcomeMessage(welcome) => {
            let key = match welcome.version.as_ref()? {
                Version::V1(welcome) => &welcome.installation_key,
                Version::WelcomePointer(pointer) => &pointer.installation_key,
            };
            let installation = InstallationId::try_from(&key[..]).ok()?;
            Some(Topic::welcome(&installation))
        }
        Payload::IdentityUpdate(update) => {
            let inbox = InboxId::parse_hex(&update.inbox_id).ok()?;
            Some(Topic::identity(&inbox))
        }
        Payload::KeyPackage(_) | Payload::CommitLogEntry(_) => None,
    }
}

impl Server {
    pub(super) fn admit(&mut self, call: Call) -> Option<Fault> {
        *self.calls.entry(call).or_default() += 1;
        if self.is_blackhole {
            return Some(Fault::Hang);
        }
        self.faults.get_mut(&call)?.pop_front()
    }

    pub(super) fn publish(
        &mut self,
        request: v1::PublishRequest,
        server_ns: u64,
    ) -> Result<v1::PublishResponse, TransportError> {
        let topics: Option<Vec<Topic>> = request.envelopes.iter().map(topic_of).collect();
        let topics = topics.ok_or(refused("an envelope without a topic"))?;
        let mut metas = Vec::new();
        for (topic, envelope) in topics.into_iter().zip(request.envelopes) {
            // Ids rise over all topics, with gaps.
            self.last_sequence += 1 + self.last_sequence % 3;
            let hash = envelope::message_hash(&envelope::canonical_bytes(&envelope));
            let meta = v1::EnvelopeMeta {
                cursor: Some(v1::Cursor {
                    sequence_id: self.last_sequence,
                }),
                server_ns,
                message_hash: Some(v1::MessageHash {
                    hash: Some(Hash::Sha256(hash.to_vec().into())),
                }),
                topic: Some(topic.to_proto()),
                ..Default::default()
            };
            metas.push(meta.clone());
            let stored = v1::ServerEnvelope {
                meta: Some(meta),
                envelope: Some(envelope),
            };
            let rows = self.topics.entry(topic).or_default();
            rows.insert(self.last_sequence, stored);
        }
        let numbers: Vec<u64> = self.streams.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.deliver(number));
        Ok(v1::PublishResponse {
            envelope_metas: metas,
        })
    }

    pub(super) fn query(
        &mut self,
        request: v1::QueryRequest,
    ) -> Result<v1::QueryResponse, TransportError> {
        let asked = cursors(&request.queries)?;
        if asked.is_empty() || asked.len() > BACKEND_DEFAULT_MAX_QUERY_TOPICS as usize {
            return Err(refused("a query of no topics or too many"));
        }
        if !(1..=BACKEND_DEFAULT_MAX_QUERY_LIMIT).contains(&request.limit) {
            return Err(refused("a query without a limit in range"));
        }
        self.queries.push(asked.iter().copied().collect());
        let mut envelopes = Vec::new();
        // The worst legal order: each topic whole, in the order asked.
        for (topic, after) in &asked {
            envelopes.extend(self.above(topic, *after).cloned());
        }
        let has_more = envelopes.len() > request.limit as usize;
        envelopes.truncate(request.limit as usize);
        self.handed_out += envelopes.len();
        Ok(v1::QueryResponse {
            envelopes,
            continuation: Some(v1::Continuation { has_more }),
        })
    }

    pub(super) fn query_newest(
        &mut self,
        request: &v1::QueryNewestRequest,
    ) -> Result<v1::QueryNewestResponse, TransportError> {
        let topics: Result<BTreeSet<Topic>, _> = request.topics.iter().map(parse).collect();
        let topics = topics?;
        let most = BACKEND_DEFAULT_MAX_NEWEST_METADATA_TOPICS as usize;
        if topics.is_empty() || topics.len() != request.topics.len() || topics.len() > most {
            return Err(refused("newest of no topics, repeated ones, or too many"));
        }
        let results = topics.iter().filter_map(|topic| {
            let head = self.head(topic);
            let envelope = self.topics.get(topic)?.get(&head)?;
            Some(v1::query_newest_response::Result {
                topic: Some(topic.to_proto()),
                meta: envelope.meta.clone(),
                envelope: None,
            })
        });
        Ok(v1::QueryNewestResponse {
            results: results.collect(),
        })
    }

    /// Forgets what was stored above `through`, and gives out ids above `next` from now on.
    pub(super) fn put_back(&mut self, through: u64, next: u64) {
        for rows in self.topics.values_mut() {
            rows.retain(|sequence, _| *sequence <= through);
        }
        self.last_sequence = next;
    }

    fn above(&self, topic: &Topic, after: u64) -> impl Iterator<Item = &v1::ServerEnvelope> {
        let rows = self.topics.get(topic);
        rows.into_iter()
            .flat_map(move |rows| rows.range(after + 1..))
            .map(|(_, envelope)| envelope)
    }

    /// The head that the serving database shows.
    fn head(&self, topic: &Topic) -> u64 {
        let through = self.lag.unwrap_or(u64::MAX);
        let rows = self.topics.get(topic);
        let newest = rows.and_then(|rows| rows.range(..=through).next_back());
        newest.map_or(0, |(sequence, _)| *sequence)
    }

    pub(super) fn open(&mut self, now: Duration) -> u64 {
        self.opened.push(now);
        let number = self.opened.len() as u64;
        let mut stream = Stream::default();
        if self.skips_started {
            stream.push(Response::Messages(Messages::default()));
        } else {
            stream.push(Response::Started(Started {
                keepalive_interval_ms: self.keepalive_ms,
            }));
        }
        self.streams.insert(number, stream);
        number
    }

    pub(super) fn close(&mut self, number: u64) {
        self.streams.remove(&number);
    }

    pub(super) fn request(
        &mut self,
        number: u64,
        request: v1::SubscribeRequest,
    ) -> Result<(), TransportError> {
        if self.is_blackhole {
            return Ok(());
        }
        self.requests.push((number, request.clone()));
        let outcome = match request.request {
            Some(Request::Update(update)) => self.update(number, update),
            Some(Request::Ping(ping)) => {
                if let Some(stream) = self.streams.get_mut(&number) {
                    stream.push(Response::Pong(v1::Pong { nonce: ping.nonce }));
                }
                Ok(())
            }
            Some(Request::Pong(_)) => Ok(()),
            None => Err(refused("a request without content")),
        };
        if let (Err(error), Some(stream)) = (outcome, self.streams.get_mut(&number)) {
            stream.end(Some(error));
        }
        self.deliver(number);
        Ok(())
    }

    fn update(&mut self, number: u64, update: Update) -> Result<(), TransportError> {
        let adds = cursors(&update.adds)?;
        let removes: Vec<Topic> = update.removes.iter().map(parse).collect::<Result<_, _>>()?;
        let named = adds.iter().map(|(topic, _)| topic).chain(&removes);
        let named: BTreeSet<&Topic> = named.collect();
        if named.len() != adds.len() + removes.len() {
            return Err(refused("a topic twice in one update"));
        }
        let heads: Vec<u64> = adds.iter().map(|(topic, _)| self.head(topic)).collect();
        let Some(stream) = self.streams.get_mut(&number) else {
            return Ok(());
        };
        if update.id <= stream.last_update {
            return Err(refused("an update id that does not rise"));
        }
        stream.last_update = update.id;
        for topic in &removes {
            stream.registered.remove(topic);
        }
        let mut added_targets = Vec::new();
        for ((topic, cursor), head) in adds.into_iter().zip(heads) {
            if stream.registered.insert(topic, cursor).is_some() {
                return Err(refused(
                    "an active topic is added; a real backend ignores it",
                ));
            }
            added_targets.push(v1::CatchupTarget {
                topic: Some(topic.to_proto()),
                through_sequence_id: head,
            });
        }
        stream.push(Response::Applied(Applied {
            id: update.id,
            added_targets,
        }));
        Ok(())
    }

    /// Queues what a stream's registrations have not been sent yet.
    fn deliver(&mut self, number: u64) {
        let Some(stream) = self.streams.get(&number) else {
            return;
        };
        let mut envelopes = Vec::new();
        for (topic, after) in &stream.registered {
            envelopes.extend(self.above(topic, *after).cloned());
        }
        self.handed_out += envelopes.len();
        for chunk in envelopes.chunks(FRAME_ENVELOPES) {
            let fault = self.frame_faults.pop_front().flatten();
            let Some(stream) = self.streams.get_mut(&number) else {
                return;
            };
            for envelope in chunk {
                if let Some((topic, sequence)) = position(envelope) {
                    stream.registered.insert(topic, sequence);
                }
            }
            frames(chunk.to_vec(), fault)
                .into_iter()
                .for_each(|response| stream.push(response));
        }
    }

    pub(super) fn registered(&self) -> BTreeMap<Topic, u64> {
        let streams = self.streams.values().filter(|stream| !stream.is_ended);
        streams
            .flat_map(|stream| stream.registered.clone())
            .collect()
    }

    pub(super) fn cut(&mut self, error: Option<TransportError>) {
        for stream in self.streams.values_mut() {
            stream.end(error.clone());
        }
    }

    pub(super) fn ping(&mut self, nonce: u64) {
        for stream in self.streams.values_mut() {
            stream.push(Response::Ping(v1::Ping { nonce }));
        }
    }

    pub(super) fn set_blackhole(&mut self, swallows: bool) {
        self.is_blackhole = swallows;
        // What was swallowed is gone: a dead connection does not come back by itself.
        if swallows {
            for stream in self.streams.values_mut() {
                stream.frames.clear();
                stream.registered.clear();
            }
        }
    }

    /// Takes the next frame of a stream: `Some(None)` is its end, `None` means to wait.
    pub(super) fn next(&mut self, number: u64, waker: &Waker) -> Option<Option<Frame>> {
        let Some(stream) = self.streams.get_mut(&number) else {
            return Some(None);
        };
        if self.is_blackhole {
            stream.waker = Some(waker.clone());
            return None;
        }
        match stream.frames.pop_front() {
            Some(frame) => Some(Some(frame)),
            None if stream.is_ended => Some(None),
            None => {
                stream.waker = Some(waker.clone());
                None
            }
        }
    }

    pub(super) fn keepalive_interval(&self) -> Option<Duration> {
        let interval = Duration::from_millis(self.keepalive_ms.into());
        (!self.is_blackhole && !interval.is_zero()).then_some(interval)
    }
}

fn position(envelope: &v1::ServerEnvelope) -> Option<(Topic, u64)> {
    let meta = envelope.meta.as_ref()?;
    let topic = parse(meta.topic.as_ref()?).ok()?;
    Some((topic, meta.cursor?.sequence_id))
}

fn parse(topic: &v1::Topic) -> Result<Topic, TransportError> {
    Topic::parse(&topic.topic).map_err(|_| refused("a topic that is none"))
}

/// Reads topics with their cursors, refusing repeated ones.
fn cursors(queries: &[v1::TopicQuery]) -> Result<Vec<(Topic, u64)>, TransportError> {
    let mut seen = BTreeSet::new();
    let mut cursors = Vec::with_capacity(queries.len());
    for query in queries {
        let topic = query.topic.as_ref().ok_or(refused("a query of nothing"))?;
        let topic = parse(topic)?;
        if !seen.insert(topic) {
            return Err(refused("a topic twice in one request"));
        }
        let cursor = query.cursor.map_or(0, |cursor| cursor.sequence_id);
        cursors.push((topic, cursor));
    }
    Ok(cursors)
}

/// Makes the frames of one chunk, with its fault.
fn frames(mut envelopes: Vec<v1::ServerEnvelope>, fault: Option<FrameFault>) -> Vec<Response> {
    let messages = |envelopes| Response::Messages(Messages { envelopes });
    match fault {
        None => vec![messages(envelopes)],
        Some(FrameFault::Duplicate) => vec![messages(envelopes.clone()), messages(envelopes)],
        Some(FrameFault::Reverse) => {
            envelopes.reverse();
            vec![messages(envelopes)]
        }
        Some(FrameFault::Foreign) => {
            let foreign = Topic::group(&GroupId::from_bytes([0xff; 16])).to_proto();
            for envelope in &mut envelopes {
                if let Some(meta) = &mut envelope.meta {
                    meta.topic = Some(foreign.clone());
                }
            }
            vec![messages(envelopes)]
        }
        Some(FrameFault::StrayApplied) => {
            let stray = Response::Applied(Applied {
                id: u64::MAX,
                ..Default::default()
            });
            vec![stray, messages(envelopes)]
        }
    }
}
