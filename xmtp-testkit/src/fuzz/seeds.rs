//! Sound inputs of every target, from which a fuzzer begins.

use prost::Message;
use xmtp_proto::backend::v1::client_envelope::Payload;
use xmtp_proto::backend::v1::get_inbox_ids_request::Request as Lookup;
use xmtp_proto::backend::v1::message_hash::Hash;
use xmtp_proto::backend::v1::subscribe_request::{Request, Update};
use xmtp_proto::backend::v1::verify_smart_contract_wallet_signatures_request::Signature;
use xmtp_proto::backend::v1::{
    ClientEnvelope, Cursor, EnvelopeMeta, GetInboxIdsRequest, MessageHash, Ping, Pong,
    PublishRequest, QueryNewestRequest, QueryRequest, QueryResponse, ServerEnvelope,
    SubscribeRequest, SubscribeStaticRequest, Topic, TopicQuery,
    VerifySmartContractWalletSignaturesRequest, WelcomeMessage, welcome_message,
};
use xmtp_proto::content::EncodedContent;
use xmtp_proto::id::GroupId;
use xmtp_proto::identity::IdentityUpdate;

use crate::mls_bytes::{self, Person};

const GROUP: [u8; 16] = [7; 16];

/// The smallest file that is taken, with a value of every kind.
const FILE: &str = r#"[server]
identifier = "org.example.fuzz"
listen = "127.0.0.1:0"
log_level = "warn"
[database]
url = "memory:"
[limits]
max_query_topics = 10
[mls]
commit_log_enabled = true
[chains]
"eip155:1" = "https://example.org"
[auth]
enabled = true
issuers = ["https://example.org"]
[auth.api_keys]
monitor = "0123456789-0123456789-0123456789"
"#;

/// The public key that RFC 8037 gives as its example.
const KEY_SET: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","use":"sig","kid":"a",
"x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
{"kty":"EC","crv":"P-256","alg":"ES256","x":"AA","y":"AA"},{"kty":"RSA","alg":"RS256","n":"AQAB","e":"AQAB"}]}"#;

/// Tokens in their form: three parts, of which the first is `{"alg":"EdDSA"}`.
const CREDENTIALS: [&str; 3] = [
    "Bearer 0123456789-0123456789-0123456789",
    "bearer eyJhbGciOiJFZERTQSJ9.eyJleHAiOjk5OTk5OTk5OTl9.AAAA",
    "Basic YTpi",
];

/// Returns the sound inputs of a target.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    match target {
        "publish" => vec![publish().encode_to_vec()],
        "payload" => publish().envelopes.iter().map(inside).collect(),
        "query" => vec![query().encode_to_vec()],
        "query_newest" => vec![newest().encode_to_vec()],
        "inbox_ids" => vec![inbox_ids().encode_to_vec()],
        "verify_wallets" => vec![verify_wallets().encode_to_vec()],
        "subscribe" => vec![frames()],
        "subscribe_static" => vec![fixed().encode_to_vec()],
        "config" => vec![FILE.into()],
        "credential" => CREDENTIALS.iter().map(|text| (*text).into()).collect(),
        "key_set" => vec![KEY_SET.into()],
        "admission" => vec![page().encode_to_vec()],
        "group_message" => group_messages(),
        "welcome" => vec![welcome().encode_to_vec()],
        "key_package" => vec![key_package()],
        "identity_update" => vec![identity_update().encode_to_vec()],
        "content" => vec![content()],
        "group_turn" => super::turns::messages(),
        "identity_turn" => vec![identity_update().encode_to_vec()],
        "welcome_turn" => super::turns::welcomes(),
        _ => Vec::new(),
    }
}

fn publish() -> PublishRequest {
    let person = Person::new(7);
    PublishRequest {
        envelopes: vec![
            mls_bytes::group_message(GROUP, b"ciphertext"),
            mls_bytes::commit(GROUP, 3, b"ciphertext"),
            ClientEnvelope {
                payload: Some(Payload::WelcomeMessage(welcome())),
            },
            person.key_package(),
            person.create_inbox(1_700_000_000_000_000_000),
        ],
    }
}

/// Takes the inside out of an envelope, behind the byte that names its kind.
fn inside(envelope: &ClientEnvelope) -> Vec<u8> {
    let (kind, inside) = match envelope.payload.as_ref() {
        Some(Payload::GroupMessage(message)) => (0, message.data.to_vec()),
        Some(Payload::WelcomeMessage(message)) => (1, message.encode_to_vec()),
        Some(Payload::KeyPackage(package)) => (2, package.key_package_tls_serialized.to_vec()),
        Some(Payload::IdentityUpdate(update)) => (3, update.encode_to_vec()),
        Some(Payload::CommitLogEntry(entry)) => (4, entry.serialized_commit_log_entry.to_vec()),
        None => (0, Vec::new()),
    };
    [&[kind], &inside[..]].concat()
}

fn topic() -> Topic {
    Topic {
        topic: [&[0], &GROUP[..]].concat().into(),
    }
}

fn from_start() -> TopicQuery {
    TopicQuery {
        topic: Some(topic()),
        cursor: Some(Cursor { sequence_id: 1 }),
    }
}

fn query() -> QueryRequest {
    QueryRequest {
        queries: vec![from_start()],
        limit: 10,
    }
}

fn newest() -> QueryNewestRequest {
    QueryNewestRequest {
        topics: vec![topic()],
        include_full_envelope: true,
    }
}

fn inbox_ids() -> GetInboxIdsRequest {
    let lookup = |identifier: String, identifier_kind| Lookup {
        identifier,
        identifier_kind,
    };
    GetInboxIdsRequest {
        requests: vec![
            lookup(Person::new(7).address(), 1),
            lookup("02".repeat(33), 2),
        ],
    }
}

fn verify_wallets() -> VerifySmartContractWalletSignaturesRequest {
    VerifySmartContractWalletSignaturesRequest {
        signatures: vec![Signature {
            account_id: format!("eip155:1:{}", Person::new(7).address()),
            block_number: Some(1),
            hash: vec![1; 32].into(),
            signature: vec![2; 65].into(),
        }],
    }
}

/// Frames of a stream, each behind its length.
fn frames() -> Vec<u8> {
    let update = |id, adds, removes| Request::Update(Update { id, adds, removes });
    let requests = [
        update(1, vec![from_start()], Vec::new()),
        Request::Ping(Ping { nonce: 1 }),
        Request::Pong(Pong { nonce: 2 }),
        update(2, Vec::new(), vec![topic()]),
    ];
    let mut bytes = Vec::new();
    for request in requests {
        let request = Some(request);
        let frame = SubscribeRequest { request }.encode_to_vec();
        bytes.push(u8::try_from(frame.len()).expect("a short frame"));
        bytes.extend(frame);
    }
    bytes
}

fn fixed() -> SubscribeStaticRequest {
    SubscribeStaticRequest {
        topics: vec![from_start()],
    }
}

fn page() -> QueryResponse {
    let envelope = |id| ServerEnvelope {
        meta: Some(EnvelopeMeta {
            cursor: Some(Cursor { sequence_id: id }),
            server_ns: 1,
            message_hash: Some(MessageHash {
                hash: Some(Hash::Sha256(vec![1; 32].into())),
            }),
            topic: Some(topic()),
            ..EnvelopeMeta::default()
        }),
        envelope: Some(mls_bytes::group_message(GROUP, b"ciphertext")),
    };
    QueryResponse {
        envelopes: vec![envelope(4), envelope(9)],
        continuation: None,
    }
}

fn group_messages() -> Vec<Vec<u8>> {
    let envelopes = publish().envelopes;
    let messages = envelopes
        .iter()
        .filter_map(|envelope| match &envelope.payload {
            Some(Payload::GroupMessage(message)) => Some(message.data.to_vec()),
            _ => None,
        });
    messages.collect()
}

fn welcome() -> WelcomeMessage {
    let inline = welcome_message::V1 {
        installation_key: vec![7; 32].into(),
        data: vec![1; 64].into(),
        hpke_public_key: vec![2; 32].into(),
        wrapper_algorithm: 1,
        welcome_metadata: vec![3; 32].into(),
    };
    WelcomeMessage {
        version: Some(welcome_message::Version::V1(inline)),
    }
}

fn key_package() -> Vec<u8> {
    inside(&Person::new(7).key_package()).split_off(1)
}

fn identity_update() -> IdentityUpdate {
    match Person::new(7).create_inbox(1).payload {
        Some(Payload::IdentityUpdate(update)) => update,
        _ => IdentityUpdate::default(),
    }
}

fn content() -> Vec<u8> {
    let content = EncodedContent {
        content: vec![1; 9].into(),
        ..EncodedContent::default()
    };
    let group = GroupId::from_bytes(GROUP);
    xmtp_mls::content::encode_payload(&group, &content, "key").1
}
