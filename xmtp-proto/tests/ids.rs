//! Ids and topics: exact parsing, and never shown whole.

use proptest::prelude::*;
use xmtp_proto::id::{
    DatabaseId, GroupId, IdError, InboxId, InstallationId, MessageId, SequenceId, Topic, TopicKind,
};

/// Returns every topic that can be made of the two identifiers.
fn topics(short: [u8; 16], long: [u8; 32]) -> [Topic; 6] {
    let group = GroupId::from_bytes(short);
    let installation = InstallationId::from_bytes(long);
    [
        Topic::group(&group),
        Topic::welcome(&installation),
        Topic::welcome_destination(long),
        Topic::identity(&InboxId::from_bytes(long)),
        Topic::key_package(&installation),
        Topic::commit_log(&group),
    ]
}

#[test]
fn kinds_have_the_bytes_and_lengths_of_the_wire() {
    let table: Vec<_> = (0..=u8::MAX)
        .filter_map(|byte| TopicKind::from_byte(byte).map(|kind| (byte, kind)))
        .map(|(byte, kind)| (byte, kind, kind.identifier_len()))
        .collect();
    assert_eq!(
        table,
        [
            (0, TopicKind::Group, 16),
            (1, TopicKind::Welcome, 32),
            (2, TopicKind::Identity, 32),
            (3, TopicKind::KeyPackage, 32),
            (4, TopicKind::CommitLog, 16),
        ]
    );
    assert!(TopicKind::ALL.iter().all(|kind| {
        TopicKind::from_byte(kind.byte()) == Some(*kind) && kind.identifier_len() < Topic::MAX_LEN
    }));
}

#[test]
fn message_id_is_derived_from_all_parts() {
    let group = GroupId::from_bytes(*b"0123456789abcdef");
    // printf '0123456789abcdef\tkey\tcontent' | sha256sum
    assert_eq!(
        MessageId::derive(&group, "key", b"content").to_hex(),
        "a4622df9831967cb7de4e434af85276a3e78799ebbcc9ed602da03016143b9c3"
    );
}

#[test]
fn sequence_ids_end_at_the_greatest_signed_integer() {
    let greatest = (1 << 63) - 1;
    assert_eq!(SequenceId::MAX.get(), greatest);
    assert_eq!(SequenceId::checked(greatest), Ok(SequenceId::MAX));
    assert_eq!(
        SequenceId::checked(greatest + 1),
        Err(IdError::Sequence {
            value: greatest + 1
        })
    );
    assert_eq!(SequenceId::saturating(u64::MAX), SequenceId::MAX);
    assert_eq!(SequenceId::saturating(9), SequenceId::from(9));
    assert_eq!(SequenceId::MAX.next(), None);
    assert_eq!(SequenceId::ZERO.next(), Some(SequenceId::from(1)));
}

/// covers: EXT-007
#[test]
fn debug_is_the_kind_and_a_short_digest() {
    let group = GroupId::from_bytes([7; 16]);
    // head -c 16 /dev/zero | tr '\0' '\7' | sha256sum
    assert_eq!(format!("{group:?}"), "GroupId(#d761d406)");
    assert_eq!(
        format!("{:?}", Topic::group(&group)),
        "Topic(Group #d761d406)"
    );
    assert_eq!(format!("{}", group.short()), "#d761d406");
    assert_eq!(format!("{:?}", SequenceId::from(9)), "SequenceId(9)");
}

proptest! {
    #[test]
    fn topics_parse_back(short: [u8; 16], long: [u8; 32]) {
        for topic in topics(short, long) {
            prop_assert_eq!(Topic::parse(topic.as_bytes()), Ok(topic));
            prop_assert_eq!(Topic::try_from(&topic.to_proto()), Ok(topic));
            prop_assert_eq!(topic.as_bytes()[0], topic.kind().byte());
            prop_assert_eq!(topic.identifier(), &topic.as_bytes()[1..]);
            let is_group = matches!(topic.kind(), TopicKind::Group | TopicKind::CommitLog);
            let group = is_group.then(|| GroupId::from_bytes(short));
            prop_assert_eq!(topic.group_id(), group);
            let is_identity = topic.kind() == TopicKind::Identity;
            let inbox = is_identity.then(|| InboxId::from_bytes(long));
            prop_assert_eq!(topic.inbox_id(), inbox);
        }
    }

    #[test]
    fn only_exact_topics_parse(bytes in prop::collection::vec(any::<u8>(), 0..40), kind in 0u8..8) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        let wanted = TopicKind::from_byte(kind).map(|kind| 1 + kind.identifier_len());
        let parsed = Topic::parse(&bytes);
        prop_assert_eq!(parsed.is_ok(), wanted == Some(bytes.len()));
        if let Ok(topic) = parsed {
            prop_assert_eq!(topic.as_bytes(), &bytes[..]);
        }
    }

    #[test]
    fn topics_order_by_their_bytes(a: [u8; 16], b: [u8; 32], c: [u8; 16], d: [u8; 32]) {
        for left in topics(a, b) {
            for right in topics(c, d) {
                prop_assert_eq!(left.cmp(&right), left.as_bytes().cmp(right.as_bytes()));
                prop_assert_eq!(left == right, left.as_bytes() == right.as_bytes());
            }
        }
    }

    #[test]
    fn ids_take_exactly_their_length(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let slice = bytes.as_slice();
        prop_assert_eq!(GroupId::try_from(slice).is_ok(), slice.len() == GroupId::LEN);
        prop_assert_eq!(DatabaseId::try_from(slice).is_ok(), slice.len() == DatabaseId::LEN);
        prop_assert_eq!(InboxId::try_from(slice).is_ok(), slice.len() == InboxId::LEN);
        prop_assert_eq!(MessageId::try_from(slice).is_ok(), slice.len() == MessageId::LEN);
        let installation = InstallationId::try_from(slice);
        prop_assert_eq!(installation.is_ok(), slice.len() == InstallationId::LEN);
    }

    #[test]
    fn inbox_ids_parse_from_lowercase_hex_only(bytes: [u8; 32]) {
        let inbox = InboxId::from_bytes(bytes);
        let text = inbox.to_hex();
        prop_assert_eq!(text.len(), 64);
        prop_assert_eq!(InboxId::parse_hex(&text), Ok(inbox));
        let error = Err(IdError::Hex { kind: "InboxId", expected: 64 });
        let upper = text.to_uppercase();
        prop_assert_eq!(InboxId::parse_hex(&upper) == error, upper != text);
        prop_assert_eq!(InboxId::parse_hex(&text[1..]), error);
        prop_assert_eq!(InboxId::parse_hex(&format!("{text}00")), error);
        prop_assert_eq!(InboxId::parse_hex(&format!("0x{}", &text[2..])), error);
    }

    #[test]
    fn parts_of_a_message_id_do_not_run_together(group: [u8; 16], key in "[a-z0-9]{0,8}") {
        let group = GroupId::from_bytes(group);
        let longer = format!("{key}1");
        prop_assert_ne!(
            MessageId::derive(&group, &longer, b""),
            MessageId::derive(&group, &key, b"1")
        );
    }

    /// covers: EXT-007
    #[test]
    fn debug_never_shows_an_id(short: [u8; 16], long: [u8; 32]) {
        let group = GroupId::from_bytes(short);
        let mut shown = vec![
            (format!("{group:?}"), group.to_hex()),
            (format!("{:?}", DatabaseId::from_bytes(short)), group.to_hex()),
        ];
        let hex = InboxId::from_bytes(long).to_hex();
        shown.push((format!("{:?}", InboxId::from_bytes(long)), hex.clone()));
        shown.push((format!("{:?}", InstallationId::from_bytes(long)), hex.clone()));
        shown.push((format!("{:?}", MessageId::from_bytes(long)), hex.clone()));
        for topic in topics(short, long) {
            shown.push((format!("{topic:?}"), group.to_hex()));
            shown.push((format!("{topic:?}"), hex.clone()));
        }
        for (text, hex) in shown {
            prop_assert!(!text.contains(&hex));
            prop_assert!(text.len() < 32, "{} is longer than a short form", text);
        }
    }

    /// covers: EXT-007
    #[test]
    fn errors_never_show_an_id(bytes in prop::collection::vec(any::<u8>(), 4..40)) {
        let text = hex::encode(&bytes);
        let errors = [
            Topic::parse(&bytes).err(),
            InboxId::try_from(bytes.as_slice()).err(),
            InboxId::parse_hex(&text).err(),
        ];
        for error in errors.into_iter().flatten() {
            let shown = format!("{error} {error:?}");
            prop_assert!(!shown.contains(&text));
        }
    }
}
