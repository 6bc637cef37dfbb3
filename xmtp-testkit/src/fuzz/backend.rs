//! The backend: every request, the configuration file, credentials and the frames of a stream.

use std::cell::RefCell;
use std::future::Future;

use futures_util::{StreamExt, stream};
use prost::Message;
use tokio::runtime::Runtime;
use tonic::{Code, Status};
use xmtp_backend::{Backend, Config, Services, testing};
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::{
    ClientEnvelope, CommitLogEntry, GetInboxIdsRequest, GroupMessage, KeyPackage, PublishRequest,
    QueryNewestRequest, QueryRequest, SubscribeRequest, SubscribeStaticRequest,
    VerifySmartContractWalletSignaturesRequest, WelcomeMessage,
};
use xmtp_proto::identity::IdentityUpdate;

/// The calls after which a server is replaced, so that what it holds stays small.
const CALLS_OF_ONE_SERVER: usize = 1000;

/// The most frames of one stream, in frames.
const MAX_FRAMES: usize = 256;

/// A server without a socket, kept from call to call.
struct Server {
    runtime: Runtime,
    services: Services,
    calls: usize,
}

impl Server {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().expect("a runtime");
        let config = Config::ephemeral("org.example.fuzz");
        let services = runtime.block_on(Backend::services(&config));
        Self {
            services: services.expect("a server"),
            runtime,
            calls: 0,
        }
    }
}

thread_local! {
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

/// Makes a call and checks the code of its failure.
fn call<T, F: Future<Output = Result<T, Status>>>(make: impl FnOnce(Services) -> F) -> Option<T> {
    SERVER.with_borrow_mut(|slot| {
        let server = slot.get_or_insert_with(Server::start);
        let answer = server.runtime.block_on(make(server.services.clone()));
        server.calls += 1;
        if server.calls >= CALLS_OF_ONE_SERVER {
            *slot = None;
        }
        answer.map_err(|status| check(&status)).ok()
    })
}

/// No bytes may make the server fail by its own fault.
fn check(status: &Status) {
    let is_told = matches!(
        status.code(),
        Code::InvalidArgument
            | Code::OutOfRange
            | Code::Aborted
            | Code::Unavailable
            | Code::ResourceExhausted
            | Code::Unimplemented
    );
    assert!(is_told, "{status:?}");
}

/// A publish as it comes from the wire.
pub(super) fn publish(bytes: &[u8]) {
    if let Ok(request) = PublishRequest::decode(bytes) {
        publish_request(request);
    }
}

/// The inside of each kind of envelope: the first byte names the kind.
pub(super) fn payload(bytes: &[u8]) {
    let Some((kind, inside)) = bytes.split_first() else {
        return;
    };
    let inside = inside.to_vec();
    let payload = match kind % 5 {
        0 => Payload::GroupMessage(GroupMessage {
            data: inside.into(),
            ..GroupMessage::default()
        }),
        1 => Payload::WelcomeMessage(WelcomeMessage::decode(&inside[..]).unwrap_or_default()),
        2 => Payload::KeyPackage(KeyPackage {
            key_package_tls_serialized: inside.into(),
        }),
        3 => Payload::IdentityUpdate(IdentityUpdate::decode(&inside[..]).unwrap_or_default()),
        _ => Payload::CommitLogEntry(CommitLogEntry {
            serialized_commit_log_entry: inside.into(),
            ..CommitLogEntry::default()
        }),
    };
    let payload = Some(payload);
    publish_request(PublishRequest {
        envelopes: vec![ClientEnvelope { payload }],
    });
}

/// What is taken has a record, and is taken again in the same words.
fn publish_request(request: PublishRequest) {
    let count = request.envelopes.len();
    let again = request.clone();
    let Some(first) = call(|services| async move { services.publish(request).await }) else {
        return;
    };
    assert_eq!(first.envelope_metas.len(), count);
    // A new server between the two knows nothing of the first.
    let is_kept = SERVER.with_borrow(Option::is_some);
    let second = call(|services| async move { services.publish(again).await });
    if is_kept {
        assert_eq!(second, Some(first), "the same bytes");
    }
}

pub(super) fn query(bytes: &[u8]) {
    if let Ok(request) = QueryRequest::decode(bytes) {
        call(|services| async move { services.query(request).await });
    }
}

pub(super) fn query_newest(bytes: &[u8]) {
    if let Ok(request) = QueryNewestRequest::decode(bytes) {
        call(|services| async move { services.query_newest(request).await });
    }
}

pub(super) fn inbox_ids(bytes: &[u8]) {
    if let Ok(request) = GetInboxIdsRequest::decode(bytes) {
        let count = request.requests.len();
        let answer = call(|services| async move { services.inbox_ids(request).await });
        assert!(answer.is_none_or(|answer| answer.responses.len() == count));
    }
}

pub(super) fn verify_wallets(bytes: &[u8]) {
    if let Ok(request) = VerifySmartContractWalletSignaturesRequest::decode(bytes) {
        call(|services| async move {
            services
                .verify_smart_contract_wallet_signatures(request)
                .await
        });
    }
}

/// The frames of one stream, each behind its length as one byte; then the client's half ends.
pub(super) fn subscribe(bytes: &[u8]) {
    let mut frames = Vec::new();
    let mut rest = bytes;
    while let Some((length, after)) = rest.split_first() {
        let (frame, after) = after.split_at(after.len().min(usize::from(*length)));
        if let Ok(frame) = SubscribeRequest::decode(frame) {
            frames.push(Ok(frame));
        }
        rest = after;
        if frames.len() == MAX_FRAMES {
            break;
        }
    }
    call(|services| async move {
        let mut answers = services.subscribe(stream::iter(frames)).await?;
        while let Some(answer) = answers.next().await {
            answer?;
        }
        Ok(())
    });
}

/// A stream of fixed topics, up to its first frame.
pub(super) fn subscribe_static(bytes: &[u8]) {
    if let Ok(request) = SubscribeStaticRequest::decode(bytes) {
        call(|services| async move {
            let mut answers = services.subscribe_static(request).await?;
            answers.next().await.transpose().map(drop)
        });
    }
}

/// The text of a configuration file; an error names a field and is one line.
pub(super) fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Err(error) = Config::from_toml(text) {
        assert!(
            !error.field.is_empty() && !error.problem.is_empty(),
            "{error:?}"
        );
        assert!(!error.to_string().contains('\n'), "{error:?}");
    }
}

/// The value of an authorization header.
pub(super) fn credential(bytes: &[u8]) {
    testing::judge_credential(bytes);
}

/// The answer of a key set's address.
pub(super) fn key_set(bytes: &[u8]) {
    if let Ok(keys) = testing::read_key_set(bytes) {
        assert!((1..=64).contains(&keys));
    }
}
