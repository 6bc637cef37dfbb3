//! The reads of streams: heads and turns, over the endpoint that the tail reads too.

use tokio_postgres::Row;
use xmtp_proto::id::{SequenceId, Topic};

use super::connect::{Failed, Lane, Parameters, Session};
use super::decode::{column, envelope, position};
use super::read::{bigint, integers};
use crate::limits::HEADS_OF_STATEMENT;
use crate::store::ReadError;
use crate::store::record::{Envelope, Served, Turn, TurnBudget, Want};
use crate::store::turn::{Meter, Room};

const HEADS: &str = "
SELECT coalesce(head.last_sequence_id, 0)
FROM unnest($1::bytea[]) WITH ORDINALITY AS given (topic, place)
LEFT JOIN LATERAL (
    SELECT last_sequence_id FROM topic_head WHERE topic_head.topic = given.topic LIMIT 1
) AS head ON true
ORDER BY given.place";

const CANDIDATES: &str = "
SELECT given.place, probe.sequence_id, probe.encoded_len
FROM unnest($1::bytea[], $2::bigint[], $3::bigint[]) WITH ORDINALITY
    AS given (topic, after, through, place)
CROSS JOIN LATERAL (
    SELECT e.sequence_id, e.encoded_len FROM envelope AS e
    WHERE e.topic = given.topic AND e.sequence_id > given.after
        AND e.sequence_id <= given.through
    ORDER BY e.sequence_id LIMIT $4::bigint
) AS probe
ORDER BY given.place, probe.sequence_id";

/// Loads rows that the snapshot has named.
pub(super) const PAYLOADS: &str = "
SELECT e.sequence_id, e.topic, e.message_hash, e.server_ns, e.expiry_ns, e.is_commit_or_proposal,
    e.payload
FROM unnest($1::bigint[]) WITH ORDINALITY AS given (sequence_id, place)
CROSS JOIN LATERAL (
    SELECT * FROM envelope WHERE envelope.sequence_id = given.sequence_id LIMIT 1
) AS e
ORDER BY given.place";

pub(super) async fn heads(lane: &Lane, topics: &[Topic]) -> Result<Vec<SequenceId>, ReadError> {
    let mut heads = Vec::with_capacity(topics.len());
    for topics in topics.chunks(HEADS_OF_STATEMENT) {
        let topics: Vec<&[u8]> = topics.iter().map(Topic::as_bytes).collect();
        for row in lane.select(HEADS, &[&topics]).await? {
            heads.push(position(column(&row, 0)?)?);
        }
    }
    Ok(heads)
}

pub(super) async fn fetch_turn(
    lane: &Lane,
    wants: &[Want],
    budget: TurnBudget,
) -> Result<Turn, ReadError> {
    lane.run(|session| turn_in(session, wants, budget)).await
}

async fn turn_in(
    session: Session,
    wants: &[Want],
    budget: TurnBudget,
) -> Result<(Turn, Session), Failed> {
    let client = &session.lease;
    let candidates = client.prepare_cached(CANDIDATES).await?;
    let payloads = client.prepare_cached(PAYLOADS).await?;
    let topics: Vec<&[u8]> = wants.iter().map(|want| want.topic.as_bytes()).collect();
    let after = integers(wants.iter().map(|want| want.after));
    let through = integers(wants.iter().map(|want| want.through));
    // One more than the share tells whether the range is complete.
    let rows = bigint(budget.topic_rows.saturating_add(1));
    let ranges: &Parameters<'_> = &[&topics, &after, &through, &rows];
    let (begun, found) = tokio::join!(
        biased;
        client.batch_execute(&session.begin),
        client.query(&candidates, ranges),
    );
    begun?;
    let plan = plan(&found?, wants.len(), budget)?;
    let ids: Vec<i64> = plan
        .iter()
        .flat_map(|served| &served.ids)
        .copied()
        .collect();
    let taken: &Parameters<'_> = &[&ids];
    let (rows, ended) = tokio::join!(
        biased;
        client.query(&payloads, taken),
        client.batch_execute("COMMIT"),
    );
    let rows = rows?;
    ended?;
    if rows.len() != ids.len() {
        return Err(ReadError::Broken("a row is not in the snapshot that named it").into());
    }
    let turn = fill(plan, &rows)?;
    Ok((turn, session))
}

/// What a turn takes of one topic.
#[derive(Debug, Default)]
struct Share {
    ids: Vec<i64>,
    complete: bool,
}

/// Measures the candidates and decides what the turn takes.
fn plan(found: &[Row], wants: usize, budget: TurnBudget) -> Result<Vec<Share>, ReadError> {
    let mut meter = Meter::new(budget);
    let mut shares = Vec::new();
    let mut found = found.iter().peekable();
    for place in 1..=bigint(wants) {
        meter.next_topic();
        let mut share = Share {
            ids: Vec::new(),
            complete: true,
        };
        let mut room = Room::Taken;
        while let Some(row) = found.peek() {
            if column::<i64>(row, 0)? != place {
                break;
            }
            if room == Room::Taken {
                let bytes: i32 = column(row, 2)?;
                room = meter.offer(usize::try_from(bytes).unwrap_or(0));
                match room {
                    Room::Taken => share.ids.push(column(row, 1)?),
                    Room::NextTurn => share.complete = false,
                    Room::Unvisited => return Ok(shares),
                }
            }
            found.next();
        }
        shares.push(share);
    }
    Ok(shares)
}

fn fill(plan: Vec<Share>, rows: &[Row]) -> Result<Turn, ReadError> {
    let mut rows = rows.iter().map(|row| envelope(row, 0));
    let served = plan.into_iter().map(|share| {
        let rows = rows.by_ref().take(share.ids.len());
        Ok(Served {
            rows: rows.collect::<Result<Vec<Envelope>, ReadError>>()?,
            complete: share.complete,
        })
    });
    let served = served.collect::<Result<_, ReadError>>()?;
    Ok(Turn { served })
}
