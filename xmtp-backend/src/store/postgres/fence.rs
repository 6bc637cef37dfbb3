//! The fence: after a restore or a promotion that may have lost commits, no id is given again.

use tokio::time::timeout;
use xmtp_proto::id::SequenceId;

use super::connect::Server;
use super::endpoint::identity;
use super::open::transaction;
use super::statements::{BARRIER, LOCK};
use super::{PostgresOptions, SetupError};
use crate::limits::FENCE_SLACK;

const RAISE: &str = include_str!("fence.sql");

/// Raises the sequence far above every id that was ever given, and accepts the database's history.
///
/// - Returns the greatest id that is closed by it; ids go on above.
/// - Waits for publishes that are under way, for as long as they may last and a little more.
/// - Harmless when it was not needed, and so it may be run again when the database fell silent.
pub async fn fence(settings: &PostgresOptions) -> Result<SequenceId, SetupError> {
    let client = Server::parse(&settings.url)?.connect("fence").await?;
    let here = identity(&client).await?;
    if here.is_replica {
        return Err(SetupError::Replica);
    }
    let raise = transaction(&client, || async {
        let sql = "SELECT identifier FROM deployment";
        let stored: String = client.query_one(sql, &[]).await?.try_get(0)?;
        if stored != settings.identifier {
            return Err(SetupError::OtherDeployment);
        }
        client.query(LOCK, &[&BARRIER]).await?;
        let closed: i64 = client.query_one(RAISE, &[]).await?.try_get(0)?;
        let sql = "UPDATE allocation_boundary
            SET closed_sequence_id = greatest(closed_sequence_id, $1)";
        client.execute(sql, &[&closed]).await?;
        let sql = "UPDATE deployment SET system_identifier = $1, timeline = $2";
        client
            .execute(sql, &[&here.system_identifier, &here.timeline])
            .await?;
        Ok(closed)
    });
    let raised = timeout(settings.max_publish_time + FENCE_SLACK, raise).await;
    let closed: i64 = raised.unwrap_or(Err(SetupError::Silent))?;
    Ok(SequenceId::saturating(closed.unsigned_abs()))
}
