//! The recordings as they lie in the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use bytes::Bytes;
use openmls::group::GroupContext as MlsContext;
use openmls::prelude::{Extension, Extensions, KeyPackageBundle, UnknownExtension};
use prost::Message;
use serde_json::Value;
use xmtp_proto::backend::v1::WelcomeMessage;
use xmtp_proto::backend::v1::welcome_message::{V1, Version, WelcomePointer};

/// The file, decoded.
pub(crate) struct Recorded {
    json: Value,
}

/// Reads the file once.
pub(crate) fn recorded() -> &'static Recorded {
    static RECORDED: OnceLock<Recorded> = OnceLock::new();
    RECORDED.get_or_init(|| {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/vectors/observer-1.11/vectors.json"
        );
        let text = std::fs::read_to_string(path).unwrap();
        Recorded {
            json: serde_json::from_str(&text).unwrap(),
        }
    })
}

/// A key package with its private halves.
pub(crate) struct KeyPackage {
    pub(crate) installation: Vec<u8>,
    pub(crate) inbox: String,
    pub(crate) hash_ref: Vec<u8>,
    pub(crate) tls: Vec<u8>,
    pub(crate) init_private: Vec<u8>,
    pub(crate) leaf_private: Vec<u8>,
    pub(crate) xwing_seed: Vec<u8>,
}

/// A Welcome on the wire, with what the recorder saw in it.
pub(crate) struct Welcome {
    pub(crate) installation: Vec<u8>,
    pub(crate) message: WelcomeMessage,
    /// Absent for what lies behind a pointer.
    pub(crate) inner: Option<Inner>,
}

/// What the recorder saw in a Welcome.
pub(crate) struct Inner {
    pub(crate) anchor: u64,
    pub(crate) mls: Vec<u8>,
    pub(crate) group: Vec<u8>,
    pub(crate) epoch: u64,
}

/// A group message on the wire.
#[derive(Clone)]
pub(crate) struct GroupMessage {
    pub(crate) sequence: u64,
    pub(crate) server_ns: u64,
    pub(crate) group: Vec<u8>,
    pub(crate) data: Vec<u8>,
    pub(crate) content_type: u64,
}

/// Epochs and authenticators, by group and commit.
pub(crate) type Authenticators = BTreeMap<(Vec<u8>, u64), BTreeSet<(u64, Vec<u8>)>>;

/// What a recorded client made of a message, or derived itself.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) id: Vec<u8>,
    pub(crate) is_application: bool,
    pub(crate) sender: String,
    pub(crate) key: String,
    pub(crate) sent_ns: u64,
    pub(crate) content: Vec<u8>,
}

fn hex(value: &Value) -> Vec<u8> {
    hex::decode(value.as_str().unwrap()).unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().unwrap().iter()
}

impl Recorded {
    pub(crate) fn key_packages(&self) -> Vec<KeyPackage> {
        let privates: BTreeMap<_, _> = list(&self.json["key_package_privates"])
            .map(|entry| (text(&entry["ref"]), entry))
            .collect();
        let packages = list(&self.json["key_packages"]).map(|entry| {
            let private = privates[&text(&entry["ref"])];
            KeyPackage {
                installation: hex(&entry["installation"]),
                inbox: text(&entry["inbox_id"]),
                hash_ref: hex(&entry["ref"]),
                tls: hex(&entry["tls"]),
                init_private: hex(&private["init_private"]),
                leaf_private: hex(&private["leaf_encryption_private"]),
                xwing_seed: hex(&private["xwing_seed"]),
            }
        });
        packages.collect()
    }

    /// Client names by installation.
    pub(crate) fn clients(&self) -> BTreeMap<Vec<u8>, (String, Vec<u8>)> {
        let clients = list(&self.json["installation_keys"]).map(|entry| {
            let seed = hex(&entry["installation_ed25519_seed"]);
            (
                hex(&entry["installation_public"]),
                (text(&entry["client"]), seed),
            )
        });
        clients.collect()
    }

    pub(crate) fn welcomes(&self) -> Vec<Welcome> {
        let welcomes = list(&self.json["welcomes"]).map(|entry| {
            let is_pointer = entry["kind"] == "pointer";
            let inner = entry.get("mls_welcome").map(|mls| Inner {
                anchor: entry["message_cursor"].as_u64().unwrap(),
                mls: hex(mls),
                group: hex(&entry["group_id"]),
                epoch: entry["epoch"].as_u64().unwrap(),
            });
            Welcome {
                installation: hex(&entry["installation_key"]),
                message: renumbered(&hex(&entry["bytes"]), is_pointer),
                inner,
            }
        });
        welcomes.collect()
    }

    pub(crate) fn messages(&self) -> Vec<GroupMessage> {
        let messages = list(&self.json["group_messages"]).map(|entry| GroupMessage {
            sequence: entry["sequence_id"].as_u64().unwrap(),
            server_ns: entry["created_ns"].as_u64().unwrap(),
            group: hex(&entry["group_id"]),
            data: hex(&entry["data"]),
            content_type: entry["content_type"].as_u64().unwrap(),
        });
        let mut messages: Vec<_> = messages.collect();
        messages.sort_by_key(|message| message.sequence);
        messages
    }

    /// What clients saw, by group and sequence id.
    pub(crate) fn seen(&self) -> BTreeMap<(Vec<u8>, u64), Vec<Seen>> {
        let mut seen: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for entry in list(&self.json["oracle"]["messages"]) {
            let at = (
                hex(&entry["group_id"]),
                entry["sequence_id"].as_u64().unwrap(),
            );
            seen.entry(at).or_default().push(Seen {
                id: hex(&entry["id"]),
                is_application: entry["kind"] == 1,
                sender: text(&entry["sender"]),
                key: text(&entry["idempotency_key"]),
                sent_ns: entry["sent_at_ns"].as_u64().unwrap(),
                content: hex(&entry["content"]),
            });
        }
        seen
    }

    /// Authenticators that clients reached, by group and commit; 0 is creation or join.
    pub(crate) fn authenticators(&self) -> Authenticators {
        let mut reached: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for entry in list(&self.json["oracle"]["epochs"]) {
            if entry["result"] != 1 {
                continue;
            }
            let at = (
                hex(&entry["group_id"]),
                entry["commit_sequence_id"].as_u64().unwrap(),
            );
            let epoch = entry["epoch"].as_u64().unwrap();
            reached
                .entry(at)
                .or_default()
                .insert((epoch, hex(&entry["authenticator"])));
        }
        reached
    }

    /// Context extensions at Welcome epochs, with the conversation type.
    pub(crate) fn contexts(&self) -> Vec<(i32, Extensions<MlsContext>)> {
        let contexts = list(&self.json["group_contexts"]).map(|entry| {
            let extensions = entry["extensions"].as_object().unwrap().iter();
            let extensions = extensions.filter_map(|(kind, bytes)| {
                let kind = u16::from_str_radix(kind.trim_start_matches("0x"), 16).unwrap();
                (kind >= 0xf000).then(|| Extension::Unknown(kind, UnknownExtension(hex(bytes))))
            });
            let kind = i32::try_from(entry["type"].as_i64().unwrap()).unwrap();
            (kind, Extensions::from_vec(extensions.collect()).unwrap())
        });
        contexts.collect()
    }
}

/// The older interface has the metadata of a Welcome at field 7; our wire has it at 5.
#[derive(Clone, PartialEq, Message)]
struct OlderV1 {
    #[prost(bytes = "bytes", tag = "1")]
    installation_key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    data: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    hpke_public_key: Bytes,
    #[prost(int32, tag = "4")]
    wrapper_algorithm: i32,
    #[prost(bytes = "bytes", tag = "7")]
    welcome_metadata: Bytes,
}

fn renumbered(bytes: &[u8], is_pointer: bool) -> WelcomeMessage {
    let version = if is_pointer {
        Version::WelcomePointer(WelcomePointer::decode(bytes).unwrap())
    } else {
        let older = OlderV1::decode(bytes).unwrap();
        Version::V1(V1 {
            installation_key: older.installation_key,
            data: older.data,
            hpke_public_key: older.hpke_public_key,
            wrapper_algorithm: older.wrapper_algorithm,
            welcome_metadata: older.welcome_metadata,
        })
    };
    WelcomeMessage {
        version: Some(version),
    }
}

impl KeyPackage {
    /// Makes openmls's bundle, which has no public constructor, through its serde form. The form
    /// of a received package is that of a checked one, so no clock is asked.
    pub(crate) fn bundle(&self) -> KeyPackageBundle {
        use openmls::prelude::{HpkePrivateKey, KeyPackageIn};
        use tls_codec::DeserializeBytes;
        let package = KeyPackageIn::tls_deserialize_exact_bytes(&self.tls).unwrap();
        let private =
            |bytes: &[u8]| serde_json::to_value(HpkePrivateKey::from(bytes.to_vec())).unwrap();
        let bundle = serde_json::json!({
            "key_package": serde_json::to_value(package).unwrap(),
            "private_init_key": private(&self.init_private),
            "private_encryption_key": { "key": private(&self.leaf_private) },
        });
        serde_json::from_value(bundle).unwrap()
    }
}
