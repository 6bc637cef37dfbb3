//! Sends against a backend that fails by script: the same bytes until their outcome is known, and
//! no outcome but what ordered processing says.

mod attempts;
mod queue;
mod settle;
mod welcomes;

use prost::Message;
use xmtp_proto::backend::v1;
use xmtp_proto::storage::v1 as stored;

use super::{NewIntent, Queued, SendError, Sent, attempt};
use crate::engine::tests::world::{SECOND, World, group, topic};
use crate::runtime::RuntimeExt;
use crate::testing::scripted::Fault;
use crate::transport::TransportError;

fn joined() -> World {
    let world = World::new();
    world.join(1);
    world
}

/// Sends and drives until the outcome, without any worker: what is received is processed by the
/// sender's own page, or not at all.
fn send(world: &World, intent: NewIntent) -> Result<Sent, SendError> {
    let sender = world.sender();
    world.run(async move { sender.send(intent, 30 * SECOND).await })
}

fn enqueue(world: &World, intent: NewIntent) -> u64 {
    let sender = world.sender();
    match world.run(async move { sender.enqueue(intent).await }) {
        Ok(Queued::Intent(number)) => number,
        other => panic!("not queued: {other:?}"),
    }
}

/// One drive; answers whether the backend took everything.
fn drive(world: &World) -> bool {
    let sender = world.sender();
    world.run(async move { sender.drive(group(1)).await.is_ok() })
}

/// Starts a drive that goes on while time passes.
fn driving(world: &World) {
    let sender = world.sender();
    drop(world.context.runtime.spawn("driving", async move {
        let _ = sender.drive(group(1)).await;
    }));
}

/// Prepares without publishing anything.
fn prepare(world: &World) -> Vec<u64> {
    let processor = &*world.context.processors.group;
    world
        .write(|txn| attempt::prepare(txn, processor, &group(1)))
        .prepared
}

fn state(world: &World, number: u64) -> stored::IntentState {
    world.intent(number).state()
}

fn unavailable() -> Fault {
    Fault::Refuse(TransportError::Unavailable {
        detail: "scripted".to_owned(),
        retry_after: None,
    })
}

fn refusal(index: Option<u32>) -> Fault {
    Fault::Refuse(TransportError::InvalidArgument {
        index,
        reason: None,
        message: "scripted".to_owned(),
    })
}

/// Everything that the backend holds of the group, as exact envelope bytes.
fn published(world: &World) -> Vec<Vec<u8>> {
    let request = v1::QueryRequest {
        queries: vec![v1::TopicQuery {
            topic: Some(topic(1).to_proto()),
            cursor: None,
        }],
        limit: 100,
    };
    let transport = world.context.transport.clone();
    let answer = world.run(async move { transport.query(request).await });
    let envelopes = answer.expect("a page").envelopes.into_iter();
    envelopes
        .map(|envelope| envelope.envelope.unwrap_or_default().encode_to_vec())
        .collect()
}
