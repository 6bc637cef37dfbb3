//! Freezes the bytes of every message that is sent or stored.
//!
//! A changed field number or type makes old data unreadable without any test
//! of behaviour noticing, so one instance of each message, with every field
//! set, is written down in `snapshots/messages.txt`. The instances are built
//! from the descriptors alone and must survive the generated types unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::{env, fs};

use prost::encoding::{WireType, encode_key, encode_varint};
use prost::{Message, Name};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use xmtp_proto::{FILE_DESCRIPTOR_SET, backend, content, identity, storage};

/// Decodes bytes as one message type and encodes them again.
type Roundtrip = fn(&[u8]) -> Vec<u8>;

fn roundtrip<M: Message + Default>(bytes: &[u8]) -> Vec<u8> {
    M::decode(bytes).expect("decodes").encode_to_vec()
}

macro_rules! types {
    ($($module:path: [$($message:path),* $(,)?]);* $(;)?) => {{
        let mut types: BTreeMap<String, Roundtrip> = BTreeMap::new();
        $({
            use $module::*;
            $(types.insert(<$message>::full_name(), roundtrip::<$message>);)*
        })*
        types
    }};
}

fn types() -> BTreeMap<String, Roundtrip> {
    types! {
        backend::v1: [
            AuthConfiguration, auth_configuration::SigningKey, CatchupTarget, ClientEnvelope,
            CommitLogEntry, Continuation, Cursor, EnvelopeMeta, GetConfigurationRequest,
            GetConfigurationResponse, GetInboxIdsRequest, get_inbox_ids_request::Request,
            GetInboxIdsResponse, get_inbox_ids_response::Response, GroupMessage, KeyPackage,
            LimitsConfiguration, MessageHash, MlsConfiguration, Ping, Pong, PublishError,
            PublishRequest, PublishResponse, QueryNewestRequest, QueryNewestResponse,
            query_newest_response::Result, QueryRequest, QueryResponse, RetentionConfiguration,
            ServerEnvelope, SubscribeRequest, subscribe_request::Update, SubscribeResponse,
            subscribe_response::Applied, subscribe_response::Messages,
            subscribe_response::Started, SubscribeStaticRequest, SubscribeStaticResponse,
            subscribe_static_response::Keepalive, subscribe_static_response::Messages,
            subscribe_static_response::Started, Topic, TopicQuery,
            VerifySmartContractWalletSignaturesRequest,
            verify_smart_contract_wallet_signatures_request::Signature,
            VerifySmartContractWalletSignaturesResponse,
            verify_smart_contract_wallet_signatures_response::Response, WelcomeMessage,
            welcome_message::V1, welcome_message::WelcomePointer,
        ];
        identity: [
            AddAssociation, AssociationState, AssociationStateDiff, ChangeRecoveryAddress,
            CreateInbox, IdentityAction, IdentityUpdate, Member, MemberIdentifier, MemberMap,
            Passkey, RecoverableEcdsaSignature, RecoverableEd25519Signature,
            RecoverablePasskeySignature, RevokeAssociation, Signature,
            SmartContractWalletSignature,
        ];
        content: [
            ComponentMetadata, ComponentPermissions, ConsentSave, ContentTypeId, DeleteMessage,
            DmMembers, EditMessage, EncodedContent, GroupMembership, GroupMembershipChanges,
            GroupMembershipEntry, group_membership_entry::V1, GroupMetadataV1,
            GroupMutableMetadataV1, GroupMutablePermissionsV1, GroupUpdated,
            group_updated::Inbox, group_updated::MetadataFieldChange, Inbox, Inboxes,
            LeaveRequest, MembershipChange, MembershipPolicy, membership_policy::AndCondition,
            membership_policy::AnyCondition, MetadataPolicy, metadata_policy::AndCondition,
            metadata_policy::AnyCondition, MlsCredential, MultiRemoteAttachment, OneshotMessage,
            PermissionsUpdatePolicy, permissions_update_policy::AndCondition,
            permissions_update_policy::AnyCondition, PlaintextCommitLogEntry, PlaintextEnvelope,
            plaintext_envelope::V1, plaintext_envelope::V2, PolicySet, ReactionV2, ReaddRequest,
            RemoteAttachmentInfo, WelcomeMetadata, WelcomePointeeEncryptionAeadTypesExtension,
            WelcomePointer, welcome_pointer::WelcomeV1Pointer, WelcomeWrapperEncryption,
        ];
        storage::v1: [
            AccountRecord, Attempt, ConfigurationRecord, Counter, DatabaseRecord, Delivered,
            MemberAddition, MembershipIntent, MetadataIntent, StagedWelcome, WelcomeRecipient,
            Dependency, GroupPrefix, GroupRecord, HeadState, IdentityAt, Intent,
            KeyPackageRecord, KindBudget, Lease, MessageNumbers, PendingEnvelope, Rejection,
            Revision, StoredMessage, TopicRecord, WelcomePointee, WelcomeRetry,
        ];
    }
}

/// The descriptors by full name, without the leading dot.
struct Descriptors {
    messages: BTreeMap<String, DescriptorProto>,
    enums: BTreeMap<String, EnumDescriptorProto>,
}

impl Descriptors {
    fn load() -> Self {
        let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("descriptors decode");
        let mut found = Self {
            messages: BTreeMap::new(),
            enums: BTreeMap::new(),
        };
        for file in set.file {
            let package = file.package().to_owned();
            found.add_enums(&package, file.enum_type);
            found.add_messages(&package, file.message_type);
        }
        found
    }

    fn add_messages(&mut self, scope: &str, messages: Vec<DescriptorProto>) {
        for mut message in messages {
            let name = format!("{scope}.{}", message.name());
            self.add_enums(&name, std::mem::take(&mut message.enum_type));
            self.add_messages(&name, std::mem::take(&mut message.nested_type));
            self.messages.insert(name, message);
        }
    }

    fn add_enums(&mut self, scope: &str, enums: Vec<EnumDescriptorProto>) {
        for item in enums {
            self.enums.insert(format!("{scope}.{}", item.name()), item);
        }
    }

    fn message(&self, name: &str) -> &DescriptorProto {
        &self.messages[name.trim_start_matches('.')]
    }
}

fn is_map_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(|o| o.map_entry())
}

fn is_arm(field: &FieldDescriptorProto) -> bool {
    field.oneof_index.is_some() && !field.proto3_optional()
}

/// Encodes instances whose every field holds its own value.
struct Instance<'a> {
    descriptors: &'a Descriptors,
    last: u64,
}

impl Instance<'_> {
    /// Encodes a message with the given arm of its oneof, or with the first.
    fn message(&mut self, message: &DescriptorProto, arm: Option<&str>) -> Vec<u8> {
        let mut fields: Vec<_> = message.field.iter().collect();
        fields.sort_by_key(|field| field.number());
        let first = message.field.iter().find(|field| is_arm(field));
        let arm = arm.or(first.map(|field| field.name()));

        let mut bytes = Vec::new();
        for field in fields {
            if !is_arm(field) || arm == Some(field.name()) {
                self.field(field, &mut bytes);
            }
        }
        bytes
    }

    fn field(&mut self, field: &FieldDescriptorProto, bytes: &mut Vec<u8>) {
        let number = u32::try_from(field.number()).expect("field numbers are positive");
        let repeated = field.label() == Label::Repeated;
        if !is_length_delimited(field) && !repeated {
            encode_key(number, WireType::Varint, bytes);
            encode_varint(self.scalar(field), bytes);
            return;
        }
        if !is_length_delimited(field) {
            let mut packed = Vec::new();
            encode_varint(self.scalar(field), &mut packed);
            encode_varint(self.scalar(field), &mut packed);
            delimited(number, &packed, bytes);
            return;
        }
        for _ in 0..if repeated { 2 } else { 1 } {
            let value = self.value(field);
            delimited(number, &value, bytes);
        }
    }

    fn scalar(&mut self, field: &FieldDescriptorProto) -> u64 {
        self.last += 1;
        match field.r#type() {
            Type::Bool => 1,
            Type::Uint32 | Type::Uint64 | Type::Int64 => self.last * 1_000,
            Type::Enum => {
                let item = &self.descriptors.enums[field.type_name().trim_start_matches('.')];
                let greatest = item.value.iter().map(|value| value.number()).max();
                greatest.map_or(0, |value| value as u64)
            }
            other => panic!("{other:?} has no sample value"),
        }
    }

    fn value(&mut self, field: &FieldDescriptorProto) -> Vec<u8> {
        if field.r#type() == Type::Message {
            let message = self.descriptors.message(field.type_name());
            return self.message(message, None);
        }
        self.last += 1;
        match field.r#type() {
            Type::String => format!("s{}", self.last).into_bytes(),
            Type::Bytes => vec![0xb0, self.last as u8],
            other => panic!("{other:?} has no sample value"),
        }
    }
}

fn is_length_delimited(field: &FieldDescriptorProto) -> bool {
    matches!(field.r#type(), Type::Message | Type::String | Type::Bytes)
}

fn delimited(number: u32, value: &[u8], bytes: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, bytes);
    encode_varint(value.len() as u64, bytes);
    bytes.extend_from_slice(value);
}

/// Writes one line for each message, or for each arm of its oneof, and one for
/// each enum value.
fn lines(descriptors: &Descriptors) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, roundtrip) in types() {
        let message = descriptors.message(&name);
        let arms: Vec<_> = message.field.iter().filter(|field| is_arm(field)).collect();
        let mut check = |label: String, arm: Option<&str>| {
            let bytes = Instance {
                descriptors,
                last: 0,
            }
            .message(message, arm);
            assert_eq!(roundtrip(&bytes), bytes, "{label} changes on the way");
            lines.push(format!("{label} {}", hex::encode(bytes)));
        };
        if arms.is_empty() {
            check(name, None);
            continue;
        }
        for arm in arms {
            check(format!("{name}[{}]", arm.name()), Some(arm.name()));
        }
    }
    for (name, item) in &descriptors.enums {
        for value in &item.value {
            lines.push(format!("{name} {} = {}", value.name(), value.number()));
        }
    }
    lines
}

#[test]
fn no_message_is_forgotten() {
    let descriptors = Descriptors::load();
    let declared: BTreeSet<String> = descriptors
        .messages
        .iter()
        .filter(|(_, message)| !is_map_entry(message))
        .map(|(name, _)| name.clone())
        .collect();
    let listed: BTreeSet<String> = types().into_keys().collect();
    assert_eq!(listed, declared, "the list of types in this file");
}

#[test]
fn bytes_are_frozen() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/messages.txt");
    let lines = lines(&Descriptors::load());
    if env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&path, lines.join("\n") + "\n").expect("the snapshot can be written");
        return;
    }

    let frozen = fs::read_to_string(&path).expect("the snapshot can be read");
    let frozen: BTreeSet<&str> = frozen.lines().collect();
    let current: BTreeSet<&str> = lines.iter().map(String::as_str).collect();
    let gone: Vec<_> = frozen.difference(&current).collect();
    let new: Vec<_> = current.difference(&frozen).collect();
    assert!(
        gone.is_empty() && new.is_empty(),
        "the bytes of messages changed; old data may become unreadable\n\
         gone: {gone:#?}\nnew: {new:#?}\n\
         if this is meant: UPDATE_SNAPSHOTS=1 cargo test -p xmtp-proto --test snapshot"
    );
}

#[test]
fn retired_names_and_numbers_stay_free() {
    let descriptors = Descriptors::load();
    let reserves = |name: &str, number: i32| {
        let message = descriptors.message(name);
        let mut ranges = message.reserved_range.iter();
        ranges.any(|range| range.start() <= number && number < range.end())
    };
    assert!(reserves("xmtp.backend.v1.GetConfigurationResponse", 9));
    assert!(reserves("xmtp.identity.associations.Signature", 4));

    let set = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).expect("descriptors decode");
    let services: Vec<_> = set.file.iter().flat_map(|file| &file.service).collect();
    let methods: BTreeSet<String> = services
        .iter()
        .flat_map(|service| {
            let methods = service.method.iter();
            methods.map(|method| format!("{}/{}", service.name(), method.name()))
        })
        .collect();
    assert_eq!(
        methods.iter().map(String::as_str).collect::<Vec<_>>(),
        [
            "ConfigurationService/GetConfiguration",
            "IdentityService/GetInboxIds",
            "IdentityService/VerifySmartContractWalletSignatures",
            "PublishService/Publish",
            "QueryService/Query",
            "QueryService/QueryNewest",
            "SubscriptionService/Subscribe",
            "SubscriptionService/SubscribeStatic",
        ]
    );
}
