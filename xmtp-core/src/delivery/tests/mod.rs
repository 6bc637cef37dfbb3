//! The default consumer, replay and history over the strict memory engine.
//!
//! On the simulated runtime the writer runs inline, so a `next` either answers at its first poll
//! or waits for something that is not there.

mod acknowledge;
mod boundary;
mod cursor;
mod history;
mod lease;
mod model;
mod order;
mod replay;
mod scope;

use std::sync::Arc;

use futures_util::FutureExt;
use xmtp_proto::content::ConversationType;
use xmtp_proto::storage::v1 as stored;
use xmtp_proto::storage::v1::MessageKind;
use xmtp_proto::{GroupId, MessageId};

use super::store;
use super::{Filter, Message, MessageConsumer, Messages, Scope, StreamError};
use crate::processor::NewMessage;
use crate::runtime::{Runtime, SimulatedRuntime};
use crate::storage::schema::TABLES;
use crate::storage::{
    Database, Durability, KeyRange, Order, Page, Storage, StorageError, TableId, WriteTxn,
};
use crate::testing::memory::MemoryDisk;
use crate::welcome;

/// One disk, and one process that has it open.
struct World {
    runtime: SimulatedRuntime,
    disk: MemoryDisk,
    database: Database,
    messages: Messages,
}

impl World {
    fn new() -> Self {
        Self::new_seeded(7)
    }

    fn new_seeded(seed: u64) -> Self {
        let (runtime, disk) = (SimulatedRuntime::new(seed), MemoryDisk::new());
        Self::over(runtime, disk.clone(), disk.open())
    }

    fn over(runtime: SimulatedRuntime, disk: MemoryDisk, storage: Arc<dyn Storage>) -> Self {
        let database = open(storage, &runtime);
        Self {
            messages: Messages::new(database.clone()),
            database,
            runtime,
            disk,
        }
    }

    /// Opens the same disk in another process.
    fn another(&self) -> Self {
        Self::over(self.runtime.clone(), self.disk.clone(), self.disk.open())
    }

    fn put(&self, name: u8, text: &str) -> u64 {
        put(&self.database, name, text)
    }

    /// Stores messages of one group; answers their numbers.
    fn put_texts<const N: usize>(&self, name: u8, texts: [&str; N]) -> [u64; N] {
        texts.map(|text| self.put(name, text))
    }

    /// Stores messages of several groups; answers their numbers.
    fn put_all<const N: usize>(&self, all: [(u8, &str); N]) -> [u64; N] {
        all.map(|(name, text)| self.put(name, text))
    }

    fn change(&self, f: impl FnOnce(&mut WriteTxn<'_>) -> Result<(), StorageError>) {
        self.database.write(Durability::Ordered, f).unwrap();
    }

    /// Marks a message as deleted.
    fn delete(&self, number: u64) {
        self.change(|txn| {
            let mut message = store::message(txn, number)?.unwrap();
            message.deleted = true;
            txn.put(crate::storage::schema::MESSAGE, &number, &message)
        });
    }

    fn set_type(&self, name: u8, kind: ConversationType) {
        self.change(|txn| {
            let record = stored::GroupRecord {
                group_id: group(name).as_bytes().to_vec().into(),
                conversation_type: i32::from(kind) as u32,
                ..Default::default()
            };
            welcome::store::put_group(txn, &group(name), &record)
        });
    }

    /// Answers D of a group.
    fn d(&self, name: u8) -> u64 {
        let read =
            |snapshot: &dyn crate::storage::Snapshot| store::delivered(snapshot, &group(name));
        self.database.read(read).unwrap()
    }

    /// Answers D of a group through a handle of its own, which plans no faults.
    fn peek_d(&self, name: u8) -> u64 {
        let disk = self.disk.open();
        disk.open_tables(TABLES).unwrap();
        let snapshot = disk.snapshot().unwrap();
        store::delivered(&*snapshot, &group(name)).unwrap()
    }

    fn consume(&self, scope: impl Into<Scope>) -> MessageConsumer {
        self.try_consume(scope).unwrap()
    }

    fn try_consume(&self, scope: impl Into<Scope>) -> Result<MessageConsumer, StreamError> {
        let consumer = self.messages.consume(scope, Filter::all());
        consumer.now_or_never().unwrap()
    }

    /// Reads every row of every table but those named.
    fn rows_but(&self, skipped: &[TableId]) -> Vec<(TableId, Vec<u8>, Vec<u8>)> {
        let page = Page {
            rows: 10_000,
            bytes: u32::MAX,
            order: Order::Ascending,
        };
        let everything = KeyRange {
            start: &[],
            end: None,
        };
        let read = |snapshot: &dyn crate::storage::Snapshot| {
            let mut all = Vec::new();
            for table in TABLES.iter().filter(|table| !skipped.contains(&table.id)) {
                let rows = snapshot.scan(table.id, everything, page)?;
                all.extend(rows.iter().map(|(k, v)| (table.id, k.to_vec(), v.to_vec())));
            }
            Ok::<_, StorageError>(all)
        };
        self.database.read(read).unwrap()
    }
}

fn open(storage: Arc<dyn Storage>, runtime: &SimulatedRuntime) -> Database {
    let runtime: Arc<dyn Runtime> = Arc::new(runtime.clone());
    Database::open(storage, runtime).unwrap()
}

fn group(name: u8) -> GroupId {
    GroupId::from_bytes([name; 16])
}

fn groups(names: &[u8]) -> Scope {
    names.iter().copied().map(group).collect()
}

fn message_id(name: u8, text: &str) -> MessageId {
    MessageId::derive(&group(name), text, text.as_bytes())
}

fn new_message(name: u8, text: &str) -> stored::StoredMessage {
    stored::StoredMessage {
        group_id: group(name).as_bytes().to_vec().into(),
        message_id: message_id(name, text).as_bytes().to_vec().into(),
        sender_inbox: "ab".repeat(32),
        kind: MessageKind::Application.into(),
        content: text.as_bytes().to_vec().into(),
        idempotency_key: text.to_owned(),
        ..Default::default()
    }
}

/// Stores a message as ordered processing does; answers its number.
fn put_as(database: &Database, message: stored::StoredMessage) -> Option<u64> {
    let new = NewMessage { message };
    let write = |txn: &mut WriteTxn<'_>| store::insert_message(txn, &new);
    database
        .write::<_, StorageError>(Durability::Ordered, write)
        .unwrap()
}

fn put(database: &Database, name: u8, text: &str) -> u64 {
    put_as(database, new_message(name, text)).unwrap()
}

fn text(message: &Message) -> String {
    String::from_utf8(message.content.to_vec()).unwrap()
}

/// Asks for the next item; `None` when it waits. The request is dropped then.
fn poll(consumer: &mut MessageConsumer) -> Option<Result<Option<String>, StreamError>> {
    let answer = consumer.next().now_or_never()?;
    Some(answer.map(|delivery| delivery.map(|message| text(&message))))
}

/// Asks for the next item, which is there.
#[track_caller]
fn next(consumer: &mut MessageConsumer) -> String {
    poll(consumer).expect("an item").unwrap().expect("no end")
}

/// Takes every item that is there; the last of them stays outstanding no longer.
fn drain(consumer: &mut MessageConsumer) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(answer) = poll(consumer) {
        all.push(answer.unwrap().expect("no end"));
    }
    all
}
