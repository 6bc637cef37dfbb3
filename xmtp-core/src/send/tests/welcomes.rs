//! Welcomes that an applied commit owes: exact bytes, each until the backend has it.

use bytes::Bytes;
use prost::Message;
use xmtp_proto::storage::v1::IntentState;

use super::{drive, driving, enqueue, joined, refusal, send, state, unavailable};
use crate::engine::tests::play::Act;
use crate::engine::tests::world::{SECOND, World, change};
use crate::send::SendError;
use crate::testing::scripted::{Call, Fault, INSTALLATION, welcome_envelope};

/// Makes the next own commit owe `count` Welcomes.
fn owe(world: &World, count: usize) -> Vec<Bytes> {
    let envelope = |number: usize| welcome_envelope(&INSTALLATION, &number.to_string());
    let owed: Vec<Bytes> = (0..count)
        .map(|number| envelope(number).encode_to_vec().into())
        .collect();
    world.play.on("commit add", [Act::Owes(owed.clone())]);
    owed
}

/// A send is done when its Welcomes are out, not when its commit is; they survive a restart as
/// exact bytes.
/// covers: STR-110, STR-114
#[test]
fn a_commit_is_done_when_its_welcomes_are_out() {
    let world = joined();
    let owed = owe(&world, 3);
    let number = enqueue(&world, change(1, "commit add"));
    assert!(drive(&world));
    world.sync(1);
    assert_eq!(state(&world, number), IntentState::Committed);
    assert_eq!(world.intent(number).welcomes, owed);
    world.backend.fail(Call::Publish, [unavailable()]);
    assert!(!drive(&world));
    let world = world.another();
    assert_eq!(world.intent(number).welcomes, owed);
    assert!(drive(&world));
    assert_eq!(state(&world, number), IntentState::Processed);
    world.verify();
}

/// Bytes that went out once are those that go out again, also after a power loss.
/// covers: STR-110
#[test]
fn welcomes_are_durable_before_they_are_sent() {
    let world = joined();
    let owed = owe(&world, 3);
    let number = enqueue(&world, change(1, "commit add"));
    assert!(drive(&world));
    world.sync(1);
    assert!(world.disk.unflushed() > 0, "a turn is not flushed");
    world.backend.fail(Call::Publish, [unavailable()]);
    assert!(!drive(&world));
    world.disk.lose_unflushed(0);
    let world = world.another();
    assert_eq!(state(&world, number), IntentState::Committed);
    assert_eq!(world.intent(number).welcomes, owed);
    assert!(drive(&world));
    assert_eq!(state(&world, number), IntentState::Processed);
    world.verify();
}

/// Two processes that send the same Welcomes do not forget each other's rest.
/// covers: STR-112, STR-110
#[test]
fn helpers_forget_only_what_they_sent() {
    let world = joined();
    let peer = world.another();
    // Two requests: one envelope more than a request may have topics.
    let owed = owe(&world, 1_001);
    let number = enqueue(&world, change(1, "commit add"));
    assert!(drive(&world));
    world.sync(1);
    let faults = [
        Fault::Delay(SECOND),
        Fault::Delay(SECOND / 1_000),
        unavailable(),
        unavailable(),
    ];
    world.backend.fail(Call::Publish, faults);
    driving(&world);
    assert!(!drive(&peer), "its second request fails");
    assert_eq!(world.intent(number).welcomes, owed[1_000..]);
    world.wait(5 * SECOND);
    let intent = world.intent(number);
    assert_eq!(
        intent.state(),
        IntentState::Committed,
        "the last one is still owed"
    );
    assert_eq!(intent.welcomes, owed[1_000..]);
    assert!(drive(&world));
    assert_eq!(state(&world, number), IntentState::Processed);
}

/// A Welcome that the backend refuses is not sent again; the others go out, and the outcome says
/// what is missing.
/// covers: STR-114
#[test]
fn a_refused_welcome_is_told() {
    let world = joined();
    owe(&world, 3);
    let go = Fault::Delay(SECOND / 1_000);
    world.backend.fail(Call::Publish, [go, refusal(Some(1))]);
    let error = send(&world, change(1, "commit add")).expect_err("one is missing");
    let reason = "welcome_refused".to_owned();
    assert_eq!(error, SendError::Rejected { reason });
    assert_eq!(world.backend.calls(Call::Publish), 3);
    assert_eq!(world.group(1).epoch, 1, "the commit stands");
}
