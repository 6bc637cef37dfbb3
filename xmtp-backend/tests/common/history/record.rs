//! Writes down what clients do and see.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tonic::{Code, Status};
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::message_hash::Hash;
use xmtp_proto::backend::v1::query_newest_response as newest;
use xmtp_proto::backend::v1::subscribe_request::Update;
use xmtp_proto::backend::v1::subscribe_response::Response;
use xmtp_proto::backend::v1::{
    ClientEnvelope, EnvelopeMeta, PublishResponse, QueryNewestResponse, QueryRequest,
    QueryResponse, ServerEnvelope, Topic, TopicQuery,
};
use xmtp_proto::envelope::{canonical_bytes, message_hash};

use super::{
    Event, History, Id, Logged, Moment, Newest, Outcome, Page, Print, Publish, Seen, TopicNumber,
};

/// Records a history; clients in many tasks share it.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    moments: AtomicU64,
    attempts: AtomicU64,
    /// The greatest id that any client has seen.
    known: AtomicU64,
    topics: Mutex<HashMap<Vec<u8>, TopicNumber>>,
    publishes: Mutex<Vec<Publish>>,
    streams: Mutex<Vec<Vec<Event>>>,
    pages: Mutex<Vec<Page>>,
    newest: Mutex<Vec<Newest>>,
}

/// One envelope that a client sends, and the topic that it belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) topic: TopicNumber,
    pub(crate) hash: [u8; 32],
}

/// An attempt that has begun.
#[derive(Debug)]
pub(crate) struct Attempt {
    began: Moment,
    known: Id,
}

impl Recorder {
    fn now(&self) -> Moment {
        self.moments.fetch_add(1, Ordering::SeqCst)
    }

    /// Answers the number of a topic.
    pub(crate) fn topic(&self, topic: &Topic) -> TopicNumber {
        let mut topics = self.topics.lock();
        let next = TopicNumber::try_from(topics.len()).expect("fewer topics");
        *topics.entry(topic.topic.to_vec()).or_insert(next)
    }

    /// Answers what is recorded of an envelope before it is sent.
    pub(crate) fn sent(&self, topic: &Topic, envelope: &ClientEnvelope) -> Sent {
        Sent {
            topic: self.topic(topic),
            hash: message_hash(&canonical_bytes(envelope)),
        }
    }

    /// Begins an attempt to publish.
    pub(crate) fn begin(&self) -> Attempt {
        let known = self.known.load(Ordering::SeqCst);
        let began = self.now();
        Attempt { began, known }
    }

    /// Ends it.
    pub(crate) fn end(
        &self,
        attempt: &Attempt,
        sent: &[Sent],
        result: &Result<PublishResponse, Status>,
    ) {
        let ended = self.now();
        let number = self.attempts.fetch_add(1, Ordering::Relaxed);
        let outcome = |place: usize| match result {
            Ok(response) => self.stored(&sent[place], &response.envelope_metas[place]),
            Err(status) => match status.code() {
                Code::InvalidArgument | Code::Aborted => Outcome::Refused,
                _ => Outcome::Unknown,
            },
        };
        let records = sent.iter().enumerate().map(|(place, sent)| Publish {
            attempt: number,
            topic: sent.topic,
            hash: sent.hash,
            began: attempt.began,
            ended,
            known: attempt.known,
            outcome: outcome(place),
        });
        let records: Vec<Publish> = records.collect();
        self.publishes.lock().extend(records);
    }

    fn stored(&self, sent: &Sent, meta: &EnvelopeMeta) -> Outcome {
        let topic = meta.topic.as_ref().expect("a record has a topic");
        assert_eq!(self.topic(topic), sent.topic, "the topic of a record");
        assert_eq!(hash(meta), sent.hash, "the hash of a record");
        self.know(id(meta));
        Outcome::Stored {
            id: id(meta),
            server_ns: meta.server_ns,
        }
    }

    fn know(&self, id: Id) {
        self.known.fetch_max(id, Ordering::SeqCst);
    }

    /// Answers the moment in which a query is sent.
    pub(crate) fn query(&self) -> Moment {
        self.now()
    }

    /// Records the page that a query brought.
    pub(crate) fn page(&self, sent: Moment, request: &QueryRequest, response: &QueryResponse) {
        let rows = response.envelopes.iter().map(|row| self.see(row)).collect();
        let page = Page {
            sent,
            topics: self.numbered(&request.queries),
            limit: request.limit as usize,
            rows,
            has_more: response.continuation.is_some_and(|more| more.has_more),
        };
        self.pages.lock().push(page);
    }

    /// Records the newest envelopes that were read with all that they hold.
    pub(crate) fn newest(&self, sent: Moment, topics: &[Topic], response: &QueryNewestResponse) {
        let row = |result: &newest::Result| {
            self.see(&ServerEnvelope {
                meta: result.meta.clone(),
                envelope: result.envelope.clone(),
            })
        };
        let newest = Newest {
            sent,
            topics: topics.iter().map(|topic| self.topic(topic)).collect(),
            rows: response.results.iter().map(row).collect(),
        };
        self.newest.lock().push(newest);
    }

    fn numbered(&self, queries: &[TopicQuery]) -> Vec<(TopicNumber, Id)> {
        let numbered = |query: &TopicQuery| {
            let topic = query.topic.as_ref().expect("a topic");
            let cursor = query.cursor.map_or(0, |cursor| cursor.sequence_id);
            (self.topic(topic), cursor)
        };
        queries.iter().map(numbered).collect()
    }

    fn see(&self, row: &ServerEnvelope) -> Seen {
        let meta = row.meta.as_ref().expect("a record");
        let topic = self.topic(meta.topic.as_ref().expect("a topic"));
        self.know(id(meta));
        Seen {
            topic,
            print: print(row),
            id: id(meta),
        }
    }

    /// Ends the recording with the whole log, each topic in the order in which it was read.
    pub(crate) fn finish(&self, log: &[ServerEnvelope]) -> History {
        let logged = |row: &ServerEnvelope| {
            let seen = self.see(row);
            let meta = row.meta.as_ref().expect("a record");
            let update = match row.envelope.as_ref().and_then(|one| one.payload.as_ref()) {
                Some(Payload::IdentityUpdate(update)) => Some(update.clone()),
                _ => None,
            };
            Logged {
                topic: seen.topic,
                id: seen.id,
                hash: hash(meta),
                hash_of_bytes: hash_of_bytes(row),
                print: seen.print,
                update,
                pruned: false,
            }
        };
        History {
            log: log.iter().map(logged).collect(),
            publishes: std::mem::take(&mut self.publishes.lock()),
            streams: std::mem::take(&mut self.streams.lock()),
            pages: std::mem::take(&mut self.pages.lock()),
            newest: std::mem::take(&mut self.newest.lock()),
            streams_lag: false,
        }
    }
}

/// Records one stream; what it has seen joins the history when it is dropped.
#[derive(Debug)]
pub(crate) struct StreamRecorder {
    recorder: Arc<Recorder>,
    events: Vec<Event>,
    ended: bool,
}

impl StreamRecorder {
    pub(crate) fn new(recorder: Arc<Recorder>) -> Self {
        Self {
            recorder,
            events: Vec::new(),
            ended: false,
        }
    }

    /// Records an update, before it is sent.
    pub(crate) fn update(&mut self, update: &Update) {
        let removes = update.removes.iter();
        let event = Event::Update {
            id: update.id,
            adds: self.recorder.numbered(&update.adds),
            removes: removes.map(|topic| self.recorder.topic(topic)).collect(),
            at: self.recorder.now(),
        };
        self.events.push(event);
    }

    /// Records a frame.
    pub(crate) fn frame(&mut self, frame: &Response) {
        match frame {
            Response::Applied(applied) => {
                let target = |target: &xmtp_proto::backend::v1::CatchupTarget| {
                    let topic = target.topic.as_ref().expect("a topic");
                    (self.recorder.topic(topic), target.through_sequence_id)
                };
                let event = Event::Applied {
                    id: applied.id,
                    targets: applied.added_targets.iter().map(target).collect(),
                    at: self.recorder.now(),
                };
                self.events.push(event);
            }
            Response::Messages(messages) => {
                let rows = messages.envelopes.iter();
                self.events
                    .extend(rows.map(|row| Event::Message(self.recorder.see(row))));
            }
            Response::Started(_) | Response::Ping(_) | Response::Pong(_) => {}
        }
    }

    /// Records how the server ended the stream; a lost connection is none of its words.
    pub(crate) fn ended(&mut self, end: Result<(), &Status>) {
        self.ended = true;
        self.events.push(match end {
            Ok(()) => Event::Ended(Code::Ok),
            Err(status) if std::error::Error::source(status).is_some() => Event::Lost,
            Err(status) => Event::Ended(status.code()),
        });
    }

    /// Records that the client has everything and that nobody publishes any more.
    pub(crate) fn settled(&mut self) {
        self.events.push(Event::Settled);
    }
}

impl Drop for StreamRecorder {
    fn drop(&mut self) {
        if !self.ended {
            self.events.push(Event::Lost);
        }
        let events = std::mem::take(&mut self.events);
        self.recorder.streams.lock().push(events);
    }
}

fn id(meta: &EnvelopeMeta) -> Id {
    meta.cursor.as_ref().expect("a position").sequence_id
}

fn hash(meta: &EnvelopeMeta) -> [u8; 32] {
    let hash = meta
        .message_hash
        .as_ref()
        .and_then(|hash| hash.hash.as_ref());
    let Some(Hash::Sha256(hash)) = hash else {
        panic!("a record without a hash")
    };
    hash.as_ref().try_into().expect("32 bytes")
}

fn hash_of_bytes(row: &ServerEnvelope) -> [u8; 32] {
    let envelope = row.envelope.as_ref().expect("an envelope");
    message_hash(&canonical_bytes(envelope))
}

fn print(row: &ServerEnvelope) -> Print {
    let meta = row.meta.as_ref().expect("a record");
    let numbers = [
        id(meta),
        meta.server_ns,
        meta.expiry_ns,
        u64::from(meta.is_commit_or_proposal),
    ];
    let mut bytes = [hash(meta), hash_of_bytes(row)].concat();
    bytes.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
    let all = message_hash(&bytes);
    Print::from_be_bytes([all[0], all[1], all[2], all[3]])
}
