//! What was published, against the log.

use std::collections::HashMap;

use super::{Found, History, Log, Outcome, Publish, Violation, Visible};

/// Checks every attempt; answers what was acknowledged when.
pub(super) fn check(history: &History, log: &Log<'_>, found: &mut Found) -> Visible {
    let mut order: Vec<&Publish> = history.publishes.iter().collect();
    order.sort_by_key(|publish| (publish.topic, publish.hash, publish.began));
    for attempts in order.chunk_by(|a, b| (a.topic, a.hash) == (b.topic, b.hash)) {
        check_envelope(attempts, log, found);
    }
    check_attempts(history, log, found);
    let published = |topic, hash| {
        let place = order.binary_search_by_key(&(topic, hash), |one| (one.topic, one.hash));
        place.is_ok()
    };
    for row in history
        .log
        .iter()
        .filter(|row| !published(row.topic, row.hash))
    {
        let (topic, id) = (row.topic, row.id);
        found.add(Violation::Invented { topic, id });
    }
    found.summary.publishes = history.publishes.len();

    let mut visible = Visible::default();
    for publish in &history.publishes {
        if let Outcome::Stored { id, .. } = publish.outcome {
            visible.add(publish.topic, publish.ended, id);
        }
    }
    visible.settle();
    visible
}

/// Checks all attempts with the same bytes, the earliest first.
fn check_envelope(attempts: &[&Publish], log: &Log<'_>, found: &mut Found) {
    let Some(first) = attempts.first() else {
        return;
    };
    let topic = first.topic;
    let row = log.keys.get(&(topic, first.hash));
    let mut told = None;
    for attempt in attempts {
        let Outcome::Stored { id, server_ns } = attempt.outcome else {
            continue;
        };
        if row.is_none_or(|row| row.id != id) {
            found.add(Violation::AcknowledgedIsMissing { topic, id });
        }
        if *told.get_or_insert((id, server_ns)) != (id, server_ns) {
            found.add(Violation::RetriesDisagree { topic });
        }
    }
    let Some(row) = row else { return };
    if attempts.iter().all(|one| one.outcome == Outcome::Refused) {
        let id = row.id;
        found.add(Violation::RefusedIsStored { topic, id });
    }
    if row.id <= first.known {
        let (id, known) = (row.id, first.known);
        found.add(Violation::CauseIsAfterEffect { id, known });
    }
}

/// Checks that each attempt is stored whole or not at all.
fn check_attempts(history: &History, log: &Log<'_>, found: &mut Found) {
    let mut stored: HashMap<u64, (usize, usize)> = HashMap::new();
    for publish in &history.publishes {
        let (all, there) = stored.entry(publish.attempt).or_default();
        *all += 1;
        // A refused attempt may hold an envelope that another attempt stored.
        let is_there = log.keys.contains_key(&(publish.topic, publish.hash));
        *there += usize::from(is_there || publish.outcome == Outcome::Refused);
    }
    for (attempt, (all, there)) in stored {
        if there != 0 && there != all {
            found.add(Violation::AttemptIsTorn { attempt });
        }
    }
}
