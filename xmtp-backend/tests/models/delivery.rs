//! The model of delivery: from a publish to what a client is sent, with every promise as a property.
//!
//! Each step goes on for good: it moves a writer, the log, the replica, the tailer or the session,
//! and none of them goes back. So every run ends, and "eventually" is what holds where nothing is
//! left to do but what nobody has to do: pruning, and going away.

use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::scope::{After, Scope, Update};
use crate::session::{self, SessionStep};
use crate::state::{Commit, Row, Stage, State, Step, TOPICS};
use crate::store::{self, StoreStep};
use crate::tailer::{self, TailerStep};

/// Each registration gets its topic in order, above its cursor, each row once (STR-010, STR-012).
pub(crate) const IN_ORDER: &str = "what a registration is sent is in order and above its cursor";
/// A floor has passed nothing that was not sent (STR-010, STR-030).
pub(crate) const NOTHING_SKIPPED: &str = "no floor has passed a row that was not sent";
/// (STR-007, STR-008)
pub(crate) const NOTHING_STRAY: &str = "nothing is sent of a registration that is not acknowledged";
/// (STR-006)
pub(crate) const ACKNOWLEDGED_IN_ORDER: &str = "acknowledgements are in the order of updates";
/// (STR-012)
pub(crate) const TARGET_FIXED: &str = "the target of a registration never changes";
/// (STR-010)
pub(crate) const RETIRED_IS_CLOSED: &str = "no id that was given up is stored or can be";
/// (STR-010)
pub(crate) const BOUNDARY_RISES: &str = "the boundary never falls";
/// (STR-111)
pub(crate) const ONE_ID: &str = "the same bytes of a topic have one id";
/// (STR-010)
pub(crate) const TOPIC_RISES: &str = "the rows of a topic become visible in the order of their ids";
/// An id is above all that was visible when its publish began.
pub(crate) const ABOVE_THE_PAST: &str = "an id is above what was visible before it was asked for";
/// (STR-004, STR-010)
pub(crate) const ALL_DELIVERED: &str = "eventually each row is sent or the stream has ended";
/// (STR-006)
pub(crate) const ALL_ACKNOWLEDGED: &str = "eventually each update is acknowledged";
/// (STR-013)
pub(crate) const TARGETS_REACHED: &str = "eventually each target is reached";
pub(crate) const RETIRED: &str = "a gap is given up";
pub(crate) const LATE_ROW: &str = "a late row fills a gap";
pub(crate) const SWITCHED: &str = "a registration goes live with a notice waiting";
pub(crate) const OVERFLOWED: &str = "a notice does not fit the mailbox";
pub(crate) const LAGGING: &str = "the replica lags at an acknowledgement";

/// Threads of one check: the tests run beside each other as well.
const THREADS: usize = 2;

/// The fewest states of a run that proves something.
const LEAST_STATES: usize = 500;

/// The model within a scope.
#[derive(Clone, Debug)]
pub(crate) struct Delivery(pub(crate) Scope);

/// One step of anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnyStep {
    Store(StoreStep),
    Tailer(TailerStep),
    Session(SessionStep),
}

impl Model for Delivery {
    type State = State;
    type Action = AnyStep;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<AnyStep>) {
        let mut steps = Vec::new();
        store::steps(&self.0, state, &mut steps);
        actions.extend(steps.into_iter().map(AnyStep::Store));
        let mut steps = Vec::new();
        tailer::steps(&self.0, state, &mut steps);
        actions.extend(steps.into_iter().map(AnyStep::Tailer));
        let mut steps = Vec::new();
        session::steps(&self.0, state, &mut steps);
        actions.extend(steps.into_iter().map(AnyStep::Session));
    }

    fn next_state(&self, state: &State, step: AnyStep) -> Option<State> {
        let mut state = state.clone();
        match step {
            AnyStep::Store(step) => store::take(&self.0, &mut state, step),
            AnyStep::Tailer(step) => tailer::take(&self.0, &mut state, step),
            AnyStep::Session(step) => session::take(&self.0, &mut state, step),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(IN_ORDER, |_, state: &State| !state.broken.order),
            Property::always(NOTHING_SKIPPED, |_, state: &State| {
                nothing_is_skipped(state)
            }),
            Property::always(NOTHING_STRAY, |_, state: &State| !state.broken.stray),
            Property::always(ACKNOWLEDGED_IN_ORDER, |_, state: &State| {
                !state.broken.acknowledgement
            }),
            Property::always(TARGET_FIXED, |_, state: &State| {
                let mut registrations = state.session.registrations.iter().flatten();
                registrations.all(|registration| registration.target == registration.told)
            }),
            Property::always(RETIRED_IS_CLOSED, |_, state: &State| {
                retired_is_closed(state)
            }),
            Property::always(BOUNDARY_RISES, |_, state: &State| boundary_rises(state)),
            Property::always(ONE_ID, |_, state: &State| bytes_have_one_id(state)),
            Property::always(TOPIC_RISES, |_, state: &State| topics_rise(state)),
            Property::always(ABOVE_THE_PAST, |_, state: &State| {
                ids_are_above_the_past(state)
            }),
            Property::always(ALL_DELIVERED, |model: &Self, state: &State| {
                !model.is_done(state) || owed(state).is_empty()
            }),
            Property::always(ALL_ACKNOWLEDGED, |model: &Self, state: &State| {
                let session = &state.session;
                let all = session.applied == model.0.updates.len();
                !model.is_done(state) || session.is_closed || all
            }),
            Property::always(TARGETS_REACHED, |model: &Self, state: &State| {
                !model.is_done(state) || targets_are_reached(state)
            }),
        ];
        let sometimes = [
            Property::sometimes(RETIRED, |_, state: &State| !state.tailer.retired.is_empty()),
            Property::sometimes(LATE_ROW, |_, state: &State| {
                let batch = state.tailer.batch.as_ref();
                batch.is_some_and(|batch| !batch.probed.is_empty())
            }),
            Property::sometimes(SWITCHED, |_, state: &State| is_about_to_switch(state)),
            Property::sometimes(OVERFLOWED, |_, state: &State| {
                let mut registrations = state.session.registrations.iter().flatten();
                registrations.any(|registration| registration.lagged > 0)
            }),
            Property::sometimes(LAGGING, |_, state: &State| lags_at_acknowledgement(state)),
        ];
        let expected = |property: &Property<Self>| self.0.sometimes.contains(&property.name);
        properties.extend(sometimes.into_iter().filter(expected));
        properties
    }
}

impl Delivery {
    /// Tells whether nothing is left to do that somebody has to do.
    fn is_done(&self, state: &State) -> bool {
        // The answer of most states, without a look at every step.
        if state.replica < state.log.len() || state.tailer.batch.is_some() {
            return false;
        }
        let mut steps = Vec::new();
        self.actions(state, &mut steps);
        steps.iter().all(|step| match step {
            AnyStep::Session(step) => *step == SessionStep::Disconnect,
            AnyStep::Store(step) => matches!(step, StoreStep::Prune(_)),
            AnyStep::Tailer(_) => false,
        })
    }

    /// Checks every property over every order of steps.
    pub(crate) fn check(self) -> usize {
        let checker = self.checker().threads(THREADS).spawn_bfs().join();
        checker.assert_properties();
        checker.unique_state_count()
    }

    /// Checks that leaving out the rule breaks a property.
    pub(crate) fn check_fails(self, property: &'static str) {
        let until = HasDiscoveries::AnyOf([property].into());
        let checker = self
            .checker()
            .threads(THREADS)
            .finish_when(until)
            .spawn_bfs()
            .join();
        let found = checker.discovery(property);
        assert!(found.is_some(), "{property}: holds without the rule");
    }
}

/// Rows that a registration is owed and was not sent.
fn owed(state: &State) -> Vec<Row> {
    let mut rows = state.primary().rows();
    rows.retain(|row| {
        let registration = state.session.registrations[row.topic].as_ref();
        registration.is_some_and(|it| row.id > it.cursor && !it.delivered.contains(row.id))
    });
    rows
}

fn nothing_is_skipped(state: &State) -> bool {
    owed(state).iter().all(|row| {
        let registration = state.session.registrations[row.topic].as_ref();
        registration.is_none_or(|it| it.floor < row.id)
    })
}

fn retired_is_closed(state: &State) -> bool {
    let retired = state.tailer.retired;
    let is_in_flight = |id| {
        let ids = state.writers.iter().map(|writer| writer.step);
        ids.into_iter().any(|step| match step {
            Step::Allocated { id: held, .. } | Step::Early { id: held, .. } => held == id,
            Step::Idle => false,
        })
    };
    retired.iter().all(|id| !is_in_flight(id))
        && state
            .primary()
            .rows()
            .iter()
            .all(|row| !retired.contains(row.id))
}

fn boundary_rises(state: &State) -> bool {
    let boundaries = state.log.iter().filter_map(|commit| match commit {
        Commit::Boundary(id) => Some(*id),
        Commit::Row(_) | Commit::Pruned(_) => None,
    });
    boundaries.is_sorted()
}

fn bytes_have_one_id(state: &State) -> bool {
    let stored: Vec<_> = state
        .primary()
        .stored()
        .map(|row| (row.topic, row.bytes))
        .collect();
    (0..stored.len()).all(|at| !stored[at + 1..].contains(&stored[at]))
}

fn topics_rise(state: &State) -> bool {
    (0..TOPICS).all(|topic| {
        let stored = state.primary().stored();
        stored
            .filter(|row| row.topic == topic)
            .map(|row| row.id)
            .is_sorted()
    })
}

fn ids_are_above_the_past(state: &State) -> bool {
    state.writers.iter().all(|writer| match writer.step {
        Step::Allocated { id, seen } => id > seen,
        Step::Idle | Step::Early { .. } => true,
    })
}

/// A target that is above the cursor names a row that the client gets, or one that a later row of the
/// topic stands for.
fn targets_are_reached(state: &State) -> bool {
    state
        .session
        .registrations
        .iter()
        .flatten()
        .all(|registration| {
            let target = registration.target.unwrap_or(0);
            target <= registration.cursor || registration.delivered.greatest() >= target
        })
}

fn is_about_to_switch(state: &State) -> bool {
    let Some(fetch) = &state.session.fetch else {
        return false;
    };
    let registration = state.session.registrations[fetch.topic].as_ref();
    let waits = |id| id > fetch.through;
    fetch.is_complete
        && registration
            .is_some_and(|it| it.generation == fetch.generation && it.needed <= fetch.through)
        && state
            .session
            .mailbox
            .iter()
            .any(|notice| notice.topic == fetch.topic && waits(notice.id))
}

fn lags_at_acknowledgement(state: &State) -> bool {
    matches!(state.session.update, Some(Stage::HeadsRead(heads))
        if (0..heads.len()).any(|topic| heads[topic] < state.primary().head(topic)
            && state.session.registrations[topic].is_some()))
}

/// Rows of one topic that come late between rows of another.
pub(crate) fn gaps() -> Scope {
    Scope {
        plans: [vec![(0, 1), (0, 2)], vec![(1, 3)]],
        aborts: true,
        updates: vec![Update::Add(vec![(0, After::Id(0))])],
        sometimes: &[RETIRED, LATE_ROW, LAGGING],
        ..Scope::default()
    }
}

/// Enough publishes for a gap that is given up before the next one is there.
pub(crate) fn two_gaps() -> Scope {
    Scope {
        plans: [vec![(0, 1), (0, 2)], vec![(1, 3), (1, 4)]],
        ..gaps()
    }
}

/// Two writers of one topic, one of which repeats what the other sent.
pub(crate) fn retry() -> Scope {
    Scope {
        plans: [vec![(0, 1), (0, 2)], vec![(0, 1)]],
        // Publishes of one topic wait for each other, so none of their rows is late.
        sometimes: &[RETIRED, LAGGING],
        ..gaps()
    }
}

/// A client that adds, removes and adds again while rows arrive.
pub(crate) fn changes() -> Scope {
    Scope {
        plans: [vec![(0, 1), (0, 2)], vec![(1, 3)]],
        aborts: true,
        updates: vec![
            Update::Add(vec![(0, After::Id(0))]),
            Update::Remove(0),
            Update::Add(vec![(0, After::Received)]),
        ],
        disconnects: true,
        sometimes: &[RETIRED, LATE_ROW, LAGGING, SWITCHED, OVERFLOWED],
        ..Scope::default()
    }
}

/// Rows that are pruned before they are fetched.
pub(crate) fn pruning() -> Scope {
    Scope {
        plans: [vec![(0, 1), (0, 2)], vec![]],
        aborts: false,
        prunes: true,
        updates: vec![Update::Add(vec![(0, After::Id(0))])],
        disconnects: false,
        sometimes: &[LAGGING],
        ..changes()
    }
}

/// Two registrations of one session.
pub(crate) fn two_topics() -> Scope {
    Scope {
        plans: [vec![(0, 1)], vec![(1, 2)]],
        aborts: true,
        updates: vec![
            Update::Add(vec![(0, After::Id(0)), (1, After::Id(0))]),
            Update::Remove(1),
        ],
        sometimes: &[RETIRED, LATE_ROW, LAGGING],
        ..Scope::default()
    }
}

/// More of everything, when a longer proof is asked for.
fn larger(scope: Scope) -> Scope {
    let mut scope = scope;
    scope.plans[1].push((0, 4));
    scope
}

/// `XMTP_ROUNDS` above one asks for the longer proof.
fn scopes(scope: Scope) -> Vec<Scope> {
    let rounds = std::env::var("XMTP_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok());
    match rounds.unwrap_or(1) {
        0..=1 => vec![scope],
        _ => vec![scope.clone(), larger(scope)],
    }
}

fn check_all(scope: Scope) {
    for scope in scopes(scope) {
        let states = Delivery(scope).check();
        assert!(states > LEAST_STATES, "{states} states are no proof");
    }
}

/// covers: STR-010
#[test]
fn late_rows_and_gaps() {
    check_all(gaps());
}

#[test]
fn a_retry_beside_its_first_attempt() {
    check_all(retry());
}

/// covers: STR-004, STR-007, STR-008, STR-012
#[test]
fn registrations_that_come_and_go() {
    check_all(changes());
}

#[test]
fn rows_that_are_pruned() {
    check_all(pruning());
}

/// covers: STR-006
#[test]
fn two_registrations_of_one_session() {
    check_all(two_topics());
}
