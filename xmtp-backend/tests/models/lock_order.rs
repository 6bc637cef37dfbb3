//! The locks of publishes alone: three transactions, three topics.
//!
//! A publish first inserts the heads that are missing, topic by topic in order, which waits for
//! whoever is inserting the same one; then it locks its heads, again in order. That no circle of
//! waiting can form stands on both orders and on heads that are never deleted.

use stateright::{Checker, Model, Property};

const TRANSACTIONS: usize = 3;
const TOPICS: usize = 3;

/// No circle of waiting.
const NO_DEADLOCK: &str = "while a publish is under way, somebody can go on";
/// What the order of a topic stands on.
const EXCLUSIVE: &str = "a publish that writes has each of its topics for itself";
const CONTENDED: &str = "a publish waits for another";

/// Which rule is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    All,
    /// Topics are taken in the order of the request.
    NotTheOrder,
    /// Heads may be deleted while nobody holds them.
    NotTheHeads,
}

/// The topics of each transaction, in the order of its request.
#[derive(Clone, Debug)]
struct Locks {
    requests: [Vec<usize>; TRANSACTIONS],
    rule: Rule,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    heads: [Head; TOPICS],
    transactions: [Phase; TRANSACTIONS],
    /// How often a head may still be deleted.
    deletions: u8,
}

/// The head of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Head {
    Absent,
    /// Inserted by a transaction that is under way; nobody else sees it.
    Inserted(usize),
    Present {
        locked_by: Option<usize>,
    },
}

/// How far a transaction is: the topics it has passed in the phase it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Inserting(usize),
    Locking(usize),
    Writing,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Go(usize),
    Delete(usize),
}

impl Locks {
    /// The topics of a transaction in the order in which it takes them.
    fn order(&self, transaction: usize) -> Vec<usize> {
        let mut topics = self.requests[transaction].clone();
        if self.rule != Rule::NotTheOrder {
            topics.sort_unstable();
        }
        topics
    }

    /// Returns the head that a transaction is about to take.
    fn next(&self, state: &State, transaction: usize) -> Option<usize> {
        match state.transactions[transaction] {
            Phase::Inserting(passed) | Phase::Locking(passed) => {
                self.order(transaction).get(passed).copied()
            }
            Phase::Writing | Phase::Done => None,
        }
    }

    fn waits(&self, state: &State, transaction: usize) -> bool {
        let Some(topic) = self.next(state, transaction) else {
            return false;
        };
        match (state.transactions[transaction], state.heads[topic]) {
            // An insert waits for the end of another one of the same head, a lock for its holder.
            (Phase::Inserting(_), Head::Inserted(by)) => by != transaction,
            (
                Phase::Locking(_),
                Head::Present {
                    locked_by: Some(by),
                },
            ) => by != transaction,
            _ => false,
        }
    }

    fn go(&self, state: &mut State, transaction: usize) {
        let next = self.next(state, transaction);
        state.transactions[transaction] = match (state.transactions[transaction], next) {
            (Phase::Inserting(passed), Some(topic)) => {
                if state.heads[topic] == Head::Absent {
                    state.heads[topic] = Head::Inserted(transaction);
                }
                Phase::Inserting(passed + 1)
            }
            (Phase::Inserting(_), None) => Phase::Locking(0),
            (Phase::Locking(passed), Some(topic)) => {
                // A head that is not there, or that only its inserter sees, is passed over.
                if let Head::Present { locked_by } = &mut state.heads[topic] {
                    *locked_by = Some(transaction);
                }
                Phase::Locking(passed + 1)
            }
            (Phase::Locking(_), None) => Phase::Writing,
            (Phase::Writing | Phase::Done, _) => {
                for head in &mut state.heads {
                    let is_its_own = *head == Head::Inserted(transaction)
                        || *head
                            == Head::Present {
                                locked_by: Some(transaction),
                            };
                    if is_its_own {
                        *head = Head::Present { locked_by: None };
                    }
                }
                Phase::Done
            }
        };
    }

    fn is_exclusive(&self, state: &State) -> bool {
        (0..TRANSACTIONS).all(|transaction| {
            let has = |topic: &usize| match state.heads[*topic] {
                Head::Inserted(by)
                | Head::Present {
                    locked_by: Some(by),
                } => by == transaction,
                Head::Absent | Head::Present { locked_by: None } => false,
            };
            state.transactions[transaction] != Phase::Writing
                || self.requests[transaction].iter().all(has)
        })
    }
}

impl Model for Locks {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let present = |bits: usize, topic: usize| match bits >> topic & 1 {
            0 => Head::Absent,
            _ => Head::Present { locked_by: None },
        };
        let state = |bits| State {
            heads: std::array::from_fn(|topic| present(bits, topic)),
            transactions: [Phase::Inserting(0); TRANSACTIONS],
            deletions: u8::from(self.rule == Rule::NotTheHeads),
        };
        (0..1 << TOPICS).map(state).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let goes = |transaction: &usize| {
            let is_done = state.transactions[*transaction] == Phase::Done;
            !is_done && !self.waits(state, *transaction)
        };
        actions.extend((0..TRANSACTIONS).filter(goes).map(Action::Go));
        let is_free = |topic: &usize| state.heads[*topic] == Head::Present { locked_by: None };
        if state.deletions > 0 {
            actions.extend((0..TOPICS).filter(is_free).map(Action::Delete));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        match action {
            Action::Go(transaction) => self.go(&mut state, transaction),
            Action::Delete(topic) => {
                state.heads[topic] = Head::Absent;
                state.deletions -= 1;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_DEADLOCK, |model, state| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                let is_done = state.transactions.iter().all(|phase| *phase == Phase::Done);
                is_done || actions.iter().any(|action| matches!(action, Action::Go(_)))
            }),
            Property::always(EXCLUSIVE, |model, state| model.is_exclusive(state)),
            Property::sometimes(CONTENDED, |model, state| {
                (0..TRANSACTIONS).any(|transaction| model.waits(state, transaction))
            }),
        ]
    }
}

/// Every pair of topics twice over, in both orders, and all three at once.
fn requests() -> Vec<[Vec<usize>; TRANSACTIONS]> {
    vec![
        [vec![0, 1, 2], vec![2, 1, 0], vec![1, 0, 2]],
        [vec![0, 1], vec![1, 2], vec![2, 0]],
        [vec![1, 0], vec![0, 1], vec![2, 1, 0]],
    ]
}

#[test]
fn publishes_never_wait_for_each_other_in_a_circle() {
    for requests in requests() {
        let rule = Rule::All;
        let checker = Locks { requests, rule }.checker().spawn_bfs().join();
        checker.assert_properties();
    }
}

#[test]
fn in_the_order_of_the_request_they_would() {
    for requests in requests() {
        let rule = Rule::NotTheOrder;
        let checker = Locks { requests, rule }.checker().spawn_bfs().join();
        assert!(checker.discovery(NO_DEADLOCK).is_some());
    }
}

#[test]
fn a_head_that_is_deleted_leaves_a_topic_to_two() {
    for requests in requests() {
        let rule = Rule::NotTheHeads;
        let checker = Locks { requests, rule }.checker().spawn_bfs().join();
        assert!(checker.discovery(EXCLUSIVE).is_some());
    }
}
