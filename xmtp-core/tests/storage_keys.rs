//! Keys: bytes sort as values do, decode to what was encoded, and never change.

use std::fmt::Debug;

use proptest::collection::vec;
use proptest::prelude::*;
use xmtp_core::storage::{All, Key, KeyError, Prefix2, PrefixOf};
use xmtp_proto::{
    DatabaseId, GroupId, InboxId, InstallationId, MessageId, SequenceId, Topic, TopicKind,
};

fn config() -> ProptestConfig {
    let rounds = std::env::var("XMTP_ROUNDS").ok();
    let rounds: u32 = rounds.and_then(|text| text.parse().ok()).unwrap_or(1);
    ProptestConfig {
        cases: 256 * rounds,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Bytes around every special one.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0), Just(1), Just(0xfe), Just(0xff), any::<u8>()];
    vec(byte, 0..6)
}

fn sequence() -> impl Strategy<Value = SequenceId> {
    let number = prop_oneof![0..4u64, 0..=SequenceId::MAX.get()];
    number.prop_map(|number| SequenceId::checked(number).expect("in range"))
}

fn topic() -> impl Strategy<Value = Topic> {
    (0..5u8, any::<bool>(), any::<[u8; 32]>()).prop_map(|(kind, is_zero, random)| {
        let len = TopicKind::from_byte(kind).expect("a kind").identifier_len();
        let identifier = if is_zero { [0; 32] } else { random };
        Topic::parse(&[&[kind], &identifier[..len]].concat()).expect("a topic")
    })
}

fn group() -> impl Strategy<Value = GroupId> {
    let edge = prop_oneof![Just([0; 16]), Just([0xff; 16]), any::<[u8; 16]>()];
    edge.prop_map(GroupId::from_bytes)
}

fn check<K: Key + Ord + Debug>(left: &K, right: &K) {
    let (one, two) = (left.to_bytes(), right.to_bytes());
    assert_eq!(one.cmp(&two), left.cmp(right), "{left:?} {right:?}");
    assert_eq!(&K::from_bytes(&one).expect("its own bytes"), left);
    let longer = [one.as_slice(), &[0]].concat();
    assert_eq!(K::from_bytes(&longer).err(), Some(KeyError::default()));
    if let Some((_, shorter)) = one.split_last() {
        assert!(K::from_bytes(shorter).is_err(), "{left:?} cut short");
    }
}

/// A prefix names exactly the keys that start with its parts.
fn check_prefix<K: Key, P: PrefixOf<K>>(prefix: &P, key: &K, is_within: bool) {
    let starts = key.to_bytes().starts_with(&prefix.prefix_bytes());
    assert_eq!(starts, is_within);
}

/// Bytes that decode are the bytes that encoding gives.
fn check_canonical<K: Key>(bytes: &[u8]) {
    if let Ok(key) = K::from_bytes(bytes) {
        assert_eq!(key.to_bytes(), bytes);
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn numbers_sort(a: (u8, (u16, (u32, u64))), b: (u8, (u16, (u32, u64)))) {
        check(&a, &b);
        check(&(a.0, 7u64), &(b.0, 7u64));
        check(&a.1.1, &b.1.1);
    }

    #[test]
    fn bytes_sort_whatever_follows(
        a in (bytes(), (any::<u8>(), bytes())),
        b in (bytes(), (any::<u8>(), bytes())),
    ) {
        check(&a, &b);
        check(&a.0, &b.0);
        check(&(a.0.clone(), a.1.0), &(a.0.clone(), b.1.0));
        check_prefix(&a.0, &b, a.0 == b.0);
        check_prefix(&Prefix2(a.0.clone(), a.1.0), &b, (&a.0, a.1.0) == (&b.0, b.1.0));
        check_prefix(&All, &b, true);
    }

    #[test]
    fn topics_sort(a in (topic(), sequence()), b in (topic(), sequence())) {
        check(&a, &b);
        check(&a.0, &b.0);
        check_prefix(&a.0, &b, a.0 == b.0);
    }

    #[test]
    fn groups_sort(
        a in (group(), (any::<u64>(), bytes())),
        b in (group(), (any::<u64>(), bytes())),
    ) {
        check(&a, &b);
        check(&(a.0, a.1.0), &(b.0, b.1.0));
        check_prefix(&a.0, &b, a.0 == b.0);
        check_prefix(&Prefix2(a.0, a.1.0), &b, (a.0, a.1.0) == (b.0, b.1.0));
    }

    #[test]
    fn ids_sort(a: [u8; 32], b: [u8; 32]) {
        check(&a, &b);
        check(&InboxId::from_bytes(a), &InboxId::from_bytes(b));
        check(&InstallationId::from_bytes(a), &InstallationId::from_bytes(b));
        check(&MessageId::from_bytes(a), &MessageId::from_bytes(b));
    }

    #[test]
    fn only_encodings_decode(bytes in vec(prop_oneof![Just(0), Just(0xff), any::<u8>()], 0..40)) {
        check_canonical::<Vec<u8>>(&bytes);
        check_canonical::<(Vec<u8>, (u8, Vec<u8>))>(&bytes);
        check_canonical::<Topic>(&bytes);
        check_canonical::<(Topic, SequenceId)>(&bytes);
        check_canonical::<(GroupId, (u64, Vec<u8>))>(&bytes);
        check_canonical::<u64>(&bytes);
        check_canonical::<()>(&bytes);
    }
}

/// The encodings are part of the file format: a change here needs a migration.
#[test]
fn encodings_never_change() {
    let group = GroupId::from_bytes([0x11; 16]);
    let inbox = InboxId::from_bytes([0x22; 32]);
    let sequence = SequenceId::checked(0x0102).expect("in range");
    let cases: [(&str, Vec<u8>, &str); 12] = [
        ("one", ().to_bytes(), ""),
        ("u8", 7u8.to_bytes(), "07"),
        ("u16", 7u16.to_bytes(), "0007"),
        ("u32", 7u32.to_bytes(), "00000007"),
        ("u64", 7u64.to_bytes(), "0000000000000007"),
        ("sequence", sequence.to_bytes(), "0000000000000102"),
        ("array", [1u8, 0, 255].to_bytes(), "0100ff"),
        ("bytes", vec![1u8, 0, 255].to_bytes(), "0100ffff0000"),
        ("no bytes", Vec::<u8>::new().to_bytes(), "0000"),
        (
            "database",
            DatabaseId::from_bytes([0x33; 16]).to_bytes(),
            "33333333333333333333333333333333",
        ),
        (
            "group topic and sequence",
            (Topic::group(&group), sequence).to_bytes(),
            "00111111111111111111111111111111110000000000000102",
        ),
        (
            "identity topic",
            Topic::identity(&inbox).to_bytes(),
            "022222222222222222222222222222222222222222222222222222222222222222",
        ),
    ];
    for (name, bytes, expected) in cases {
        assert_eq!(hex::encode(bytes), expected, "{name}");
    }
}

/// Neither the error nor its text carries the bytes.
#[test]
fn a_key_error_tells_the_table_alone() {
    let error = u64::from_bytes(&[0xab; 3]).expect_err("too short");
    assert_eq!(error, KeyError::default());
    let table = Some("pending");
    let text = KeyError { table }.to_string();
    assert_eq!(
        text,
        "a key of table pending is damaged; restore the database from a backup"
    );
}
