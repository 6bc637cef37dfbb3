//! One subscription: its owner, its registrations, and what it sends.

use crate::scope::{After, Fault, Scope, Update};
use crate::state::{
    Fetch, Id, Ids, MAILBOX, Notice, Registration, Row, Session, Snapshot, Stage, State, TOPICS,
    Topic,
};

/// A step of the session or of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionStep {
    /// The next update is validated and put into the registry.
    Begin,
    ReadHeads,
    Acknowledge,
    /// The owner takes one notice, or what overflowed.
    Take,
    Fetch(Topic),
    Fetched,
    Disconnect,
}

pub(crate) fn steps(scope: &Scope, state: &State, steps: &mut Vec<SessionStep>) {
    let session = &state.session;
    if session.is_closed {
        return;
    }
    match session.update {
        None if session.begun < scope.updates.len() => steps.push(SessionStep::Begin),
        None => {}
        Some(Stage::Registered) => steps.push(SessionStep::ReadHeads),
        Some(Stage::HeadsRead(_)) => steps.push(SessionStep::Acknowledge),
    }
    let mut registrations = session.registrations.iter().flatten();
    if !session.mailbox.is_empty() || registrations.any(|registration| registration.lagged > 0) {
        steps.push(SessionStep::Take);
    }
    if session.fetch.is_some() {
        steps.push(SessionStep::Fetched);
    } else {
        let owed = |topic: &Topic| {
            let registration = session.registrations[*topic].as_ref();
            registration.is_some_and(|it| it.target.is_some() && it.floor < it.needed)
        };
        steps.extend((0..TOPICS).filter(owed).map(SessionStep::Fetch));
    }
    if scope.disconnects {
        steps.push(SessionStep::Disconnect);
    }
}

pub(crate) fn take(scope: &Scope, state: &mut State, step: SessionStep) {
    match step {
        SessionStep::Begin => begin(scope, state),
        SessionStep::ReadHeads => {
            let snapshot = served(scope, state);
            let heads = std::array::from_fn(|topic| snapshot.head(topic));
            state.session.update = Some(Stage::HeadsRead(heads));
        }
        SessionStep::Acknowledge => acknowledge(scope, state),
        SessionStep::Take => take_notice(scope, state),
        SessionStep::Fetch(topic) => fetch(scope, state, topic),
        SessionStep::Fetched => fetched(scope, state),
        SessionStep::Disconnect => {
            state.session = Session {
                is_closed: true,
                ..Session::default()
            };
        }
    }
}

/// The database that heads and fetches are read from.
fn served<'a>(scope: &Scope, state: &'a State) -> Snapshot<'a> {
    match scope.fault {
        Some(Fault::TwoReplicas) => Snapshot(&state.log[..state.other_replica]),
        _ => state.seen_by_replica(),
    }
}

/// Tells the session of a row, if the registry has its topic.
pub(crate) fn notice(scope: &Scope, state: &mut State, row: Row) {
    let session = &mut state.session;
    let Some(registration) = &mut session.registrations[row.topic] else {
        return;
    };
    if registration.lagged > 0 {
        registration.lagged = registration.lagged.max(row.id);
    } else if session.mailbox.len() < MAILBOX {
        session.mailbox.push(Notice {
            topic: row.topic,
            generation: registration.generation,
            id: row.id,
        });
    } else if scope.fault != Some(Fault::DroppedNotice) {
        registration.lagged = row.id;
    }
}

fn begin(scope: &Scope, state: &mut State) {
    let session = &mut state.session;
    let update = &scope.updates[session.begun];
    session.begun += 1;
    session.update = Some(Stage::Registered);
    match update {
        Update::Remove(topic) => {
            session.registrations[*topic] = None;
            session.update = Some(Stage::HeadsRead([0; TOPICS]));
        }
        Update::Add(_) if scope.fault == Some(Fault::HeadBeforeRegistration) => {}
        Update::Add(adds) => adds.iter().for_each(|add| register(session, *add)),
    }
}

fn register(session: &mut Session, (topic, after): (Topic, After)) {
    let cursor = match after {
        After::Id(id) => id,
        After::Received => session.received[topic],
    };
    session.generation += 1;
    session.registrations[topic] = Some(Registration {
        generation: session.generation,
        cursor,
        target: None,
        told: None,
        floor: cursor,
        needed: 0,
        is_live: false,
        lagged: 0,
        delivered: Ids::default(),
    });
}

fn acknowledge(scope: &Scope, state: &mut State) {
    let session = &mut state.session;
    let Some(Stage::HeadsRead(heads)) = session.update.take() else {
        return;
    };
    state.broken.acknowledgement |= session.begun != session.applied + 1;
    session.applied += 1;
    let Update::Add(adds) = &scope.updates[session.applied - 1] else {
        return;
    };
    for (topic, after) in adds {
        if scope.fault == Some(Fault::HeadBeforeRegistration) {
            register(session, (*topic, *after));
        }
        let Some(registration) = &mut session.registrations[*topic] else {
            continue;
        };
        let head = heads[*topic];
        registration.target = Some(head);
        registration.told = Some(head);
        registration.needed = registration.needed.max(head);
        registration.is_live = registration.floor >= registration.needed;
    }
}

fn take_notice(scope: &Scope, state: &mut State) {
    let session = &mut state.session;
    if session.mailbox.is_empty() {
        for registration in session.registrations.iter_mut().flatten() {
            registration.needed = registration.needed.max(registration.lagged);
            registration.is_live &= registration.floor >= registration.needed;
            registration.lagged = 0;
        }
        return;
    }
    let notice = session.mailbox.remove(0);
    let checks = scope.fault != Some(Fault::NoGenerationCheck);
    let Some(registration) = &mut session.registrations[notice.topic] else {
        return;
    };
    if checks && registration.generation != notice.generation {
        return;
    }
    if !registration.is_live {
        registration.needed = registration.needed.max(notice.id);
    } else if notice.id > registration.floor {
        registration.floor = notice.id;
        registration.needed = registration.needed.max(notice.id);
        send(state, notice.topic, notice.generation, notice.id);
    }
}

fn fetch(scope: &Scope, state: &mut State, topic: Topic) {
    let Some(registration) = &state.session.registrations[topic] else {
        return;
    };
    let through = registration.needed;
    let owed = registration.floor + 1..=through;
    let rows = served(scope, state).rows();
    let mut found = rows
        .iter()
        .filter(|row| row.topic == topic && owed.contains(&row.id));
    let row = found.next().map_or(0, |row| row.id);
    let fetch = Fetch {
        topic,
        generation: registration.generation,
        row,
        through,
        is_complete: found.next().is_none(),
    };
    state.session.fetch = Some(fetch);
}

fn fetched(scope: &Scope, state: &mut State) {
    let Some(fetch) = state.session.fetch.take() else {
        return;
    };
    let checks = scope.fault != Some(Fault::NoGenerationCheck);
    let registration = &mut state.session.registrations[fetch.topic];
    let is_its_own =
        |it: &&mut Registration| it.generation == fetch.generation && it.target.is_some();
    let registration = match checks {
        true => registration.as_mut().filter(is_its_own),
        false => registration.as_mut(),
    };
    let Some(registration) = registration else {
        if !checks && fetch.row > 0 {
            send(state, fetch.topic, fetch.generation, fetch.row);
        }
        return;
    };
    let is_new = fetch.row > registration.floor;
    registration.floor = registration.floor.max(fetch.row);
    if fetch.is_complete || scope.fault == Some(Fault::FloorAfterACutScan) {
        registration.floor = registration.floor.max(fetch.through);
    }
    registration.is_live = registration.floor >= registration.needed;
    if is_new {
        send(state, fetch.topic, fetch.generation, fetch.row);
    }
}

/// Sends a row, and sees which promises that breaks.
fn send(state: &mut State, topic: Topic, generation: u8, id: Id) {
    let session = &mut state.session;
    session.received[topic] = session.received[topic].max(id);
    let Some(registration) = &mut session.registrations[topic] else {
        // Until a removal is acknowledged, what was queued may still go out.
        state.broken.stray |= session.update.is_none();
        return;
    };
    state.broken.stray |= registration.generation != generation || registration.target.is_none();
    state.broken.order |= id <= registration.cursor || id <= registration.delivered.greatest();
    registration.delivered.insert(id);
}
