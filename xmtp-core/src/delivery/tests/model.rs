//! The consumer against a model of ten lines, over random interleavings.

use proptest::prelude::*;

use super::*;
use crate::storage::verify::verify_database;

const GROUPS: u8 = 4;

/// Everything that may happen around a consumer.
#[derive(Clone, Debug)]
enum Event {
    Store(u8),
    StoreByAnother(u8),
    Delete(usize),
    Next,
    Restart,
    Add(u8),
    Remove(u8),
    SetAll,
    SetGroups(u8),
    SetFilter(bool, bool),
}

/// What the consumer should do, by reading everything each time.
#[derive(Default)]
struct Model {
    rows: Vec<(u64, u8, bool)>,
    d: [u64; GROUPS as usize],
    scope: [bool; GROUPS as usize],
    types: [bool; 2],
    handed: Option<(u64, u8)>,
}

impl Model {
    fn next(&mut self) -> Option<u64> {
        if let Some((number, name)) = self.handed.take() {
            self.d[usize::from(name)] = number;
        }
        for (number, name, is_deleted) in self.rows.iter().copied() {
            let at = usize::from(name);
            if !self.scope[at] || number <= self.d[at] || is_deleted {
                continue;
            }
            if self.types[at % 2] {
                self.handed = Some((number, name));
                return Some(number);
            }
            self.d[at] = number;
        }
        None
    }
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let name = 0..GROUPS;
    let event = prop_oneof![
        6 => name.clone().prop_map(Event::Store),
        2 => name.clone().prop_map(Event::StoreByAnother),
        1 => any::<prop::sample::Index>().prop_map(|at| Event::Delete(at.index(1_000))),
        8 => Just(Event::Next),
        1 => Just(Event::Restart),
        2 => name.clone().prop_map(Event::Add),
        2 => name.prop_map(Event::Remove),
        1 => Just(Event::SetAll),
        1 => (0..1_u8 << GROUPS).prop_map(Event::SetGroups),
        2 => any::<(bool, bool)>().prop_map(|(a, b)| Event::SetFilter(a, b)),
    ];
    prop::collection::vec(event, 1..80)
}

struct Run {
    world: World,
    peer: World,
    model: Model,
    consumer: Option<MessageConsumer>,
}

impl Run {
    fn new() -> Self {
        let world = World::new();
        for name in 0..GROUPS {
            world.set_type(name, type_of(name));
        }
        let model = Model {
            scope: [true; GROUPS as usize],
            types: [true; 2],
            ..Model::default()
        };
        Self {
            peer: world.another(),
            consumer: Some(world.consume(Scope::All)),
            world,
            model,
        }
    }

    fn apply(&mut self, event: &Event) {
        let consumer = self.consumer.as_mut().expect("there is one between events");
        let scope = consumer.scope();
        match *event {
            Event::Store(name) => self.store(name, false),
            Event::StoreByAnother(name) => self.store(name, true),
            Event::Delete(at) => {
                let count = self.model.rows.len().max(1);
                if let Some(row) = self.model.rows.get_mut(at % count) {
                    row.2 = true;
                    self.world.delete(row.0);
                }
            }
            Event::Next => {
                let item = consumer.next().now_or_never();
                let number = item.map(|item| item.unwrap().expect("no end").number);
                assert_eq!(number, self.model.next());
            }
            Event::Restart => self.restart(),
            Event::Add(name) => {
                scope.add([group(name)]);
                self.model.scope[usize::from(name)] = true;
            }
            Event::Remove(name) => {
                scope.remove([group(name)]);
                self.model.scope[usize::from(name)] = false;
            }
            Event::SetAll => {
                scope.set(Scope::All);
                self.model.scope = [true; GROUPS as usize];
            }
            Event::SetGroups(mask) => {
                let named: Vec<u8> = (0..GROUPS).filter(|name| mask & (1 << name) != 0).collect();
                scope.set(groups(&named));
                let is_named = |at| named.contains(&(at as u8));
                self.model.scope = std::array::from_fn(is_named);
            }
            Event::SetFilter(even, odd) => {
                scope.set_filter(filter([even, odd]));
                self.model.types = [even, odd];
            }
        }
    }

    fn store(&mut self, name: u8, by_another: bool) {
        let world = if by_another { &self.peer } else { &self.world };
        let number = world.put(name, &self.model.rows.len().to_string());
        self.model.rows.push((number, name, false));
    }

    /// Drops the consumer with what it holds and starts another of the same scope and filter.
    fn restart(&mut self) {
        self.consumer = None;
        self.model.handed = None;
        let names = (0..GROUPS).filter(|name| self.model.scope[usize::from(*name)]);
        let scope: Scope = names.map(group).collect();
        let consumer = self.world.messages.consume(scope, filter(self.model.types));
        self.consumer = Some(consumer.now_or_never().unwrap().unwrap());
    }

    fn check(&self) {
        let d: Vec<u64> = (0..GROUPS).map(|name| self.world.d(name)).collect();
        assert_eq!(d, self.model.d);
    }
}

fn type_of(name: u8) -> ConversationType {
    match name % 2 {
        0 => ConversationType::Group,
        _ => ConversationType::Dm,
    }
}

fn filter(types: [bool; 2]) -> Filter {
    let admitted = (0..2).filter(|name| types[usize::from(*name)]);
    Filter::conversation_types(admitted.map(type_of))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever is stored, deleted, scoped, filtered and restarted in between, the consumer hands
    /// over what the model does and leaves the same D.
    /// covers: STR-091, STR-092, STR-093, STR-094
    #[test]
    fn the_consumer_does_what_the_model_does(events in events()) {
        let mut run = Run::new();
        for event in &events {
            run.apply(event);
            run.check();
        }
        prop_assert_eq!(verify_database(&run.world.database), Ok(()));
    }
}
