//! Each rule, with a history that breaks it.

use tonic::Code;
use xmtp_proto::identity::IdentityUpdate;

use crate::history::Violation::*;
use crate::history::*;

const A: TopicNumber = 1;
const B: TopicNumber = 2;

fn hash(number: u64) -> [u8; 32] {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&number.to_be_bytes());
    hash
}

fn row(topic: TopicNumber, id: Id) -> Logged {
    Logged {
        topic,
        id,
        hash: hash(id),
        hash_of_bytes: hash(id),
        print: id as Print,
        update: None,
        pruned: false,
    }
}

fn seen(topic: TopicNumber, id: Id) -> Event {
    let print = id as Print;
    Event::Message(Seen { topic, print, id })
}

/// An attempt of one envelope that is stored as `id`; moments are ten times the id.
fn stored(topic: TopicNumber, id: Id) -> Publish {
    Publish {
        attempt: id,
        topic,
        hash: hash(id),
        began: id * 10,
        ended: id * 10 + 1,
        known: 0,
        outcome: Outcome::Stored { id, server_ns: 7 },
    }
}

fn update(id: u64, adds: &[(TopicNumber, Id)], removes: &[TopicNumber], at: Moment) -> Event {
    let (adds, removes) = (adds.to_vec(), removes.to_vec());
    Event::Update {
        id,
        adds,
        removes,
        at,
    }
}

fn applied(id: u64, targets: &[(TopicNumber, Id)], at: Moment) -> Event {
    let targets = targets.to_vec();
    Event::Applied { id, targets, at }
}

/// Topic A has 1, 2, 4 and topic B has 3; everything is as it should be.
fn good() -> History {
    let rows = [(A, 1), (A, 2), (A, 4), (B, 3)];
    let mut stream = vec![
        update(1, &[(A, 0)], &[], 15),
        applied(1, &[(A, 1)], 16),
        seen(A, 1),
        seen(A, 2),
        update(2, &[], &[A], 40),
        update(3, &[(A, 1), (B, 3)], &[], 42),
    ];
    stream.extend([
        applied(2, &[], 43),
        applied(3, &[(A, 4), (B, 3)], 44),
        seen(A, 2),
        seen(A, 4),
        Event::Settled,
        Event::Ended(Code::Ok),
    ]);
    let page = |topics: &[(TopicNumber, Id)], rows: &[(TopicNumber, Id)], has_more| Page {
        sent: 50,
        topics: topics.to_vec(),
        limit: 2,
        rows: rows
            .iter()
            .map(|(topic, id)| Seen {
                topic: *topic,
                print: *id as Print,
                id: *id,
            })
            .collect(),
        has_more,
    };
    History {
        log: rows.map(|(topic, id)| row(topic, id)).to_vec(),
        publishes: rows.map(|(topic, id)| stored(topic, id)).to_vec(),
        streams: vec![stream],
        pages: vec![
            page(&[(A, 0), (B, 0)], &[(A, 1), (A, 2)], true),
            page(&[(A, 2), (B, 0)], &[(A, 4), (B, 3)], false),
        ],
        newest: vec![newest(25, &[(A, 2)]), newest(50, &[(A, 4), (B, 3)])],
        streams_lag: false,
    }
}

/// A look at both topics that finds these rows.
fn newest(sent: Moment, rows: &[(TopicNumber, Id)]) -> Newest {
    let row = |(topic, id): &(TopicNumber, Id)| Seen {
        topic: *topic,
        print: *id as Print,
        id: *id,
    };
    Newest {
        sent,
        topics: vec![A, B],
        rows: rows.iter().map(row).collect(),
    }
}

/// Breaks the good history and tells what is found.
fn broken(change: impl FnOnce(&mut History)) -> Vec<Violation> {
    let mut history = good();
    change(&mut history);
    check(&history).expect_err("it is broken")
}

fn finds(change: impl FnOnce(&mut History), expected: Violation) {
    let found = broken(change);
    assert!(
        found.contains(&expected),
        "{expected:?} is not in {found:?}"
    );
}

#[test]
fn a_good_history_passes() {
    let summary = check(&good()).expect("it is good");
    let expected = Summary {
        rows: 4,
        publishes: 4,
        registrations: 3,
        deliveries: 4,
        pages: 2,
        newest: 2,
    };
    assert_eq!(summary, expected);
}

#[test]
fn a_lost_publish_is_found() {
    let lost = AcknowledgedIsMissing { topic: B, id: 3 };
    finds(|history| history.log.truncate(3), lost);
    finds(
        |history| history.log[3].hash = hash(9),
        AcknowledgedIsMissing { topic: B, id: 3 },
    );
    let moved = AcknowledgedIsMissing { topic: B, id: 5 };
    let elsewhere = Outcome::Stored {
        id: 5,
        server_ns: 7,
    };
    finds(|history| history.publishes[3].outcome = elsewhere, moved);
}

#[test]
fn retries_that_disagree_are_found() {
    let again = |server_ns| {
        move |history: &mut History| {
            let mut retry = history.publishes[0].clone();
            (retry.attempt, retry.began, retry.ended) = (9, 60, 61);
            retry.known = 4;
            retry.outcome = Outcome::Stored { id: 1, server_ns };
            history.publishes.push(retry);
        }
    };
    finds(again(8), RetriesDisagree { topic: A });
    let mut history = good();
    again(7)(&mut history);
    check(&history).expect("a retry that agrees is fine, however late");
}

#[test]
fn a_stored_refusal_is_found() {
    let refuse = |history: &mut History| history.publishes[3].outcome = Outcome::Refused;
    finds(refuse, RefusedIsStored { topic: B, id: 3 });
}

#[test]
fn a_torn_attempt_is_found() {
    let tear = |history: &mut History| {
        let mut other = history.publishes[3].clone();
        history.publishes[3].outcome = Outcome::Unknown;
        (other.outcome, other.hash) = (Outcome::Unknown, hash(77));
        history.publishes.push(other);
    };
    finds(tear, AttemptIsTorn { attempt: 3 });
    let mut history = good();
    history.publishes[3].outcome = Outcome::Unknown;
    check(&history).expect("an unknown attempt may be stored");
    let mut lost = history.publishes[3].clone();
    (lost.attempt, lost.hash) = (78, hash(77));
    history.publishes.push(lost);
    check(&history).expect("or not");
}

#[test]
fn an_invented_row_is_found() {
    let invent = |history: &mut History| history.publishes.truncate(3);
    finds(invent, Invented { topic: B, id: 3 });
}

#[test]
fn a_log_without_order_is_found() {
    let swapped = LogIsNotOrdered { topic: A, id: 2 };
    finds(|history| history.log.swap(1, 2), swapped);
    let shared = LogIsNotOrdered { topic: B, id: 4 };
    finds(|history| history.log[3].id = 4, shared);
}

#[test]
fn a_row_that_is_stored_twice_is_found() {
    let twice = |history: &mut History| {
        let mut again = row(B, 5);
        (again.hash, again.hash_of_bytes) = (hash(3), hash(3));
        history.log.push(again);
    };
    finds(twice, StoredTwice { topic: B, id: 5 });
}

#[test]
fn a_wrong_hash_is_found() {
    let wrong = HashIsWrong { topic: A, id: 2 };
    finds(|history| history.log[1].hash_of_bytes = hash(9), wrong);
}

#[test]
fn an_identity_log_that_does_not_replay_is_found() {
    let empty = |history: &mut History| history.log[3].update = Some(IdentityUpdate::default());
    finds(empty, IdentityLogIsInvalid { topic: B, id: 3 });
}

#[test]
fn a_cause_after_its_effect_is_found() {
    let late = CauseIsAfterEffect { id: 3, known: 4 };
    finds(|history| history.publishes[3].known = 4, late);
}

/// Replaces the events after the second one of the good stream.
fn events(events: Vec<Event>) -> impl FnOnce(&mut History) {
    move |history| {
        history.streams[0].truncate(2);
        history.streams[0].extend(events);
    }
}

#[test]
fn messages_outside_a_registration_are_found() {
    let early = |history: &mut History| history.streams[0].swap(1, 2);
    finds(early, Unregistered { stream: 0, seen: 1 });
    let late = vec![update(2, &[], &[A], 40), applied(2, &[], 41), seen(A, 1)];
    finds(events(late), Unregistered { stream: 0, seen: 1 });
    let other = vec![seen(B, 3)];
    finds(events(other), Unregistered { stream: 0, seen: 3 });
}

#[test]
fn messages_that_are_not_in_the_log_are_found() {
    finds(
        events(vec![seen(A, 9)]),
        Skipped {
            stream: 0,
            missing: 1,
        },
    );
    let invented = vec![seen(A, 1), seen(A, 2), seen(A, 4), seen(A, 5)];
    finds(
        events(invented),
        DeliveredIsNotLogged { stream: 0, seen: 5 },
    );
    let foreign = Event::Message(Seen {
        topic: A,
        print: 0,
        id: 1,
    });
    finds(
        events(vec![foreign]),
        DeliveredIsNotLogged { stream: 0, seen: 1 },
    );
}

#[test]
fn repeated_and_reordered_messages_are_found() {
    let repeated = RepeatedOrReordered { stream: 0, seen: 1 };
    finds(events(vec![seen(A, 1), seen(A, 1)]), repeated.clone());
    finds(events(vec![seen(A, 2), seen(A, 1)]), repeated);
    let below = |history: &mut History| {
        history.streams[0][0] = update(1, &[(A, 1)], &[], 15);
    };
    finds(below, RepeatedOrReordered { stream: 0, seen: 1 });
}

#[test]
fn a_skipped_row_is_found_unless_it_was_pruned() {
    let skip = vec![seen(A, 1), seen(A, 4), Event::Settled];
    finds(
        events(skip.clone()),
        Skipped {
            stream: 0,
            missing: 2,
        },
    );
    let mut history = good();
    events(skip)(&mut history);
    history.log[1].pruned = true;
    check(&history).expect("a pruned row may be missing");
}

#[test]
fn a_missing_end_is_found() {
    let short = vec![seen(A, 1), seen(A, 2), Event::Settled];
    finds(
        events(short),
        EndIsMissing {
            stream: 0,
            missing: 4,
        },
    );
    let mut history = good();
    events(vec![seen(A, 1), Event::Lost])(&mut history);
    check(&history).expect("a lost stream may end anywhere");
}

#[test]
fn acknowledgements_out_of_order_are_found() {
    let swapped = vec![
        update(2, &[], &[A], 40),
        update(3, &[], &[], 41),
        applied(3, &[], 42),
    ];
    finds(
        events(swapped),
        AppliedOutOfOrder {
            stream: 0,
            update: 3,
        },
    );
    let alone = vec![applied(2, &[], 40)];
    finds(
        events(alone),
        AppliedOutOfOrder {
            stream: 0,
            update: 2,
        },
    );
}

#[test]
fn wrong_targets_are_found() {
    let wrong = || TargetsAreWrong {
        stream: 0,
        update: 2,
    };
    let answers: [&[(TopicNumber, Id)]; 3] = [&[], &[(B, 3), (B, 3)], &[(B, 3), (A, 4)]];
    for targets in answers {
        let answer = vec![
            update(2, &[(B, 0), (A, 0)], &[], 40),
            applied(2, targets, 41),
        ];
        finds(events(answer), wrong());
    }
}

#[test]
fn a_target_that_is_no_row_is_found() {
    let target = vec![update(2, &[(B, 0)], &[], 40), applied(2, &[(B, 4)], 41)];
    finds(
        events(target),
        TargetIsNoRow {
            stream: 0,
            target: 4,
        },
    );
}

#[test]
fn a_stale_target_is_found() {
    let add = || vec![update(2, &[(B, 0)], &[], 40), applied(2, &[(B, 0)], 41)];
    let stale = TargetIsStale {
        stream: 0,
        target: 0,
        visible: 3,
    };
    finds(events(add()), stale.clone());
    let mut history = good();
    events(add())(&mut history);
    history.streams_lag = true;
    check(&history).expect("a copy may be behind what is acknowledged");
    let another = vec![update(1, &[(B, 0)], &[], 1), applied(1, &[(B, 3)], 39)];
    history.streams.push(another);
    assert_eq!(check(&history), Err(vec![stale]), "but not behind itself");
}

#[test]
fn an_unlisted_status_is_found() {
    let code = i32::from(Code::Internal);
    let unlisted = StatusIsUnlisted { stream: 0, code };
    finds(events(vec![Event::Ended(Code::Internal)]), unlisted);
}

#[test]
fn a_page_that_is_no_slice_is_found() {
    let changes: [fn(&mut Page); 4] = [
        |page| page.rows = page.rows.split_off(1),
        |page| page.rows.swap(0, 1),
        |page| page.limit = 1,
        |page| page.topics[0].0 = B,
    ];
    for change in changes {
        finds(
            |history| change(&mut history.pages[0]),
            PageIsNoSlice { page: 0 },
        );
    }
}

#[test]
fn a_page_without_an_own_write_is_found() {
    let short = |history: &mut History| history.pages[1].rows.truncate(1);
    finds(
        short,
        PageMissesOwnWrite {
            page: 1,
            missing: 3,
        },
    );
    let mut history = good();
    short(&mut history);
    history.pages[1].sent = 31;
    check(&history).expect("what is not acknowledged yet may be missing");
}

#[test]
fn a_newest_envelope_that_is_none_is_found() {
    let changes: [fn(&mut Newest); 4] = [
        |newest| newest.rows[0].id = 3,
        |newest| newest.rows[0].print = 9,
        |newest| newest.topics = vec![B],
        |newest| newest.rows.push(newest.rows[0]),
    ];
    for change in changes {
        let found = broken(|history| change(&mut history.newest[1]));
        let is_it = |found: &Violation| matches!(found, NewestIsNoRow { read: 1, .. });
        assert!(found.iter().any(is_it), "{found:?}");
    }
}

#[test]
fn a_newest_envelope_that_is_stale_is_found() {
    let stale = |seen, visible| NewestIsStale {
        read: 1,
        seen,
        visible,
    };
    let older = |history: &mut History| history.newest[1] = newest(50, &[(A, 2), (B, 3)]);
    finds(older, stale(2, 4));
    let none = |history: &mut History| history.newest[1] = newest(50, &[(A, 4)]);
    finds(none, stale(0, 3));
    let mut history = good();
    none(&mut history);
    history.streams_lag = true;
    check(&history).expect("a copy may be behind what is acknowledged");
}

#[test]
fn a_page_that_promises_nothing_is_found() {
    let promise = MoreIsNothing { page: 1 };
    finds(|history| history.pages[1].has_more = true, promise);
}
