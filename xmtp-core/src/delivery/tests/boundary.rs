//! The boundary's table, row by row, as a binding sees it.

use super::*;
use crate::delivery::{Boundary, Handoff, Next, Token};
use crate::error::Coded;

fn boundary(world: &World) -> Boundary {
    let boundary = world.messages.boundary(Scope::All, Filter::all());
    boundary.now_or_never().unwrap().unwrap()
}

/// Asks for the next item; `None` when it waits.
fn ask(boundary: &Boundary, ack: Option<Token>) -> Option<Result<Next, StreamError>> {
    boundary.next(ack).now_or_never()
}

#[track_caller]
fn item(boundary: &Boundary, ack: Option<Token>) -> Handoff {
    match ask(boundary, ack) {
        Some(Ok(Next::Handoff(handoff))) => handoff,
        other => panic!("expected an item, got {other:?}"),
    }
}

/// A hand-off whose answer was lost comes again as the same item with the same token.
/// covers: STR-104
#[test]
fn a_lost_hand_off_comes_again_with_its_token() {
    let world = World::new();
    world.put_texts(1, ["a1", "a2"]);
    let boundary = boundary(&world);
    let first = item(&boundary, None);
    assert_eq!(item(&boundary, None), first);
    assert_eq!(world.d(1), 0);
    let second = item(&boundary, Some(first.token));
    assert_eq!(text(&second.message), "a2");
    // The reply to the acknowledgement was lost: it is stored already, and the item comes again.
    assert_eq!(item(&boundary, Some(first.token)), second);
    assert_eq!(world.d(1), first.message.number);
    assert_eq!(ask(&boundary, Some(second.token)), None);
    assert_eq!(ask(&boundary, Some(second.token)), None);
    assert_eq!(world.d(1), second.message.number);
}

/// Any other token is refused and moves nothing: an older one, one never handed out, one of
/// another process.
/// covers: STR-104, STR-096
#[test]
fn any_other_token_is_stale() {
    let world = World::new();
    world.put_texts(1, ["a1", "a2", "a3"]);
    let other = World::new_seeded(9);
    other.put(1, "a1");
    let foreign = item(&self::boundary(&other), None).token;
    let boundary = boundary(&world);
    assert_eq!(
        ask(&boundary, Some(foreign)),
        Some(Err(StreamError::StaleToken))
    );
    let first = item(&boundary, None).token;
    let second = item(&boundary, Some(first)).token;
    let third = item(&boundary, Some(second)).token;
    let d = world.d(1);
    let mut forged = third.to_bytes();
    forged[23] += 1;
    for stale in [first, foreign, Token::from_bytes(&forged)] {
        let error = ask(&boundary, Some(stale)).unwrap().unwrap_err();
        assert_eq!(error.code(), "stream.stale_token");
        assert_eq!(world.d(1), d);
    }
    let carried = Token::from_bytes(&third.to_bytes());
    assert_eq!((carried, ask(&boundary, Some(carried))), (third, None));
    assert!(world.d(1) > d);
}

/// An item that is handed again is judged again: taken out of scope, deleted or filtered
/// meanwhile, it is replaced by the next.
/// covers: STR-022, STR-103, STR-104, STR-093
#[test]
fn an_item_is_judged_again_before_it_is_handed_again() {
    let world = World::new();
    world.set_type(3, ConversationType::Dm);
    world.set_type(4, ConversationType::Group);
    let [a1, b1, c1, _] = world.put_all([(1, "a1"), (2, "b1"), (3, "c1"), (4, "d1")]);
    let boundary = boundary(&world);
    let lost = item(&boundary, None);
    assert_eq!(lost.message.number, a1);
    world.delete(a1);
    let lost = (lost, item(&boundary, None));
    assert_eq!(lost.1.message.number, b1);
    boundary.scope().remove([group(2)]);
    assert_eq!(item(&boundary, None).message.number, c1);
    boundary
        .scope()
        .set_filter(Filter::conversation_types([ConversationType::Group]));
    assert_eq!(text(&item(&boundary, None).message), "d1");
    assert_eq!((world.d(1), world.d(2), world.d(3)), (0, 0, c1));
    for gone in [lost.0.token, lost.1.token] {
        assert_eq!(
            ask(&boundary, Some(gone)),
            Some(Err(StreamError::StaleToken))
        );
    }
}

/// A second request while one waits is refused, and the first is not disturbed.
/// covers: STR-104
#[test]
fn a_second_request_is_refused() {
    let world = World::new();
    let boundary = boundary(&world);
    let mut first = Box::pin(boundary.next(None));
    assert!(first.as_mut().now_or_never().is_none());
    let error = ask(&boundary, None).unwrap().unwrap_err();
    assert_eq!(error.code(), "stream.concurrent_next");
    world.put(1, "a1");
    assert!(matches!(first.now_or_never(), Some(Ok(Next::Handoff(_)))));
}

/// An interrupt answers a request that waits and nothing else; the next request goes on.
/// covers: STR-104
#[test]
fn an_interrupt_answers_what_waits() {
    let world = World::new();
    world.put(1, "a1");
    let boundary = boundary(&world);
    boundary.interrupt();
    let first = item(&boundary, None);
    let mut waiting = Box::pin(boundary.next(Some(first.token)));
    assert!(waiting.as_mut().now_or_never().is_none());
    boundary.interrupt();
    assert_eq!(waiting.now_or_never(), Some(Ok(Next::Interrupted)));
    assert_eq!(world.d(1), first.message.number);
    world.put(1, "a2");
    assert_eq!(text(&item(&boundary, Some(first.token)).message), "a2");
}

/// Closing acknowledges nothing, answers a request that waits, and refuses a late token.
/// covers: STR-104, STR-097
#[test]
fn closing_acknowledges_nothing() {
    let world = World::new();
    let boundary = boundary(&world);
    let mut waiting = Box::pin(boundary.next(None));
    assert!(waiting.as_mut().now_or_never().is_none());
    boundary.close().now_or_never().unwrap().unwrap();
    assert_eq!(waiting.now_or_never(), Some(Ok(Next::End)));
    world.put(1, "a1");
    assert_eq!(ask(&boundary, None), Some(Ok(Next::End)));
    let boundary = self::boundary(&world);
    let handed = item(&boundary, None);
    boundary.close().now_or_never().unwrap().unwrap();
    boundary.close().now_or_never().unwrap().unwrap();
    assert_eq!(
        ask(&boundary, Some(handed.token)),
        Some(Err(StreamError::Closed))
    );
    assert_eq!(world.d(1), 0);
    assert_eq!(drain(&mut world.consume(Scope::All)), ["a1"]);
}

/// Finishing acknowledges the last item and closes; a stale token finishes nothing.
/// covers: STR-104, STR-094
#[test]
fn finishing_acknowledges_the_last_item() {
    let world = World::new();
    let [a1, a2] = world.put_texts(1, ["a1", "a2"]);
    let boundary = boundary(&world);
    let first = item(&boundary, None);
    let second = item(&boundary, Some(first.token));
    drop(item(&boundary, None));
    let stale = Token::from_bytes(&[0; 32]);
    let refused = boundary.finish(stale).now_or_never().unwrap();
    assert_eq!((refused, world.d(1)), (Err(StreamError::StaleToken), a1));
    boundary
        .finish(second.token)
        .now_or_never()
        .unwrap()
        .unwrap();
    assert_eq!(world.d(1), a2);
    drop(world.another().consume(Scope::All));
}
